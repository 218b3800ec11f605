"""deepspeed.init_distributed with one of its arguments, named by the first word."""

import os
import sys
from datetime import timedelta
from types import SimpleNamespace

import deepspeed
import torch
from deepspeed.comm.config import DeepSpeedCommsConfig

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
ARGUMENTS = {
    "none": {},
    "dist_backend": {"dist_backend": "gloo"},
    "auto_mpi_discovery": {"auto_mpi_discovery": False},
    "distributed_port": {"distributed_port": 29876},
    "timeout": {"timeout": timedelta(seconds=77)},
    "init_method": {"init_method": "env://"},
    "dist_init_required": {"dist_init_required": True},
    "config": {"config": SimpleNamespace(comms_config=DeepSpeedCommsConfig({}))},
    "rank": {"rank": rank},
    "world_size": {"rank": rank, "world_size": world},
    "all": {
        "dist_backend": "gloo", "auto_mpi_discovery": False, "distributed_port": 29876, "verbose": False,
        "timeout": timedelta(seconds=77), "init_method": "env://", "dist_init_required": None, "rank": rank,
        "world_size": world,
    },
}  # fmt: skip

deepspeed.init_distributed(**ARGUMENTS[sys.argv[1]])
total = torch.tensor([rank + 1.0])
deepspeed.comm.all_reduce(total)
seconds = torch.distributed.group.WORLD._get_backend(torch.device("cpu")).options._timeout.total_seconds()
shown = [seconds] if "timeout" in ARGUMENTS[sys.argv[1]] else []
print(sys.argv[1], int(total), deepspeed.comm.get_rank(), deepspeed.comm.get_world_size(), *shown)
