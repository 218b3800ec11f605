"""Owns: what threads and cores do for a training step on the CPU, beside torchrun with its one thread a rank.
Must not: count the start.
Called by: bench.parts."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from bench.measure import MESHRUN, SCRIPTS, Asked, Found, seconds, take
from bench.peers import BY_HAND, TORCHRUN
from bench.result import OURS, Row
from meshrun.agent.probe import count_cores

BOUND = "meshrun --bind cores"


def part_bind(asked: Asked) -> Found:
    """One rank, which torchrun gives one thread if it is one of several, and two; every core of this machine."""
    return Found([*_rows(asked, 1), *_rows(asked, 2)])


def _rows(asked: Asked, ranks: int) -> list[Row]:
    cores = count_cores()
    theirs = asked.peers.command(TORCHRUN, ranks)
    here = [*MESHRUN, f"--nproc-per-node={ranks}"]
    threads = {TORCHRUN: "1", BY_HAND: str(max(1, cores // ranks))}
    ways = {OURS: partial(_step_s, here, {}), BOUND: partial(_step_s, [*here, "--bind", "cores"], {})}
    ways |= {name: partial(_step_s, theirs, {"OMP_NUM_THREADS": count}) for name, count in threads.items()}
    # Without a second core for a rank there is nothing to gain: then it must only not be slower (targets).
    what = f"step, {ranks} rank{'s' * (ranks > 1)} with {'several cores' if cores > ranks else 'one core'} each"
    row = take(asked.times, what, "s", ways)
    series = dict(row.series)
    bound = series.pop(BOUND, ())
    return [replace(row, series=series), replace(row, what=f"{what}, --bind cores", series={**series, OURS: bound})]


def _step_s(launcher: Sequence[str], env: dict[str, str]) -> float:
    """The slowest rank's fastest step."""
    with tempfile.TemporaryDirectory() as cwd:
        seconds([*launcher, str(SCRIPTS / "step.py"), cwd], cwd, env=env)
        return max(float(path.read_text()) for path in Path(cwd).iterdir() if path.name.isdigit())
