"""A script that starts its own ranks with torch.multiprocessing, as those that know no launcher do."""

import os
import socket
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

RANKS = 3


def work(number: int, url: str, method: str) -> None:
    dist.init_process_group("gloo", init_method=url, rank=number, world_size=RANKS)
    total = torch.tensor([float(number + 1)])
    dist.all_reduce(total)
    if number == 1:
        print(method, url.partition(":")[0], int(total), dist.get_world_size(), flush=True)
    dist.destroy_process_group()


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


if __name__ == "__main__":
    where = tempfile.mkdtemp()
    for word in sys.argv[1:]:
        method, kind = word.split(":")
        if kind == "own":
            os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
        url = f"file://{where}/{method}" if kind == "file" else "env://"
        mp.start_processes(work, args=(url, method), nprocs=RANKS, start_method=method)
