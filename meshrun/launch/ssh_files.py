"""Owns: the user's ssh files on this machine: reading config and known_hosts, adding a key.
Must not: connect anywhere or know paramiko; a missing default file is fine, a named one is an error.
Called by: launch.ssh, launch.openssh, launch.local."""

from __future__ import annotations

import fcntl
import glob
import os
import pwd
import subprocess
from functools import lru_cache

from meshrun.dataclass import replace
from meshrun.errors import InputError, Problem
from meshrun.launch.known_hosts import Entry, make_line, parse_known_hosts
from meshrun.launch.ssh_config import Asker, Line, Target, parse_lines, resolve
from meshrun.launch.ssh_target import Asked, make_target, parse_jump
from meshrun.spec.values import SshSettings

_SYSTEM_CONFIG = "/etc/ssh/ssh_config"


def read_target(name: str, user: str | None, port: int | None, settings: SshSettings) -> Target:
    """One host as the user's `ssh` would see it. Raises InputError for a config that cannot be read or honoured."""
    return _read_target(Asked(name, user, port), settings)


def read_hops(name: str, user: str | None, port: int | None, settings: SshSettings) -> tuple[Target, ...]:
    """The servers on the way, nearest first, the host itself last: ProxyJump's hops are looked up in the config too,
    but the line's and the command line's user and port are not theirs. Raises InputError."""
    target = read_target(name, user, port, settings)
    plain = replace(settings, user=None, port=None)
    return (*(_read_target(parse_jump(text), plain) for text in target.proxy_jump), target)


def _read_target(asked: Asked, settings: SshSettings) -> Target:
    asker = _make_asker()
    given = {"user": asked.user or settings.user or ""}
    files = _read_configs(settings.config, asker.home)
    options = resolve(files, asked.name, given, asker, lambda pattern: _read_includes(pattern, asker.home))
    return make_target(asked, settings, options, asker)


@lru_cache(maxsize=1)
def _make_asker() -> Asker:
    me = pwd.getpwuid(os.getuid())
    return Asker(me.pw_name, os.environ.get("HOME") or me.pw_dir, _run_match)


@lru_cache(maxsize=256)
def _run_match(command: str) -> bool:
    null = subprocess.DEVNULL
    return subprocess.run(["/bin/sh", "-c", command], stdin=null, stdout=null, stderr=null).returncode == 0


@lru_cache(maxsize=16)
def _read_configs(config: str | None, home: str) -> tuple[tuple[Line, ...], ...]:
    if config == "none":
        return ()
    if config is not None:
        return (_read_config(config, named=True),)
    return (_read_config(f"{home}/.ssh/config"), _read_config(_SYSTEM_CONFIG))


@lru_cache(maxsize=256)
def _read_config(path: str, named: bool = False) -> tuple[Line, ...]:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return parse_lines(file.read(), path)
    except OSError as error:
        if not named and isinstance(error, (FileNotFoundError, NotADirectoryError)):
            return ()
        raise InputError(Problem(f"cannot read the ssh config {path}: {error.strerror}")) from None


@lru_cache(maxsize=256)
def _read_includes(pattern: str, home: str) -> tuple[tuple[Line, ...], ...]:
    # Relative ones are in ~/.ssh for a user's file, in /etc/ssh for the system's; both are looked at in that order.
    full = home + pattern[1:] if pattern.startswith("~/") else pattern
    bases = [full] if os.path.isabs(full) else [os.path.join(home, ".ssh", full), os.path.join("/etc/ssh", full)]
    for base in bases:
        if paths := sorted(glob.glob(base)):
            return tuple(_read_config(path) for path in paths)
    return ()


def read_known_hosts(paths: tuple[str, ...]) -> tuple[Entry, ...]:
    """All entries of these files, in order; missing files are empty."""
    return tuple(entry for path in paths for entry in _read_entries(path, _stamp(path)))


def _stamp(path: str) -> tuple[int, int]:
    try:
        status = os.stat(path)
    except OSError:
        return (0, 0)
    return (status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=64)
def _read_entries(path: str, stamp: tuple[int, int]) -> tuple[Entry, ...]:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return parse_known_hosts(file.read(), path)
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise InputError(Problem(f"cannot read {path}: {error.strerror}")) from None


def add_known_host(path: str, name: str, key_type: str, key: bytes) -> None:
    """Append one whole line; one writer at a time, and a last line without newline gets one first. Raises OSError."""
    os.makedirs(os.path.dirname(path) or ".", mode=0o700, exist_ok=True)
    fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "r+b", buffering=0) as file:
        fcntl.flock(fd, fcntl.LOCK_EX)  # given back when the descriptor closes; held by no thread but this one
        line = make_line(name, key_type, key).encode("utf-8", "surrogateescape")
        old = os.pread(fd, os.fstat(fd).st_size, 0)
        if line.strip() not in (known.strip() for known in old.splitlines()):
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
