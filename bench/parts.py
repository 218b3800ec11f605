"""Owns: what is measured, by name, beside what it replaces, with its target (ARCHITECTURE.md, budgets).
Must not: know how to measure.
Called by: bench.__main__."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bench.bind import part_bind
from bench.failure import part_failure
from bench.measure import (
    MESHRUN,
    SCRIPTS,
    TORCHRUN,
    Row,
    children,
    medians,
    members,
    pss_mib,
    seconds,
    tree,
    wait_until,
)
from bench.output import part_output
from bench.restart import part_restart

RANKS = 8


def part_start(times: int) -> list[Row]:
    """8 local ranks that build a 2-D gloo mesh and leave."""
    script = str(SCRIPTS / "mesh2d.py")
    with tempfile.TemporaryDirectory() as cwd:
        ours, theirs, floor = medians(
            times,
            partial(seconds, [*MESHRUN, "--mesh", "dp=2,tp=4", script], cwd),
            partial(seconds, [*TORCHRUN, f"--nproc_per_node={RANKS}", script], cwd, OMP_NUM_THREADS="1"),
            partial(seconds, [sys.executable, str(SCRIPTS / "floor.py"), script], cwd, OMP_NUM_THREADS="1"),
        )
    return [
        Row("8 ranks, 2-D gloo mesh", ours, "s", 0.20, theirs, "torchrun"),
        Row("  the same", ours, "s", 1.10, floor, "one import + 8 forks"),
    ]


def part_memory(times: int) -> list[Row]:
    """All processes of 8 ranks that have imported torch."""
    ours, theirs = medians(
        times,
        partial(_tree_mib, [*MESHRUN, f"--nproc-per-node={RANKS}"]),
        partial(_tree_mib, [*TORCHRUN, f"--nproc_per_node={RANKS}"]),
    )
    return [Row("memory of 8 ranks (PSS)", ours, "MiB", 0.35, theirs, "torchrun")]


def _tree_mib(launcher: list[str]) -> float:
    with tempfile.TemporaryDirectory() as cwd:
        argv = [*launcher, str(SCRIPTS / "hold.py"), cwd, "torch"]
        with tree(argv, cwd) as (_, mark):
            wait_until(lambda: len(list(Path(cwd).glob("held*"))) == RANKS, "8 ranks with torch")
            return sum(pss_mib(pid) for pid in members(mark))


def part_agent(times: int) -> list[Row]:
    """The agent alone, with one worker."""
    (mib,) = medians(times, _agent_mib)
    return [Row("agent (PSS)", mib, "MiB", 16)]


def _agent_mib() -> float:
    with tempfile.TemporaryDirectory() as cwd:
        argv = [*MESHRUN, "--no-init", "--nproc-per-node=1", str(SCRIPTS / "hold.py"), cwd]
        with tree(argv, cwd) as (process, _):
            wait_until(lambda: bool(list(Path(cwd).glob("held*"))), "one rank")
            return max(pss_mib(pid) for pid in children(process.pid))


def part_help(times: int) -> list[Row]:
    """`meshrun --help`."""
    (took,) = medians(times, partial(seconds, [*MESHRUN, "--help"], "/"))
    return [Row("meshrun --help", took, "s", 0.15)]


def part_plan(times: int) -> list[Row]:
    """The plan of 1,024 nodes with 8 workers each."""
    argv = [*MESHRUN, "plan", "--hosts", "gpu[0001-1024]:8", "--mesh", "dp=1024,tp=8"]
    text, json = medians(times, partial(seconds, argv, "/"), partial(seconds, [*argv, "--format", "json"], "/"))
    return [Row("plan of 1,024 x 8", text, "s", 1.0), Row("  as JSON", json, "s", 1.0)]


def part_light(times: int) -> list[Row]:
    """8 ranks of a script without torch."""
    script = str(SCRIPTS / "light.py")
    with tempfile.TemporaryDirectory() as cwd:
        ours, theirs = medians(
            times,
            partial(seconds, [*MESHRUN, "--no-init", f"--nproc-per-node={RANKS}", script], cwd),
            partial(seconds, [*TORCHRUN, f"--nproc_per_node={RANKS}", script], cwd),
        )
    return [Row("8 ranks without torch, --no-init", ours, "s", 0.15, theirs, "torchrun")]


PARTS: dict[str, Callable[[int], list[Row]]] = {
    "start": part_start,
    "memory": part_memory,
    "failure": part_failure,
    "restart": part_restart,
    "agent": part_agent,
    "help": part_help,
    "plan": part_plan,
    "light": part_light,
    "output": part_output,
    "bind": part_bind,
}
