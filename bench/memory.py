"""Owns: what a run needs while it waits: memory of the tree and of an agent, processor time while idle.
Must not: count a page twice (PSS).
Called by: bench.parts."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from bench.measure import MESHRUN, SCRIPTS, Asked, Found, children, cpu_s, members, pss_mib, take, tree, wait_until
from bench.peers import ACCELERATE, MPIRUN, TORCHRUN
from bench.result import OURS, Row

RANKS = 8
IDLE_S = 10.0


def part_memory(asked: Asked) -> Found:
    """All processes of 8 ranks that have imported torch."""
    peers = (TORCHRUN, ACCELERATE, MPIRUN)
    missing = asked.peers.missing(peers)
    commands = {name: asked.peers.command(name, RANKS) for name in peers if name not in missing}
    commands = {OURS: [*MESHRUN, f"--nproc-per-node={RANKS}"], **commands}
    ways = {name: partial(_tree_mib, command) for name, command in commands.items()}
    return Found([take(asked.times, "memory of 8 ranks with torch (PSS)", "MiB", ways, missing)])


def _tree_mib(launcher: Sequence[str]) -> float:
    with tempfile.TemporaryDirectory() as cwd:
        argv = [*launcher, str(SCRIPTS / "hold.py"), cwd, "torch"]
        with tree(argv, cwd) as (_, mark):
            wait_until(lambda: len(list(Path(cwd).glob("held*"))) == RANKS, "8 ranks with torch")
            return sum(pss_mib(pid) for pid in members(mark))


@contextmanager
def _held() -> Iterator[tuple[int, int]]:
    """A launcher and its agent while one worker waits."""
    with tempfile.TemporaryDirectory() as cwd:
        argv = [*MESHRUN, "--no-init", "--nproc-per-node=1", str(SCRIPTS / "hold.py"), cwd]
        with tree(argv, cwd) as (process, _):
            wait_until(lambda: bool(list(Path(cwd).glob("held*"))), "one rank")
            (guard,) = children(process.pid)
            yield process.pid, max(children(guard), key=cpu_s)


def part_agent(asked: Asked) -> Found:
    """The agent alone, with one worker."""
    return Found([take(asked.times, "agent (PSS)", "MiB", {OURS: _agent_mib})])


def _agent_mib() -> float:
    with _held() as (_, agent):
        return pss_mib(agent)


def part_idle(asked: Asked) -> Found:
    """Processor time of launcher and agent while a worker is silent, in percent of one core."""
    taken = [_idle_once() for _ in range(asked.times)]
    names = ("idle launcher", "idle agent")
    return Found([Row(name, "%", {OURS: tuple(sample[at] for sample in taken)}) for at, name in enumerate(names)])


def _idle_once() -> tuple[float, float]:
    with _held() as pids:
        time.sleep(1.0)  # the end of the start is not idleness
        before = [cpu_s(pid) for pid in pids]
        time.sleep(IDLE_S)
        launcher, agent = (100 * (cpu_s(pid) - old) / IDLE_S for pid, old in zip(pids, before, strict=True))
        return launcher, agent
