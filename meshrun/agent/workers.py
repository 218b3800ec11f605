"""Owns: the workers' pipes and sockets: making them, reading them, handing their other ends to a new process.
Must not: decide, or hold a worker up: what it writes is read at once and spooled.
Called by: agent.loop."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Sequence
from typing import Any

from meshrun.agent.events import Event, Said, Started, StartFailed, StreamsClosed
from meshrun.agent.line import MUCH, Line, waiting_in
from meshrun.agent.link import Link
from meshrun.agent.reactor import READ, Reactor
from meshrun.agent.services import ForkServer
from meshrun.agent.spawn import explain_refusal, start_process, start_role, to_text
from meshrun.wire import STDERR, STDOUT, Fork, Order

_PIPE_BYTES, _LARGE_PIPE = 256 * 1024, 1024 * 1024
_MOST_LARGE = 2  # of a node: a user who is not root has 64 MiB for all pipes
_REST_S = 0.001
_PAUSE_S = 0.1
_WORDS_BYTES = 8 * 1024  # of a worker's stderr, kept for the case that it ends without a record
_WORDS_READS = 64
_SET_PIPE_SIZE = 1031  # F_SETPIPE_SZ


class WorkerPipes:
    """Our ends of one worker's stdout, stderr and socket, and the ends that it gets."""

    def __init__(
        self, reactor: Reactor, line: Line, deliver: Callable[[Event], None], rank: int, large: set[int]
    ) -> None:
        """`large`: the ranks of this node whose pipe was made larger, shared by all of them."""
        self._reactor, self._line, self._deliver, self._rank, self._large = reactor, line, deliver, rank, large
        self._streams: dict[int, int] = {}  # our fd → stream
        self._words = b""
        self._read_at: dict[int, float] = {}
        self.wrote = False  # since somebody last asked `Workers.take_writers`
        self.link = Link(reactor, self._heard, lambda: None)
        self.outputs = (self._make_pipe(STDOUT), self._make_pipe(STDERR))

    def _make_pipe(self, stream: int) -> int:
        reading, writing = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(reading, False)
        _resize(reading, _PIPE_BYTES)
        self._streams[reading] = stream
        self._watch(reading)
        return writing

    def _watch(self, fd: int) -> None:
        if fd in self._streams:
            self._reactor.watch(fd, READ, lambda _: self._read(fd))

    def _heard(self, message: Any) -> None:
        self._deliver(Said(self._rank, message, self._reactor.now()))

    def _read(self, fd: int) -> None:
        """Take in a piece. A rank that prints line after line is looked at once a millisecond: a wake-up for each line
        would cost it half of its core. One whose pipe is filled in that time is not kept waiting."""
        now = self._reactor.now()
        if self._line.pausing:
            return self._rest(fd, now + _REST_S)
        size = self._take(fd)
        if size < MUCH and now - self._read_at.get(fd, 0.0) < _REST_S and fd in self._streams:
            self._rest(fd, now + _REST_S)
        self._read_at[fd] = now
        return None

    def _rest(self, fd: int, until: float) -> None:
        self._reactor.unwatch(fd)
        self._reactor.call_at(until, lambda: self._watch(fd))

    def _take(self, fd: int) -> int:
        """Take in one piece: its size, 0 if there is none now."""
        if self._line.full:
            self._rest(fd, self._reactor.now() + _PAUSE_S)
            return 0
        if self._streams[fd] == STDOUT and (size := self._pass_on(fd)):
            return size
        self._line.finish_with(fd)
        try:
            data = os.read(fd, _PIPE_BYTES)
        except BlockingIOError:
            return 0
        if not data:
            self._close_stream(fd)
            return 0
        self._line.put(self._rank, self._streams[fd], data)
        self.wrote = True
        if self._streams[fd] == STDERR:
            self._words = (self._words + data[-_WORDS_BYTES:])[-_WORDS_BYTES:]
        return len(data)

    def _pass_on(self, fd: int) -> int:
        """Let the line take what waits in the pipe, unread: how much that was. Not stderr, whose end is kept."""
        waiting = waiting_in(fd)
        if waiting >= _PIPE_BYTES // 2:
            self._enlarge(fd)
        size = self._line.pass_on(self._rank, STDOUT, fd, waiting)
        self.wrote = self.wrote or size > 0
        return size

    def _enlarge(self, fd: int) -> None:
        """It writes faster than it is read. Where the line takes more at once, more room makes fewer, larger frames."""
        if self._line.most > _PIPE_BYTES and self._rank not in self._large and len(self._large) < _MOST_LARGE:
            self._large.add(self._rank)
            _resize(fd, _LARGE_PIPE)

    def last_words(self) -> str:
        """The end of its stderr, with what is still in the pipe: a process that has ended wrote all it had."""
        for fd in [fd for fd, stream in self._streams.items() if stream == STDERR]:
            reads = 0
            while reads < _WORDS_READS and self._take(fd):
                reads += 1
        return to_text(self._words)

    def _close_stream(self, fd: int) -> None:
        self._reactor.unwatch(fd)
        self._line.finish_with(fd)
        del self._streams[fd]
        os.close(fd)
        if not self._streams:
            self._deliver(StreamsClosed(self._rank))

    def give_away(self) -> tuple[int, int, int]:
        """The worker's ends, to be sent to the fork server (and closed by whoever sends them)."""
        return (*self.outputs, self.link.far.detach())

    def close_far_ends(self) -> None:
        """A process has been started with them: ours would hide the end-of-file."""
        for fd in self.outputs:
            os.close(fd)
        self.link.far.close()

    def close(self) -> None:
        """Close all that is still open, reading nothing more."""
        for fd in list(self._streams):
            self._close_stream(fd)
        self.link.close()


def _resize(pipe: int, size: int) -> None:
    with contextlib.suppress(OSError):  # this user's share of pipe memory may be used up: the usual size does too
        fcntl.fcntl(pipe, _SET_PIPE_SIZE, size)


class Workers:
    """The pipes of all workers of an attempt, and the three ways to start their processes."""

    def __init__(self, reactor: Reactor, line: Line, deliver: Callable[[Event], None], bundle: str, tmp: str) -> None:
        self._reactor, self._line, self._deliver = reactor, line, deliver
        self._bundle, self._tmp = bundle, tmp
        self._pipes: dict[int, WorkerPipes] = {}
        self._large: set[int] = set()

    def _open(self, rank: int) -> WorkerPipes | None:
        try:
            self._pipes[rank] = WorkerPipes(self._reactor, self._line, self._deliver, rank, self._large)
            return self._pipes[rank]
        except OSError as error:
            self._deliver(StartFailed(rank, explain_refusal(error)))
            return None

    def fork(self, server: ForkServer, order: Order, forks: Sequence[Fork]) -> None:
        """Ask the fork server for all of them; its answers are events of its own."""
        server.send(order)
        for fork in forks:
            pipes = self._open(fork.rank)
            if pipes:
                server.send(fork, pipes.give_away())

    def spawn(self, order: Order, forks: Sequence[Fork]) -> None:
        """A fresh interpreter for each; it reads its order from its own socket."""

        def start(pipes: WorkerPipes, fork: Fork) -> int:
            far = pipes.link.far.fileno()
            return start_role(self._bundle, "worker", [str(far), ""], fork.env, self._tmp, pipes.outputs, [far])

        for fork in forks:
            pipes = self._start(fork, start)
            if pipes:
                pipes.link.send(order)
                pipes.link.send(fork)

    def run_program(self, order: Order, forks: Sequence[Fork]) -> None:
        """The user's program itself."""

        def start(pipes: WorkerPipes, fork: Fork) -> int:
            argv = order.argv_of(fork.env["LOCAL_RANK"])
            return start_process(argv, fork.env, order.workdir, pipes.outputs, cpus=fork.cpus)

        for fork in forks:
            self._start(fork, start)

    def _start(self, fork: Fork, start: Callable[[WorkerPipes, Fork], int]) -> WorkerPipes | None:
        pipes = self._open(fork.rank)
        if pipes is None:
            return None
        try:
            self._deliver(Started(fork.rank, start(pipes, fork), self._reactor.now()))
            return pipes
        except OSError as error:
            self._deliver(StartFailed(fork.rank, explain_refusal(error)))
            return None
        finally:
            pipes.close_far_ends()

    def drain_sockets(self) -> None:
        """Take in what workers said before they ended, so that it is told before their end is."""
        for pipes in self._pipes.values():
            pipes.link.drain()

    def last_words(self, rank: int) -> str:
        """The end of what `rank` wrote to stderr."""
        return self._pipes[rank].last_words() if rank in self._pipes else ""

    def take_writers(self) -> set[int]:
        """The ranks that have written anything since the last call."""
        writers = {rank for rank, pipes in self._pipes.items() if pipes.wrote}
        for rank in writers:
            self._pipes[rank].wrote = False
        return writers

    def close(self) -> None:
        """Forget this attempt's workers."""
        for pipes in self._pipes.values():
            pipes.close()
        self._pipes.clear()
        self._large.clear()
