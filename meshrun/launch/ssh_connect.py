"""Owns: a byte stream to an ssh server, by TCP or through a ProxyCommand; whose turn it is; the causes of failure.
Must not: speak ssh or know paramiko.
Called by: launch.ssh, launch.openssh."""

from __future__ import annotations

import base64
import errno
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress

from meshrun.errors import Cause, CauseKind
from meshrun.launch.ssh_config import Target

# Logins under way at once: in all, and at one server (OpenSSH's MaxStartups starts to drop at 10).
_LOGINS, _LOGINS_PER_SERVER = 32, 8
_all_logins = threading.BoundedSemaphore(_LOGINS)
_server_logins: dict[str, threading.BoundedSemaphore] = {}
_registry = threading.Lock()

_KINDS = {
    errno.ECONNREFUSED: CauseKind.REFUSED,
    errno.ETIMEDOUT: CauseKind.TIMED_OUT,
    errno.EHOSTUNREACH: CauseKind.NO_ROUTE,
    errno.ENETUNREACH: CauseKind.NO_ROUTE,
    errno.EHOSTDOWN: CauseKind.NO_ROUTE,
    errno.EADDRNOTAVAIL: CauseKind.NO_ROUTE,
}


class Failed(Exception):
    """An attempt to reach a host ended; `cause` says why. Never leaves launch."""

    def __init__(self, cause: Cause) -> None:
        super().__init__(cause.message)
        self.cause = cause


def dial(host: str, port: int, timeout_s: float) -> socket.socket:
    """A TCP connection to the first address of `host` that takes one, within `timeout_s`. Raises Failed."""
    deadline = time.monotonic() + timeout_s
    found = _look_up(host, port)
    for left, (family, kind, proto, _, address) in zip(range(len(found), 0, -1), found, strict=True):
        stream = socket.socket(family, kind, proto)
        try:
            stream.settimeout(max(0.1, (deadline - time.monotonic()) / left))
            stream.connect(address)
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return stream
        except OSError as error:
            stream.close()
            last = error
    raise Failed(_describe(host, port, last, timeout_s))


def _look_up(host: str, port: int) -> list[tuple[int, int, int, str, tuple[str, int] | tuple[str, int, int, int]]]:
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)  # type: ignore[return-value]
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


def open_stream(first: Target, deadline: float) -> tuple[socket.socket, list[Callable[[], object]]]:
    """To the first server on the way to a host; the functions end it and must be called in their order."""
    if first.proxy_command:
        proxy = Proxy(first.proxy_command)
        return proxy.stream, [lambda: shut(proxy.stream), proxy.close]
    stream = dial(first.hostname, first.port, time_left(deadline, first))
    return stream, [lambda: shut(stream)]


class Proxy:
    """A running ProxyCommand: one end of a socket pair is its stdin and stdout."""

    def __init__(self, command: str) -> None:
        self.stream, far = socket.socketpair()
        with far:
            end = far.fileno()
            argv = ["/bin/sh", "-c", f"exec {command}"]
            null = subprocess.DEVNULL
            self._process = subprocess.Popen(argv, stdin=end, stdout=end, stderr=null, start_new_session=True)

    def close(self) -> None:
        """End it and leave no zombie. The stream is the caller's to close."""
        self._process.kill()
        self._process.wait()


def name_server(target: Target) -> str:
    """What tells a server from others: host and port, or the command that leads to it."""
    return target.proxy_command or f"{target.hostname}:{target.port}"


def take_turn(server: str) -> ExitStack:
    """Wait until one more login may be under way; leaving the result ends the turn.

    `server`: what tells the first server on the way from others, see `name_server`."""
    with _registry:
        crowd = _server_logins.setdefault(server, threading.BoundedSemaphore(_LOGINS_PER_SERVER))
    turn = ExitStack()
    for gate in (crowd, _all_logins):  # in this order: a crowd before one server must not hold up the others
        turn.enter_context(gate)
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


def blame_jump(failed: Failed, hop: Target, hops: Sequence[Target]) -> Failed:
    """The same failure, said of a jump host if `hop` is one."""
    if hop is hops[-1]:
        return failed
    return Failed(Cause(failed.cause.kind, f"jump host {hop.name}: {failed.cause.message}", failed.cause.hint))


def refuse_login(target: Target, tried: list[str], why: str) -> Cause:
    """Why nobody was let in, with all that was tried, in order."""
    message = f"{target.hostname} does not let {target.user} in" + (f": {why}" if why else "")
    message += f"; tried in order: {', '.join(tried)}" if tried else "; there was no key to try"
    return Cause(CauseKind.AUTH, message, f"make `{target.login}` work without a password, or see --identity")


def read_public_key(path: str) -> bytes:
    """The key in `path`.pub, b"" if there is none."""
    try:
        with open(f"{path}.pub", "rb") as file:
            return base64.b64decode(file.read().split()[1])
    except (OSError, ValueError, IndexError):
        return b""
