"""Owns: a rank that imports what it is told, says so, and waits to be ended.
Must not: end by itself.
Called by: bench.parts, bench.failure."""

import importlib
import os
import signal
import sys
from pathlib import Path

for name in sys.argv[2:]:
    importlib.import_module(name)
Path(sys.argv[1], f"held{os.environ['RANK']}").touch()
signal.pause()
