"""Owns: a byte stream to an ssh server, by TCP or through a ProxyCommand, and the cause when there is none.
Must not: speak ssh or know paramiko.
Called by: launch.ssh."""

from __future__ import annotations

import errno
import socket
import subprocess
import time

from meshrun.errors import Cause, CauseKind

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
        """End it and leave no zombie."""
        self.stream.close()
        self._process.kill()
        self._process.wait()
