"""Owns: a rank that prints many lines and notes when it began.
Must not: buffer more than Python does.
Called by: bench.output."""

import os
import sys
import time
from pathlib import Path

count, where = int(sys.argv[1]), sys.argv[2]
rank = os.environ["RANK"]
Path(where, f"began{rank}").write_text(str(time.time()))
for number in range(count):
    sys.stdout.write(f"line {number:07d} of rank {rank} end\n")
sys.stdout.flush()
