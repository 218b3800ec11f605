"""FSDP2 on its own mesh, written for torchrun: parameters sharded, or (--replicate N) hybrid: N copies of the shards.

meshrun --nproc-per-node 4 examples/fsdp2.py
meshrun --mesh replicate=2,shard=2 examples/fsdp2.py --replicate 2
torchrun --nproc-per-node 4 examples/fsdp2.py

With --mesh, the mesh that this script asks for is the one that meshrun has built already."""

import argparse
import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--replicate", type=int, default=1, help="hybrid sharding: copies of the sharded model")
    parser.add_argument("--steps", type=int, default=5)
    args = parser.parse_args()

    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if cuda else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    kind = "cuda" if cuda else "cpu"
    if args.replicate > 1:
        mesh = init_device_mesh(kind, (args.replicate, world // args.replicate), mesh_dim_names=("replicate", "shard"))
    else:
        mesh = init_device_mesh(kind, (world,), mesh_dim_names=("dp",))

    torch.manual_seed(0)
    layers = [torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.GELU()) for _ in range(3)]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(16, 1)).to(kind)
    for layer in layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02, foreach=False)

    inputs = torch.randn(32, 16, generator=torch.Generator().manual_seed(1))
    target = inputs.sin().sum(1, keepdim=True)
    mine, wanted = inputs[rank::world].to(kind), target[rank::world].to(kind)
    for step in range(args.steps):
        loss = torch.nn.functional.mse_loss(model(mine), wanted)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).full_tensor()
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach()
        dist.all_reduce(mean)
        if rank == 0:
            print(f"step {step}  loss {mean.item() / world:.5f}  gradient {norm.item():.5f}")

    total = sum(parameter.full_tensor().double().abs().sum().item() for parameter in model.parameters())
    here = sum(parameter.to_local().numel() for parameter in model.parameters())
    print(f"rank {rank} at {tuple(mesh.get_coordinate())} has {here} parameters; of all, sum {total:.5f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
