"""Owns: what local and SSH channels share: bytes in → events, bytes out without ever blocking the caller.
Must not: know how the bytes travel.
Called by: launch.local, launch.ssh, launch.openssh."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

from meshrun.errors import WireError
from meshrun.launch.boot import explain
from meshrun.launch.channel import NOISE_LIMIT, ChannelEvent, Closed, Deliver, Opened, Received, Scanner, Unreachable

# What an opener writes first: the prologue (frames follow by `send`). Made anew for every attempt, so that a thousand
# channels do not hold a thousand copies of the bundle.
MakeStart = Callable[[], bytes]

_PIECE = 256 * 1024


class Intake:
    """Turns what one attempt's far side says into events. Used by one thread; `mute` may come from any."""

    def __init__(self, node: int, deliver: Deliver) -> None:
        self.node = node
        self.opened = False
        self.muted = False
        self._deliver = deliver
        self._scanner = Scanner()
        self._said = bytearray()

    def mute(self) -> None:
        """No event from now on."""
        self.muted = True

    def feed(self, data: bytes) -> None:
        """Bytes of the line. Raises WireError; then only `end` may follow."""
        for message in self._scanner.feed(data):
            self._open()
            self.deliver(Received(self.node, message))
        if self._scanner.opened:
            self._open()

    def hear(self, data: bytes) -> None:
        """Bytes beside the line (stderr)."""
        self._said += data
        del self._said[: max(0, len(self._said) - NOISE_LIMIT)]

    def end(self, exit_code: int | None, reason: str = "the agent closed the connection") -> None:
        """The line is over. `exit_code`: of the far side's process, None if the connection itself broke."""
        said = self._said.decode("utf-8", "replace").strip()
        noise = "\n".join(part for part in (self._scanner.noise, said) if part)
        if self.opened:
            self.deliver(Closed(self.node, reason, noise))
        else:
            self.deliver(Unreachable(self.node, explain(noise, exit_code)))

    def deliver(self, event: ChannelEvent) -> None:
        """Hand over an event unless muted."""
        if not self.muted:
            self._deliver(event)

    def _open(self) -> None:
        if not self.opened:
            self.opened = True
            self.deliver(Opened(self.node))


def feed_safely(intake: Intake, data: bytes) -> str:
    """Feed; returns why the line must end, "" while it is fine."""
    try:
        intake.feed(data)
    except WireError as error:
        return f"the agent's line is garbled: {error}"
    return ""


class Outbox:
    """A queue and the thread that empties it into a line that may block."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[bytes | None] = SimpleQueue()

    @property
    def empty(self) -> bool:
        """Nothing is waiting (a write may still be under way)."""
        return self._queue.empty()

    def put(self, data: bytes) -> None:
        """Queue; returns at once."""
        self._queue.put(data)

    def stop(self) -> None:
        """End the thread after all that is queued has been written."""
        self._queue.put(None)

    def start(self, first: bytes, write: Callable[[bytes], object], finish: Callable[[], None], name: str) -> None:
        """Start writing: `first`, then the queue. `write` raises OSError when the line is dead; `finish` runs last."""
        threading.Thread(target=self._drain, args=(first, write, finish), name=name, daemon=True).start()

    def _drain(self, first: bytes, write: Callable[[bytes], object], finish: Callable[[], None]) -> None:
        data: bytes | None = first
        try:
            while data is not None:
                for start in range(0, len(data), _PIECE):
                    write(data[start : start + _PIECE])
                data = self._queue.get()
        except OSError:
            pass  # the reader sees the same dead line and reports it
        finally:
            finish()
