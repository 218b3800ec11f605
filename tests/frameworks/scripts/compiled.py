"""torch.compile with inductor and its pool of compile workers, together with DDP; the C++ compiler is really run."""

import os

import torch
import torch.distributed as dist
from torch._inductor import config
from torch._inductor.async_compile import AsyncCompile
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
pool = AsyncCompile.process_pool()
print(config.compile_threads > 1, pool.submit(abs, -3).result(), pool.submit(os.getpid).result() != os.getpid())
model = torch.compile(DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU())))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(4, 8, generator=torch.Generator().manual_seed(dist.get_rank()))
for step in range(3):
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(step, f"{loss.item():.5f}")
dist.destroy_process_group()
