"""Destroy and initialise again, with groups and meshes kept from before; a second init without a destroy is refused."""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

kept = []
for turn in range(2):
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("dp",))
    group = dist.new_group()
    total = torch.tensor([dist.get_rank() + turn])
    dist.all_reduce(total, group=mesh.get_group("dp"))
    dist.all_reduce(total, group=group)
    print(turn, int(total), tuple(mesh.shape), mesh.get_local_rank("dp"))
    try:
        dist.init_process_group("gloo")
    except ValueError as error:
        print(error)
    kept.append(group)
    del mesh
    dist.destroy_process_group()
print(dist.is_initialized())
