"""torch.compile with inductor and its pool of compile workers, together with DDP; the C++ compiler is really run."""

import torch
import torch.distributed as dist
from torch._inductor import async_compile, config
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
pooled = torch._inductor.async_compile.AsyncCompile.use_process_pool() if config.compile_threads > 1 else False
async_compile.AsyncCompile.wait_pool_ready()
model = torch.compile(DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU())))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(4, 8, generator=torch.Generator().manual_seed(dist.get_rank()))
for step in range(3):
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(step, f"{loss.item():.5f}", config.compile_threads, pooled)
dist.destroy_process_group()
