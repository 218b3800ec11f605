"""Owns: the script of part restart: 8 ranks build a 2-D gloo mesh; in the first attempt rank 5 fails, told to.
Must not: do anything else; catch SIGTERM.
Called by: bench.restart."""

import os
import signal
import sys
import time
from pathlib import Path

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

here, attempt, rank = Path(sys.argv[1]), os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["RANK"]
dist.init_process_group("gloo")
init_device_mesh("cpu", (2, 4), mesh_dim_names=("dp", "tp"))
(here / f"{attempt}.{rank}").write_text(str(time.time()))
if attempt == "0":
    if rank != "5":
        while True:
            signal.pause()
    while len(list(here.glob("0.*"))) < 8:
        time.sleep(0.01)
    (here / "failed").write_text(str(time.time()))
    raise RuntimeError("told to")
dist.barrier()
dist.destroy_process_group()
