"""Owns: tests of the line's bytes: frames cut anywhere, output that goes from pipe to pipe, a launcher that is slow.
Must not: measure.
Called by: pytest."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import socket
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshrun import wire
from meshrun.agent import line as line_module
from meshrun.agent.events import Event
from meshrun.agent.line import Line
from meshrun.agent.reactor import Reactor
from meshrun.agent.workers import WorkerPipes, Workers
from meshrun.errors import WireError
from meshrun.launch.channel import Scanner

SMALLEST = 4096
MESSAGES = st.one_of(
    st.builds(wire.Output, st.integers(0, 9), st.integers(1, 2), st.binary(max_size=300)),
    st.builds(wire.Ack, st.integers(0, 10**9)),
    st.just(wire.Beat()),
)


@settings(deadline=None)
@given(st.lists(MESSAGES, max_size=12), st.lists(st.integers(1, 40), min_size=1, max_size=20))
def test_frames_cut_anywhere(messages: list[object], sizes: list[int]) -> None:
    data, decoder = b"".join(map(wire.encode, messages)), wire.Decoder()
    found: list[object] = []
    at = turn = 0
    while at < len(data):
        size = sizes[turn % len(sizes)]
        found += decoder.feed(data[at : at + size])
        at, turn = at + size, turn + 1
    assert found == messages


@settings(deadline=None)
@given(st.lists(MESSAGES, max_size=6), st.binary(max_size=20), st.integers(1, 6))
def test_who_stops_reading_gets_the_rest_later(messages: list[object], tail: bytes, taken: int) -> None:
    """As in a handshake: what came together with its last message is read by somebody else."""
    last = wire.Output(0, 1, tail)
    data, decoder = b"".join(map(wire.encode, [*messages, last])), wire.Decoder()
    found = list(islice(decoder.feed(data[:-3]), taken))
    found += decoder.feed(b"")
    assert found + list(decoder.feed(data[-3:])) == [*messages, last]


@settings(deadline=None)
@given(st.binary(max_size=30), st.integers(1, 40))
def test_a_frame_over_the_limit_is_refused_once_its_head_is_there(data: bytes, size: int) -> None:
    whole = wire.encode(wire.Output(1, 1, data)) + wire.encode_head(1, 1, 101)
    decoder = wire.Decoder(100)
    found: list[object] = []
    with pytest.raises(WireError, match="over the limit of 100"):
        for at in range(0, len(whole), size):
            found += decoder.feed(whole[at : at + size])
    assert found in ([wire.Output(1, 1, data)], [])  # the generator is left where it raised


class Ends:
    """A line, the launcher's ends of it, and the pipes of one worker."""

    def __init__(self, folder: Path, room: int = 1 << 20, window: int = 1 << 30) -> None:
        self.reactor = Reactor()
        self.told, self._writing = os.pipe()
        self._reading, self._heard = os.pipe()
        for fd in (self.told, self._writing, self._reading):
            os.set_blocking(fd, False)
        fcntl.fcntl(self._writing, fcntl.F_SETPIPE_SZ, room)
        self.line = Line(self.reactor, self._reading, self._writing, str(folder))
        self.line.open_window(window)
        self.pipes = WorkerPipes(self.reactor, self.line, lambda event: None, 3, set())
        self.worker = self.pipes.outputs[0]
        os.set_blocking(self.worker, False)
        self._scanner = Scanner()
        self.messages: list[object] = []

    def turn(self) -> None:
        """One turn of the agent's loop."""
        self.line.flush()
        self.reactor.wait(self.reactor.now() + 0.002)
        self.line.flush()

    def read(self, size: int) -> None:
        """The launcher takes in at most `size` bytes."""
        with contextlib.suppress(BlockingIOError):
            data = os.read(self.told, size)
            self.messages += self._scanner.feed(data)

    def output(self) -> bytes:
        return b"".join(one.data for one in self.messages if isinstance(one, wire.Output))

    def end(self) -> None:
        """The worker has ended; everything arrives."""
        self.pipes.close_far_ends()
        while not self.line.idle or self.pipes._streams:
            self.turn()
            self.read(1 << 20)
        self.read(1 << 20)
        self.pipes.close()
        for fd in (self.told, self._writing, self._reading, self._heard):
            os.close(fd)


@pytest.fixture
def passed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How much went from pipe to pipe, each time."""
    sizes: list[int] = []
    pass_on = Line.pass_on

    def note(self: Line, rank: int, stream: int, pipe: int, waiting: int) -> int:
        size = pass_on(self, rank, stream, pipe, waiting)
        sizes.extend([size] * bool(size))
        return size

    monkeypatch.setattr(Line, "pass_on", note)
    yield sizes


@pytest.mark.parametrize("room", [SMALLEST, 1 << 16, 1 << 20])
@pytest.mark.parametrize("seed", range(4))
def test_bytes_arrive_in_order_whoever_is_slow(tmp_path: Path, passed: list[int], room: int, seed: int) -> None:
    """Large and small writes, messages between them, a launcher that reads in pieces of any size or not at all."""
    dice, ends, sent, told = random.Random(seed), Ends(tmp_path, room), b"", 0
    for _ in range(60):
        data = dice.randbytes(dice.choice([1, 100, 70_000, 250_000]))
        with contextlib.suppress(BlockingIOError):
            sent += data[: os.write(ends.worker, data)]
        if dice.random() < 0.3:
            ends.line.send(wire.Progress(0, (told,)))
            told += 1
        ends.turn()
        if dice.random() < 0.6:
            ends.read(dice.choice([10, 5_000, 1 << 20]))
    ends.end()
    assert ends.output() == sent
    assert [one.ranks for one in ends.messages if isinstance(one, wire.Progress)] == [(at,) for at in range(told)]
    assert passed  # what this test is about did happen


def test_a_stream_that_is_closed_in_the_middle_of_a_frame(tmp_path: Path, passed: list[int]) -> None:
    """The launcher reads nothing while the attempt ends: the frame that was begun is completed all the same."""
    ends = Ends(tmp_path, SMALLEST)
    data = random.Random(1).randbytes(100_000)
    assert os.write(ends.worker, data) == len(data)
    ends.turn()
    assert passed == [len(data)]
    ends.pipes.close()
    while not ends.line.idle:
        ends.read(1 << 20)
        ends.turn()
    ends.read(1 << 20)
    assert ends.output() == data


def test_a_slow_line_does_not_hold_a_worker_to_its_own_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes a little every few milliseconds: what it does not take is spooled, and the worker goes on."""
    clock, ends = 100.0, Ends(tmp_path, SMALLEST)
    monkeypatch.setattr(ends.reactor, "now", lambda: clock)
    data, sent = bytes(100_000), 0
    for turn in range(400):
        if turn % 10 == 0:
            with contextlib.suppress(BlockingIOError):
                sent += os.write(ends.worker, data)
            ends.read(SMALLEST)
        ends.turn()
        clock += 0.001
    assert sent == 40 * len(data)
    monkeypatch.undo()
    ends.end()
    assert len(ends.output()) == sent


def test_a_launcher_that_stands_still_does_not_hold_a_worker_up(
    tmp_path: Path, passed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A short stall is waited for; a longer one is what the spool is for."""
    clock, ends, sent = 100.0, Ends(tmp_path, SMALLEST), 0
    monkeypatch.setattr(ends.reactor, "now", lambda: clock)
    while not ends.line.pausing:
        sent += os.write(ends.worker, bytes(100_000))
        ends.turn()
    with pytest.raises(BlockingIOError):  # waited for: nobody takes it now
        while True:
            sent += os.write(ends.worker, bytes(4096))
            ends.turn()
    clock += line_module.PATIENCE_S
    taken = 0
    while taken < 1 << 21:
        with contextlib.suppress(BlockingIOError):
            taken += os.write(ends.worker, bytes(100_000))
        ends.turn()
    monkeypatch.undo()
    ends.end()
    assert len(ends.output()) == sent + taken


@pytest.mark.parametrize(("room", "at_least", "large"), [(1 << 20, (1 << 18) + 1, {3}), (1 << 16, 1, set())])
def test_frames_are_as_large_as_the_line_has_room(
    tmp_path: Path, passed: list[int], room: int, at_least: int, large: set[int]
) -> None:
    """With much room a rank that fills its pipe gets a larger one, and a frame still fits whole into the line's."""
    ends, data = Ends(tmp_path, room), random.Random(3).randbytes(1 << 20)
    sent = b""
    for _ in range(12):
        with contextlib.suppress(BlockingIOError):
            sent += data[: os.write(ends.worker, data)]
        ends.turn()
        ends.read(1 << 20)
    ends.end()
    assert ends.output() == sent
    assert at_least <= max(passed) <= ends.line.most <= max(room - 1, 1 << 18)
    assert ends.pipes._large == large


def test_only_so_many_ranks_of_a_node_get_a_larger_pipe(tmp_path: Path) -> None:
    """A restart starts to count anew."""
    ends, events = Ends(tmp_path), list[Event]()
    workers = Workers(ends.reactor, ends.line, events.append, "", str(tmp_path))
    for _ in range(2):
        pipes = [workers._open(rank) for rank in range(4)]
        for one in pipes:
            assert one
            os.set_blocking(one.outputs[0], False)
            os.write(one.outputs[0], bytes(1 << 20))
        for _ in range(8):
            ends.turn()
            ends.read(1 << 20)
        assert len(workers._large) == 2
        for one in pipes:
            assert one
            one.close_far_ends()
        workers.close()
        assert not workers._large
    ends.end()


def test_a_line_that_takes_nothing_is_not_tried_at_every_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ends, tried, write = Ends(tmp_path, SMALLEST), 0, os.write

    def count(fd: int, data: bytes) -> int:
        nonlocal tried
        tried += fd == ends._writing
        return write(fd, data)

    os.write(ends.worker, bytes(100_000))
    for _ in range(3):
        ends.turn()
    monkeypatch.setattr(os, "write", count)
    for _ in range(10):
        ends.line.send(wire.Beat())
        ends.turn()
    assert not tried
    ends.end()
    assert tried and len(ends.output()) == 100_000 and ends.messages.count(wire.Beat()) == 10


def test_the_window_is_never_overdrawn(tmp_path: Path, passed: list[int]) -> None:
    ends = Ends(tmp_path, window=150_000)
    os.write(ends.worker, bytes(100_000))
    ends.turn()
    os.write(ends.worker, bytes(100_000))
    for _ in range(40):
        ends.turn()
        ends.read(1 << 20)
    assert (passed, len(ends.output())) == ([100_000], 150_000)  # the rest of the window is too little to pass on
    ends.line.open_window(1 << 20)
    ends.end()
    assert len(ends.output()) == 200_000


def test_what_somebody_else_has_read_is_zeros(tmp_path: Path) -> None:
    """`cat /proc/PID/fd/1` takes bytes away; the frames stay whole."""
    ends = Ends(tmp_path, SMALLEST)
    os.write(ends.worker, b"x" * 100_000)
    ends.turn()
    reading = next(iter(ends.pipes._streams))
    stolen = os.read(reading, 50_000)
    assert stolen == b"x" * 50_000
    ends.end()
    assert ends.output() == b"x" * 50_000 + bytes(50_000)


def test_a_line_that_is_no_pipe(tmp_path: Path) -> None:
    near, far = socket.socketpair()
    with near, far:
        line = Line(Reactor(), near.fileno(), near.fileno(), str(tmp_path))
        line.open_window(1 << 20)
        line.flush()
        assert not line.pass_on(0, wire.STDOUT, 0, 1 << 17)


def test_what_somebody_else_has_read_keeps_nobody_waiting(tmp_path: Path) -> None:
    """The worker writes nothing more: the frame is completed, and what stands behind it is told."""
    ends = Ends(tmp_path, SMALLEST)
    os.write(ends.worker, b"x" * 100_000)
    ends.turn()
    os.read(next(iter(ends.pipes._streams)), 1 << 20)
    ends.line.send(wire.Progress(0, (7,)))
    for _ in range(100):
        ends.read(1 << 20)
        ends.turn()
    assert wire.Progress(0, (7,)) in ends.messages
    assert len(ends.output()) == 100_000
    ends.end()


def test_where_the_kernel_refuses_to_splice_output_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> int:
        raise PermissionError(1, "a sandbox")

    ends, data = Ends(tmp_path), random.Random(2).randbytes(200_000)
    monkeypatch.setattr(os, "splice", refuse)
    os.write(ends.worker, data)
    ends.turn()
    assert ends.line.open
    ends.end()
    assert ends.output() == data
