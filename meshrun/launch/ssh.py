"""Owns: a node's agent over SSH as a channel: the way there, then what is read and written.
Must not: prompt, ever; be imported before an SSH host is to be opened (paramiko costs a tenth of a second).
Called by: launch.openers."""

from __future__ import annotations

import threading
import time

import paramiko

from meshrun.errors import InputError
from meshrun.launch.boot import UNKNOWN_SIGNAL
from meshrun.launch.channel import Channel, Deliver, Opener, Remark, Unreachable
from meshrun.launch.intake import Intake, MakeStart, Outbox, feed_safely
from meshrun.launch.ssh_connect import Failed, explain_input
from meshrun.launch.ssh_files import read_hops
from meshrun.launch.ssh_jump_hosts import Closers, Gone, JumpHost, reach
from meshrun.launch.ssh_transport import execute
from meshrun.spec.values import Host, SshSettings

_FLUSH_S = 1.0
_STATUS_S = 5.0
# How often stderr is looked at when stdout is silent. An open line has a beat every 2 s, so this costs nothing.
_POLL_OPEN_S = 2.5


def open_ssh(host: Host, settings: SshSettings, connect_timeout_s: float, make_start: MakeStart) -> Opener:
    """An opener that logs in to `host` and starts the agent there.

    `connect_timeout_s` bounds one attempt up to the agent's start, time spent waiting for other logins not counted."""

    def open_one(node: int, deliver: Deliver) -> Channel:
        return _SshChannel(node, deliver, host, settings, connect_timeout_s, make_start)

    return open_one


class _SshChannel:
    def __init__(
        self, node: int, deliver: Deliver, host: Host, settings: SshSettings, timeout_s: float, make_start: MakeStart
    ) -> None:
        self._intake = Intake(node, deliver)
        self._outbox = Outbox()
        self._closers = Closers()
        self._jump: JumpHost | None = None
        args = (host, settings, timeout_s, make_start)
        threading.Thread(target=self._run, args=args, name=f"ssh-{node}", daemon=True).start()

    def send(self, data: bytes) -> None:
        self._outbox.put(data)

    def close(self) -> None:
        self._intake.mute()
        flushed = self._outbox.empty
        self._outbox.stop()
        if flushed:
            self._hang_up()
        else:  # a last message gets a moment; the writer hangs up as soon as it is out
            timer = threading.Timer(_FLUSH_S, self._hang_up)
            timer.daemon = True
            timer.start()

    def _run(self, host: Host, settings: SshSettings, timeout_s: float, make_start: MakeStart) -> None:
        try:
            session = self._start(host, settings, timeout_s)
            name = f"ssh-out-{self._intake.node}"
            self._outbox.start(make_start(), lambda data: _write_all(session, data), self._hang_up, name)
            reason = self._read(session)
            self._finish(session, reason)
        except Failed as failed:
            self._intake.deliver(Unreachable(self._intake.node, failed.cause))
        except InputError as error:
            self._intake.deliver(Unreachable(self._intake.node, explain_input(error)))
        except Gone:
            pass
        except Exception as error:  # paramiko's depths; a thread that ends without a word would be a hang
            self._intake.end(UNKNOWN_SIGNAL, f"the ssh connection failed: {type(error).__name__}: {error}")
        finally:
            self._outbox.stop()
            self._hang_up()

    def _start(self, host: Host, settings: SshSettings, timeout_s: float) -> paramiko.Channel:
        hops = read_hops(host.name, host.user, host.port, settings)
        for note in (note for hop in hops for note in hop.notes):
            if _is_news(note):
                self._remark(note)
        transport, self._jump = reach(hops, timeout_s, self._closers, self._remark)
        return execute(transport, hops[-1], time.monotonic() + timeout_s)

    def _remark(self, text: str) -> None:
        self._intake.deliver(Remark(self._intake.node, text))

    def _hang_up(self) -> None:
        self._closers.close()

    def _read(self, session: paramiko.Channel) -> str:
        """Until the far side ends; returns why we must end it, "" if it did. One thread drains both of its streams."""
        while data := _read_some(session, self._intake):
            if why := feed_safely(self._intake, data):
                return why
            if self._intake.opened:
                session.settimeout(_POLL_OPEN_S)
        return ""

    def _finish(self, session: paramiko.Channel, garbled: str) -> None:
        session.status_event.wait(0 if garbled else _STATUS_S)
        if session.exit_status_ready() and session.exit_status >= 0:
            self._intake.end(session.exit_status, garbled or f"the agent ended (exit code {session.exit_status})")
        elif session.get_transport().is_active():
            self._intake.end(UNKNOWN_SIGNAL, garbled or "the agent was ended by a signal")
        else:
            self._intake.end(None, garbled or _explain_break(self._jump))


def _read_some(session: paramiko.Channel, intake: Intake) -> bytes:
    """What has come on stdout; b"" at the end, also when the command has ended but something it left holds that open.

    The two streams stay apart, so that what an rc file left running says on stderr never gets between frames; both are
    drained here, since a full one would stop the other (they share a window)."""
    while True:
        try:
            data = session.recv(65536)
        except TimeoutError:
            data = None
        while session.recv_stderr_ready():
            intake.hear(session.recv_stderr(65536))
        if data is not None:
            return data
        if session.exit_status_ready():
            return b""


def _write_all(session: paramiko.Channel, data: bytes) -> None:
    while data:
        try:
            data = data[session.send(data) :]
        except TimeoutError:  # the far side's window is closed, or (closed) it will never open
            if session.closed:
                raise


def _explain_break(jump: JumpHost | None) -> str:
    broken = jump.find_broken() if jump else ""
    if broken:
        return f"the connection to the jump host {broken} broke"
    return "the connection broke" + (f" (it goes through {jump.route[-1].name})" if jump else "")


def _is_news(note: str) -> bool:
    """What one config says of many hosts is said once."""
    with _said_lock:
        news = note not in _said
        _said.add(note)
    return news


_said: set[str] = set()
_said_lock = threading.Lock()
