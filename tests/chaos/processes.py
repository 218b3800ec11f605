"""Owns: who is who among the processes of a trial's run, on this machine and in the hosts' namespaces.
Must not: signal anything.
Called by: tests/chaos/play.py, tests/chaos/check.py."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from meshrun.agent.group import find_parent, make_name
from tests.chaos.trials import Target
from tests.cluster import NamespaceCluster, Process
from tests.cluster_parts import list_processes

TAG = "CHAOS_TRIAL"
_AGENT = "meshrun-agent"


@dataclass(frozen=True, slots=True)
class Key:
    """A process for good: pids come again in a long suite, but not with the same time of birth."""

    pid: int
    birth: int


def read_key(pid: int) -> Key:
    return Key(pid, _read_birth(pid))


def list_local(tag: str) -> list[Process]:
    """What carries this trial's tag: the launcher and whatever it started here."""
    return [p for p in list_processes() if _alive(p) and f"{TAG}={tag}" in read_environ(p.pid)]


def list_host(cluster: NamespaceCluster, node: int, before: frozenset[Key], others: frozenset[str]) -> list[Process]:
    """What runs on a host and did not before the trial, without what a neighbour (by its mark) has started since."""
    fresh = [p for p in cluster.processes(node) if _alive(p) and read_key(p.pid) not in before]
    return [p for p in fresh if not others.intersection(read_environ(p.pid))]


def list_marked(marks: frozenset[str]) -> list[Process]:
    """Everything on this machine, namespaces included, that carries one of these run marks."""
    return [p for p in list_processes() if _alive(p) and marks.intersection(read_environ(p.pid))]


def collect_marks(processes: Iterable[Process]) -> frozenset[str]:
    return frozenset(entry for p in processes for entry in read_environ(p.pid) if entry.startswith("MESHRUN_MARK="))


def list_groups(marks: frozenset[str]) -> list[Path]:
    """The control groups of the runs with these marks, where this machine lets an agent make one."""
    parent = find_parent()
    paths = [Path(parent, make_name(mark.rpartition(".")[2])) for mark in marks if parent]
    return [path for path in paths if path.exists()]


def find(processes: list[Process], target: Target) -> int:
    """The pid of a part of meshrun among a host's processes, 0 if there is none (yet)."""
    agents = {p.pid: p for p in processes if _AGENT in p.command}
    guards = [p.pid for p in agents.values() if p.ppid not in agents]
    below = sorted((p.pid for p in agents.values() if p.ppid in agents), key=_read_birth)
    if target is Target.GUARD:
        return next(iter(guards), 0)
    if target is Target.SESSION:
        above = agents[guards[0]].ppid if guards else 0
        # An orphan's parent is the host's pid 1.
        return above if _read(f"/proc/{above}/cmdline").startswith("sshd") else 0
    if target is Target.AGENT:
        return next(iter(below), 0)
    word = {Target.SERVER: " forkserver ", Target.STORE: " store "}[target]
    # Workers are forked from the server and look like it: it is the oldest.
    found = sorted((p.pid for p in processes if word in p.command and p.ppid in below), key=_read_birth)
    return next(iter(found), 0)


def find_inside(processes: list[Process], inside: int) -> int:
    """The pid here of the process whose innermost pid is `inside`."""
    for process in processes:
        seen = re.search(r"^NSpid:.*?(\d+)$", _read(f"/proc/{process.pid}/status"), re.MULTILINE)
        if seen and int(seen[1]) == inside:
            return process.pid
    return 0


def read_environ(pid: int) -> list[str]:
    return _read(f"/proc/{pid}/environ").split("\0")


def _read_birth(pid: int) -> int:
    fields = _read(f"/proc/{pid}/stat").rpartition(") ")[2].split(" ")
    return int(fields[19]) if len(fields) > 19 else 0


def _alive(process: Process) -> bool:
    return process.state not in "ZX"


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""
