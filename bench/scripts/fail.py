"""Owns: a rank that waits; rank 5 fails as soon as it is told to.
Must not: catch SIGTERM.
Called by: bench.failure."""

import os
import signal
import sys
import time
from pathlib import Path

here = Path(sys.argv[1])
(here / f"held{os.environ['RANK']}").touch()
if os.environ["RANK"] != "5":
    while True:
        signal.pause()
while not (here / "go").exists():
    time.sleep(0.01)
(here / "failed").write_text(str(time.time()))
raise RuntimeError("told to")
