"""Owns: how far a run is (from its records), and the status line that says so.
Must not: do I/O or read a clock; write to anything.
Called by: report.terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum
from itertools import chain, islice

from meshrun.dataclass import dataclass, replace
from meshrun.plan.values import Plan
from meshrun.spec.values import Job
from meshrun.watch.values import Record

NAMED = 3  # so many missing hosts are named
SPANS = 100  # of ranks; no line is wider


# A set of numbers as the bits of one: taking one of 16,384 ranks out costs 0.2 us, and a frozenset's copy 200 us.
Bits = int


class Phase(Enum):
    """What the status line says; in order."""

    CONNECTING = "connecting"
    STARTING = "starting"
    WAITING = "waiting"
    RUNNING = "running"
    STOPPING = "stopping"
    PAUSING = "pausing"  # before a restart


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is. `since` is when its phase began, in seconds of any steady clock."""

    hosts: tuple[str, ...]
    awaits_ready: bool = True  # False (a program): a worker that was spawned counts as running
    only_node: int | None = None  # by hand, beyond node 0: nothing is heard of other nodes' ranks
    phase: Phase = Phase.CONNECTING
    since: float = 0.0
    missing: Bits = 0  # nodes that have not greeted
    world_size: int = 0
    ranks: Bits = 0
    waiting: Bits = 0  # ranks not yet in the script
    exited: int = 0
    why: str = ""
    attempt: int = 0
    attempts: int = 1
    pause_s: float = 0.0
    title: str = "meshrun"


def begin_progress(job: Job, now: float) -> Progress:
    """The state before anything happened."""
    nodes = (1 << len(job.hosts)) - 1
    own = job.by_hand.node_rank if job.by_hand and job.by_hand.node_rank else None
    names = tuple(host.name for host in job.hosts)
    title = "meshrun rehearsal" if job.rehearsal else "meshrun"
    return Progress(names, job.form != "program", own, since=now, missing=nodes, title=title)


def progress_after(progress: Progress, record: Record, now: float) -> Progress:
    """The state after `record`; kinds that do not matter here leave it as it is."""
    step = _STEPS.get(record.kind)
    after = step(progress, record) if step else progress
    return after if after.phase is progress.phase else replace(after, since=now)


def progress_planned(progress: Progress, plan: Plan) -> Progress:
    """The state once it is known which ranks there will be."""
    ranks = _bits(w.rank for w in plan.running if progress.only_node in (None, w.node_rank))
    return replace(progress, world_size=ranks.bit_count(), ranks=ranks, waiting=ranks)


def _bits(numbers: Iterable[int]) -> Bits:
    found = bytearray()
    for number in numbers:
        found.extend(bytes(max(0, number // 8 + 1 - len(found))))
        found[number // 8] |= 1 << number % 8
    return int.from_bytes(found, "little")


def _without(bits: Bits, number: object) -> Bits:
    return bits & ~(1 << number) if isinstance(number, int) else bits


def _greeted(progress: Progress, record: Record) -> Progress:
    return replace(progress, missing=_without(progress.missing, record.fields.get("node")))


def _starting(progress: Progress, record: Record) -> Progress:
    return replace(progress, phase=Phase.STARTING) if progress.phase in _BEFORE else progress


def _arrived(progress: Progress, record: Record) -> Progress:
    waiting = _without(progress.waiting, record.fields.get("rank"))
    return _unless_stopping(replace(progress, waiting=waiting))


def _spawned(progress: Progress, record: Record) -> Progress:
    return _unless_stopping(progress) if progress.awaits_ready else _arrived(progress, record)


def _exited(progress: Progress, record: Record) -> Progress:
    return replace(_arrived(progress, record), exited=progress.exited + 1)


def _stopping(progress: Progress, record: Record) -> Progress:
    return replace(progress, phase=Phase.STOPPING, why=str(record.fields.get("why", "")))


def _restarting(progress: Progress, record: Record) -> Progress:
    known = {name: record.fields.get(name, 0) for name in ("attempt", "attempts", "pause_s")}
    return replace(progress, phase=Phase.PAUSING, waiting=progress.ranks, exited=0, why="", **known)


def _unless_stopping(progress: Progress) -> Progress:
    if progress.phase in (Phase.STOPPING, Phase.PAUSING):
        return progress
    return replace(progress, phase=Phase.WAITING if progress.waiting else Phase.RUNNING)


_STEPS = {
    "facts": _greeted,
    "address": _starting,
    "store": _starting,
    "start": _starting,
    "spawned": _spawned,
    "ready": _arrived,
    "exited": _exited,
    "stop": _stopping,
    "restart": _restarting,
}
_BEFORE = (Phase.CONNECTING, Phase.PAUSING)


def render_clock(seconds: float) -> str:
    """`00:12:31`."""
    whole = max(0, int(seconds))
    return f"{whole // 3600:02}:{whole // 60 % 60:02}:{whole % 60:02}"


def _spans(bits: Bits) -> Iterator[range]:
    """The numbers in `bits` as ranges, ascending."""
    at = 0
    while bits:
        zeros = (bits & -bits).bit_length() - 1
        bits >>= zeros
        ones = (~bits & (bits + 1)).bit_length() - 1
        bits >>= ones
        yield range(at + zeros, at + zeros + ones)
        at += zeros + ones


def _render_connecting(progress: Progress) -> str:
    total, missing = len(progress.hosts), progress.missing.bit_count()
    names = ", ".join(progress.hosts[node] for node in islice(chain.from_iterable(_spans(progress.missing)), NAMED))
    more = f" and {missing - NAMED} more" if missing > NAMED else ""
    rest = f": waiting for {names}{more}" if missing else ""
    return f"connecting {total - missing}/{total}{rest}"


def _render_waiting(progress: Progress) -> str:
    there = progress.world_size - progress.waiting.bit_count()
    spans = islice(_spans(progress.waiting), SPANS)
    ranks = ",".join(str(span[0]) if len(span) == 1 else f"{span[0]}-{span[-1]}" for span in spans)
    return f"started {there}/{progress.world_size}: waiting for ranks {ranks}"


def _render_running(progress: Progress) -> str:
    ended = f", {progress.exited} ended" if progress.exited else ""
    return f"running, {progress.world_size} ranks{ended}"


def _render_stopping(progress: Progress) -> str:
    return f"stopping: {progress.why}" if progress.why else "stopping"


def _render_pausing(progress: Progress) -> str:
    return f"after a pause of {progress.pause_s:g} s"


_TEXTS = {
    Phase.CONNECTING: _render_connecting,
    Phase.STARTING: lambda progress: f"starting {progress.world_size} ranks",
    Phase.WAITING: _render_waiting,
    Phase.RUNNING: _render_running,
    Phase.STOPPING: _render_stopping,
    Phase.PAUSING: _render_pausing,
}


def render_board(progress: Progress, width: int, now: float) -> str:
    """The status line, no wider than `width` cells: `meshrun 00:12:31 running, 8 ranks`."""
    which = f"restart {progress.attempt}/{progress.attempts - 1}: " if progress.attempt else ""
    return fit(
        f"{progress.title} {render_clock(now - progress.since)} {which}{_TEXTS[progress.phase](progress)}", width
    )


def fit(text: str, width: int) -> str:
    """`text` cut to `width` terminal cells, with an ellipsis where it was cut (rich knows how wide a character is)."""
    from rich.cells import cell_len, set_cell_size  # only a terminal needs it: not on the start-up path

    if cell_len(text) <= width:
        return text
    return set_cell_size(text, width - 1) + "…" if width > 0 else ""
