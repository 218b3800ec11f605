"""Owns: a byte stream to an ssh server, by TCP or through a ProxyCommand; whose turn it is; the causes of failure.
Must not: speak ssh or know paramiko.
Called by: launch.ssh_transport, ssh_jump_hosts, ssh_keys, host_key, openssh."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Protocol

from meshrun.errors import Cause, CauseKind, InputError
from meshrun.launch.ssh_target import Target

# Logins under way at once: in all, and at one server (OpenSSH's MaxStartups starts to drop at 10).
_LOGINS, _LOGINS_PER_SERVER = 32, 8
_FEWEST = 2  # when it drops some
_PROXY_END_S = 0.5  # between a proxy's closing its stdout and its end
_all_logins = threading.BoundedSemaphore(_LOGINS)
_gates: dict[str, _Gate] = {}
_registry = threading.Lock()

_FAMILIES = {"any": socket.AF_UNSPEC, "inet": socket.AF_INET, "inet6": socket.AF_INET6}
_KINDS = {
    errno.ECONNREFUSED: CauseKind.REFUSED,
    errno.ETIMEDOUT: CauseKind.TIMED_OUT,
    errno.EHOSTUNREACH: CauseKind.NO_ROUTE,
    errno.ENETUNREACH: CauseKind.NO_ROUTE,
    errno.EHOSTDOWN: CauseKind.NO_ROUTE,
    errno.EADDRNOTAVAIL: CauseKind.NO_ROUTE,
}


class Stream(Protocol):
    """What both a socket and a channel through a jump host are to ssh."""

    def settimeout(self, timeout: float | None) -> None: ...


class Failed(Exception):
    """An attempt to reach a host ended; `cause` says why. Never leaves launch."""

    def __init__(self, cause: Cause) -> None:
        super().__init__(cause.message)
        self.cause = cause


def dial(target: Target, timeout_s: float) -> socket.socket:
    """A TCP connection to the first address that takes one, within `timeout_s`. Raises Failed."""
    host, port = target.hostname, target.port
    deadline = time.monotonic() + timeout_s
    found = _look_up(host, port, _FAMILIES[target.family])
    for left, (family, kind, proto, _, address) in zip(range(len(found), 0, -1), found, strict=True):
        stream = socket.socket(family, kind, proto)
        try:
            _bind(stream, family, target)
            stream.settimeout(max(0.1, (deadline - time.monotonic()) / left))
            stream.connect(address)
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, int(target.keep_alive))
            return stream
        except OSError as error:
            stream.close()
            last = error
    raise Failed(_describe(host, port, last, timeout_s))


def _bind(stream: socket.socket, family: int, target: Target) -> None:
    try:
        if target.bind_interface:
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, target.bind_interface.encode())
        if target.bind_address:
            found = socket.getaddrinfo(target.bind_address, 0, family, socket.SOCK_STREAM)
            stream.bind(found[0][4])
    except OSError as error:
        where = " ".join(part for part in (target.bind_address, target.bind_interface) if part)
        message = f"a connection to {target.hostname} cannot start at {where}: {error.strerror}"
        raise Failed(Cause(CauseKind.CONFIG, message, "see BindAddress and BindInterface in the ssh config")) from None


def _look_up(
    host: str, port: int, family: int
) -> list[tuple[int, int, int, str, tuple[str, int] | tuple[str, int, int, int]]]:
    try:
        return socket.getaddrinfo(host, port, family, type=socket.SOCK_STREAM)  # type: ignore[return-value]
    except (socket.gaierror, UnicodeError) as error:
        reason = error.strerror if isinstance(error, socket.gaierror) else "not a host name"
        message = f"the name {host} is not known here ({reason})"
        raise Failed(
            Cause(CauseKind.NAME_UNKNOWN, message, "check its spelling, DNS, or HostName in ssh config")
        ) from None


def _describe(host: str, port: int, error: OSError, timeout_s: float) -> Cause:
    where = f"{host} port {port}"
    kind = CauseKind.TIMED_OUT if isinstance(error, TimeoutError) else _KINDS.get(error.errno or 0, CauseKind.NO_ROUTE)
    if kind is CauseKind.REFUSED:
        return Cause(kind, f"{where} refused the connection", "is sshd running there, on this port?")
    if kind is CauseKind.TIMED_OUT:
        return Cause(
            kind, f"{where} did not answer within {timeout_s:g} s", "is the machine up, and no firewall between?"
        )
    return Cause(kind, f"no way to {where}: {error.strerror or error}", "check the address and the network")


@contextmanager
def open_stream(
    first: Target, deadline: float, keep: Callable[[Callable[[], object]], None]
) -> Iterator[socket.socket]:
    """To the first server on the way to a host; `keep` gets what ends it. A failure within the block that may be the
    proxy's is told with the proxy's own words."""
    if not first.proxy_command:
        stream = dial(first, time_left(deadline, first))
        keep(lambda: shut(stream))
        yield stream
        return
    proxy = Proxy(first.proxy_command)
    keep(proxy.close)
    try:
        yield proxy.stream
    except Failed as failed:
        why = proxy.explain() if failed.cause.kind is CauseKind.DROPPED else ""
        if not why:
            raise
        message = f"the ProxyCommand of {first.name} makes no connection: {why}"
        hint = f"try it by hand: {first.proxy_command}"
        raise Failed(Cause(CauseKind.DROPPED, message, hint)) from None


class Proxy:
    """A running ProxyCommand: one end of a socket pair is its stdin and stdout."""

    def __init__(self, command: str) -> None:
        self.stream, far = socket.socketpair()
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 (no name; a pipe would have to be read all the time)
        with far:
            end = far.fileno()
            argv = [os.environ.get("SHELL") or "/bin/sh", "-c", f"exec {command}"]
            self._process = subprocess.Popen(argv, stdin=end, stdout=end, stderr=self._said, start_new_session=True)

    def close(self) -> None:
        """End it and leave no zombie."""
        shut(self.stream)
        with suppress(OSError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._said.close()

    def explain(self) -> str:
        """How it ended and what it said last; "" while it runs and has said nothing."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_PROXY_END_S)
        size = self._said.seek(0, os.SEEK_END)
        self._said.seek(max(0, size - 500))
        said = " ".join(self._said.read().decode("utf-8", "replace").split())
        code = self._process.returncode
        ended = "" if code is None else f"it ended with {f'signal {-code}' if code < 0 else f'exit code {code}'}"
        return ": ".join(part for part in (ended, said) if part)


class _Gate:
    """Lets so many in at once; fewer, the more often the server behind it drops one before login."""

    def __init__(self) -> None:
        self._limit, self._inside = _LOGINS_PER_SERVER, 0
        self._moved = threading.Condition()

    def __enter__(self) -> None:
        with self._moved:
            self._moved.wait_for(lambda: self._inside < self._limit)
            self._inside += 1

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        with self._moved:
            self._inside -= 1
            if isinstance(error, Failed) and error.cause.kind is CauseKind.DROPPED:
                self._limit = max(_FEWEST, self._limit // 2)
            self._moved.notify_all()


def name_server(target: Target) -> str:
    """What tells a server from others: host and port, or the command that leads to it."""
    return target.proxy_command or f"{target.hostname}:{target.port}"


def take_turn(server: str) -> ExitStack:
    """Wait until one more login may be under way; leaving the result ends the turn.

    `server`: what tells the first server on the way from others, see `name_server`."""
    with _registry:
        gate = _gates.setdefault(server, _Gate())
    turn = ExitStack()
    turn.enter_context(gate)  # in this order: a crowd before one server must not hold up the others
    turn.enter_context(_all_logins)
    return turn


def shut(stream: socket.socket) -> None:
    """Close, and wake every thread that waits on it (closing alone does not)."""
    with suppress(OSError):
        stream.shutdown(socket.SHUT_RDWR)
    stream.close()


def time_left(deadline: float, hop: Target) -> float:
    """Seconds until `deadline`. Raises Failed if there are none."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise Failed(Cause(CauseKind.TIMED_OUT, f"{hop.hostname} port {hop.port} was too slow to log in to"))
    return left


def wait_limit_s(hop: Target, timeout_s: float) -> float:
    """How long one login may take: ConnectTimeout can only make it less."""
    return min(timeout_s, hop.timeout_s or timeout_s)


def blame_jump(failed: Failed, hop: Target) -> Failed:
    """The same failure, said of the jump host `hop`, unless it is said already."""
    if failed.cause.message.startswith("jump host "):
        return failed
    return Failed(Cause(failed.cause.kind, f"jump host {hop.name}: {failed.cause.message}", failed.cause.hint))


def explain_input(error: InputError) -> Cause:
    """What is wrong with the user's files, each with its place."""
    said = (f"{problem.place}: {problem.message}" if problem.place else problem.message for problem in error.problems)
    hints = dict.fromkeys(problem.hint for problem in error.problems if problem.hint)
    return Cause(CauseKind.CONFIG, "; ".join(said), "; ".join(hints))
