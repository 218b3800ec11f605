"""Owns: what one worker process was given to do.
Must not: do it.
Called by: forkserver and `__main__` make it, start runs it."""

from __future__ import annotations

from meshrun import wire
from meshrun.dataclass import dataclass
from meshrun.worker.line import Line


@dataclass(frozen=True, slots=True)
class Job:
    """The order of the attempt, this worker's rank and environment, and its line to the agent."""

    order: wire.Order
    fork: wire.Fork
    line: Line
