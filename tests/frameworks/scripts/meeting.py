"""Ways to name the place where ranks meet: a file, a TCP address, a store of the script's own, the environment."""

import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
way, where = sys.argv[1:]


def show() -> None:
    total = torch.tensor([rank + 1.0])
    dist.all_reduce(total)
    pairs = [dist.new_group([i, i + 1]) for i in range(0, world - 1, 2)]
    mine = next((pair for pair in pairs if pair is not dist.GroupMember.NON_GROUP_MEMBER), None)
    part = torch.tensor([rank + 1.0])
    dist.all_reduce(part, group=mine)
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    print(way, int(total), int(part), dist.get_rank(mine), dist.get_backend(), backend.options._timeout)


if way == "file":
    dist.init_process_group("gloo", init_method=f"file://{where}/meet", rank=rank, world_size=world)
elif way == "tcp":
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{where}", rank=rank, world_size=world)
elif way == "store":
    store = dist.FileStore(f"{where}/store", world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=33))
    store.set(f"from{rank}", "x")  # the script's own use of its store goes on
    store.wait([f"from{other}" for other in range(world)])
elif way == "env":
    dist.init_process_group("cpu:gloo", init_method="env://", timeout=timedelta(seconds=44))
show()
dist.destroy_process_group()
