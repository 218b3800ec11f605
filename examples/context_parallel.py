"""Context parallel, written for torchrun: each rank has a part of a long sequence; queries stay, keys and values of all
ranks are gathered for the attention, and their gradients go back to the ranks that they came from.

meshrun --mesh cp=4 examples/context_parallel.py
torchrun --nproc-per-node 4 examples/context_parallel.py

The losses are those of one rank alone. (torch's own `context_parallel` needs a GPU: its attention has no CPU form.)"""

import argparse
import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.nn.functional import all_gather

WIDTH, HEADS, LENGTH = 16, 4, 32


class Attention(torch.nn.Module):
    def __init__(self, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.group = group
        self.qkv, self.out = torch.nn.Linear(WIDTH, 3 * WIDTH), torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`x` is this rank's part: batch, its places, width. A place attends to itself and those before it."""
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        k, v = (torch.cat(all_gather(part.contiguous(), group=self.group), 2) for part in (k, v))
        first = dist.get_rank(self.group) * x.shape[1]
        places = torch.arange(first, first + x.shape[1], device=x.device)
        earlier = torch.arange(k.shape[2], device=x.device) <= places[:, None]
        h = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=earlier)
        return self.out(h.transpose(1, 2).flatten(2))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=4)
    args = parser.parse_args()

    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if cuda else "gloo")
    kind, world = "cuda" if cuda else "cpu", dist.get_world_size()
    mesh = init_device_mesh(kind, (world,), mesh_dim_names=("cp",))
    group, place = mesh.get_group("cp"), mesh.get_local_rank("cp")

    torch.manual_seed(0)
    model = torch.nn.Sequential(Attention(group), torch.nn.GELU(), Attention(group)).to(kind)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    inputs, target = torch.randn(2, 2, LENGTH, WIDTH).unbind()
    mine, wanted = (whole.chunk(world, 1)[place].to(kind) for whole in (inputs, target))
    for step in range(args.steps):
        loss = torch.nn.functional.mse_loss(model(mine), wanted)  # the mean over this rank's places
        loss.backward()
        for parameter in model.parameters():  # every rank has all weights, so their gradients are averaged
            dist.all_reduce(parameter.grad, group=group)
            parameter.grad /= world
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach()
        dist.all_reduce(mean, group=group)
        if place == 0:
            print(f"step {step}  loss {mean.item() / world:.5f}")
    total = sum(parameter.double().abs().sum().item() for parameter in model.parameters())
    print(f"rank {dist.get_rank()} had {mine.shape[1]} of {LENGTH} places; weights {total:.5f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
