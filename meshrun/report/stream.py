"""Owns: the only thread that writes to stdout and stderr: workers' lines, meshrun's own words, the status line.
Must not: let anybody wait for a slow screen; mix two lines; lose the order within one rank's stream.
Called by: report.report."""

from __future__ import annotations

import errno
import os
import select
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from meshrun.plan.values import Plan
from meshrun.report.lines import Prefixer, clean_text, make_prefix
from meshrun.report.pump import Pump
from meshrun.report.terminal import Terminal
from meshrun.watch.values import Again, Emit, Planned, Record
from meshrun.wire import STDERR, STDOUT

# A pipe takes this much at once; a larger write would hide from `Pump.finish` that a slow reader is still reading.
PIECE = 64 * 1024
TICK_S = 1.0


def write_out(fd: int, data: bytes, moved: Callable[[], None], stall_ms: int | None = None) -> None:
    """Write all of `data`, also to a descriptor that is non-blocking. Raises OSError; TimeoutError after `stall_ms`."""
    view = memoryview(data)
    while view:
        if stall_ms is not None:
            _wait(fd, stall_ms)
        try:
            # A pipe that polls as writable has room for one page at least: no more than that never blocks.
            view = view[os.write(fd, view[: PIECE if stall_ms is None else 512]) :]
            moved()
        except BlockingIOError:
            _wait(fd, stall_ms)


def _wait(fd: int, stall_ms: int | None) -> None:
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    if not poll.poll(stall_ms):
        raise TimeoutError(errno.ETIMEDOUT, "nobody reads it")


def _is_null(fd: int) -> bool:
    """Whether it is /dev/null: no line has to be made for it."""
    try:
        return os.fstat(fd).st_rdev == os.stat(os.devnull).st_rdev
    except OSError:
        return False


class Console:
    """Shows items in the order they were put: `Planned`, `Emit`, `Record` (for the status line), `Again`,
    bytes (for stderr)."""

    def __init__(
        self,
        out_fd: int,
        err_fd: int,
        shown: Callable[[int, int], None],
        reader_gone: Callable[[], None],
        terminal: Terminal | None = None,
    ) -> None:
        """`shown(node, count)`, called in the thread: so many bytes of a node's output were written or dropped."""
        self._fds = {STDOUT: out_fd, STDERR: err_fd}
        self._prefixers = {stream: Prefixer(os.isatty(fd)) for stream, fd in self._fds.items()}
        self._shown = shown
        self._reader_gone = reader_gone
        self._terminal = terminal
        self._dead = {stream for stream, fd in self._fds.items() if _is_null(fd)}
        self._pump = Pump("meshrun-console", self._handle, TICK_S if terminal else None)

    def put(self, item: Planned | Emit | Record | Again | bytes) -> None:
        """Queue one item; never blocks."""
        self._pump.put(item)

    @property
    def moved(self) -> int:
        """Rises whenever something got through to the screen."""
        return self._pump.moved

    def finish(self, last: bytes, stall_s: float, hurried: threading.Event) -> None:
        """Show all, then unfinished lines, then `last` on stderr; once `hurried` is set, gives up when nothing moves
        for `stall_s`. Raises whatever went wrong in the thread."""
        if self._pump.finish(stall_s, hurried):
            self._end(last, int(stall_s * 1000) if hurried.is_set() else None)
        else:
            # The thread hangs in a write, most likely to stdout; stderr may still have a reader.
            self._try_write(STDERR, self._words(last), int(stall_s * 1000))
        if self._pump.error:
            raise self._pump.error

    def _end(self, last: bytes, stall_ms: int | None) -> None:
        if self._terminal:
            self._try_write(STDERR, self._terminal.erase(), stall_ms)
        for stream, prefixer in self._prefixers.items():
            self._try_write(stream, prefixer.finish(), stall_ms)
        self._try_write(STDERR, self._words(last), stall_ms)

    def _handle(self, batch: Sequence[Any]) -> None:
        try:
            runs = self._render(batch)
            if self._terminal:
                bars = [bar for prefixer in self._prefixers.values() for bar in prefixer.bars()]
                runs = self._terminal.frame(runs, bars, time.monotonic())
            for stream, pieces in runs:
                self._try_write(stream, b"".join(pieces))
        finally:
            for node, count in _count(batch).items():
                self._shown(node, count)

    def _render(self, batch: Sequence[Any]) -> list[tuple[int, list[bytes]]]:
        """Items → runs of bytes for one stream each, so that many lines take one system call and keep their order."""
        runs: list[tuple[int, list[bytes]]] = []
        for item in batch:
            for stream, piece in self._render_item(item):
                if piece and runs and runs[-1][0] == stream:
                    runs[-1][1].append(piece)
                elif piece:
                    runs.append((stream, [piece]))
        return runs

    def _render_item(self, item: Any) -> Iterable[tuple[int, bytes]]:
        if type(item) is Emit:
            if item.stream in self._dead:
                return ()
            return ((item.stream, self._prefixers[item.stream].feed(item.rank, item.data)),)
        if type(item) is bytes:
            return ((STDERR, self._words(item)),)
        if type(item) is Again:  # an unfinished line of one attempt is not the beginning of one of the next
            return [(stream, prefixer.finish()) for stream, prefixer in self._prefixers.items()]
        if type(item) is Planned:
            self._name(item.plan)
        elif self._terminal:
            self._terminal.note(item, time.monotonic())
        return ()

    def _name(self, plan: Plan) -> None:
        for worker in plan.running:
            for prefixer in self._prefixers.values():
                prefixer.name(worker.rank, make_prefix(worker))
        if self._terminal:
            self._terminal.plan(plan)

    def _words(self, text: bytes) -> bytes:
        """meshrun's own words: they may quote what a node or a worker said."""
        return clean_text(text) if self._prefixers[STDERR].terminal else text

    def _try_write(self, stream: int, data: bytes, stall_ms: int | None = None) -> None:
        if not data or stream in self._dead:
            return
        try:
            write_out(self._fds[stream], data, self._moved, stall_ms)
        except OSError as error:
            self._dead.add(stream)
            self._lost(stream, error)

    def _lost(self, stream: int, error: OSError) -> None:
        if stream == STDOUT and error.errno == errno.EPIPE:
            self._reader_gone()
        elif stream == STDOUT:
            text = f"meshrun: cannot write to stdout: {error.strerror}. The run goes on without it\n"
            self._try_write(STDERR, text.encode(), 1000)

    def _moved(self) -> None:
        self._pump.moved += 1


def _count(batch: Sequence[Any]) -> dict[int, int]:
    counts: dict[int, int] = {}
    for item in batch:
        if type(item) is Emit:
            counts[item.node] = counts.get(item.node, 0) + len(item.data)
    return counts
