"""Owns: how things are measured: wall time, memory of a whole tree of processes, interleaved runs.
Must not: know what is measured.
Called by: bench.parts."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from bench.result import Curve, Row

if TYPE_CHECKING:
    from bench.peers import Peers

ROOT = Path(__file__).parent.parent
SCRIPTS = Path(__file__).parent / "scripts"
MESHRUN = (sys.executable, "-m", "meshrun")
MARK = "MESHRUN_BENCH_TREE"
LIMIT_S = 300.0


@dataclass(frozen=True)
class Asked:
    """What a part is asked: how often, beside whom, up to which size."""

    times: int
    peers: Peers
    most: int


@dataclass(frozen=True)
class Found:
    """What a part has found."""

    rows: list[Row]
    curves: list[Curve] = field(default_factory=list)


class Broken(Exception):
    """A command that is measured did not do what it should."""


def take(
    times: int,
    what: str,
    unit: str,
    ways: Mapping[str, Callable[[], float]],
    missing: Mapping[str, str] | None = None,
    more_is_better: bool = False,
) -> Row:
    """`times` samples of each way, taken in turns so that a busy minute hits all of them; who breaks is missing."""
    taken: dict[str, list[float]] = {name: [] for name in ways}
    broken: dict[str, str] = {}
    for _ in range(times):
        for name, way in ways.items():
            if name in broken:
                continue
            try:
                taken[name].append(way())
            except Broken as error:
                print(f"bench: {what}: {name}: {error}", file=sys.stderr)
                broken[name] = "broke (see above)"
    series = {name: tuple(samples) for name, samples in taken.items() if name not in broken}
    return Row(what, unit, series, {**(missing or {}), **broken}, more_is_better)


def environ(**extra: str) -> dict[str, str]:
    """The environment of a measured command: this project importable, no settings of the user's."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("MESHRUN_", "PYTHONDONT"))}
    return {**plain, "PYTHONPATH": str(ROOT), **extra}


def seconds(argv: Sequence[str], cwd: str, keep: bool = True, env: Mapping[str, str] | None = None) -> float:
    """Wall time of one command, which must succeed; its stdout is read, or thrown away unless `keep`."""
    began = time.perf_counter()
    done = subprocess.run(
        argv,
        cwd=cwd,
        env=environ(**(env or {})),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if keep else subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        timeout=LIMIT_S,
        check=False,
    )
    took = time.perf_counter() - began
    if done.returncode:
        raise Broken(f"{' '.join(argv)} ended with {done.returncode}:\n{done.stderr.decode(errors='replace')}")
    return took


@contextmanager
def tree(argv: Sequence[str], cwd: str) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A running command and the mark that all its processes carry; ended and waited for at the end."""
    mark = uuid.uuid4().hex
    process = subprocess.Popen(
        argv,
        cwd=cwd,
        env=environ(**{MARK: mark}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield process, mark
    finally:
        process.terminate()
        process.wait(60)


def members(mark: str) -> list[int]:
    """Processes that carry the mark in their environment."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if wanted in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def pss_mib(pid: int) -> float:
    """A process's proportional share of memory, in MiB; 0 if it is gone."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def cpu_s(pid: int) -> float:
    """Processor seconds that a process has used, its ended children left out; 0 if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def children(pid: int) -> list[int]:
    """Direct children of a process."""
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        found += map(int, path.read_text().split())
    return found


def wait_until(ready: Callable[[], bool], what: str, limit_s: float = 120.0) -> None:
    """Look again until `ready`; ends the benchmark if it never is."""
    until = time.monotonic() + limit_s
    while not ready():
        if time.monotonic() > until:
            raise Broken(f"{what}: not within {limit_s:g} s")
        time.sleep(0.02)
