"""Owns: how things are measured: wall time, memory of a whole tree of processes, medians of interleaved runs.
Must not: know what is measured.
Called by: bench.parts."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parent.parent
SCRIPTS = Path(__file__).parent / "scripts"
MESHRUN = (sys.executable, "-m", "meshrun")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone")
MARK = "MESHRUN_BENCH_TREE"
LIMIT_S = 300.0


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. `target` is a ratio if there is an `other`, else it has the value's unit."""

    what: str
    value: float
    unit: str
    target: float
    other: float | None = None
    other_name: str = ""
    more_is_better: bool = False

    @property
    def measured(self) -> float:
        """What is held against the target."""
        return self.value / self.other if self.other else self.value

    @property
    def met(self) -> bool:
        """Whether the target is reached."""
        return self.measured >= self.target if self.more_is_better else self.measured <= self.target

    def cells(self) -> tuple[str, ...]:
        """The row as text."""
        other = f"{self.other:.4g} {self.unit} {self.other_name}" if self.other else "-"
        sign = ">=" if self.more_is_better else "<="
        target = f"{sign} {self.target:g}" + ("" if self.other else f" {self.unit}")
        ratio = f"{self.measured:.3f}" if self.other else "-"
        return self.what, f"{self.value:.4g} {self.unit}", other, ratio, target, "ok" if self.met else "MISSED"


def medians(times: int, *ways: Callable[[], float]) -> list[float]:
    """Each way's median of `times` runs, taken in turns so that a busy minute hits all of them."""
    taken: list[list[float]] = [[] for _ in ways]
    for _ in range(times):
        for values, way in zip(taken, ways, strict=True):
            values.append(way())
    return [median(values) for values in taken]


def environ(**extra: str) -> dict[str, str]:
    """The environment of a measured command: this project importable, no settings of the user's."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("MESHRUN_")}
    return {**plain, "PYTHONPATH": str(ROOT), **extra}


def seconds(argv: Sequence[str], cwd: str, ok: Sequence[int] = (0,), **extra: str) -> float:
    """Wall time of one command, which must end with a code in `ok`."""
    began = time.perf_counter()
    done = subprocess.run(
        argv, cwd=cwd, env=environ(**extra), stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT_S, check=False
    )
    took = time.perf_counter() - began
    if done.returncode not in ok:
        raise SystemExit(f"{' '.join(argv)} ended with {done.returncode}:\n{done.stderr.decode(errors='replace')}")
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
            raise SystemExit(f"{what}: not within {limit_s:g} s")
        time.sleep(0.02)
