"""Owns: an agent on this machine without SSH, and the question whether a host is this machine.
Must not: differ from SSH in anything but the carrier: the same command, the same bytes.
Called by: launch.openers; cli (is_this_machine)."""

from __future__ import annotations

import os
import pwd
import signal
import socket
import subprocess
import threading
from contextlib import suppress
from typing import IO

from meshrun.errors import Cause, CauseKind
from meshrun.launch.boot import COMMAND
from meshrun.launch.channel import Channel, Deliver, Opener, Unreachable
from meshrun.launch.intake import Intake, MakeStart, Outbox, feed_safely
from meshrun.launch.pipes import read_both, read_rest, start_process, wait_for, write_all
from meshrun.spec.values import Host, SshSettings

_EXIT_WAIT_S = 5.0


def open_local(make_start: MakeStart) -> Opener:
    """An opener that starts the agent as a child in its own session. `make_start`: see `intake.MakeStart`."""

    def open_one(node: int, deliver: Deliver) -> Channel:
        return _LocalChannel(node, deliver, make_start)

    return open_one


class _LocalChannel:
    def __init__(self, node: int, deliver: Deliver, make_start: MakeStart) -> None:
        self._intake = Intake(node, deliver)
        self._outbox = Outbox()
        self._process: subprocess.Popen[bytes] | None = None
        threading.Thread(target=self._run, args=(make_start,), name=f"local-{node}", daemon=True).start()

    def send(self, data: bytes) -> None:
        self._outbox.put(data)

    def close(self) -> None:
        # What is queued still goes out; then the agent sees end-of-file. The reader stays until the agent is gone, so
        # that it can stop in order without a broken pipe and leaves no zombie.
        self._intake.mute()
        self._outbox.stop()
        self._end_unborn()

    def _end_unborn(self) -> None:
        """One that has not greeted has nothing to stop; if it is stopped itself, it would see no end-of-file."""
        process = self._process
        if self._intake.muted and not self._intake.opened and process and process.poll() is None:
            with suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)  # with what its prelude waits for

    def _run(self, make_start: MakeStart) -> None:
        try:
            process = start_process(["/bin/sh", "-c", COMMAND])
        except OSError as error:
            cause = Cause(CauseKind.AGENT, f"cannot start a process: {error.strerror}")
            self._intake.deliver(Unreachable(self._intake.node, cause))
            return
        self._process = process
        self._end_unborn()  # `close` may have come before there was a process
        assert process.stdin and process.stderr
        stdin = process.stdin
        try:
            self._outbox.start(make_start(), lambda data: write_all(stdin, data), stdin.close, f"{process.pid}-out")
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


# ---- is it this machine? ---------------------------------------------------------------------------------------------


def is_this_machine(host: Host, settings: SshSettings) -> bool:
    """True if `host` is to be started without SSH: its name or address is ours and nothing names another user or port.

    `localhost`, 127.0.0.1, ::1, the hostname and the addresses of our interfaces are ours. Any other 127.x.y.z is ours
    only if neither the line, nor the settings, nor the ssh config say a user or a port (a server of its own may listen
    there). A jump host or proxy means SSH. Raises InputError for an ssh config that cannot be read."""
    if not _is_candidate(host.name):
        return False
    from meshrun.launch.ssh_files import read_target

    target = read_target(host.name, host.user, host.port, settings)
    if target.proxy_jump or target.proxy_command or not (host.name == target.hostname or _is_ours(target.hostname)):
        return False
    if _is_other_loopback(target.hostname):
        return not target.user_said and not target.port_said
    return target.user == pwd.getpwuid(os.getuid()).pw_name and target.port == 22


def _is_candidate(name: str) -> bool:
    """Cheap, and no name is looked up: a thousand lines must not mean a thousand questions to a name server."""
    return _is_ours(name) or _is_other_loopback(name)


def _is_ours(name: str) -> bool:
    mine = socket.gethostname().lower()
    wanted = name.lower().rstrip(".")
    if wanted in ("localhost", mine):
        return True
    # node7 and node7.cluster are one machine if only one of them has a domain.
    if ("." in wanted) != ("." in mine) and not _is_address(wanted):
        return wanted.split(".")[0] == mine.split(".")[0]
    return _is_address(wanted) and _binds(wanted)


def _is_other_loopback(name: str) -> bool:
    return _is_address(name) and name.startswith("127.") and name != "127.0.0.1"


def _family(text: str) -> socket.AddressFamily | None:
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, text)
            return family
        except (OSError, ValueError):
            continue
    return None


def _is_address(text: str) -> bool:
    return _family(text) is not None


def _binds(address: str) -> bool:
    """The kernel lets a socket take an address only if an interface has it; the same on every system."""
    family = _family(address)
    if family is None or address in ("0.0.0.0", "::"):
        return False
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True
