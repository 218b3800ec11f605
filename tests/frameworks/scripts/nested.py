"""A rank that starts a distributed job of its own: with the launcher named by the first words, on two ranks."""

import os
import subprocess
import sys

import torch.distributed as dist

if __name__ == "__main__":
    dist.init_process_group("gloo")
    if dist.get_rank() == 1:
        done = subprocess.run([sys.executable, *sys.argv[1:]], capture_output=True, text=True)
        lines = sorted(line.split("] ")[-1] for line in done.stdout.splitlines())
        print(done.returncode, lines, done.stderr if done.returncode else "", os.environ["WORLD_SIZE"])
    dist.barrier()
    dist.destroy_process_group()
