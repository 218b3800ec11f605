"""torchtitan's own mesh code: some of its meshes and their ranks."""

import inspect

import torch
import torch.distributed as dist
import torch.testing._internal.distributed.fake_pg  # torchtitan uses it for dims of size 1
from torchtitan.distributed import ParallelDims, parallel_dims

parallel_dims.device_type = "cpu"  # torchtitan itself knows accelerators only
dist.init_process_group("gloo")
asked = dict.fromkeys(inspect.signature(ParallelDims).parameters, 1)  # they differ between versions
dims = ParallelDims(**{**asked, "dp_shard": 2, "tp": 2, "world_size": dist.get_world_size()})
dims.build_mesh()
for name in ("fsdp", "tp", "batch", "loss"):
    mesh = dims.get_optional_mesh(name)
    if mesh is not None:
        ranks = dist.get_process_group_ranks(mesh.get_group())
        total = torch.tensor([1.0])
        dist.all_reduce(total, group=mesh.get_group())
        print(name, ranks, int(total), mesh.get_local_rank())
dist.destroy_process_group()
