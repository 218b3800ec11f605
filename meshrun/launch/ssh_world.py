"""Owns: what an ssh configuration asks about this machine: user, names, addresses, commands of Match.
Must not: read configuration files, or be imported by pure modules.
Called by: launch.ssh_files."""

from __future__ import annotations

import fcntl
import ipaddress
import os
import pwd
import socket
import struct
import subprocess
from contextlib import suppress
from functools import lru_cache

from meshrun.launch.ssh_match import World

_SIOCGIFADDR = 0x8915


@lru_cache(maxsize=1)
def make_world() -> World:
    """This machine and its user; `~` is $HOME if that is set (DESIGN §4)."""
    me = pwd.getpwuid(os.getuid())
    return World(
        local_user=me.pw_name,
        home=os.environ.get("HOME") or me.pw_dir,
        uid=me.pw_uid,
        hostname=socket.gethostname(),
        environ=os.environ,
        run=_run,
        home_of=_home_of,
        look_up=_look_up,
        addresses=_addresses,
        version=_version,
    )


@lru_cache(maxsize=256)
def _run(command: str) -> bool:
    null = subprocess.DEVNULL
    shell = os.environ.get("SHELL") or "/bin/sh"
    return subprocess.run([shell, "-c", command], stdin=null, stdout=null, stderr=null).returncode == 0


def _home_of(user: str) -> str | None:
    try:
        return pwd.getpwnam(user).pw_dir
    except KeyError:
        return None


@lru_cache(maxsize=1024)
def _look_up(name: str) -> str | None:
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM, flags=socket.AI_CANONNAME)
    except (OSError, UnicodeError):
        return None
    return found[0][3] or name


@lru_cache(maxsize=1)
def _version() -> str:
    try:
        said = subprocess.run(["ssh", "-V"], stdin=subprocess.DEVNULL, capture_output=True, text=True).stderr
    except OSError:
        return ""
    return said.split(",")[0].split(" ")[0].strip()


@lru_cache(maxsize=1)
def _addresses() -> tuple[str, ...]:
    """Of this machine's interfaces, as Linux tells without a library."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with suppress(OSError):
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", os.fsencode(name)[:15]))
                found.append(socket.inet_ntoa(answer[20:24]))
    with suppress(OSError), open("/proc/net/if_inet6", encoding="ascii") as file:
        found += [str(ipaddress.IPv6Address(int(line.split()[0], 16))) for line in file]
    return tuple(found)
