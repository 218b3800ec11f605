"""Owns: worker output, whole lines a second, to a pipe and to files, from the first write to the last line read.
Must not: count a line that another one tore.
Called by: bench.parts."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import time
from functools import partial
from pathlib import Path

from bench.measure import MESHRUN, SCRIPTS, TORCHRUN, Row, environ, medians

RANKS = 4
LINES = 200_000
WHOLE = re.compile(rb"line \d{7} of rank \d end\r?$", re.MULTILINE)


def part_output(times: int, lines: int = LINES) -> list[Row]:
    """4 ranks that print."""
    ours, theirs = medians(
        times,
        partial(_rate, [*MESHRUN, "--no-init", f"--nproc-per-node={RANKS}", "--log-dir", "logs"], lines),
        partial(_rate, [*TORCHRUN, f"--nproc_per_node={RANKS}", "--tee", "3", "--log-dir", "logs"], lines),
    )
    return [Row("output of 4 ranks", ours, "lines/s", 2.0, theirs, "torchrun --tee 3", more_is_better=True)]


def _rate(launcher: list[str], lines: int) -> float:
    with tempfile.TemporaryDirectory() as cwd:
        argv = [*launcher, str(SCRIPTS / "lines.py"), str(lines), cwd]
        pieces, last = [], 0.0
        with subprocess.Popen(
            argv, cwd=cwd, env=environ(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as process:
            assert process.stdout
            while piece := os.read(process.stdout.fileno(), 1 << 20):  # counted afterwards: the reader must not be slow
                pieces.append(piece)
                last = time.time()
        began = min(float(path.read_text()) for path in Path(cwd).glob("began*"))
        return len(WHOLE.findall(b"".join(pieces))) / (last - began)
