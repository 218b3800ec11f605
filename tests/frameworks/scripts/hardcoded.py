"""As many tutorials do: the address is written into the script, whatever the launcher said."""

import os

import torch
import torch.distributed as dist

os.environ["MASTER_ADDR"] = "localhost"
os.environ["MASTER_PORT"] = "12355"
dist.init_process_group("gloo", rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))
total = torch.tensor([dist.get_rank() + 1])
dist.all_reduce(total)
print(int(total))
dist.destroy_process_group()
