"""torchtitan's own mesh code: some of its meshes and their ranks."""

import inspect

import torch
import torch.distributed as dist
import torch.testing._internal.distributed.fake_pg  # torchtitan uses it for dims of size 1
from torchtitan.distributed import ParallelDims, parallel_dims

parallel_dims.device_type = "cpu"  # torchtitan itself knows accelerators only
dist.init_process_group("gloo")
sizes = {"dp_replicate": 1, "dp_shard": 2, "cp": 1, "tp": 2, "pp": 1, "ep": 1, "etp": 1}
known = inspect.signature(ParallelDims).parameters  # they differ between versions
dims = ParallelDims(**{name: sizes[name] for name in sizes if name in known}, world_size=dist.get_world_size())
dims.build_mesh()
for name in ("dp_shard", "tp", "batch", "loss"):
    mesh = dims.get_optional_mesh(name)
    if mesh is not None:
        ranks = dist.get_process_group_ranks(mesh.get_group())
        total = torch.tensor([1.0])
        dist.all_reduce(total, group=mesh.get_group())
        print(name, ranks, int(total), mesh.get_local_rank())
dist.destroy_process_group()
