"""Owns: the script of part start: a 2-D gloo mesh as torch builds it, under any launcher.
Must not: do anything else.
Called by: bench.start."""

import os

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

size = int(os.environ["WORLD_SIZE"])
shape = (1, 1) if size < 2 else (2, size // 2)
dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", shape, mesh_dim_names=("dp", "tp"))
assert mesh.size() == size
dist.destroy_process_group()
