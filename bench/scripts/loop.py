"""Owns: the least that n ranks cost: one import of what they share, n forks with torchrun's variables; no launcher.
Must not: supervise anything.
Called by: bench.peers ("bare loop")."""

import os
import runpy
import socket
import sys

count, *rest = sys.argv[1:]
if rest[0] == "--torch":
    import torch.distributed  # noqa: F401  # once, before the forks

    del rest[0]
with socket.create_server(("127.0.0.1", 0)) as probe:
    port = probe.getsockname()[1]
pids = []
for rank in range(int(count)):
    pid = os.fork()
    if pid == 0:
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=count, LOCAL_WORLD_SIZE=count)
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        sys.argv = rest
        runpy.run_path(rest[0], run_name="__main__")
        sys.stdout.flush()
        os._exit(0)
    pids.append(pid)
sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids))
