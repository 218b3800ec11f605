"""Owns: the listening socket of by-hand mode: which address it takes, and what is said when it cannot be had.
Must not: accept anything.
Called by: launch.manual."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import socket

from meshrun.errors import ClusterError
from meshrun.launch.lines import show_address

# Nodes that wait for nothing but node 0 all come within the moment in which it listens. Linux takes no more than this
# either (net.core.somaxconn); what does not fit comes again by itself a second later.
BACKLOG = 4096


def listen(addr: str, port: int) -> tuple[socket.socket, str]:
    """A listening socket on that address only, and a remark for the user ("" if there is nothing to say).

    A name that this machine itself resolves to loopback (Debian's 127.0.1.1) says nothing about where the other nodes
    look for it: then all addresses are listened on, and the remark says so. Raises ClusterError."""
    try:
        family, _, _, _, where = socket.getaddrinfo(addr.strip("[]"), port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        raise ClusterError(f"--master-addr {addr}: {error}\n    hint: on node 0 it must be its own address") from None
    remark = ""
    if _is_loopback_name(addr, str(where[0])):
        family, where = socket.AF_INET, ("", port)
        remark = f"{addr} is a loopback address here: listening on all addresses for the other nodes"
    try:
        return socket.create_server(where, family=family, backlog=BACKLOG), remark
    except OSError as error:
        raise ClusterError(_listen_problem(addr, port, error)) from None


def _is_loopback_name(addr: str, resolved: str) -> bool:
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(addr.strip("[]"))
        return False
    if addr == "localhost" or addr.endswith(".localhost"):
        return False
    return ipaddress.ip_address(resolved.split("%")[0]).is_loopback


def _listen_problem(addr: str, port: int, error: OSError) -> str:
    shown = show_address(addr.strip("[]"), port)
    if error.errno == errno.EADDRINUSE:
        return f"{shown} is in use\n    hint: end what listens there, or give every node another --master-port"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{shown}: not an address of this machine\n    hint: --master-addr is node 0's own address"
    return f"{shown}: cannot listen there: {error.strerror or error}"
