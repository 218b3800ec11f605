"""Owns: a child process whose stdin and stdout are the line: starting it, reading both its streams, ending it.
Must not: know what it runs or what the bytes mean.
Called by: launch.local, launch.openssh."""

from __future__ import annotations

import fcntl
import itertools
import os
import selectors
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import IO

TOO_SLOW = "it took too long"
_PIECE = 1024 * 1024
_SET_PIPE_SIZE = 1031  # F_SETPIPE_SZ
_MOST_ENLARGED = 16
_enlarged = itertools.count()
_starting = threading.Lock()


def start_process(argv: Sequence[str], env: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
    """A child in a session of its own: no terminal, and a Ctrl-C there does not reach it. Raises OSError.

    One at a time: while it starts a child has eight descriptors open here, of which three stay."""
    # Pipes of subprocess are close-on-exec from birth: no other child of ours can keep a line open.
    pipe = subprocess.PIPE
    with _starting:
        return subprocess.Popen(argv, bufsize=0, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True, env=env)


def enlarge(pipe: IO[bytes]) -> None:
    """Room for several pieces of output at once: four times the throughput of large writes.

    For some lines only: a user who is not root has 64 MiB for all pipes; beyond, every new one is tiny."""
    if next(_enlarged) < _MOST_ENLARGED:
        with suppress(OSError):
            fcntl.fcntl(pipe.fileno(), _SET_PIPE_SIZE, _PIECE)


def write_all(pipe: IO[bytes], data: bytes) -> None:
    """Write; blocks while the pipe is full. Raises OSError when nobody reads it any more."""
    view = memoryview(data)
    while view:
        view = view[os.write(pipe.fileno(), view) :]


def read_both(
    process: subprocess.Popen[bytes],
    feed: Callable[[bytes], str],
    hear: Callable[[bytes], None],
    time_left: Callable[[], float | None] = lambda: None,
) -> str:
    """Until stdout ends: "". Sooner when `feed` says why, or TOO_SLOW when `time_left()` is over and nothing came.

    The end of stderr is not waited for: something the far side or a proxy left running may hold it open for ever."""
    assert process.stdout and process.stderr
    stdout, stderr = process.stdout, process.stderr
    with selectors.PollSelector() as selector:  # no descriptor of its own: there may be hundreds of us
        selector.register(stdout, selectors.EVENT_READ)
        selector.register(stderr, selectors.EVENT_READ)
        while (ready := selector.select(left := time_left())) or left is None:
            for key, _ in ready:
                data = os.read(key.fd, _PIECE)
                if key.fd == stdout.fileno():
                    if not data:
                        return ""
                    if why := feed(data):
                        return why
                elif data:
                    hear(data)
                else:
                    selector.unregister(stderr)
    return TOO_SLOW


def read_rest(stderr: IO[bytes], hear: Callable[[bytes], None]) -> None:
    """What stands in the pipe now; then it is closed."""
    os.set_blocking(stderr.fileno(), False)
    with suppress(BlockingIOError):
        while data := os.read(stderr.fileno(), 65536):
            hear(data)
    stderr.close()


def wait_for(process: subprocess.Popen[bytes], within_s: float) -> int | None:
    """Its exit code (negative: a signal), None if it has not ended by then."""
    try:
        return process.wait(within_s)
    except subprocess.TimeoutExpired:
        return None


def signal_session(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """To the process and what it started there, unless it has ended."""
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
