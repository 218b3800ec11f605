"""torch's own context_parallel, up to the point where it needs a GPU: its attention has no form for the CPU."""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental import context_parallel

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("cp",))
q, k, v = torch.randn(3, 2, 4, 32, 16).unbind()
with context_parallel(mesh, buffers=[q, k, v], buffer_seq_dims=[2, 2, 2]):
    print(tuple(q.shape), mesh.get_local_rank("cp"))
    try:
        torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        print("done")
    except NotImplementedError as error:
        print("needs a GPU:", str(error)[:60])
dist.destroy_process_group()
