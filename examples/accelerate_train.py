"""Hugging Face accelerate, as one writes it for `accelerate launch` or torchrun. Needs `pip install accelerate`.

meshrun --nproc-per-node 2 examples/accelerate_train.py
torchrun --nproc-per-node 2 examples/accelerate_train.py"""

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    torch.manual_seed(0)
    inputs = torch.randn(32, 8)
    data = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=4)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    model, optimizer, data = accelerator.prepare(model, optimizer, data)
    for epoch in range(3):
        for x, y in data:
            loss = torch.nn.functional.mse_loss(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        mean = accelerator.gather(loss.detach().reshape(1)).mean().item()
        accelerator.print(f"epoch {epoch}  loss {mean:.5f}")
    total = sum(p.double().abs().sum().item() for p in accelerator.unwrap_model(model).parameters())
    state = accelerator.state
    print(
        f"rank {accelerator.process_index} of {accelerator.num_processes}, {state.distributed_type.value}: {total:.5f}"
    )
    accelerator.end_training()


if __name__ == "__main__":
    main()
