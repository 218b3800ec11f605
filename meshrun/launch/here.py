"""Owns: the question whether a host is this machine.
Must not: look up a name: a thousand lines must not mean a thousand questions to a name server.
Called by: cli.request."""

from __future__ import annotations

import os
import pwd
import socket

from meshrun.spec.values import Host, SshSettings


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
    """Cheap, for lists of a thousand hosts."""
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
