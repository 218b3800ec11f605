"""Megatron-core's groups for tensor, pipeline, context and data parallelism, and its first step that needs a GPU."""

import torch
import torch.distributed as dist
from megatron.core import parallel_state

dist.init_process_group("gloo")
parallel_state.initialize_model_parallel(
    tensor_model_parallel_size=2, pipeline_model_parallel_size=1, context_parallel_size=1
)
groups = {
    "tp": parallel_state.get_tensor_model_parallel_group(),
    "pp": parallel_state.get_pipeline_model_parallel_group(),
    "dp": parallel_state.get_data_parallel_group(),
    "cp": parallel_state.get_context_parallel_group(),
    "dp_cp": parallel_state.get_data_parallel_group(with_context_parallel=True),
}
print({name: dist.get_process_group_ranks(group) for name, group in groups.items()})
total = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(total, group=groups["tp"])
print(int(total), parallel_state.get_tensor_model_parallel_rank(), parallel_state.is_pipeline_last_stage())
try:
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

    model_parallel_cuda_manual_seed(1)
    print("seeded")
except Exception as error:
    print("needs a GPU:", type(error).__name__)
parallel_state.destroy_model_parallel()
dist.destroy_process_group()
