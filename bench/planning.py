"""Owns: commands that start nothing: the plan of a large job, `--help`.
Must not: start ranks.
Called by: bench.parts."""

from __future__ import annotations

from functools import partial

from bench.measure import MESHRUN, Asked, Found, seconds, take
from bench.result import OURS


def part_help(asked: Asked) -> Found:
    """`meshrun --help`."""
    return Found([take(asked.times, "meshrun --help", "s", {OURS: partial(seconds, [*MESHRUN, "--help"], "/")})])


def part_plan(asked: Asked) -> Found:
    """The plan of 1,024 nodes with 8 workers each."""
    argv = [*MESHRUN, "plan", "--hosts", "gpu[0001-1024]:8", "--mesh", "dp=1024,tp=8"]
    rows = []
    for what, more in (("plan of 1,024 x 8", []), ("plan of 1,024 x 8 as JSON", ["--format", "json"])):
        rows.append(take(asked.times, what, "s", {OURS: partial(seconds, [*argv, *more], "/")}))
    return Found(rows)
