"""Owns: the agent's private directory on its node: its name, its lock, and those of agents that live no more.
Must not: judge by age or pid whether an agent lives: who holds the lock lives, in whatever namespace.
Called by: agent.__main__."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import suppress

from meshrun.agent import group, procs, remains
from meshrun.dataclass import dataclass

# Where one kernel alone decides about locks. On a shared file system a lock that we get may prove nothing.
_LOCAL = frozenset(["btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "ramfs", "tmpfs", "xfs", "zfs"])
_TOKEN = 16  # hexadecimal digits
_OLD_S = 0.5  # for the processes of one old run


@dataclass(frozen=True, slots=True)
class Home:
    """`lock`: held as long as we live; nobody inherits it. `group`: where the run's control group would be, or ""."""

    path: str
    bundle: str
    group: str
    lock: int


class NoPlaceError(Exception):
    """No directory can be made anywhere; each place with its reason."""


def make(token: str, bundle: str) -> Home:
    """The directory of this run, with what travelled in it. `bundle`: a file to copy, or a folder to leave where it is.

    The guard knows the name from before (`remains.find_home`) and removes it whatever becomes of us."""
    tried = []
    for base in remains.list_bases():
        path = f"{base}/{remains.make_name(token)}"
        try:
            lock = _make_locked(path)
            placed = bundle if os.path.isdir(bundle) else _copy(bundle, f"{path}/bundle.zip")
            wanted = group.find(token)
            with open(f"{path}/{remains.GROUP}", "xb") as file:
                file.write(os.fsencode(wanted))
            return Home(path, placed, wanted, lock)
        except OSError as error:
            tried.append(f"{base}: {error.strerror}")
            procs.remove_tree(path)
    raise NoPlaceError("; ".join(tried))


def _make_locked(path: str) -> int:
    """Made and locked as one: one that sweeps may come between the two, see nobody's directory, and remove it."""
    while True:
        with suppress(FileExistsError):
            os.mkdir(path, 0o700)
        try:
            lock = _open(path)
        except FileNotFoundError:
            continue
        fcntl.flock(lock, fcntl.LOCK_EX)
        if _is_there(path, lock):
            return lock
        os.close(lock)


def _open(path: str) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def _is_there(path: str, lock: int) -> bool:
    try:
        return os.path.samestat(os.lstat(path), os.fstat(lock))
    except FileNotFoundError:
        return False


def _copy(source: str, target: str) -> str:
    with open(source, "rb") as read, open(target, "xb") as write:
        write.write(read.read())
    return target


def sweep(home: Home) -> None:
    """End and remove what runs of this user left beside us whose agent and guard were killed together.

    A directory whose lock can be taken is nobody's. It has the run's mark in its name and its group in a file."""
    group.remove_empty(os.path.dirname(home.group))
    found = list(_list_unlocked(os.path.dirname(home.path)))
    for path, lock in found:
        token = path[-_TOKEN:]
        there = os.fsdecode(procs.read_bytes(f"{path}/{remains.GROUP}"))
        remains.end_everything(token, there if there.endswith(f"/{group.make_name(token)}") else "", None, _OLD_S)
        procs.remove_tree(path)
        os.close(lock)


def _list_unlocked(base: str) -> Iterator[tuple[str, int]]:
    start = remains.make_name("")
    names = [name for name in os.listdir(base) if name.startswith(start) and len(name) == len(start) + _TOKEN]
    if len(names) < 2 or read_file_system(base) not in _LOCAL:  # one is ours
        return
    for name in names:
        with suppress(OSError):
            lock = _open(f"{base}/{name}")
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                mine = os.fstat(lock).st_uid == os.getuid() and _is_there(f"{base}/{name}", lock)
            except OSError:
                mine = False
            if mine:
                yield f"{base}/{name}", lock
            else:
                os.close(lock)


def read_file_system(path: str) -> str:
    """The type of the file system that `path` is on, "" if the kernel does not say."""
    real, best, kind = os.path.realpath(path) + "/", "", ""
    for mount in procs.read_mounts():
        place = mount.place.rstrip("/") + "/"
        if real.startswith(place) and len(place) >= len(best):
            best, kind = place, mount.kind
    return kind
