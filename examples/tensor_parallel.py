"""Tensor parallel with DTensor, written for torchrun; with --sequence also sequence parallel: between the split layers
each rank keeps a part of the sequence instead of a copy of all of it.

meshrun --mesh tp=4 examples/tensor_parallel.py --sequence
torchrun --nproc-per-node 4 examples/tensor_parallel.py --sequence

The losses are those of one rank alone."""

import argparse
import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)


class Block(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


def split(model: torch.nn.Sequential, mesh, sequence: bool) -> None:
    """Weights over the ranks of `mesh`; with `sequence` the activations between them too."""
    if sequence:
        block = {
            "norm": SequenceParallel(),
            "up": ColwiseParallel(input_layouts=Shard(1)),
            "down": RowwiseParallel(output_layouts=Shard(1)),
        }
        first = PrepareModuleInput(
            input_layouts=(Replicate(),), desired_input_layouts=(Shard(1),), use_local_output=True
        )
        last = ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate())
    else:
        block = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        first, last = None, ColwiseParallel(output_layouts=Replicate())
    for index, layer in enumerate(model[:-1]):
        parallelize_module(layer, mesh, block)
        if first is not None and index == 0:
            parallelize_module(layer, mesh, first)
    parallelize_module(model[-1], mesh, last)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sequence", action="store_true")
    parser.add_argument("--steps", type=int, default=4)
    args = parser.parse_args()

    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if cuda else "gloo")
    kind = "cuda" if cuda else "cpu"
    mesh = init_device_mesh(kind, (dist.get_world_size(),), mesh_dim_names=("tp",))

    torch.manual_seed(0)
    model = torch.nn.Sequential(Block(16), Block(16), torch.nn.Linear(16, 8)).to(kind)
    split(model, mesh, args.sequence)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    inputs = torch.randn(4, 8, 16, device=kind)  # the same on every rank: batch, sequence, width
    target = torch.randint(8, (4, 8), device=kind)
    for step in range(args.steps):
        loss = torch.nn.functional.cross_entropy(model(inputs).flatten(0, 1), target.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0:
            print(f"step {step}  loss {loss.item():.5f}")
    weight = model[0].up.weight
    total = weight.full_tensor().double().abs().sum().item()
    print(f"rank {dist.get_rank()} has {tuple(weight.to_local().shape)} of {tuple(weight.shape)}, sum {total:.5f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
