"""A script as one writes it for torchrun, with nothing of meshrun in it: DDP on a linear model.

meshrun --nproc-per-node 4 examples/ddp.py
torchrun --nproc-per-node 4 examples/ddp.py"""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    local_rank = int(os.environ["LOCAL_RANK"])
    cuda = torch.cuda.is_available()
    dist.init_process_group("nccl" if cuda else "gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", local_rank) if cuda else torch.device("cpu")

    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(8, 1).to(device), device_ids=[local_rank] if cuda else None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs, weights = torch.randn(64, 8), torch.randn(8, 1)
    mine = inputs[rank::world_size].to(device)
    target = (inputs @ weights)[rank::world_size].to(device)
    for step in range(20):
        loss = torch.nn.functional.mse_loss(model(mine), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 5 == 0:
            print(f"step {step}  loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
