"""Owns: what /proc says about processes: descendants, marked processes, and ending them.
Must not: choose by name, or touch a process that neither descends from the caller nor carries its mark.
Called by: agent.loop, agent.guard and their neighbours (so: nothing big)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator

from meshrun.dataclass import dataclass

MARK = "MESHRUN_MARK"


@dataclass(frozen=True, slots=True)
class Process:
    """One line of /proc/PID/stat, the part that matters here."""

    pid: int
    name: str
    state: str
    parent: int
    group: int
    session: int

    @property
    def dead(self) -> bool:
        """A zombie: gone, only not collected yet."""
        return self.state in "ZX"

    def __str__(self) -> str:
        words = " (uninterruptible sleep)" if self.state == "D" else ""
        return f"{self.pid} {self.name} {self.state}{words}"


def read_bytes(path: str) -> bytes:
    """The content of a file, b"" if it cannot be read."""
    try:
        file = os.open(path, os.O_RDONLY)
    except OSError:
        return b""
    try:
        pieces = []
        while piece := os.read(file, 65536):
            pieces.append(piece)
        return b"".join(pieces)
    except OSError:
        return b""
    finally:
        os.close(file)


def read_text(path: str) -> str:
    """The same as text; bytes that are none come back from `os.fsencode`."""
    return os.fsdecode(read_bytes(path))


def list_names(folder: str) -> list[str]:
    """The names in a folder, sorted; none if it cannot be read."""
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of /proc/self/mountinfo: which part of a file system is mounted where."""

    part: str
    place: str
    kind: str


def read_mounts(root: str = "") -> list[Mount]:
    """What is mounted; of two at one place the later one is seen. `root`: in place of /."""
    found = []
    for line in read_text(f"{root}/proc/self/mountinfo").splitlines():
        head, _, tail = line.partition(" - ")
        words = head.split(" ")
        if len(words) > 4:
            found.append(Mount(_unescape(words[3]), _unescape(words[4]), tail.partition(" ")[0]))
    return found


def _unescape(text: str) -> str:
    for code, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, char)
    return text


def read_process(pid: int) -> Process | None:
    """The process, or None if there is none. The name may hold blanks and parentheses."""
    text = read_bytes(f"/proc/{pid}/stat").decode("utf-8", "replace")
    head, _, rest = text.rpartition(") ")
    if not rest:
        return None
    state, parent, group, session = rest.split(" ", 4)[:4]
    return Process(pid, head.partition(" (")[2], state, int(parent), int(group), int(session))


def read_cpu_ticks(pid: int) -> int:
    """Processor time in clock ticks of a process and of its children that have ended; 0 if there is none."""
    rest = read_bytes(f"/proc/{pid}/stat").rpartition(b") ")[2].split(b" ", 15)
    return sum(map(int, rest[11:15])) if len(rest) > 15 else 0


def list_pids() -> list[int]:
    """All process ids that /proc shows."""
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def read_children(pid: int) -> list[int] | None:
    """Ids of the children of all threads of `pid`; None if this kernel does not list them."""
    found: list[int] = []
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return found
    for task in tasks:
        path = f"/proc/{pid}/task/{task}/children"
        text = read_bytes(path)
        if not text and not os.path.exists(f"/proc/self/task/{os.getpid()}/children"):
            return None
        found += map(int, text.split())
    return found


def _scan_children() -> dict[int, list[int]]:
    children: dict[int, list[int]] = {}
    for pid in list_pids():
        process = read_process(pid)
        if process:
            children.setdefault(process.parent, []).append(pid)
    return children


def find_descendants(root: int, without: Collection[int] = ()) -> list[Process]:
    """Every live descendant of `root`, leaving out the subtrees that start at `without`; zombies are not counted."""
    scanned = _scan_children() if read_children(root) is None else None
    found: list[Process] = []
    waiting, seen = [root], {root, *without}
    while waiting:
        parent = waiting.pop()
        children = scanned.get(parent, []) if scanned is not None else read_children(parent) or []
        fresh = [pid for pid in children if pid not in seen]
        seen.update(fresh)
        waiting += fresh
        found += [process for pid in fresh if (process := read_process(pid)) and not process.dead]
    return found


def read_status(pid: int) -> str:
    """/proc/PID/status, "" if there is no such process."""
    return read_bytes(f"/proc/{pid}/status").decode("utf-8", "replace")


def read_environ(pid: int) -> list[bytes]:
    """The environment that `pid` was started with, as far as we may read it."""
    return read_bytes(f"/proc/{pid}/environ").split(b"\0")


def find_marked(token: str) -> Iterator[Process]:
    """Every live process of this user whose environment carries a run mark that ends in `token`."""
    name, end, me = MARK.encode() + b"=", b"." + token.encode(), os.getpid()
    for pid in list_pids():
        if pid == me or not any(entry.startswith(name) and entry.endswith(end) for entry in read_environ(pid)):
            continue
        process = read_process(pid)
        if process and not process.dead:
            yield process


def send_signal(pid: int, number: int) -> None:
    """Signal one process; it may be gone already."""
    with contextlib.suppress(OSError):
        os.kill(pid, number)


def send_group_signal(group: int, number: int) -> None:
    """Signal a process group, or the process alone while it has not become a leader yet."""
    try:
        os.killpg(group, number)
    except OSError:
        send_signal(group, number)


def remove_tree(path: str) -> None:
    """Remove a directory and all in it; what cannot be removed stays, without an error."""
    for folder, folders, files in os.walk(path, topdown=False):
        for name in files + folders:
            inside = os.path.join(folder, name)
            try:
                if name in files or os.path.islink(inside):
                    os.unlink(inside)
                else:
                    os.rmdir(inside)
            except OSError:
                pass
    with contextlib.suppress(OSError):
        os.rmdir(path)
