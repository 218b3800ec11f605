"""Owns: everything a run shows and stores, behind one object; which bytes are settled (stored and shown).
Must not: decide anything about the run, or make the loop wait for a disk or a screen.
Called by: cli (makes it), watch.loop (its `perform`)."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from meshrun.errors import InputError
from meshrun.plan.describe import describe_plan
from meshrun.plan.values import Plan
from meshrun.report.lines import to_bytes
from meshrun.report.pump import Pump
from meshrun.report.show import check_show, parse_show, selects
from meshrun.report.store import RunDirectory, files_of
from meshrun.report.stream import Console
from meshrun.report.summary import Tail, make_summary, render_restart, render_summary
from meshrun.report.terminal import open_terminal
from meshrun.spec.values import Job
from meshrun.watch.values import Again, Emit, Failure, Note, Outcome, Planned, Record, RunResult
from meshrun.wire import STDERR, STDOUT

STOPPED_STALL_S = 2.0  # a user who stopped the run does not wait longer for a screen that does not move
DISK_STALL_S = 10.0


class Settled:
    """Bytes of each node that were stored and also shown; tells `consumed(node, count)` as both have happened."""

    def __init__(self, consumed: Callable[[int, int], None]) -> None:
        self._consumed = consumed
        self._lock = threading.Lock()
        self._lead: dict[int, int] = {}  # per node: bytes stored minus bytes shown
        self._screen = True

    def stored(self, node: int, count: int) -> None:
        """So many more bytes are in the run directory (or lost to a full disk)."""
        self._add(node, count, 1)

    def shown(self, node: int, count: int) -> None:
        """So many more bytes are on the screen (or were not selected)."""
        self._add(node, count, -1)

    def forget_screen(self) -> None:
        """Nothing more will be shown: from now on what is stored is settled."""
        with self._lock:
            self._screen = False
            leads, self._lead = self._lead, {}
        for node, lead in leads.items():
            if lead > 0:
                self._consumed(node, lead)

    def _add(self, node: int, count: int, sign: int) -> None:
        with self._lock:
            lead = self._lead.get(node, 0) * sign
            if self._screen:
                self._lead[node] = (lead + count) * sign
            elif sign < 0:
                return
        both = min(count, -lead) if self._screen else count
        if both > 0:
            self._consumed(node, both)


class Report:
    """Takes the loop's actions for people: `Planned`, `Emit`, `Note`, `Record`; at the end the result."""

    def __init__(
        self,
        job: Job,
        consumed: Callable[[int, int], None],
        reader_gone: Callable[[], None],
        out_fd: int = 1,
        err_fd: int = 2,
    ) -> None:
        """Make the run directory. `consumed` and `reader_gone` are called from other threads.

        Raises InputError: a bad `--show`, a run directory that cannot be made."""
        self._job = job
        self._show = parse_show(job.show)
        check_show(self._show, [name for name, _ in job.mesh.dims] if job.mesh else ["dp"])
        self._plan: Plan | None = None
        self._hidden: frozenset[int] = frozenset()
        self.hurried = threading.Event()
        self._settled = Settled(consumed)
        terminal = open_terminal(job, out_fd, err_fd, os.environ, time.monotonic())
        self._console = Console(out_fd, err_fd, self._settled.shown, reader_gone, terminal)
        self._directory = RunDirectory(job.log_dir, self._warn)
        self._make_directory()
        self._disk = Pump("meshrun-store", self._store)

    def perform(self, action: Planned | Emit | Note | Record | Again) -> None:
        """Store and show one action; never blocks and never raises."""
        if type(action) is Emit:
            self._disk.put(action)
            if action.rank in self._hidden:
                self._settled.shown(action.node, len(action.data))
            else:
                self._console.put(action)
        elif type(action) is Note:
            self._note(action)
        elif type(action) is Planned:
            self._planned(action)
        elif type(action) is Again:
            self._again(action)
        elif type(action) is Record:
            if action.kind == "signal":
                self.hurry()
            self._disk.put((time.time(), action))
            self._console.put(action)

    def hurry(self) -> None:
        """The user wants an end: from now on a screen that takes nothing for two seconds is not waited for."""
        if not self.hurried.is_set():
            self.hurried.set()
            threading.Thread(target=self._watch_screen, name="meshrun-hurry", daemon=True).start()

    def _watch_screen(self) -> None:
        # Without this a full window would keep the agents from sending the rest of their output, and from ending.
        moved = -1
        while moved != (moved := self._console.moved):
            time.sleep(STOPPED_STALL_S)
        self._settled.forget_screen()

    def finish(self, result: RunResult) -> dict[str, Any]:
        """Store and show what is left, write summary.json (returned), and the last block to stderr.

        Waits for a slow reader; gives up only if the run was stopped (or `hurry` was called, also by a signal handler
        meanwhile) and nothing moves for two seconds."""
        if result.outcome is Outcome.STOPPED:
            self.hurried.set()
        stored = self._disk.finish(DISK_STALL_S)
        summary = make_summary(result, self._plan, self._job.run_id)
        tails: dict[int, Tail] = {}
        if stored:
            self._directory.write_json("summary.json", summary)
            tails = self._tails(result.first)
            self._directory.close()
        else:
            self._warn(f"the disk of {self._job.log_dir} does not answer; its files are incomplete")
        files = files_of(self._job.log_dir, result.attempt)
        block = render_summary(result, self._plan, self._job.run_id, files, tails)
        self._console.finish(to_bytes(block), STOPPED_STALL_S, self.hurried)
        if self._disk.error:
            raise self._disk.error
        return summary

    def _make_directory(self) -> None:
        try:
            self._directory.make()
        except InputError:
            self.hurried.set()
            self._console.finish(b"", STOPPED_STALL_S, self.hurried)
            raise

    def _planned(self, action: Planned) -> None:
        self._plan = action.plan
        self._hidden = frozenset(w.rank for w in action.plan.running if not selects(self._show, w))
        self._disk.put(action)
        self._console.put(action)
        if len(self._hidden) == len(action.plan.running):
            self._warn(f"--show {self._job.show} selects no rank of this run; the run directory has all output")

    def _again(self, action: Again) -> None:
        """One attempt is complete: its block stands between its last line and the first line of the next."""
        files = files_of(self._job.log_dir, action.result.attempt)
        self._disk.put(action)
        self._console.put(action)
        self._console.put(to_bytes(render_restart(action, self._plan, files)))

    def _note(self, note: Note) -> None:
        self._disk.put((time.time(), Record("note", {"level": note.level, "text": note.text})))
        if note.level != "info" or not self._job.quiet:
            text = note.text if note.text.startswith("meshrun: ") else f"meshrun: {note.text}"
            self._console.put(to_bytes(f"{text}\n"))

    def _warn(self, text: str) -> None:
        self._console.put(to_bytes(f"meshrun: warning: {text}\n"))

    def _tails(self, first: Failure | None) -> dict[int, Tail]:
        if not first or not self._is_ours(first.node_rank):
            return {}
        return {first.rank: Tail(self._directory.tail(first.rank, STDOUT), self._directory.tail(first.rank, STDERR))}

    def _is_ours(self, node_rank: int) -> bool:
        """By hand, each node shows and stores its own ranks only."""
        return self._job.by_hand is None or self._job.by_hand.node_rank == node_rank

    def _store(self, batch: Sequence[Any]) -> None:
        """In the disk thread: the output of a batch takes one write a file."""
        pieces: dict[tuple[int, int], list[bytes]] = {}
        counts: dict[int, int] = {}
        try:
            for item in batch:
                if type(item) is Emit:
                    pieces.setdefault((item.rank, item.stream), []).append(item.data)
                    counts[item.node] = counts.get(item.node, 0) + len(item.data)
                else:
                    if type(item) is Again:
                        self._store_pieces(pieces)
                    self._store_other(item)
            self._store_pieces(pieces)
        finally:
            for node, count in counts.items():
                self._settled.stored(node, count)

    def _store_pieces(self, pieces: dict[tuple[int, int], list[bytes]]) -> None:
        for (rank, stream), data in pieces.items():
            self._directory.write(rank, stream, *data)
        pieces.clear()

    def _store_other(self, item: Planned | Again | tuple[float, Record]) -> None:
        if isinstance(item, Planned):
            self._directory.write_json("plan.json", describe_plan(item.plan))
            self._touch(item.plan)
        elif isinstance(item, Again):
            self._directory.turn_to(item.attempt)
            if self._plan:
                self._touch(self._plan)
        else:
            self._directory.write_event(item[0], item[1].kind, item[1].fields)

    def _touch(self, plan: Plan) -> None:
        self._directory.touch(w.rank for w in plan.running if self._is_ours(w.node_rank))
