"""Owns: a rank that prints many lines and notes when it began: `lines.py COUNT DIR [WIDTH] [chatty]`.
Must not: buffer more than Python does.
Called by: bench.output."""

import os
import sys
import time
from pathlib import Path

count, where, width = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
rank = os.environ["RANK"]
if "chatty" in sys.argv and rank != "0":
    count = 1
filler = "." * max(0, width - 30)
Path(where, f"began{rank}").write_text(str(time.time()))
for number in range(count):
    sys.stdout.write(f"line {number:07d}{filler} of rank {rank} end\n")
sys.stdout.flush()
