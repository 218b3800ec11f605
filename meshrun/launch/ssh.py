"""Owns: a node's agent over SSH: connect, check the host key, log in, run the command; the only paramiko there is.
Must not: prompt, ever; be imported before an SSH host is to be opened (paramiko costs a tenth of a second).
Called by: launch.openers."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache

import paramiko

from meshrun.errors import Cause, CauseKind, InputError
from meshrun.launch.boot import COMMAND, UNKNOWN_SIGNAL
from meshrun.launch.channel import Channel, Deliver, Opener, Remark, Unreachable
from meshrun.launch.host_key import find_entries, judge_host
from meshrun.launch.intake import Intake, MakeStart, Outbox, feed_safely
from meshrun.launch.known_hosts import find_types
from meshrun.launch.ssh_config import Target, restrict
from meshrun.launch.ssh_connect import (
    Failed,
    blame_jump,
    name_server,
    open_stream,
    read_public_key,
    refuse_login,
    take_turn,
    time_left,
)
from meshrun.launch.ssh_files import read_hops
from meshrun.spec.values import Host, SshSettings

# paramiko wakes up this often only to look whether it was closed; we wake it by shutting the socket down instead.
_IDLE_S = 30.0
_FLUSH_S = 1.0
_STATUS_S = 5.0
# How often stderr is looked at when stdout is silent. An open line has a beat every 2 s, so there it costs nothing.
_POLL_S, _POLL_OPEN_S = 0.1, 2.5

logging.getLogger("paramiko").addHandler(logging.NullHandler())
logging.getLogger("paramiko").propagate = False


def open_ssh(host: Host, settings: SshSettings, connect_timeout_s: float, make_start: MakeStart) -> Opener:
    """An opener that logs in to `host` and starts the agent there.

    `connect_timeout_s` bounds one attempt up to the agent's start, time spent waiting for other logins not counted."""

    def open_one(node: int, deliver: Deliver) -> Channel:
        return _SshChannel(node, deliver, host, settings, connect_timeout_s, make_start)

    return open_one


class _Gone(Exception):
    """The channel was closed while it was being opened."""


class _SshChannel:
    def __init__(
        self, node: int, deliver: Deliver, host: Host, settings: SshSettings, timeout_s: float, make_start: MakeStart
    ) -> None:
        self._intake = Intake(node, deliver)
        self._outbox = Outbox()
        self._lock = threading.Lock()
        self._closers: list[Callable[[], object]] = []
        self._closed = False
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
            cause = Cause(CauseKind.CONFIG, "; ".join(problem.message for problem in error.problems))
            self._intake.deliver(Unreachable(self._intake.node, cause))
        except _Gone:
            pass
        except Exception as error:  # paramiko's depths; a thread that ends without a word would be a hang
            self._intake.end(UNKNOWN_SIGNAL, f"the ssh connection failed: {type(error).__name__}: {error}")
        finally:
            self._outbox.stop()
            self._hang_up()

    def _start(self, host: Host, settings: SshSettings, timeout_s: float) -> paramiko.Channel:
        hops = read_hops(host.name, host.user, host.port, settings)
        with take_turn(name_server(hops[0])):
            deadline = time.monotonic() + timeout_s
            return _execute(self._connect(hops, deadline), hops[-1], deadline)

    def _connect(self, hops: Sequence[Target], deadline: float) -> paramiko.Transport:
        stream: socket.socket | paramiko.Channel | None = None
        for hop, after in zip(hops, [*hops[1:], None], strict=True):
            try:
                if stream is None:
                    stream, closers = open_stream(hop, deadline)
                    for closer in closers:
                        self._keep(closer)
                transport = self._enter(hop, stream, deadline)
                if after is None:
                    return transport
                stream = _forward(transport, hop, after, deadline)
            except Failed as failed:
                raise blame_jump(failed, hop, hops) from None
        raise AssertionError("a connection has at least one hop")

    def _enter(self, hop: Target, stream: socket.socket | paramiko.Channel, deadline: float) -> paramiko.Transport:
        entries = find_entries(hop)
        transport = _Transport(stream)
        transport.daemon = True
        self._keep(transport.close)
        _configure(transport, hop, find_types(entries))
        shown = _shake_hands(transport, hop, deadline)
        if remark := judge_host(hop, entries, shown.get_name(), shown.asbytes()):
            self._intake.deliver(Remark(self._intake.node, remark))
        transport.auth_timeout = time_left(deadline, hop)
        _log_in(transport, hop)
        stream.settimeout(_IDLE_S)
        return transport

    def _keep(self, closer: Callable[[], object]) -> None:
        with self._lock:
            self._closers.append(closer)
            closed = self._closed
        if closed:
            self._hang_up()
            raise _Gone

    def _hang_up(self) -> None:
        with self._lock:
            self._closed = True
            closers, self._closers = self._closers, []
        for closer in closers:  # the socket first: that wakes every thread that waits on it
            with suppress(OSError, EOFError):
                closer()

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
            self._intake.end(None, garbled or "the connection broke")


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


class _Transport(paramiko.Transport):
    """paramiko's, but it asks for the key types by which the host is known first, and never for certificates, which
    paramiko would take for plain keys."""

    known_types: frozenset[str] = frozenset()
    wish = "*"

    @property
    def preferred_keys(self) -> tuple[str, ...]:
        plain = restrict([name for name in super().preferred_keys if "-cert-" not in name], self.wish)
        return tuple(sorted(plain, key=lambda name: _family(name) not in self.known_types))


def _family(algorithm: str) -> str:
    return "ssh-rsa" if algorithm.startswith("rsa-sha2-") else algorithm


def _configure(transport: _Transport, hop: Target, known_types: frozenset[str]) -> None:
    options, wishes = transport.get_security_options(), dict(hop.algorithms)
    transport.known_types = known_types
    transport.wish = wishes.get("hostkeyalgorithms", "*")
    options.ciphers = restrict(options.ciphers, wishes.get("ciphers", "*"))
    options.digests = restrict(options.digests, wishes.get("macs", "*"))
    options.kex = restrict(options.kex, wishes.get("kexalgorithms", "*"))
    if not (options.ciphers and options.digests and options.kex and transport.preferred_keys):
        message = "the ssh config allows no algorithm that paramiko knows"
        raise Failed(Cause(CauseKind.CONFIG, message, "see Ciphers, MACs, KexAlgorithms, HostKeyAlgorithms there"))


def _shake_hands(transport: paramiko.Transport, hop: Target, deadline: float) -> paramiko.PKey:
    transport.banner_timeout = transport.handshake_timeout = left = time_left(deadline, hop)
    try:
        transport.start_client(timeout=left)
        return transport.get_remote_server_key()
    except paramiko.ssh_exception.IncompatiblePeer as error:
        raise Failed(Cause(CauseKind.CONFIG, f"{hop.hostname} speaks no ssh algorithm in common: {error}")) from None
    except (paramiko.SSHException, EOFError, OSError):
        time_left(deadline, hop)
        message = f"{hop.hostname} port {hop.port} closed the connection before login"
        raise Failed(Cause(CauseKind.DROPPED, message, "its sshd may be at MaxStartups, or is no sshd")) from None


def _forward(transport: paramiko.Transport, hop: Target, after: Target, deadline: float) -> paramiko.Channel:
    where = (after.hostname, after.port)
    try:
        return transport.open_channel("direct-tcpip", where, ("127.0.0.1", 0), timeout=time_left(deadline, hop))
    except paramiko.ChannelException as error:
        forbidden = error.code == 1
        kind = CauseKind.JUMP if forbidden else CauseKind.REFUSED
        message = f"{hop.name} does not forward to {after.hostname} port {after.port}: {error.text}"
        raise Failed(Cause(kind, message, "see AllowTcpForwarding in its sshd_config" if forbidden else "")) from None
    except (paramiko.SSHException, EOFError, OSError):
        time_left(deadline, hop)
        raise Failed(Cause(CauseKind.DROPPED, f"{hop.name} closed the connection")) from None


def _execute(transport: paramiko.Transport, target: Target, deadline: float) -> paramiko.Channel:
    try:
        session = transport.open_session(timeout=time_left(deadline, target))
        session.exec_command(COMMAND)
        session.settimeout(_POLL_S)
        return session
    except (paramiko.SSHException, EOFError, OSError) as error:
        if not transport.is_active():
            raise Failed(Cause(CauseKind.DROPPED, f"{target.hostname} closed the connection after login")) from None
        message = f"{target.hostname} let {target.user} in but ran no command: {error}"
        raise Failed(Cause(CauseKind.AGENT, message, "see ForceCommand and MaxSessions in its sshd_config")) from None


def _log_in(transport: paramiko.Transport, target: Target) -> None:
    """Public keys only, in the order of `_find_keys`. Raises Failed, naming all that was tried."""
    tried: list[str] = []
    agent = paramiko.Agent() if target.use_agent else None
    try:
        for label, key in _find_keys(target, agent):
            if isinstance(key, str):
                tried.append(f"{label} ({key})")
                continue
            tried.append(label)
            if _try_key(transport, target, key, tried):
                return
    finally:
        if agent:
            agent.close()
    raise Failed(refuse_login(target, tried, ""))


def _try_key(transport: paramiko.Transport, target: Target, key: paramiko.PKey, tried: list[str]) -> bool:
    try:
        rest = transport.auth_publickey(target.user, key)
    except paramiko.BadAuthenticationType as error:
        raise Failed(refuse_login(target, tried, f"it only offers {', '.join(error.allowed_types)}")) from None
    except (paramiko.SSHException, EOFError, OSError):
        if transport.is_active():
            return False
        if len(tried) == 1:
            message = f"{target.hostname} port {target.port} closed the connection during login"
            raise Failed(Cause(CauseKind.DROPPED, message)) from None
        raise Failed(refuse_login(target, tried, "it closed the connection (MaxAuthTries)")) from None
    if rest:
        raise Failed(refuse_login(target, tried, f"it also wants {', '.join(rest)}"))
    return True


def _find_keys(target: Target, agent: paramiko.Agent | None) -> Iterator[tuple[str, paramiko.PKey | str]]:
    """Configured files, then the agent's other keys, then the default files; a reason instead of a key that is none.

    A file that needs a passphrase is taken from the agent if that has it."""
    held = {key.asbytes(): key for key in agent.get_keys()} if agent else {}
    for path in target.identities:
        yield path, _pick(path, held)
    if not target.identities_only:
        for key in list(held.values()):
            yield f"agent key {getattr(key, 'comment', '') or key.get_name()}", key
    for path in target.default_keys:
        found = _pick(path, held)
        if found != _MISSING:
            yield path, found


_MISSING = "no such file"


def _pick(path: str, held: dict[bytes, paramiko.AgentKey]) -> paramiko.PKey | str:
    key = _load_key(path)
    if isinstance(key, str):
        return held.pop(read_public_key(path), None) or key
    held.pop(key.asbytes(), None)
    return key


@lru_cache(maxsize=64)
def _load_key(path: str) -> paramiko.PKey | str:
    try:
        return paramiko.PKey.from_path(path)
    except FileNotFoundError:
        return _MISSING
    except OSError as error:
        return error.strerror or "unreadable"
    except TypeError:  # cryptography's word for a key that needs a passphrase
        return "it needs a passphrase and is not in the agent"
    except Exception as error:  # each key format has its own
        text = str(error)
        return "it needs a passphrase and is not in the agent" if "password" in text.lower() else f"not a key: {text}"
