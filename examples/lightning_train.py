"""Lightning: Trainer, or Fabric with --fabric, as one writes it for torchrun. Needs `pip install lightning`.

meshrun --nproc-per-node 2 examples/lightning_train.py --devices 2
torchrun --nproc-per-node 2 examples/lightning_train.py --devices 2

Lightning wants the number of processes a node as `devices`, and compares it with what the launcher says."""

import argparse
import os
import warnings

import lightning as L
import torch
from torch.utils.data import DataLoader, TensorDataset

KIND = "cuda" if torch.cuda.is_available() else "cpu"


class Model(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 1)

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        x, y = batch
        loss = torch.nn.functional.mse_loss(self.linear(x), y)
        self.log("loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05)


def make_data() -> DataLoader:
    inputs = torch.randn(32, 8, generator=torch.Generator().manual_seed(1))
    return DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=4)


def train_with_trainer(devices: int, nodes: int) -> None:
    L.seed_everything(0, verbose=False)
    model = Model()
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    trainer = L.Trainer(accelerator=KIND, devices=devices, num_nodes=nodes, strategy="ddp", max_epochs=2, **quiet)
    trainer.fit(model, make_data())
    loss, total = trainer.callback_metrics["loss"].item(), model.linear.weight.double().abs().sum().item()
    print(f"rank {trainer.global_rank} of {trainer.world_size}: loss {loss:.5f}, weights {total:.5f}")


def train_with_fabric(devices: int, nodes: int) -> None:
    fabric = L.Fabric(accelerator=KIND, devices=devices, num_nodes=nodes, strategy="ddp")
    fabric.launch()
    fabric.seed_everything(0, verbose=False)
    model = torch.nn.Linear(8, 1)
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.05))
    for x, y in fabric.setup_dataloaders(make_data()):
        loss = torch.nn.functional.mse_loss(model(x), y)
        fabric.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    mean = fabric.all_reduce(loss.detach()).item()
    print(f"rank {fabric.global_rank} of {fabric.world_size}: loss {mean:.5f}, weights {model.weight.abs().sum():.5f}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fabric", action="store_true")
    parser.add_argument("--devices", type=int, default=int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    parser.add_argument("--nodes", type=int, default=int(os.environ.get("GROUP_WORLD_SIZE", "1")))
    args = parser.parse_args()
    warnings.filterwarnings("ignore", ".*num_workers.*")
    (train_with_fabric if args.fabric else train_with_trainer)(args.devices, args.nodes)


if __name__ == "__main__":
    main()
