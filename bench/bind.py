"""Owns: what threads and cores do for a training step on the CPU, beside torchrun with its one thread a rank.
Must not: count the start.
Called by: bench.parts."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from bench.measure import MESHRUN, SCRIPTS, TORCHRUN, Row, medians, seconds
from meshrun.agent.probe import count_cores


def part_bind(times: int) -> list[Row]:
    """One rank, which torchrun gives one thread if it is one of several, and two; every core of this machine."""
    return [*_rows(times, 1), *_rows(times, 2)]


def _rows(times: int, ranks: int) -> list[Row]:
    cores = count_cores()
    one, hand, ours, bound = medians(
        times,
        partial(_step_s, [*TORCHRUN, f"--nproc_per_node={ranks}"], {"OMP_NUM_THREADS": "1"}),
        partial(_step_s, [*TORCHRUN, f"--nproc_per_node={ranks}"], {"OMP_NUM_THREADS": str(max(1, cores // ranks))}),
        partial(_step_s, [*MESHRUN, f"--nproc-per-node={ranks}"], {}),
        partial(_step_s, [*MESHRUN, f"--nproc-per-node={ranks}", "--bind", "cores"], {}),
    )
    what = f"step, {ranks} rank{'s' * (ranks > 1)} on {cores} core{'s' * (cores > 1)}"
    faster = 0.8 if cores > ranks else 1.1  # without a second core for a rank there is nothing to gain
    return [
        Row(what, ours, "s", faster, one, "torchrun, 1 thread"),
        Row("  --bind cores", bound, "s", faster, one, "torchrun, 1 thread"),
        Row("  --bind cores", bound, "s", 1.1, hand, "torchrun, threads by hand"),
    ]


def _step_s(launcher: Sequence[str], env: dict[str, str]) -> float:
    """The slowest rank's fastest step."""
    with tempfile.TemporaryDirectory() as cwd:
        seconds([*launcher, str(SCRIPTS / "step.py"), cwd], cwd, **env)
        return max(float(path.read_text()) for path in Path(cwd).iterdir() if path.name.isdigit())
