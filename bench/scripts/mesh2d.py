"""Owns: the script of part start: a 2-D gloo mesh as torch builds it, under any launcher.
Must not: do anything else.
Called by: bench.parts."""

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

mesh = init_device_mesh("cpu", (2, 4), mesh_dim_names=("dp", "tp"))
assert mesh.size() == 8
dist.destroy_process_group()
