"""Owns: one thread that serves TCP connections: reads, queued writes, timers; everything it calls runs in that thread.
Must not: know what the bytes mean.
Called by: launch.manual."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable

_READ_SIZE = 256 * 1024
LINGER_S = 1.0  # how long a closed line may take to send what is queued


def show_address(host: str, port: int) -> str:
    """`host:port`, with brackets where the host is an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Line:
    """One connection. `on_data(bytes)` and `on_end(reason)` are called in the serving thread; on_end at most once."""

    def __init__(self, lines: Lines, sock: socket.socket, peer: str) -> None:
        self.peer = peer
        self.on_data: Callable[[bytes], None] = lambda data: None
        self.on_end: Callable[[str], None] = lambda reason: None
        self._lines, self._sock = lines, sock
        self._outbox = bytearray()
        self._state = "open"  # "open" | "closing" (sends the rest, hears nothing) | "closed"

    def write(self, data: bytes) -> None:
        """Queue bytes; never blocks. Nothing happens once the line is closed."""
        if self._state == "open" and data:
            self._outbox += data
            self._flush()

    def close(self) -> None:
        """Send what is queued (for at most LINGER_S), then close. `on_end` will not be called."""
        if self._state == "open":
            self._state = "closing"
            self._lines.after(LINGER_S, self.drop)
            self._flush()

    def serve(self, mask: int) -> None:
        """The socket is ready for `mask` (selectors.EVENT_*)."""
        if mask & selectors.EVENT_WRITE:
            self._flush()
        if mask & selectors.EVENT_READ and self._state != "closed":
            self._read()

    def _read(self) -> None:
        try:
            data = self._sock.recv(_READ_SIZE)
        except (BlockingIOError, InterruptedError):
            return None
        except OSError as error:
            return self._end(error.strerror or str(error))
        if not data:
            return self._end("the connection was closed by the other end")
        if self._state == "open":
            self.on_data(data)
        return None

    def _flush(self) -> None:
        try:
            while self._outbox:
                del self._outbox[: self._sock.send(self._outbox)]
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            return self._end(error.strerror or str(error))
        if self._state == "closing" and not self._outbox:
            return self._half_close()
        if self._state != "closed":
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._outbox else 0)
            self._lines.watch(self._sock, wanted, self.serve)
        return None

    def _half_close(self) -> None:
        # Closing with unread bytes would reset the connection and lose our last words at the far end: say end-of-file,
        # and wait for the far end's (or LINGER_S).
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)
        self._lines.watch(self._sock, selectors.EVENT_READ, self.serve)

    def _end(self, reason: str) -> None:
        heard = self._state == "open"
        self.drop()
        if heard:
            self.on_end(reason)

    def drop(self) -> None:
        """Close now, whatever is queued. `on_end` will not be called."""
        if self._state != "closed":
            self._state = "closed"
            self._outbox.clear()
            self._lines.forget(self._sock)
            self._lines.discard(self)
            self._sock.close()


class Lines:
    """The thread's loop. Only `call` and `stop` may be used from other threads."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._wake_in, self._wake_out = socket.socketpair()
        for end in (self._wake_in, self._wake_out):
            end.setblocking(False)
        self._calls: deque[Callable[[], None]] = deque()
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._roused = False
        self._order = itertools.count()
        self._lines: set[Line] = set()
        self._ending: float | None = None
        self._selector.register(self._wake_in, selectors.EVENT_READ, self._woken)
        self.thread: threading.Thread | None = None

    def start(self, name: str, run: Callable[[], None] | None = None) -> None:
        """Serve in a daemon thread of its own; with `run`, that is called there and must come to `self.run` itself."""
        self.thread = threading.Thread(target=run or self.run, name=name, daemon=True)
        self.thread.start()

    def call(self, what: Callable[[], None]) -> None:
        """Have `what` called in the serving thread, in order; nothing happens when that has ended. Never blocks."""
        self._calls.append(what)
        if not self._roused:  # a word to each of a thousand nodes wakes the thread once
            self._roused = True
            with contextlib.suppress(OSError):  # full: it will wake anyway; closed: nobody is there any more
                self._wake_out.send(b"\0")

    def stop(self, wait_s: float = 2 * LINGER_S) -> None:
        """End the thread after what is queued was sent (for at most LINGER_S); waits at most `wait_s`."""
        self.call(self._begin_end)
        if self.thread is not None and self.thread is not threading.current_thread():
            self.thread.join(wait_s)

    def after(self, delay_s: float, what: Callable[[], None]) -> None:
        """Call `what` in `delay_s` seconds."""
        heapq.heappush(self._timers, (time.monotonic() + delay_s, next(self._order), what))

    def add(self, sock: socket.socket, peer: str) -> Line:
        """Serve a connected socket."""
        sock.setblocking(False)
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        line = Line(self, sock, peer)
        self._lines.add(line)
        self.watch(sock, selectors.EVENT_READ, line.serve)
        return line

    @property
    def count(self) -> int:
        """How many connections are open or on their way out."""
        return len(self._lines)

    def watch(self, sock: socket.socket, mask: int, ready: Callable[[int], None]) -> None:
        """Call `ready(mask)` when the socket is."""
        if sock.fileno() not in self._selector.get_map():
            self._selector.register(sock, mask, ready)
        elif self._selector.get_key(sock).events != mask:
            self._selector.modify(sock, mask, ready)

    def discard(self, line: Line) -> None:
        """The line is closed."""
        self._lines.discard(line)

    def forget(self, sock: socket.socket) -> None:
        """Do not watch it any more."""
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(sock)

    def run(self) -> None:
        """Serve until `stop`."""
        try:
            while not self._has_ended():
                for key, mask in self._selector.select(self._wait_s()):
                    key.data(mask)
                self._run_timers()
                self._roused = False  # before the calls are taken: who comes later must wake us again
                while self._calls:
                    self._calls.popleft()()
        finally:
            for line in list(self._lines):
                line.drop()
            for end in (self._wake_in, self._wake_out):
                end.close()
            self._selector.close()

    def _woken(self, mask: int) -> None:
        with contextlib.suppress(BlockingIOError):
            self._wake_in.recv(4096)

    def _wait_s(self) -> float | None:
        if self._calls:
            return 0.0
        return max(0.0, self._timers[0][0] - time.monotonic()) if self._timers else None

    def _run_timers(self) -> None:
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            heapq.heappop(self._timers)[2]()

    def _begin_end(self) -> None:
        self._ending = time.monotonic() + LINGER_S
        for line in list(self._lines):
            line.close()
        self.after(LINGER_S, lambda: None)

    def _has_ended(self) -> bool:
        if self._ending is None:
            return False
        return time.monotonic() >= self._ending or not self._lines
