"""Owns: an agent on this machine without SSH.
Must not: differ from SSH in anything but the carrier: the same command, the same bytes.
Called by: launch.openers."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import threading
import time
from contextlib import suppress
from typing import IO

from meshrun.errors import Cause, CauseKind
from meshrun.launch.boot import COMMAND
from meshrun.launch.channel import Channel, Deliver, Opener, Unreachable
from meshrun.launch.intake import Intake, MakeStart, Outbox, feed_safely
from meshrun.launch.pipes import enlarge, read_both, read_rest, start_process, wait_for, write_all

_EXIT_WAIT_S = 5.0
_opened: list[_LocalChannel] = []
_SHELL = shlex.split(COMMAND)[1:]  # what any login shell becomes with it


def open_local(make_start: MakeStart) -> Opener:
    """An opener that starts the agent as a child in its own session. `make_start`: see `intake.MakeStart`."""

    def open_one(node: int, deliver: Deliver) -> Channel:
        return _LocalChannel(node, deliver, make_start)

    return open_one


def end_agents(within_s: float) -> None:
    """The launcher gives up, for an error of its own: agents here see their lines end, and are waited for so long."""
    for channel in _opened:
        channel.hang_up()
    end = time.monotonic() + within_s
    for channel in _opened:
        channel.wait(max(0.0, end - time.monotonic()))


class _LocalChannel:
    def __init__(self, node: int, deliver: Deliver, make_start: MakeStart) -> None:
        _opened.append(self)
        self._intake = Intake(node, deliver)
        self._outbox = Outbox()
        # Not on the thread: while the launcher imports its own parts, that waits for the interpreter at every step.
        self._process = self._start()
        if self._process:
            arguments = (self._process, make_start())
            threading.Thread(target=self._run, args=arguments, name=f"local-{node}", daemon=True).start()

    def send(self, data: bytes) -> None:
        self._outbox.put(data)

    def close(self) -> None:
        # What is queued still goes out; then the agent sees end-of-file. The reader stays until the agent is gone, so
        # that it can stop in order without a broken pipe and leaves no zombie.
        self.hang_up()
        self._end_unborn()

    def hang_up(self) -> None:
        """No event from now on, and end-of-file for the agent, which leaves in order."""
        self._intake.mute()
        self._outbox.stop()

    def wait(self, within_s: float) -> None:
        """Until the agent is gone, so long at most."""
        if self._process:
            wait_for(self._process, within_s)

    def _end_unborn(self) -> None:
        """One that has not greeted has nothing to stop; if it is stopped itself, it would see no end-of-file."""
        process = self._process
        if self._intake.muted and not self._intake.opened and process and process.poll() is None:
            with suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)  # with what its prelude waits for

    def _start(self) -> subprocess.Popen[bytes] | None:
        try:
            return start_process(_SHELL)
        except OSError as error:
            cause = Cause(CauseKind.AGENT, f"cannot start a process: {error.strerror}")
            self._intake.deliver(Unreachable(self._intake.node, cause))
            return None

    def _run(self, process: subprocess.Popen[bytes], start: bytes) -> None:
        assert process.stdin and process.stdout and process.stderr
        enlarge(process.stdout)
        stdin = process.stdin
        try:
            self._outbox.start(start, lambda data: write_all(stdin, data), stdin.close, f"{process.pid}-out")
        except RuntimeError as error:  # no more threads
            stdin.close()
            process.wait()
            cause = Cause(CauseKind.AGENT, f"cannot start a thread: {error}", "see ulimit -u and the pids limit")
            self._intake.deliver(Unreachable(self._intake.node, cause))
            return
        reason = read_both(process, lambda data: feed_safely(self._intake, data), self._intake.hear)
        self._finish(process, process.stderr, reason)

    def _finish(self, process: subprocess.Popen[bytes], stderr: IO[bytes], garbled: str) -> None:
        self._outbox.stop()
        if process.stdout:
            process.stdout.close()
        code = wait_for(process, _EXIT_WAIT_S)
        read_rest(stderr, self._intake.hear)
        self._intake.end(code, garbled or f"the agent ended ({_describe(code)})")
        process.wait()  # however long it takes to stop its workers: no zombie


def _describe(code: int | None) -> str:
    if code is None:
        return "it closed its line but has not left"
    return f"signal {-code}" if code < 0 else f"exit code {code}"
