"""Owns: ranks that only rendezvous: `store.py CLIENTS` clients of the run's store in this one process.
Must not: make process groups.
Called by: bench.scale."""

import os
import resource
import sys
import time
from datetime import timedelta

os.environ["RES_OPTIONS"] = (
    "timeout:1 attempts:1"  # torch looks names up on both sides; one process is all clients here
)

from torch.distributed import TCPStore

count = int(sys.argv[1])
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # the clients' own side is not what is measured
address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
clients = [TCPStore(address, port, is_master=False, wait_for_workers=False)]  # the store has started
began = time.perf_counter()
for _ in range(count):
    clients.append(TCPStore(address, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=60)))
    clients[-1].add("joined", 1)
assert clients[0].add("joined", 0) == count
print(time.perf_counter() - began)
