"""Owns: the least that 8 ranks cost: one `import torch`, then 8 forks with the same init; no launcher at all.
Must not: supervise anything.
Called by: bench.parts."""

import os
import runpy
import socket
import sys

import torch.distributed  # noqa: F401  # once, before the forks

with socket.create_server(("127.0.0.1", 0)) as probe:
    port = probe.getsockname()[1]
pids = []
for rank in range(8):
    pid = os.fork()
    if pid == 0:
        os.environ.update(
            RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="8", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)
        )
        runpy.run_path(sys.argv[1], run_name="__main__")
        os._exit(0)
    pids.append(pid)
sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids))
