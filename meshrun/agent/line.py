"""Owns: the line to the launcher: frames in, frames out, the output window, ages.
Must not: decide anything, or ever block.
Called by: agent.loop."""

from __future__ import annotations

import fcntl
import os
import sys
import termios
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from stat import S_ISFIFO
from typing import Any

from meshrun.agent.reactor import READ, WRITE, Reactor
from meshrun.agent.spool import Spool
from meshrun.dataclass import replace
from meshrun.errors import WireError
from meshrun.wire import MARKER, Ack, Beat, Decoder, Output, encode, encode_head

BEAT_S = 2.0
PATIENCE_S, FAST = 0.02, 100e6  # the most at once; bytes a second
MUCH = 64 * 1024  # output that comes in pieces of this size is passed on, and its rank is not made to rest
_PIECE = 256 * 1024  # read at once, and the size of one write
_NONBLOCK, _GET_PIPE_SIZE = 2, 1032  # SPLICE_F_NONBLOCK, F_GETPIPE_SZ


def waiting_in(pipe: int) -> int:
    """How many bytes `pipe` holds."""
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


class Line:
    """Messages overtake output; output waits for its window in a spool. Nothing is encoded before it can be sent."""

    def __init__(self, reactor: Reactor, reading: int, writing: int, folder: str) -> None:
        self._reactor, self._reading, self._writing = reactor, reading, writing
        self._decoder = Decoder()
        self._messages: deque[tuple[Any, float | None]] = deque()
        self._last: deque[Any] = deque()  # after all output
        self._spool = Spool(folder)
        self._window = 0
        self._buffer = memoryview(MARKER)
        self._passing: tuple[int, int] | None = None  # a pipe, and how many of its bytes the last frame still lacks
        self._splices = hasattr(os, "splice") and S_ISFIFO(os.fstat(writing).st_mode)
        # What is passed on at once. Where a launcher made the line's pipe large, a frame fits in whole and is read in
        # one go; a pipe of the usual size may lead to a slow line, where no message should wait long for a frame's end.
        room = fcntl.fcntl(writing, _GET_PIPE_SIZE) if self._splices else 0
        self.most = max(_PIECE, room - MUCH)
        self._sent_at = reactor.now()
        self._patient_until = 0.0
        self._blocked = False
        self.open = True

    def listen(self, heard: Callable[[Any], None], lost: Callable[[], None]) -> None:
        """Call `heard(message)` for each message, `lost()` once when the line ends. `Ack` is dealt with here too."""
        self._heard, self._lost = heard, lost
        self._reactor.watch(self._reading, READ, self._read)

    def _read(self, events: int) -> None:
        try:
            data = os.read(self._reading, _PIECE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        try:
            for message in self._decoder.feed(data):
                if isinstance(message, Ack):
                    self._window += message.count
                self._heard(message)
        except WireError:
            data = b""
        if not data:
            self._reactor.unwatch(self._reading)
            self._lost()

    def open_window(self, size: int) -> None:
        """Allow `size` more bytes of output to be under way."""
        self._window += size

    def send(self, message: Any, at: float | None = None) -> None:
        """Queue a message; with `at` its `age_s` is counted from there when it leaves."""
        self._messages.append((message, at))

    def send_last(self, message: Any) -> None:
        """Queue a message behind all output."""
        self._last.append(message)

    def put(self, rank: int, stream: int, data: bytes) -> None:
        """Queue output of a worker."""
        if self.open:
            self._spool.push((rank, stream, data))

    def pass_on(self, rank: int, stream: int, pipe: int, waiting: int) -> int:
        """Send what waits in `pipe` as output without reading it: from pipe to pipe the kernel moves pages, not bytes.

        How much that was; 0 where it cannot be done now or is too little to be worth it: then read it, and `put`."""
        size = min(waiting, self._window, self.most)
        if size < MUCH or not (self.open and self._splices and self.idle) or self._blocked:
            return 0
        try:
            os.write(self._writing, encode_head(rank, stream, size))  # so short that a pipe takes all of it or nothing
        except OSError:
            return 0
        self._window -= size
        self._passing = pipe, size
        self.flush()
        return size

    def _splice(self) -> None:
        """Move on what `pass_on` has begun. Raises OSError, BlockingIOError while the kernel takes no more."""
        while self._passing:
            pipe, left = self._passing
            try:
                moved = os.splice(pipe, self._writing, left, flags=_NONBLOCK)
            except BlockingIOError:
                if waiting_in(pipe):
                    raise
                moved = 0  # others have read it: it would be waited for without end, and for nothing else meanwhile
            except OSError:  # a sandbox that has no splice; a line that is gone is found by the next write
                self._splices, moved = False, 0
            self._passing = (pipe, left - moved) if left > moved else None
            self._note_sent(moved)
            if not moved:
                self.finish_with(pipe)

    def finish_with(self, pipe: int) -> None:
        """`pipe` will be read or closed: what its frame still lacks is taken now (zeros for what others have read)."""
        if self._passing and self._passing[0] == pipe:
            left, rest = self._passing[1], b""
            with suppress(BlockingIOError):
                rest = os.read(pipe, left)
            self._buffer, self._passing = memoryview(rest.ljust(left, b"\0")), None

    @property
    def pausing(self) -> bool:
        """A launcher that is fast takes no more just now: to spool for a moment only costs two copies and the disk.

        Each byte sent is worth so much patience that a slow line holds no worker to less than `FAST`."""
        stuck = self._blocked or self._window <= 0
        return stuck and not self._spool and self._reactor.now() < self._patient_until

    def _note_sent(self, count: int) -> None:
        self._sent_at = now = self._reactor.now()
        self._patient_until = min(max(self._patient_until, now) + count / FAST, now + PATIENCE_S)

    @property
    def full(self) -> bool:
        """True while neither the disk nor memory takes more output."""
        return self._spool.full

    @property
    def idle(self) -> bool:
        """True if everything queued has been handed to the kernel."""
        waiting = self._buffer or self._passing or self._messages or self._last or self._spool
        return not (self.open and waiting)

    def next_beat(self) -> float | None:
        """When `flush` wants to be called again if nothing happens."""
        return self._sent_at + BEAT_S if self.open and not self._blocked else None

    def flush(self) -> None:
        """Send what the kernel takes now. Called after every turn of the loop."""
        if not self._blocked:  # else the kernel says when it takes more
            self._send_on()

    def _send_on(self) -> None:
        while self.open:
            try:
                self._splice()
                if not self._buffer:
                    self._buffer = memoryview(self._gather())
                if not self._buffer:
                    return self._unblock()
                written = os.write(self._writing, self._buffer)
            except BlockingIOError:
                return self._block()
            except OSError:
                self.shut()
                return self._lost()
            self._note_sent(written)
            self._buffer = self._buffer[written:]
        return None

    def _block(self) -> None:
        if not self._blocked:
            self._blocked = True
            self._reactor.watch(self._writing, WRITE, lambda _: self._send_on())

    def _unblock(self) -> None:
        if self._blocked:
            self._blocked = False
            self._reactor.unwatch(self._writing)

    def _gather(self) -> bytes:
        """The next frames to send, about one piece of them."""
        pieces: list[bytes] = []
        size = 0
        while size < _PIECE and (frame := self._next_frame()):
            pieces.append(frame)
            size += len(frame)
        return b"".join(pieces)

    def _next_frame(self) -> bytes:
        if self._messages:
            message, at = self._messages.popleft()
            if at is not None:
                message = replace(message, age_s=max(0.0, self._reactor.now() - at))
            return encode(message)
        chunk = self._spool.pop(min(self._window, _PIECE))
        if chunk:
            self._window -= len(chunk[2])
            return encode(Output(*chunk))
        if self._last and not self._spool:
            return encode(self._last.popleft())
        if self._reactor.now() - self._sent_at >= BEAT_S and not self._buffer:
            self._sent_at = self._reactor.now()
            return encode(Beat())
        return b""

    def shut(self) -> None:
        """Nobody listens any more: forget everything, take nothing more."""
        self.open = False
        self._unblock()
        self._reactor.unwatch(self._reading)
        self._messages.clear()
        self._last.clear()
        self._spool.clear()
        self._buffer, self._passing = memoryview(b""), None
