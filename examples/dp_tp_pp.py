"""Three dims at once, written for torchrun: a pipeline of stages, each split (tensor parallel) and replicated.

meshrun --mesh pp=2,dp=2,tp=2 examples/dp_tp_pp.py
torchrun --nproc-per-node 8 examples/dp_tp_pp.py
meshrun --nproc-per-node 4 examples/dp_tp_pp.py --pp 2 --tp 2

The losses are the same for every mesh."""

import argparse
import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import Schedule1F1B
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

LAYERS, WIDTH, BATCH = 4, 16, 16


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.nn.functional.gelu(self.up(x)))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pp", type=int, default=2)
    parser.add_argument("--tp", type=int, default=2)
    parser.add_argument("--steps", type=int, default=4)
    args = parser.parse_args()

    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    shape = (args.pp, dist.get_world_size() // (args.pp * args.tp), args.tp)
    mesh = init_device_mesh(device.type, shape, mesh_dim_names=("pp", "dp", "tp"))
    pp, dp, _ = mesh.get_coordinate()

    torch.manual_seed(0)  # every rank makes the whole model, then keeps its part
    mine = [Block() for _ in range(LAYERS)][pp * LAYERS // args.pp : (pp + 1) * LAYERS // args.pp]
    module = torch.nn.Sequential(*mine).to(device)
    for block in module:
        parallelize_module(block, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    stage = PipelineStage(module, pp, args.pp, device, group=mesh.get_group("pp"))
    schedule = Schedule1F1B(stage, 2, loss_fn=torch.nn.functional.mse_loss)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.2, foreach=False)

    inputs, target = (whole.chunk(shape[1])[dp] for whole in torch.randn(2, BATCH, WIDTH, device=device).unbind())
    for step in range(args.steps):
        losses: list[torch.Tensor] = []
        schedule.step(
            *([inputs] if stage.is_first else []), **({"target": target, "losses": losses} if stage.is_last else {})
        )
        for parameter in module.parameters():  # over the replicas, after all micro-batches
            gradient = parameter.grad.to_local() if hasattr(parameter.grad, "to_local") else parameter.grad
            dist.all_reduce(gradient, group=mesh.get_group("dp"))
            gradient /= shape[1]
        optimizer.step()
        optimizer.zero_grad()
        if stage.is_last:
            loss = torch.stack(losses).mean()
            dist.all_reduce(loss, group=mesh.get_group("dp"))
            print(f"step {step}  loss {loss.item() / shape[1]:.5f}")
    total = sum(block.up.weight.full_tensor().double().abs().sum().item() for block in module)
    print(f"rank {dist.get_rank()} is pp={pp},dp={dp},tp={mesh.get_local_rank('tp')}; its stage's weights {total:.5f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
