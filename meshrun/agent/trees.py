"""Owns: signalling what workers leave behind: by descent from the agent, by the run's group, at the end by its mark.
Must not: signal a process that is none of these; or send SIGTERM twice to one.
Called by: agent.loop."""

from __future__ import annotations

import os
import signal
from collections.abc import Collection

from meshrun.agent import group, procs
from meshrun.agent.group import Membership
from meshrun.agent.procs import Process


class Trees:
    """`keep` in the methods: live processes of ours whose subtrees are not meant."""

    def __init__(self, token: str, membership: Membership) -> None:
        self._token, self._membership = token, membership
        self._told: set[int] = set()  # processes that got SIGTERM
        self._told_groups: set[int] = set()

    def forget(self) -> None:
        """A new attempt begins; process ids may come again."""
        self._told.clear()
        self._told_groups.clear()

    def signal_worker(self, pid: int, number: int) -> None:
        """Signal a worker's process group."""
        if number == signal.SIGTERM:
            self._told_groups.add(pid)
        procs.send_group_signal(pid, number)

    def end_tree(self, rank: int, pid: int, number: int, keep: Collection[int]) -> None:
        """Signal what the ended worker left: its session, what carries its rank, and all that descends from these."""
        owned: set[int] = set()
        for process in procs.find_descendants(os.getpid(), keep):  # parents before children
            if process.parent in owned or self._belongs(process, rank, pid):
                owned.add(process.pid)
                self._send(process, number)

    def _belongs(self, process: Process, rank: int, pid: int) -> bool:
        if pid in (process.session, process.group):
            return True
        environ = procs.read_environ(process.pid)
        ours = any(entry.startswith(b"MESHRUN_MARK=") and entry.endswith(self._token.encode()) for entry in environ)
        return ours and b"RANK=%d" % rank in environ

    def end_all(self, number: int, keep: Collection[int], marked: bool) -> None:
        """Signal every descendant; with `marked` also what only the mark connects with us."""
        for process in self._find(keep, marked):
            self._send(process, number)

    def look(self, keep: Collection[int], marked: bool) -> tuple[str, ...]:
        """What `end_all` would signal now."""
        return tuple(str(process) for process in self._find(keep, marked))

    def _find(self, keep: Collection[int], marked: bool) -> list[Process]:
        me = os.getpid()
        found = {process.pid: process for process in procs.find_descendants(me, keep)}
        # Members first: what they are then cannot be a kept process's child that was born after we looked at those.
        members = group.find_members(self._membership.path)
        kept = {*keep, *(process.pid for pid in keep for process in procs.find_descendants(pid))}
        found |= {process.pid: process for process in members if process.pid not in kept}
        if marked:
            found |= {process.pid: process for process in procs.find_marked(self._token)}
        return list(found.values())

    def _send(self, process: Process, number: int) -> None:
        if number == signal.SIGTERM:
            if process.pid in self._told or process.group in self._told_groups:
                return
            self._told.add(process.pid)
        procs.send_signal(process.pid, number)
