"""Owns: whether the kernel's OOM killer ended a worker: counters that rise when it strikes, else the kernel log.
Must not: guess: what cannot be read is "unknown".
Called by: agent.loop, for each worker that SIGKILL ended."""

from __future__ import annotations

import os
from collections.abc import Iterator

from meshrun.agent.cgroup import find_cgroup, outwards
from meshrun.agent.procs import read_text


def _find_number(text: str, key: str) -> int | None:
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if name == key and value.strip().isdecimal():
            return int(value)
    return None


def _render_bytes(count: int) -> str:
    size, units = float(count), ["bytes", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1024 and len(units) > 1:
        size /= 1024
        del units[0]
    return f"{size:.3g} {units[0]}" if size < 1000 else f"{size:.0f} {units[0]}"


class OomWatch:
    """Remembers the counters from the start; each kill that is explained by one uses it up."""

    def __init__(self, root: str = "") -> None:
        self._root = root
        self._files = self._find_files()
        self._machine = self._read_machine()
        self._group = self._read_group()

    def _find_files(self) -> tuple[str, ...]:
        """The counter files of our cgroup, v2 and v1."""
        files = [f"{find_cgroup('memory.events', self._root)}/memory.events"]
        for line in read_text(f"{self._root}/proc/self/cgroup").splitlines():
            _, controllers, path = ([*line.split(":", 2), "", ""])[:3]
            if "memory" in controllers.split(","):
                mount = f"{self._root}/sys/fs/cgroup/memory"
                files += [f"{mount}{path}/memory.oom_control", f"{mount}/memory.oom_control"]
        return tuple(files)

    def _read_machine(self) -> int | None:
        """Every OOM kill on this machine, whatever the reason (Linux 4.13 and later)."""
        return _find_number(read_text(f"{self._root}/proc/vmstat"), "oom_kill")

    def _read_group(self) -> int | None:
        counts = (_find_number(read_text(path), "oom_kill") for path in self._files)
        return next((count for count in counts if count is not None), None)

    def judge(self, pid: int) -> str:
        """ "yes", "no" or "unknown" for a process that SIGKILL has just ended."""
        machine, group = self._read_machine(), self._read_group()
        if machine is not None and machine == self._machine:
            return "no"
        log = self._read_log()
        if log is not None:
            return "yes" if f"Killed process {pid} (" in log else "no"
        if group is None or self._group is None:
            return "unknown"
        if group <= self._group:
            return "no"
        self._group += 1
        self._machine = None if self._machine is None else self._machine + 1
        return "yes"

    def describe(self) -> str:
        """Which limit was reached: that of the innermost cgroup that has met its own, else the machine's memory."""
        for folder, limit, events, key in self._list_limits():
            size = read_text(f"{folder}/{limit}").strip()
            text = read_text(f"{folder}/{events}")
            met = _find_number(text, key) if key else int(text) if text.strip().isdecimal() else 0
            if size.isdecimal() and met:
                return f"the limit of {_render_bytes(int(size))} of the cgroup {self._name(folder)}"
        words = read_text(f"{self._root}/proc/meminfo").split()
        return f"the machine's memory of {_render_bytes(int(words[1]) * 1024)}" if len(words) > 1 else ""

    def _list_limits(self) -> Iterator[tuple[str, str, str, str]]:
        """Folder, file of the limit, and where it is counted that it was met, from our cgroup outwards; v2, then v1."""
        mount = f"{self._root}/sys/fs/cgroup"
        for folder in outwards(find_cgroup("memory.max", self._root), mount):
            yield folder, "memory.max", "memory.events", "oom"
        for path in self._files[1:]:
            for folder in outwards(path.rpartition("/")[0], f"{mount}/memory"):
                yield folder, "memory.limit_in_bytes", "memory.failcnt", ""

    def _name(self, folder: str) -> str:
        return folder.removeprefix(f"{self._root}/sys/fs/cgroup").removeprefix("/memory") or "/"

    def _read_log(self) -> str | None:
        """The kernel's log, None if we may not read it. In a pid namespace it has other pids: of no use."""
        try:
            if os.readlink("/proc/self/ns/pid") != os.readlink("/proc/1/ns/pid") or _is_contained():
                return None
            log = os.open(f"{self._root}/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
        except OSError:
            return None
        return _drain(log)


def _is_contained() -> bool:
    """True in a pid namespace below the machine's own: its first process would be number 1 in both."""
    words = read_text("/proc/self/status").partition("NSpid:")[2].partition("\n")[0].split()
    return len(words) > 1 or os.readlink("/proc/self/ns/pid") != "pid:[4026531836]"


def _drain(log: int) -> str:
    """One record for each read; the end is EAGAIN; EPIPE: a record was overwritten meanwhile."""
    records: list[bytes] = []
    try:
        while True:
            try:
                records.append(os.read(log, 8192))
            except BrokenPipeError:
                continue
    except OSError:
        return b"".join(records).decode("utf-8", "replace")
    finally:
        os.close(log)
