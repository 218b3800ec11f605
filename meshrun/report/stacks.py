"""Owns: what faulthandler's text says about where ranks are: equal stacks together, the odd ones first, in words.
Must not: do I/O, or say more than the frames do.
Called by: report.summary, report.control."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from meshrun.dataclass import dataclass
from meshrun.plan.values import Plan, WorkerPlan
from meshrun.report.show import render_ranks

# Patterns are compiled at their first use: most runs show no stack, and all import this.
FRAMES = 16  # of a stack that is shown
_FRAME = r'\s*File "(?P<file>.*)", line (?P<line>[0-9?]+) in (?P<name>.+)'
_HEAD = r"(Current thread|Thread|Stack) .*most recent call first"
# Not the user's: what is installed, the standard library, and meshrun's own frames around the script.
_LIBRARY = r"/(site|dist)-packages/|/lib(64)?/python[0-9.]*/|^<frozen |bundle\.zip/meshrun/"
# What stands around a script: whatever runs it.
_OURS = r"bundle\.zip/meshrun/|^<frozen |^<string>$"
# Names that say nothing: decorators and torch's own steps between a module's call and its forward.
_WRAPPERS = frozenset(
    ["wrapper", "inner", "inner_func", "_fn", "_call_impl", "_wrapped_call_impl", "decorate_context", "adopted"]
)
# Where a rank waits for others: whoever is elsewhere is the one that they wait for.
_WAITS = (
    r"(all_|reduce|broadcast|gather|scatter|barrier|monitored_barrier|wait|recv|irecv|send|batch_isend|synchronize"
    r"|init_process_group|init_device_mesh|new_group|destroy_process_group|_rendezvous|join).*"
)
_COLLECTIVES = "/torch/distributed/distributed_c10d.py"


@dataclass(frozen=True, slots=True)
class Frame:
    file: str
    line: str
    name: str


@dataclass(frozen=True, slots=True)
class Group:
    """Ranks that are at the same place."""

    ranks: tuple[int, ...]
    where: str  # "load_batch (train.py:41)"
    waits: bool
    text: str  # the main thread's stack, of the first of them


def group_stacks(stacks: Iterable[tuple[int, str]]) -> tuple[Group, ...]:
    """Equal places together: those that do not wait for others first, then the few before the many."""
    found: dict[tuple[str, bool], list[tuple[int, str]]] = {}
    for rank, text in sorted(stacks):
        main = find_main(text)
        frames = read_frames(main)
        found.setdefault(describe(frames) if frames else (main.strip(), False), []).append((rank, main))
    groups = [
        Group(tuple(rank for rank, _ in entries), where, waits, entries[0][1])
        for (where, waits), entries in found.items()
    ]
    return tuple(sorted(groups, key=lambda group: (group.waits, len(group.ranks), group.ranks)))


def find_main(text: str) -> str:
    """The main thread's part of a dump of all threads: the last one, as the oldest comes last."""
    lines = text.rstrip().split("\n")
    heads = [at for at, line in enumerate(lines) if re.match(_HEAD, line)]
    return "\n".join(lines[heads[-1] + 1 :] if heads else lines)


def read_frames(text: str) -> list[Frame]:
    """The frames of one stack, innermost first, without those of meshrun that called the script."""
    matches = (re.match(_FRAME, line) for line in text.split("\n"))
    frames = [Frame(match["file"], match["line"], match["name"]) for match in matches if match]
    theirs = len(frames)
    while theirs > 1 and re.search(_OURS, frames[theirs - 1].file):
        theirs -= 1
    return frames[:theirs]


def describe(frames: Sequence[Frame]) -> tuple[str, bool]:
    """Where that is, by the innermost frame of the user's and what it called; and whether this is a wait for others."""
    own = next((at for at, frame in enumerate(frames) if not re.search(_LIBRARY, frame.file)), 0)
    mine = frames[own]
    place = f"{mine.file.rpartition('/')[2]}:{mine.line}"
    called = next((frame.name for frame in reversed(frames[:own]) if frame.name not in _WRAPPERS), "")
    if called:
        collective = any(frame.file.endswith(_COLLECTIVES) for frame in frames[:own])
        return f"{called} ({place} in {mine.name})", collective or bool(re.match(_WAITS, called))
    # Without a frame of the user's (an installed module), the innermost of all must say it.
    return f"{mine.name} ({place})", bool(re.search(_LIBRARY, mine.file) and re.match(_WAITS, mine.name))


# ---- words -----------------------------------------------------------------------------------------------------------


def render_groups(stacks: Sequence[tuple[int, str]], plan: Plan | None, between: Sequence[str] = ()) -> list[str]:
    """A line for each group, the odd ones first, then the lines `between`, then a stack of each."""
    groups = group_stacks(stacks)
    lines = [f"  {_render_group(group, plan, at, len(groups))}" for at, group in enumerate(groups)]
    lines += between
    for group in groups:
        if group.where.startswith("("):
            continue
        frames = [f'File "{f.file}", line {f.line} in {f.name}' for f in read_frames(group.text)]
        frames = frames or group.text.split("\n")
        more = [f"... and {len(frames) - FRAMES} more frames"] if len(frames) > FRAMES else []
        of = "rank" if len(group.ranks) == 1 else "each of ranks"
        lines += [f"  stack of {of} {render_ranks(group.ranks)}:", *(f"    {line}" for line in frames[:FRAMES] + more)]
    return lines


def _render_group(group: Group, plan: Plan | None, at: int, count: int) -> str:
    size = len(group.ranks)
    if group.where.startswith("("):  # no stack, but why there is none
        return f"{name_ranks(group.ranks, plan)}: {group.where.strip('()')}"
    verb = ("waits" if size == 1 else "wait") if group.waits else ("is" if size == 1 else "are")
    if at == count - 1 and count > 1 and size > 1:
        return f"the other {size} {verb} in {group.where}"
    return f"{name_ranks(group.ranks, plan)} {verb} in {group.where}"


def name_ranks(ranks: Sequence[int], plan: Plan | None) -> str:
    """`rank 6 (dp=1,tp=2) on gpu01`, `ranks 2,6 (tp=2)`: with the coordinates and the host that all of them share."""
    workers = [plan.workers[rank] for rank in ranks] if plan else []
    text = f"{'rank' if len(ranks) == 1 else 'ranks'} {render_ranks(ranks)}"
    coords = ",".join(f"{name}={value}" for name, value in _shared(workers))
    hosts = {worker.host for worker in workers}
    return text + (f" ({coords})" if coords else "") + (f" on {hosts.pop()}" if len(hosts) == 1 else "")


def _shared(workers: Sequence[WorkerPlan]) -> list[tuple[str, int]]:
    if not workers:
        return []
    return [item for item in workers[0].coords if all(item in worker.coords for worker in workers)]


def describe_groups(stacks: Sequence[tuple[int, str]]) -> list[dict[str, Any]]:
    """The groups for summary.json."""
    return [{"ranks": list(g.ranks), "where": g.where, "waits": g.waits} for g in group_stacks(stacks)]
