"""Owns: the run's own control group (cgroup v2), where the kernel lets us make one: who is in it, whatever they did.
Must not: set a limit, enable a controller, or complain where there is none: descent and the mark do it then.
Called by: agent.home, agent.trees, agent.remains (so: os only, to stay small)."""

from __future__ import annotations

import _thread
import contextlib
import os

from meshrun.agent import procs

_TRIES = 10  # a neighbour that starts may take our group for an old one while we are not in it yet


def make_name(token: str) -> str:
    """The name of a run's group."""
    return f"meshrun-{token}"


def find_parent(root: str = "") -> str:
    """The folder of the group that we are in, "" if no cgroup2 file system shows it. `root`: in place of /."""
    own = ""
    for line in procs.read_text(f"{root}/proc/self/cgroup").splitlines():
        if line.startswith("0::/"):
            own = line[3:].rstrip("/")
    for mount in procs.read_mounts(root):
        part = mount.part.rstrip("/")
        inside = f"{own}/".startswith(f"{part}/") and "/.." not in own
        folder = f"{root}{mount.place}{own[len(part) :]}"
        if mount.kind == "cgroup2" and inside and os.path.exists(f"{folder}/cgroup.procs"):
            return folder
    return ""


def find(token: str) -> str:
    """Where the group of a run is (or would be) that is started by us, "" if there can be none."""
    parent = find_parent()
    return f"{parent}/{make_name(token)}" if parent else ""


def list_members(path: str) -> list[int]:
    """Every process in the group and in those below it, as far as this pid namespace sees them."""
    found: set[int] = set()
    for folder in _list_folders(path):
        found.update(map(int, procs.read_text(f"{folder}/cgroup.procs").split()))
    return sorted(found - {0})


def find_members(path: str) -> list[procs.Process]:
    """The live ones, without ourselves."""
    me = os.getpid()
    found = [procs.read_process(pid) for pid in list_members(path) if pid != me] if path else []
    return [process for process in found if process and not process.dead]


def _list_folders(path: str) -> list[str]:
    """The group and all below it, from the innermost outwards."""
    return [folder for folder, _, _ in os.walk(path, topdown=False)]


def kill(path: str) -> None:
    """SIGKILL to all at once, also to what is being forked (Linux 5.14; before, the caller's own passes do it)."""
    _write(f"{path}/cgroup.kill", b"1")


def is_populated(path: str) -> bool:
    """True while a process that is no zombie is in it or below."""
    return "populated 1" in procs.read_text(f"{path}/cgroup.events").splitlines()


def remove(path: str) -> bool:
    """Remove it and those below; True if it is gone. One that somebody is in stays: the kernel sees to that."""
    for folder in _list_folders(path):
        with contextlib.suppress(OSError):
            os.rmdir(folder)
    return not os.path.exists(path)


def remove_empty(parent: str) -> None:
    """Remove the groups of runs in `parent` that nobody is in (one held a process that not even SIGKILL ended)."""
    names = os.listdir(parent) if parent else []
    for name in names:
        if name.startswith("meshrun-") and not is_populated(f"{parent}/{name}"):
            remove(f"{parent}/{name}")


def _write(path: str, data: bytes) -> bool:
    try:
        file = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return os.write(file, data) == len(data)
    except OSError:
        return False
    finally:
        os.close(file)


class Membership:
    """Our own way into a group. The kernel takes some milliseconds over it, all of them waiting, so a thread waits
    while the agent starts; nothing may be started before `wait`: whoever is forked from then on is in it too."""

    def __init__(self, path: str) -> None:
        self.path = ""  # of the group that we are in
        self._wanted = path
        self._done = _thread.allocate_lock()
        if self._make():
            self._done.acquire()
            _thread.start_new_thread(self._enter, ())

    def _make(self) -> bool:
        with contextlib.suppress(OSError):
            os.mkdir(self._wanted, 0o755)
            return True
        return False

    def _enter(self) -> None:
        for _ in range(_TRIES):
            if _write(f"{self._wanted}/cgroup.procs", b"0"):
                self.path = self._wanted
                break
            if os.path.exists(self._wanted) or not self._make():
                remove(self._wanted)
                break
        self._done.release()

    def wait(self) -> str:
        """The group that we are in, "" if there is none."""
        with self._done:
            return self.path

    def leave(self) -> None:
        """Back to where we were started, if nobody else can remove the group after our end."""
        path = self.wait()
        if path and _write(f"{os.path.dirname(path)}/cgroup.procs", b"0"):
            self.path = ""
            remove(path)
