"""The job inside: which world it thinks it is in."""

import os

import torch.distributed as dist

import meshrun

mesh = meshrun.init()
print(dist.get_rank(), dist.get_world_size(), meshrun.coords(), os.environ["LOCAL_RANK"], tuple(mesh.shape), flush=True)
dist.destroy_process_group()
