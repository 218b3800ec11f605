"""Owns: the agent's end of a Unix socket to one of its processes: frames both ways, descriptors outwards.
Must not: block; a process that does not read must not hold up the agent.
Called by: agent.loop, for the fork server, the store and the workers."""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Callable
from typing import Any

from meshrun.agent.reactor import READ, WRITE, Reactor
from meshrun.errors import WireError
from meshrun.wire import Decoder, encode

_PIECE = 64 * 1024


class Link:
    """`heard(message)` for each message, `lost()` once at end-of-file."""

    def __init__(self, reactor: Reactor, heard: Callable[[Any], None], lost: Callable[[], None]) -> None:
        self._reactor, self._heard, self._lost = reactor, heard, lost
        self._socket, self.far = socket.socketpair()  # `far` goes to the process
        self._socket.setblocking(False)
        self._decoder = Decoder()
        self._queue: deque[tuple[bytes, tuple[int, ...]]] = deque()
        self.open = True
        reactor.watch(self._socket.fileno(), READ, self._ready)

    def send(self, message: Any, fds: tuple[int, ...] = ()) -> None:
        """Queue a message; the descriptors in `fds` are ours to close, which happens once they have been sent."""
        self._queue.append((encode(message), fds))
        self._flush()

    def _ready(self, events: int) -> None:
        if events & READ:
            self.drain()
        if events & WRITE and self.open:
            self._flush()

    def drain(self) -> None:
        """Read all that is there now."""
        while self.open:
            try:
                data = self._socket.recv(_PIECE)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            try:
                for message in self._decoder.feed(data):
                    self._heard(message)
            except WireError:
                data = b""
            if not data:
                self.close()
                self._lost()

    def _flush(self) -> None:
        try:
            while self.open and self._queue:
                data, fds = self._queue[0]
                sent = socket.send_fds(self._socket, [data], fds) if fds else self._socket.send(data)
                _close_all(fds)
                self._queue[0] = (data[sent:], ())
                if sent == len(data):
                    self._queue.popleft()
        except BlockingIOError:
            pass
        except OSError:
            self._drop_queue()  # the process is gone; the end-of-file says so
        if self.open:
            self._reactor.watch(self._socket.fileno(), READ | WRITE if self._queue else READ, self._ready)

    def _drop_queue(self) -> None:
        for _, fds in self._queue:
            _close_all(fds)
        self._queue.clear()

    def close(self) -> None:
        """Close our end; no call follows. Idempotent."""
        if self.open:
            self.open = False
            self._drop_queue()
            self._reactor.unwatch(self._socket.fileno())
            self._socket.close()


def _close_all(fds: tuple[int, ...]) -> None:
    for fd in fds:
        os.close(fd)
