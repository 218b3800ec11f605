"""Owns: waiting: descriptors, timers and signals, each with the function to call.
Must not: know what any of them means.
Called by: agent.loop (which owns the one instance) and its helpers."""

from __future__ import annotations

import heapq
import os
import selectors
import signal
import time
from collections.abc import Callable
from itertools import count

READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE
Ready = Callable[[int], None]


class Reactor:
    """What is ready is handled before what is due: bytes that wait in a descriptor are never mistaken for silence."""

    now = staticmethod(time.monotonic)

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._ready: dict[int, Ready] = {}
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._number = count()

    def watch(self, fd: int, events: int, ready: Ready) -> None:
        """Call `ready(events)` whenever `fd` is; replaces what was said about `fd` before."""
        if fd in self._ready:
            self._selector.modify(fd, events)
        else:
            self._selector.register(fd, events)
        self._ready[fd] = ready

    def unwatch(self, fd: int) -> None:
        """Forget `fd` (before it is closed). Harmless if it is not watched."""
        if self._ready.pop(fd, None):
            self._selector.unregister(fd)

    def call_at(self, at: float, due: Callable[[], None]) -> None:
        """Call `due()` once, at `at` by `now()`."""
        heapq.heappush(self._timers, (at, next(self._number), due))

    def wait(self, deadline: float | None) -> None:
        """Handle what is ready and what is due; return after that, at `deadline` at the latest."""
        nearest = [at for at in (deadline, self._timers[0][0] if self._timers else None) if at is not None]
        timeout = max(0.0, min(nearest) - self.now()) if nearest else None
        for key, events in self._selector.select(timeout):
            ready = self._ready.get(key.fd)
            if ready:
                ready(events)
        while self._timers and self._timers[0][0] <= self.now():
            heapq.heappop(self._timers)[2]()

    def watch_signals(self, numbers: tuple[int, ...], got: Callable[[set[int]], None]) -> None:
        """Call `got(numbers)` in the loop, never inside other code. Ignores SIGPIPE."""
        reading, writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        for number in numbers:
            signal.signal(number, lambda *_: None)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)
        self.watch(reading, READ, lambda _: got(set(os.read(reading, 4096))))
