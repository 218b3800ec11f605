"""Owns: worker output: whole lines and bytes a second to a pipe and to files, first write to last line read.
Must not: count a line that another one tore.
Called by: bench.parts."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from bench.measure import MESHRUN, SCRIPTS, Asked, Broken, Found, environ, seconds, take
from bench.peers import LOOP, TORCHRUN
from bench.result import OURS, Row

LINES = 200_000  # of each rank
WIDE, WIDE_LINES = 1000, 40_000
MIB = 512
WHOLE = re.compile(rb"line \d{7}\.* of rank \d+ end\r?$", re.MULTILINE)


def part_output(asked: Asked) -> Found:
    """4 ranks that print, short and long lines; one of 8 that prints alone; 64 that say one line each."""
    rows = [
        _row(asked, "output of 4 ranks", "lines/s", 4, LINES, 30),
        _row(asked, "output of 4 ranks, lines of 1 kB", "MB/s", 4, WIDE_LINES, WIDE),
        _row(asked, "output of one chatty rank of 8", "lines/s", 8, LINES, 30, "chatty"),
    ]
    with tempfile.TemporaryDirectory() as cwd:
        script = str(SCRIPTS / "light.py")
        ways = {
            OURS: partial(seconds, [*MESHRUN, "--no-init", "--nproc-per-node=64", script], cwd),
            LOOP: partial(seconds, [*asked.peers.command(LOOP, 64), script], cwd),
        }
        rows.append(take(asked.times, "64 quiet ranks, start to end", "s", ways))
    return Found(rows)


def _row(asked: Asked, what: str, unit: str, ranks: int, lines: int, width: int, *more: str) -> Row:
    tee = ["--tee", "3", "--log-dir", "logs"]
    commands = {OURS: [*MESHRUN, "--no-init", f"--nproc-per-node={ranks}", "--log-dir", "logs"]}
    commands[TORCHRUN] = [*asked.peers.command(TORCHRUN, ranks), *tee]
    ways = {name: partial(_rate, command, unit, str(lines), str(width), more) for name, command in commands.items()}
    return take(asked.times, what, unit, ways, more_is_better=True)


def _rate(launcher: Sequence[str], unit: str, lines: str, width: str, more: Sequence[str]) -> float:
    with tempfile.TemporaryDirectory() as cwd:
        argv = [*launcher, str(SCRIPTS / "lines.py"), lines, cwd, width, *more]
        pieces, last = [], 0.0
        with subprocess.Popen(
            argv, cwd=cwd, env=environ(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as process:
            assert process.stdout
            while piece := os.read(process.stdout.fileno(), 1 << 20):  # counted afterwards: the reader must not be slow
                pieces.append(piece)
                last = time.time()
        began = min(float(path.read_text()) for path in Path(cwd).glob("began*"))
        whole = WHOLE.findall(b"".join(pieces))
        return (len(whole) if unit == "lines/s" else sum(map(len, whole)) / 1e6) / (last - began)


def part_copy(asked: Asked) -> Found:
    """One rank that writes 512 MiB, a MiB at a time, into its file in the run directory, beside `cat` into a file."""
    ways = {OURS: _copy_ours, "cat": _copy_cat}
    return Found([take(asked.times, "large writes through the agent to files", "MB/s", ways, more_is_better=True)])


def _large(cwd: str) -> list[str]:
    return [str(SCRIPTS / "large.py"), str(MIB), cwd]


def _copy_ours() -> float:
    # In /var/tmp for both: a disk, not a file system in memory.
    with tempfile.TemporaryDirectory(dir="/var/tmp") as cwd:
        seconds([*MESHRUN, "--no-init", "--nproc-per-node=1", "--log-dir", "logs", *_large(cwd)], cwd, keep=False)
        (written,) = Path(cwd).glob("logs/*/rank0.out")
        return _speed(cwd, written)


def _copy_cat() -> float:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as cwd:
        argv = [sys.executable, *_large(cwd)]
        with subprocess.Popen(argv, stdout=subprocess.PIPE) as writer, Path(cwd, "copy").open("wb") as file:
            subprocess.run(["cat"], stdin=writer.stdout, stdout=file, check=True)
        return _speed(cwd, Path(cwd, "copy"))


def _speed(cwd: str, written: Path) -> float:
    ended, size = written.stat().st_mtime, written.stat().st_size
    if size != MIB << 20:
        raise Broken(f"{size} bytes arrived, not {MIB} MiB")
    return size / 1e6 / (ended - float(Path(cwd, "began").read_text()))
