"""Owns: Python stacks on demand: the signal, and reading what the worker's faulthandler writes.
Must not: signal a process that would die of it.
Called by: agent.loop."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from meshrun.agent import procs
from meshrun.agent.reactor import Reactor
from meshrun.agent.recorder import Question
from meshrun.wire import STACKS_SIGNAL_OFFSET, Stacks

BOUND_S = 1.0
_LOOK_S = 0.02
_QUIET_LOOKS = 2
_MAX_BYTES = 256 * 1024
NUMBER = signal.SIGRTMIN + STACKS_SIGNAL_OFFSET


def catches_signal(pid: int) -> bool:
    """True if the process has a handler for our signal: without one it would end."""
    for line in procs.read_status(pid).splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (NUMBER - 1) & 1)
    return False


class StackDump:
    """One worker's dump: complete when the file has grown and then rested and the recorder's answer is there if there
    will be one, or after `BOUND_S`."""

    def __init__(self, reactor: Reactor, tmp: str, rank: int, pid: int, done: Callable[[Stacks], None]) -> None:
        self._reactor, self._path, self._rank, self._done = reactor, f"{tmp}/stacks{rank}", rank, done
        self._until = reactor.now() + BOUND_S
        self._start = self._size = self._measure()
        self._quiet = 0
        if not catches_signal(pid):
            done(Stacks(rank, "(this process has no Python stacks to show yet)"))
            return
        procs.send_signal(pid, NUMBER)
        self._recorder = Question(tmp, rank)
        self._wait()

    def _measure(self) -> int:
        try:
            return os.stat(self._path).st_size
        except OSError:
            return 0

    def _wait(self) -> None:
        self._reactor.call_at(self._reactor.now() + _LOOK_S, self._look)

    def _look(self) -> None:
        size = self._measure()
        self._quiet = self._quiet + 1 if size == self._size and size > self._start else 0
        self._size = size
        if self._recorder.waiting:
            self._recorder.look()
        complete = self._quiet >= _QUIET_LOOKS and not self._recorder.waiting
        if not complete and self._reactor.now() < self._until:
            self._wait()
        else:
            text = self._read() or "(the process did not answer: it is stopped or in the kernel)"
            self._done(Stacks(self._rank, text, self._recorder.answer))

    def _read(self) -> str:
        try:
            with open(self._path, "rb") as file:
                file.seek(self._start)
                return file.read(_MAX_BYTES).decode("utf-8", "replace")
        except OSError:
            return ""
