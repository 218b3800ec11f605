"""A script that can be started again at any time: it goes on from its last checkpoint.

meshrun --nproc-per-node 4 --max-restarts 3 examples/resume.py --checkpoint model.pt
meshrun --nproc-per-node 4 --time-limit 3600 --signal-workers USR1@60 examples/resume.py --checkpoint model.pt"""

import argparse
import os
import signal

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoint", default="model.pt", help="a file that every rank sees")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--every", type=int, default=10, help="steps between checkpoints")
    parser.add_argument("--fail-at", type=int, default=-1, help="the last rank fails at this step of its first attempt")
    return parser.parse_args()


def save(path: str, step: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Rank 0 writes; the file is whole or the old one, also if the job dies in the middle."""
    if dist.get_rank() == 0:
        state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state, f"{path}.new")
        os.replace(f"{path}.new", path)
        print(f"saved at step {step}", flush=True)
    dist.barrier()


def load(path: str, model: torch.nn.Module, optimizer: torch.optim.Optimizer, device: torch.device) -> int:
    """The step to go on from: 0 without a checkpoint."""
    if not os.path.exists(path):
        return 0
    state = torch.load(path, map_location=device, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["step"])


def main() -> None:
    options = parse()
    asked_to_end: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, frame: asked_to_end.append(number))

    local_rank = int(os.environ["LOCAL_RANK"])
    cuda = torch.cuda.is_available()
    dist.init_process_group("nccl" if cuda else "gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", local_rank) if cuda else torch.device("cpu")

    torch.manual_seed(0)
    inputs, weights = torch.randn(64, 8), torch.randn(8, 1)
    mine, target = inputs[rank::world_size].to(device), (inputs @ weights)[rank::world_size].to(device)
    model = torch.nn.Linear(8, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    first = load(options.checkpoint, model, optimizer, device)
    parallel = DistributedDataParallel(model, device_ids=[local_rank] if cuda else None)
    if rank == 0:
        print(f"from step {first}", flush=True)

    for step in range(first, options.steps):
        if step == options.fail_at and rank == world_size - 1 and os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0":
            raise RuntimeError(f"a fault at step {step}")
        loss = torch.nn.functional.mse_loss(parallel(mine), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        # The signal reaches the ranks at different steps: all end at the step that the first of them sees it in.
        end = torch.tensor(len(asked_to_end), device=device)
        dist.all_reduce(end)
        if end.item() or (step + 1) % options.every == 0 or step + 1 == options.steps:
            save(options.checkpoint, step + 1, model, optimizer)
        if end.item():
            break
    else:
        # Every rank has its part of the data; the mean over all is the loss that one rank alone would see.
        dist.all_reduce(loss := torch.nn.functional.mse_loss(model(mine), target).detach())
        if rank == 0:
            print(f"final loss {loss.item() / world_size:.6f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
