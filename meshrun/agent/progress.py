"""Owns: which workers have moved since the last look: output, or processor time beyond a trickle.
Must not: judge; the launcher knows all nodes and says what a hang is.
Called by: agent.loop, only where `Assign.progress_s` asks for it."""

from __future__ import annotations

import os
from collections.abc import Callable

from meshrun.agent import procs
from meshrun.agent.reactor import Reactor

# Of one core: watchdog and heartbeat threads of libraries stay below it, a script that computes or loads does not.
TRICKLE = 0.05
LEAST_S = 0.1
_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")


class Progress:
    """Looks at a node's workers every `interval_s` until `stop`; tells which moved, nothing where none did."""

    def __init__(
        self,
        reactor: Reactor,
        interval_s: float,
        workers: Callable[[], dict[int, int]],
        writers: Callable[[], set[int]],
        tell: Callable[[tuple[int, ...]], None],
    ) -> None:
        self._reactor, self._interval_s = reactor, max(LEAST_S, interval_s)
        self._workers, self._writers, self._tell = workers, writers, tell
        self._ticks: dict[int, int] = {}  # pid → processor time of its tree when we last looked
        self._looked_at = reactor.now()
        self._on = True
        self._wait()

    def stop(self) -> None:
        """Look no more."""
        self._on = False

    def _wait(self) -> None:
        self._reactor.call_at(self._reactor.now() + self._interval_s, self._look)

    def _look(self) -> None:
        if not self._on:
            return
        moved = self._writers() | self._find_busy(self._workers())
        if moved:
            self._tell(tuple(sorted(moved)))
        self._wait()

    def _find_busy(self, workers: dict[int, int]) -> set[int]:
        now = self._reactor.now()
        least = (now - self._looked_at) * TRICKLE / _TICK_S
        before, self._ticks = self._ticks, {pid: count_ticks(pid) for pid in workers.values()}
        self._looked_at = now
        # Less than before: a process of the tree has ended, which is a movement too. A new worker has moved.
        return {
            rank
            for rank, pid in workers.items()
            if pid not in before or not before[pid] <= self._ticks[pid] <= before[pid] + least
        }


def count_ticks(pid: int) -> int:
    """Processor time of a process and all that descends from it: a rank may wait while its loaders work."""
    return sum(procs.read_cpu_ticks(each) for each in [pid, *(found.pid for found in procs.find_descendants(pid))])
