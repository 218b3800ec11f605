"""Owns: the channels of a run, one per node: opening (again), sending, closing, and silence from closed ones.
Must not: decide anything; the state machine says what to open, send and close.
Called by: watch.loop and cli."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from typing import Any

from meshrun import wire
from meshrun.launch.channel import Channel, ChannelEvent, Opener

# A retry comes up to this much later than asked, so that a rack of nodes does not knock again all at once.
_JITTER = 0.5


class _Line:
    """One node's present channel, or the timer that will open it. Replaced as a whole by the next open."""

    def __init__(self) -> None:
        self.current = True
        self.channel: Channel | None = None
        self.timer: threading.Timer | None = None


class Fleet:
    """All channels of a run. `deliver` gets every event, from many threads: it must not block (a queue's `put`)."""

    def __init__(self, openers: Sequence[Opener], deliver: Callable[[ChannelEvent], None]) -> None:
        self._openers = openers
        self._deliver = deliver
        self._lines: dict[int, _Line] = {}
        self._locks = [threading.RLock() for _ in openers]
        self._last: tuple[Any, bytes] = (None, b"")

    def open(self, node: int, after_s: float = 0.0) -> None:
        """Open the channel of `node`, replacing any it has; returns at once. `after_s` > 0: later, with jitter."""
        line = _Line()
        with self._locks[node]:
            self.close(node)
            self._lines[node] = line
            if after_s > 0:
                delay = after_s * (1 + _JITTER * random.random())
                line.timer = threading.Timer(delay, self._dial, (node, line))
                line.timer.daemon = True
                line.timer.start()
            else:
                self._dial(node, line)

    def send(self, node: int, message: Any) -> None:
        """Queue one message; never blocks. Without a channel it is dropped: its end has been reported."""
        if self._last[0] is not message:  # the same message to a thousand nodes is encoded once
            self._last = (message, wire.encode(message))
        line = self._lines.get(node)
        if line and line.channel:
            line.channel.send(self._last[1])

    def close(self, node: int) -> None:
        """Close the channel of `node`, or forget its planned opening. No event of it comes after this returns."""
        with self._locks[node]:
            line = self._lines.pop(node, None)
            if line is None:
                return
            line.current = False
            if line.timer:
                line.timer.cancel()
            if line.channel:
                line.channel.close()

    def close_all(self) -> None:
        """Close every channel."""
        for node in list(self._lines):
            self.close(node)

    def _dial(self, node: int, line: _Line) -> None:
        with self._locks[node]:
            if line.current:
                line.channel = self._openers[node](node, lambda event: self._pass(node, line, event))

    def _pass(self, node: int, line: _Line, event: ChannelEvent) -> None:
        with self._locks[node]:
            if line.current:
                self._deliver(event)
