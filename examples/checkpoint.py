"""A distributed checkpoint (DCP) written on one mesh and read on another, in torchrun style.

meshrun --mesh dp=2,tp=2 examples/checkpoint.py --tp 2 --dir /tmp/model
meshrun --nproc-per-node 3 examples/checkpoint.py --tp 1 --dir /tmp/model

Each run goes on from the step that it finds; the losses are those of one run without a break on one rank."""

import argparse
import os

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dir", required=True)
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--steps", type=int, default=3)
    args = parser.parse_args()

    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo")
    kind = "cuda" if cuda else "cpu"
    shape = (dist.get_world_size() // args.tp, args.tp)
    mesh = init_device_mesh(kind, shape, mesh_dim_names=("dp", "tp"))

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.GELU(), torch.nn.Linear(32, 1)).to(kind)
    parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    fully_shard(model, mesh=mesh["dp"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02, foreach=False)

    # get_state_dict makes the optimizer's state before there is any, so that there is something to read into.
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments, "step": 0}
    if os.path.exists(os.path.join(args.dir, ".metadata")):
        dcp.load(state, checkpoint_id=args.dir)
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])

    first = state["step"]
    inputs = torch.randn(12, 8, generator=torch.Generator().manual_seed(1)).to(kind)
    mine = inputs.chunk(shape[0])[mesh.get_local_rank("dp")]
    for step in range(first, first + args.steps):
        loss = torch.nn.functional.mse_loss(model(mine), mine.sin().sum(1, keepdim=True))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach()
        dist.all_reduce(mean, group=mesh.get_group("dp"))
        if dist.get_rank() == 0:
            print(f"step {step}  loss {mean.item() / shape[0]:.5f}")

    weights, moments = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": moments, "step": first + args.steps}, checkpoint_id=args.dir)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
