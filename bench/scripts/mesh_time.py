"""Owns: how long a mesh takes to build: `mesh_time.py DIR ours|plain SIZE,SIZE...`; each rank writes what it saw.
Must not: count the import of torch, or the wait for the slowest rank's start.
Called by: bench.meshes."""

import json
import os
import sys
import time
from pathlib import Path

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import meshrun

here, way, shape = Path(sys.argv[1]), sys.argv[2], tuple(map(int, sys.argv[3].split(",")))
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
# With `--no-init` the store's process starts with its first client; that is no part of building a mesh.
dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False, wait_for_workers=False)
(here / f"there{rank}").touch()
while len(list(here.glob("there*"))) < world:
    time.sleep(0.005)
began = time.time()
if way == "ours":
    mesh = meshrun.mesh()
else:
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("pp", "dp", "tp")[-len(shape) :])
took = time.time()
groups = len(dist.distributed_c10d._world.pg_map)
keys = dist.distributed_c10d._get_default_store().num_keys()
assert mesh.size() == world
(here / f"told{rank}").write_text(json.dumps([began, took, groups, keys]))
dist.barrier()
dist.destroy_process_group()
