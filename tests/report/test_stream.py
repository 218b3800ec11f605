"""Owns: the console's thread on real pipes and a pseudo-terminal: order, slow and absent readers, the status area.
Must not: depend on how fast anything is.
Called by: pytest."""

from __future__ import annotations

import errno
import fcntl
import os
import pty
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from meshrun.report.stream import Console
from meshrun.report.terminal import Terminal, open_terminal
from meshrun.watch.values import Emit, Planned, Record
from meshrun.wire import STDERR, STDOUT
from tests.report.make import make_job, make_plan

PLAN = make_plan({"a": 1, "b": 1}, dp=2)


class Reader:
    """Reads a descriptor to its end in a thread, from `start` on."""

    def __init__(self, fd: int) -> None:
        self.data = b""
        self._fd = fd
        self._thread = threading.Thread(target=self._read, daemon=True)

    def start(self) -> Reader:
        self._thread.start()
        return self

    def join(self) -> bytes:
        self._thread.join(60)
        assert not self._thread.is_alive()
        return self.data

    def _read(self) -> None:
        try:
            while piece := os.read(self._fd, 65536):
                self.data += piece
        except OSError as error:
            assert error.errno == errno.EIO  # a pseudo-terminal whose other side is closed
        os.close(self._fd)


class Screen:
    """A console on two pipes, and what it called back."""

    def __init__(self) -> None:
        self.out_read, self.out = os.pipe()
        self.err_read, self.err = os.pipe()
        self.shown: dict[int, int] = {}
        self.gone = 0
        self.heard = threading.Event()

    def open(self, terminal: Terminal | None = None) -> Console:
        return Console(self.out, self.err, self.count, self.note_gone, terminal)

    def count(self, node: int, count: int) -> None:
        self.shown[node] = self.shown.get(node, 0) + count
        self.heard.set()

    def note_gone(self) -> None:
        self.gone += 1

    def wait_for(self, total: int) -> None:
        while sum(self.shown.values()) < total:
            assert self.heard.wait(60)
            self.heard.clear()

    def close(self) -> None:
        os.close(self.out)
        os.close(self.err)


@pytest.fixture
def screen() -> Iterator[Screen]:
    yield Screen()


def test_lines_go_to_their_stream_and_the_last_words_come_last(screen: Screen) -> None:
    readers = [Reader(screen.out_read).start(), Reader(screen.err_read).start()]
    console = screen.open()
    console.put(Planned(PLAN))
    console.put(Emit(0, 0, STDOUT, b"one\npart"))
    console.put(Emit(1, 1, STDERR, b"oops\nlast piece"))
    console.put(b"meshrun: a word\n")
    console.put(Record("exited", {"rank": 1}))
    console.put(Emit(0, 0, STDOUT, b"ial\n"))
    console.finish(b"meshrun: rank 1 failed first\n", 2.0, threading.Event())
    screen.close()
    out, err = (reader.join() for reader in readers)
    assert out == b"[a:0 dp=0] one\n[a:0 dp=0] partial\n"
    assert err == b"[b:1 dp=1] oops\nmeshrun: a word\n[b:1 dp=1] last piece\nmeshrun: rank 1 failed first\n"
    assert screen.shown == {0: 12, 1: 15} and screen.gone == 0


def test_nobody_waits_for_a_reader_that_has_stopped(screen: Screen) -> None:
    console = screen.open()
    line = b"x" * 99 + b"\n"
    for _ in range(10_000):  # far more than a pipe takes; this loop would hang if `put` waited
        console.put(Emit(0, 0, STDOUT, line))
    readers = [Reader(screen.out_read).start(), Reader(screen.err_read).start()]
    console.finish(b"", 2.0, threading.Event())
    screen.close()
    assert readers[0].join() == (b"[0] " + line) * 10_000
    assert screen.shown == {0: 1_000_000}


def test_the_last_words_come_though_stdout_is_never_read(screen: Screen) -> None:
    err = Reader(screen.err_read).start()
    console = screen.open()
    console.put(Emit(0, 0, STDOUT, b"x\n" * 500_000))
    hurried = threading.Event()
    hurried.set()
    console.finish(b"meshrun: stopped\n", 0.2, hurried)
    os.close(screen.err)
    assert err.join() == b"meshrun: stopped\n"
    Reader(screen.out_read).start()  # let the thread end


def test_a_reader_that_leaves_is_told_once_and_output_still_counts(screen: Screen) -> None:
    err = Reader(screen.err_read).start()
    os.close(screen.out_read)
    console = screen.open()
    for _ in range(3):
        console.put(Emit(1, 1, STDOUT, b"line\n"))
        console.put(Emit(1, 1, STDERR, b"kept\n"))
        screen.wait_for(10)
    console.finish(b"end\n", 2.0, threading.Event())
    screen.close()
    assert screen.gone == 1 and screen.shown == {1: 30}
    assert err.join() == b"[1] kept\n" * 3 + b"end\n"


def test_nobody_reads_stderr(screen: Screen) -> None:
    out = Reader(screen.out_read).start()
    os.close(screen.err_read)
    console = screen.open()
    console.put(Emit(0, 0, STDERR, b"lost\n"))
    screen.wait_for(5)
    console.put(Emit(0, 0, STDOUT, b"kept\n"))
    console.finish(b"end\n", 2.0, threading.Event())
    screen.close()
    assert out.join() == b"[0] kept\n" and screen.gone == 0


def test_a_full_disk_behind_stdout_is_told_once(screen: Screen) -> None:
    err = Reader(screen.err_read).start()
    full = os.open("/dev/full", os.O_WRONLY)
    console = Console(full, screen.err, screen.count, screen.note_gone)
    for _ in range(3):
        console.put(Emit(0, 0, STDOUT, b"line\n"))
    console.finish(b"", 2.0, threading.Event())
    os.close(full)
    screen.close()
    assert err.join() == b"meshrun: cannot write to stdout: No space left on device. The run goes on without it\n"
    assert screen.gone == 0 and screen.shown == {0: 15}


def test_a_descriptor_that_is_non_blocking(screen: Screen) -> None:
    fcntl.fcntl(screen.out, fcntl.F_SETFL, os.O_NONBLOCK)
    readers = [Reader(screen.out_read), Reader(screen.err_read).start()]
    console = screen.open()
    console.put(Emit(0, 0, STDOUT, b"x\n" * 300_000))
    readers[0].start()
    console.finish(b"", 2.0, threading.Event())
    screen.close()
    assert readers[0].join() == b"[0] x\n" * 300_000


def test_what_goes_wrong_in_the_thread_is_not_lost(screen: Screen) -> None:
    console = screen.open()
    console.put(Emit(0, 0, 7, b"no such stream\n"))
    with pytest.raises(KeyError):
        console.finish(b"", 2.0, threading.Event())
    assert screen.shown == {0: 15}


# ---- a terminal ----


def screen_after(data: bytes) -> list[str]:
    """What a terminal shows: newlines, returns, cursor up and erase-below only; anything else is a failure."""
    rows, row, column = [""], 0, 0
    for piece in re.findall(r"\x1b\[[0-9;]*[A-Za-z]|\r|\n|[^\x1b\r\n]+", data.decode()):
        if piece == "\n":
            row, column = row + 1, 0
            rows += [""] * (row + 1 - len(rows))
        elif piece == "\r":
            column = 0
        elif piece.startswith("\x1b") and piece.endswith("A"):
            row -= int(piece[2:-1])
        elif piece == "\x1b[J":
            rows[row:] = [rows[row][:column]]
        else:
            assert not piece.startswith("\x1b"), piece
            rows[row] = rows[row][:column] + piece + rows[row][column + len(piece) :]
            column += len(piece)
    return rows


@pytest.fixture
def terminal_fds() -> Iterator[tuple[int, int]]:
    master, slave = pty.openpty()
    yield master, slave


def test_the_status_area_stays_below_the_lines_and_goes_at_the_end(
    terminal_fds: tuple[int, int], tmp_path: Path
) -> None:
    master, slave = terminal_fds
    reader = Reader(master).start()
    job = make_job(tmp_path, {"a": 1, "b": 1}, dp=2)
    terminal = open_terminal(job, slave, slave, {"TERM": "xterm"}, 0.0)
    assert terminal
    console = Console(slave, slave, lambda node, count: None, lambda: None, terminal)
    console.put(Planned(PLAN))
    for rank in (0, 1):
        console.put(Record("ready", {"rank": rank}))
    for n in range(50):
        console.put(Emit(0, 0, STDOUT, b"step %d\n" % n))
        console.put(Emit(1, 1, STDERR, b"\r%d%%|##" % n))
    console.put(b"meshrun: odd \x1b[2J\n")
    console.put(Emit(1, 1, STDERR, b"\r100%|##\n"))
    console.finish(b"meshrun: the end\n", 2.0, threading.Event())
    os.close(slave)
    rows = screen_after(reader.join())
    assert rows[:50] == [f"[a:0 dp=0] step {n}" for n in range(50)]
    assert rows[50:] == ["meshrun: odd ", "[b:1 dp=1] 100%|##", "meshrun: the end", ""]


def frame_text(runs: list[tuple[int, list[bytes]]]) -> list[tuple[int, bytes]]:
    return [(stream, b"".join(pieces)) for stream, pieces in runs]


def test_frames(terminal_fds: tuple[int, int], tmp_path: Path) -> None:
    terminal = open_terminal(make_job(tmp_path, {"a": 1}, dp=1), 1, terminal_fds[1], {"TERM": "xterm"}, 0.0)
    assert terminal
    board = b"meshrun 00:00:00 connecting 0/1: waiting for a"
    assert frame_text(terminal.frame([], [b"[0] 5%", "[1] é\x1b[31m".encode()], 0.5)) == [
        (STDERR, b""),
        (STDERR, b"[0] 5%\n[1] \xc3\xa9\n" + board),
    ]
    assert terminal.frame([], [b"[0] 5%", "[1] é".encode()], 0.9) == []
    assert frame_text(terminal.frame([(STDERR, [b"line\n"])], [], 0.9)) == [
        (STDERR, b"\r\x1b[2A\x1b[J"),
        (STDERR, b"line\n"),
        (STDERR, board),
    ]
    assert terminal.erase() == b"\r\x1b[J" and terminal.erase() == b""


def test_no_status_area_where_it_would_be_in_the_way(terminal_fds: tuple[int, int], tmp_path: Path) -> None:
    slave = terminal_fds[1]
    job, quiet = make_job(tmp_path, {"a": 1}, dp=1), make_job(tmp_path, {"a": 1}, dp=1, quiet=True)
    pipe = os.pipe()
    assert open_terminal(job, slave, slave, {"TERM": "xterm"}, 0.0)
    assert not open_terminal(job, slave, pipe[1], {"TERM": "xterm"}, 0.0)
    assert not open_terminal(job, slave, slave, {"TERM": "dumb"}, 0.0)
    assert not open_terminal(job, slave, slave, {}, 0.0)
    assert not open_terminal(quiet, slave, slave, {"TERM": "xterm"}, 0.0)
