"""Owns: two plans side by side: which ranks move, what else changes, for a human.
Must not: print, or read a file.
Called by: cli.plan (`--diff`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from meshrun.plan.reach import Reach, find_reach
from meshrun.plan.runs import compact_names, compact_range
from meshrun.plan.text import describe_reach, make_table
from meshrun.plan.values import Plan, WorkerPlan
from meshrun.spec.mesh import spell_dims

MAX_ROWS = 40


def compare_plans(before: Plan, after: Plan) -> str:
    """What differs between two plans; a sentence if nothing does."""
    sections = [*_mesh(before, after), *_hosts(before, after), *_dims(before, after), *_moves(before, after)]
    if not sections and before.fingerprint != after.fingerprint:
        return "no rank moves, but the fingerprints differ: in something that a plan file does not tell (device)\n"
    if not sections:
        return "no rank moves, nothing changes\n"
    return "\n\n".join(sections) + "\n"


def _mesh(before: Plan, after: Plan) -> Iterator[str]:
    rows = [
        ("workers", str(before.world_size), str(after.world_size)),
        ("mesh", spell_dims(before.mesh.dims), spell_dims(after.mesh.dims)),
        ("views", _named(before.mesh.views), _named(after.mesh.views)),
        ("factorings", _grids(before), _grids(after)),
        ("backend", _pairs(before.mesh.backend), _pairs(after.mesh.backend)),
        ("time-outs", _seconds(before.mesh.timeout_s), _seconds(after.mesh.timeout_s)),
        ("options", _options(before), _options(after)),
    ]
    changed = [row for row in rows if row[1] != row[2]]
    if changed:
        yield "\n".join(make_table(("", "before", "after"), changed))


def _hosts(before: Plan, after: Plan) -> Iterator[str]:
    old = {node.host.name: node for node in before.nodes}
    new = {node.host.name: node for node in after.nodes}
    lines = []
    for word, names in (("gone", old.keys() - new.keys()), ("new", new.keys() - old.keys())):
        if names:
            nodes = [node.host.name for node in (*before.nodes, *after.nodes) if node.host.name in names]
            lines.append(f"hosts {word}: {compact_names(nodes)}")
    for name in (name for name in old if name in new):
        if (old[name].slots, old[name].devices) != (new[name].slots, new[name].devices):
            slots = f"{old[name].slots} slots ({','.join(old[name].devices)})"
            lines.append(f"{name}: {slots} before, {new[name].slots} ({','.join(new[name].devices)}) after")
    if lines:
        yield _short(lines)


def _dims(before: Plan, after: Plan) -> Iterator[str]:
    old, new = ({reach.name: reach for reach in find_reach(plan)} for plan in (before, after))
    rows = [(name, _reach(old.get(name)), _reach(new.get(name))) for name in dict.fromkeys([*old, *new])]
    changed = [row for row in rows if row[1] != row[2]]
    if changed:
        yield "\n".join(make_table(("groups of", "before", "after"), changed))


def _reach(reach: Reach | None) -> str:
    return "-" if reach is None else f"{reach.groups} of {reach.size}, {describe_reach(reach)}"


def _moves(before: Plan, after: Plan) -> Iterator[str]:
    """Ranks whose seat or coordinates change; a run of ranks that go from one host to one other is one row."""
    pairs = list(zip(before.workers, after.workers, strict=False))
    moved = [(old, new) for old, new in pairs if _seat(old) != _seat(new)]
    turned = [(old, new) for old, new in pairs if _seat(old) == _seat(new) and old.coords != new.coords]
    if moved:
        runs = [list(run) for _, run in groupby(moved, key=lambda pair: (pair[0].host, pair[1].host))]
        rows = [(_ranks(run), _where(run, 0), _where(run, 1)) for run in runs]
        yield _short(make_table((f"moved: {len(moved)}", "before", "after"), rows))
    if turned:
        rows = [(str(old.rank), _coords(old), _coords(new)) for old, new in turned]
        yield _short(make_table((f"same seat, other coordinates: {len(turned)}", "before", "after"), rows))


def _seat(worker: WorkerPlan) -> tuple[str, str]:
    return worker.host, worker.device


def _ranks(run: Sequence[tuple[WorkerPlan, WorkerPlan]]) -> str:
    return f"rank{'s' if len(run) > 1 else ''} {compact_range(run[0][0].rank, run[-1][0].rank)}"


def _where(run: Sequence[tuple[WorkerPlan, WorkerPlan]], side: int) -> str:
    first, last = run[0][side], run[-1][side]
    devices = compact_range(int(first.device), int(last.device)) if _counted(first, last) else first.device
    return f"{first.host} device {devices}"


def _counted(first: WorkerPlan, last: WorkerPlan) -> bool:
    return first.device.isdigit() and last.device.isdigit()


def _coords(worker: WorkerPlan) -> str:
    return " ".join(f"{name}={at}" for name, at in worker.coords)


def _named(views: Iterable[tuple[str, Sequence[str]]]) -> str:
    return " ".join(f"{name}=[{' '.join(parts)}]" for name, parts in views) or "-"


def _grids(plan: Plan) -> str:
    return " ".join(f"{name}({spell_dims(dims)})" for name, dims in plan.mesh.factorings) or "-"


def _pairs(pairs: Iterable[tuple[str, object]]) -> str:
    return " ".join(f"{name}={value}" for name, value in pairs) or "-"


def _seconds(pairs: Iterable[tuple[str, float]]) -> str:
    return _pairs((name, f"{seconds:g} s") for name, seconds in pairs)


def _options(plan: Plan) -> str:
    return " ".join(f"{name}({_pairs(options)})" for name, options in plan.mesh.options) or "-"


def _short(lines: Sequence[str]) -> str:
    rest = [f"... and {len(lines) - MAX_ROWS} more"] if len(lines) > MAX_ROWS else []
    return "\n".join([*lines[:MAX_ROWS], *rest])
