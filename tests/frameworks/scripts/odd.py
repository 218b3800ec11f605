"""What a script may ask of init_process_group and be told no, by torch itself."""

import os

import torch
import torch.distributed as dist

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def refused(**arguments: object) -> None:
    try:
        dist.init_process_group(**arguments)
    except Exception as error:
        print(type(error).__name__, str(error).splitlines()[0][:60])
    else:
        print("accepted", sorted(arguments))


refused(backend="gloo", device_id=torch.device("cpu"))
refused(backend="nosuch")
refused(backend="gloo", no_such_argument=1)
refused(backend="gloo", rank=rank, world_size=world)
print(dist.get_rank(), dist.get_world_size(), dist.is_initialized())
dist.destroy_process_group()
