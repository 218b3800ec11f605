"""Owns: one rank of a plan in words: where it sits, its coordinates, with whom it shares each group, and over what.
Must not: print.
Called by: cli.plan (`--explain RANK`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from meshrun.errors import InputError, Place, Problem
from meshrun.plan.reach import label_names, named_axes
from meshrun.plan.runs import compact_ids, compact_names, compact_range
from meshrun.plan.text import make_table
from meshrun.plan.values import Plan, WorkerPlan
from meshrun.spec.labels import labels_of

MAX_PIECES = 16


def explain_rank(plan: Plan, rank: int) -> str:
    """What a person asks about one rank. Raises InputError for a rank that is not in the plan."""
    if not 0 <= rank < plan.world_size:
        hint = f"the ranks of this plan are 0 to {plan.world_size - 1}"
        raise InputError(Problem(f"there is no rank {rank}", Place("--explain"), hint=hint))
    worker = plan.workers[rank]
    return "\n".join([*_seat(plan, worker), "", *_groups(plan, worker)]) + "\n"


def _seat(plan: Plan, worker: WorkerPlan) -> Iterator[str]:
    node = plan.nodes[worker.node_rank]
    yield f"rank {worker.rank} of {plan.world_size}: {' '.join(f'{name}={at}' for name, at in worker.coords)}"
    yield f"on {worker.host}, node {worker.node_rank} of {len(plan.nodes)}, device {worker.device}"
    there = compact_range(node.first_rank, node.first_rank + node.slots - 1)
    yield f"as local rank {worker.local_rank} of {node.slots} (ranks {there} are there)"
    if worker.share.cpus:
        yield f"on CPUs {worker.share.cpus}, threads: {worker.share.threads}"
    labels = labels_of(node.host)
    if labels:
        yield "in " + ", ".join(f"{name} {value}" for name, value in labels.items())


def _groups(plan: Plan, worker: WorkerPlan) -> list[str]:
    rows = []
    for name, axis in named_axes(plan.mesh):
        group = next(group for group in axis.groups() if worker.rank in group)
        others = [rank for rank in group if rank != worker.rank]
        place = f"{axis.place(worker.rank)} of {axis.size}"
        rows.append((name, place, _ranks(others) if others else "alone", _over(plan, worker, others)))
    return make_table(("group", "place", "with ranks", "over"), rows)


def _over(plan: Plan, worker: WorkerPlan, others: Sequence[int]) -> str:
    """What the group's traffic passes: nothing, the node, or the network (within or between racks) and which hosts."""
    away = list(dict.fromkeys(plan.workers[rank].node_rank for rank in others))
    away = [node for node in away if node != worker.node_rank]
    if not others:
        return "nothing"
    if not away:
        return "the node"
    here = labels_of(plan.nodes[worker.node_rank].host)
    words = "the network"
    for name in label_names(plan.nodes):
        values = {labels_of(plan.nodes[node].host)[name] for node in away} | {here[name]}
        words += f", within one {name}" if len(values) == 1 else f", across {len(values)} {name}s"
    return f"{words}, to {_hosts([plan.nodes[node].host.name for node in away])}"


def _hosts(names: Sequence[str]) -> str:
    """`gpu[01-04]`; more pieces than a person reads as their number."""
    text = compact_names(names)
    return text if text.count(",") < MAX_PIECES else f"{len(names)} hosts, {names[0]} to {names[-1]}"


def _ranks(ranks: Sequence[int]) -> str:
    """`0-3,5`; evenly spaced ones, and more pieces than a person reads, as `0,8,...,56 (8)`."""
    steps = {after - before for before, after in pairwise(ranks)}
    if len(ranks) > 4 and len(steps) == 1 and steps != {1}:
        return f"{ranks[0]},{ranks[1]},...,{ranks[-1]} ({len(ranks)})"
    pieces = compact_ids([str(rank) for rank in ranks]).split(",")
    if len(pieces) > MAX_PIECES:
        pieces = [pieces[0], pieces[1], "...", f"{pieces[-1]} ({len(ranks)})"]
    return ",".join(pieces)
