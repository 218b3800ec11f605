"""Owns: one end of a Unix socket to the agent: frames, and the descriptors that travel with them.
Must not: know what a message means.
Called by: the roles of `__main__` (fork server, worker, store) and whoever reports to the agent."""

from __future__ import annotations

import contextlib
import os
import select
import socket
from collections import deque
from typing import Any, TypeVar

from meshrun import wire

T = TypeVar("T")
_PIECE = 64 * 1024
_MAX_FDS = 64


class Line:
    """Blocking frames over a stream socket. Descriptors wait, in order, for the message that owns them."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._decoder = wire.Decoder()
        self._messages: deque[Any] = deque()
        self._fds: deque[int] = deque()

    @classmethod
    def of(cls, fd: int) -> Line:
        """The line on a descriptor that this process was given; its own children do not inherit it."""
        os.set_inheritable(fd, False)
        return cls(socket.socket(fileno=fd))

    def fileno(self) -> int:
        """The socket's descriptor."""
        return self._sock.fileno()

    def receive(self) -> Any | None:
        """The next message, or None at end-of-file. Raises WireError for what is not a frame."""
        while not self._messages:
            data, fds, _, _ = socket.recv_fds(self._sock, _PIECE, _MAX_FDS)
            self._fds.extend(fds)
            if not data:
                return None
            self._messages.extend(self._decoder.feed(data))
        return self._messages.popleft()

    def receive_more(self, kind: type[T]) -> list[T]:
        """The messages of `kind` that have arrived already, in order, up to the first of another kind."""
        found: list[T] = []
        while self._messages or select.select([self._sock], [], [], 0)[0]:
            message = self.receive()
            if not isinstance(message, kind):
                if message is not None:
                    self._messages.appendleft(message)
                break
            found.append(message)
        return found

    def take_fds(self, count: int) -> tuple[int, ...]:
        """The `count` descriptors that came with the message received last. Raises IndexError if there are fewer."""
        return tuple(self._fds.popleft() for _ in range(count))

    def send(self, message: Any) -> None:
        """Write one message. Raises OSError if the agent is gone."""
        self._sock.sendall(wire.encode(message))

    def tell(self, message: Any) -> None:
        """Write one message, or nothing if the agent is gone or the script closed our descriptor."""
        with contextlib.suppress(OSError, ValueError):
            self.send(message)
