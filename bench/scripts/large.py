"""Owns: a rank that writes many MiB in large writes, and notes when it began.
Must not: be what limits the rate.
Called by: bench.output."""

import os
import sys
import time
from pathlib import Path

Path(sys.argv[2], "began").write_text(str(time.time()))
block = (b"x" * 1023 + b"\n") * 1024
for _ in range(int(sys.argv[1])):
    view = memoryview(block)
    while view:
        view = view[os.write(1, view) :]
