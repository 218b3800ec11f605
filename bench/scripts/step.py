"""Owns: a training step on the CPU, timed: a small transformer, gradients averaged over the ranks.
Must not: know which launcher started it, or how many threads it has.
Called by: bench.bind."""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

WARM, STEPS = 3, 20


def main() -> None:
    """Write the seconds of the fastest step to <folder>/<rank>: whatever else runs on the machine only adds."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True, dropout=0.0)
    model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data = torch.randn(8, 64, 256)
    taken = [_step(model, optimizer, data) for _ in range(WARM + STEPS)][WARM:]
    Path(sys.argv[1], os.environ["RANK"]).write_text(str(min(taken)))
    dist.barrier()
    dist.destroy_process_group()


def _step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, data: torch.Tensor) -> float:
    began = time.perf_counter()
    optimizer.zero_grad()
    (model(data) - data).square().mean().backward()
    if dist.get_world_size() > 1:
        grads = torch.cat([parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None])
        dist.all_reduce(grads)
    optimizer.step()
    return time.perf_counter() - began


main()
