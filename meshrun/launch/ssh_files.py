"""Owns: the user's ssh files on this machine: reading config and known_hosts, adding a key.
Must not: connect anywhere or know paramiko; a missing default file is fine, a named one is an error.
Called by: launch.ssh, launch.openssh, launch.here."""

from __future__ import annotations

import fcntl
import glob
import os
from functools import lru_cache

from meshrun.dataclass import replace
from meshrun.errors import InputError, Problem
from meshrun.launch.boot import COMMAND
from meshrun.launch.known_hosts import Known, hash_name, index_entries, is_about, make_line, parse_known_hosts
from meshrun.launch.ssh_cert import read_public_line
from meshrun.launch.ssh_config import Line, Source, parse_lines, resolve
from meshrun.launch.ssh_jump import Asked, split_jump
from meshrun.launch.ssh_keywords import REMEDY
from meshrun.launch.ssh_target import Target, make_target
from meshrun.launch.ssh_world import make_world
from meshrun.spec.values import SshSettings

_SYSTEM_CONFIG = "/etc/ssh/ssh_config"
_MAX_HOPS = 16
_Stamp = tuple[int, int, int]


def read_target(name: str, user: str | None, port: int | None, settings: SshSettings) -> Target:
    """One host as the user's `ssh` would see it. Raises InputError for a config that cannot be read or honoured."""
    return _read_target(Asked(name, user, port), settings)


def read_hops(name: str, user: str | None, port: int | None, settings: SshSettings) -> tuple[Target, ...]:
    """The servers on the way, nearest first, the host itself last. Raises InputError.

    A jump host is looked up in the config as if it were logged in to by itself: it may have a jump host or proxy of its
    own, and the line's and the command line's user and port are not its."""
    hops = [read_target(name, user, port, settings)]
    plain = replace(settings, user=None, port=None)
    while hops[0].proxy_jump:
        hops.insert(0, _read_target(split_jump(hops[0].proxy_jump), plain))
        if len(hops) > _MAX_HOPS or _is_at(hops[0], hops[1:]):
            ways = " - ".join(hop.name for hop in reversed(hops))
            raise InputError(Problem(f"{name}: its jump hosts lead in a circle ({ways})", hint="see ProxyJump"))
    return tuple(hops)


def _is_at(hop: Target, others: list[Target]) -> bool:
    place = (hop.hostname, hop.port, hop.user)
    return place in [(other.hostname, other.port, other.user) for other in others]


def _read_target(asked: Asked, settings: SshSettings) -> Target:
    world, port = make_world(), asked.port or settings.port
    given = {
        "user": asked.user or settings.user or "",
        "port": str(port) if port else "",
        "proxyjump": asked.jump,
    }
    files = _read_configs(settings.config, world.home)
    options = resolve(files, asked.name, given, world, _read_includes, COMMAND)
    return make_target(asked, settings, options, world)


def _read_configs(config: str | None, home: str) -> tuple[Source, ...]:
    if config == "none":
        return ()
    if config is not None:
        return (Source(_read_config(config, _stamp(config), named=True)),)
    mine = f"{home}/.ssh/config"
    system = Source(_read_config(_SYSTEM_CONFIG, _stamp(_SYSTEM_CONFIG)), user=False)
    return (Source(_read_config(mine, _stamp(mine), private=True)), system)


@lru_cache(maxsize=256)
def _read_config(path: str, stamp: _Stamp, named: bool = False, private: bool = False) -> tuple[Line, ...]:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape", newline="") as file:
            status = os.fstat(file.fileno())
            if private and (status.st_uid not in (0, os.getuid()) or status.st_mode & 0o022):
                problem = f"others may write to the ssh config {path}, so ssh does not take it"
                raise InputError(Problem(problem, hint=f"chmod go-w {path}, and own it"))
            return parse_lines(file.read(), path)
    except OSError as error:
        if not named and isinstance(error, (FileNotFoundError, NotADirectoryError)):
            return ()
        raise InputError(Problem(f"cannot read the ssh config {path}: {error.strerror}")) from None


def _read_includes(pattern: str, user: bool) -> tuple[tuple[Line, ...], ...]:
    base = f"{make_world().home}/.ssh" if user else os.path.dirname(_SYSTEM_CONFIG)
    paths = sorted(glob.glob(os.path.join(base, _expand_home(pattern))))
    return tuple(_read_config(path, _stamp(path), private=True) for path in paths)


def _expand_home(pattern: str) -> str:
    return (
        make_world().home + pattern[1:] if pattern == "~" or pattern.startswith("~/") else os.path.expanduser(pattern)
    )


def read_known_hosts(paths: tuple[str, ...]) -> tuple[Known, ...]:
    """The entries of each of these files, in order; missing files are empty."""
    return tuple(_read_entries(path, _stamp(path)) for path in paths)


def _decode(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _stamp(path: str) -> _Stamp:
    """What shows that a file has changed since it was read."""
    try:
        status = os.stat(path)
    except OSError:
        return (0, 0, 0)
    return (status.st_mtime_ns, status.st_size, status.st_mode)


@lru_cache(maxsize=64)
def _read_entries(path: str, stamp: _Stamp) -> Known:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return index_entries(parse_known_hosts(file.read(), path))
    except FileNotFoundError:
        return Known()
    except OSError as error:
        raise InputError(Problem(f"cannot read {path}: {error.strerror}")) from None


def read_revoked(paths: tuple[str, ...]) -> frozenset[bytes]:
    """The keys that RevokedHostKeys lists, one a line. Raises InputError: a file that cannot be read revokes all."""
    return frozenset(key for path in paths for key in _read_revoked(path, _stamp(path)))


@lru_cache(maxsize=16)
def _read_revoked(path: str, stamp: _Stamp) -> tuple[bytes, ...]:
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError as error:
        raise InputError(Problem(f"cannot read RevokedHostKeys {path}: {error.strerror}")) from None
    if data.startswith(b"SSHKRL"):
        raise InputError(Problem(f"RevokedHostKeys {path} is a KRL, which meshrun cannot read", hint=REMEDY))
    lines = (line for line in data.splitlines() if line.strip() and not line.lstrip().startswith(b"#"))
    return tuple(read_public_line(line) for line in lines)


def add_known_host(path: str, name: str, key_type: str, key: bytes, hashed: bool = False) -> None:
    """Append one whole line; one writer at a time, and a last line without newline gets one first. Raises OSError."""
    os.makedirs(os.path.dirname(path) or ".", mode=0o700, exist_ok=True)
    fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "r+b", buffering=0) as file:
        fcntl.flock(fd, fcntl.LOCK_EX)  # given back when the descriptor closes; held by no thread but this one
        line = make_line(name, key_type, key).encode("utf-8", "surrogateescape")
        old = os.pread(fd, os.fstat(fd).st_size, 0)
        if hashed:
            line = make_line(hash_name(name, os.urandom(20)), key_type, key).encode("ascii")
            known = any(entry.key == key and is_about(entry, name) for entry in parse_known_hosts(_decode(old), path))
        else:
            known = line.strip() in (written.strip() for written in old.splitlines())
        if not known:
            file.write((b"\n" if old and not old.endswith(b"\n") else b"") + line)


def end_last_line(path: str) -> None:
    """Give a file that ends in the middle of a line its newline: `ssh` itself would append a new key to that line."""
    if not os.path.isfile(path):
        return
    with open(path, "r+b", buffering=0) as file:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX)
        size = os.fstat(file.fileno()).st_size
        if size and os.pread(file.fileno(), 1, size - 1) != b"\n":
            os.pwrite(file.fileno(), b"\n", size)
