"""Owns: the plan of `--fake`: the whole world, and which of its ranks run.
Must not: do I/O.
Called by: watch.planning, cli.plan."""

from __future__ import annotations

import re
from itertools import product
from math import prod

from meshrun.dataclass import replace
from meshrun.errors import InputError, Place, Problem
from meshrun.plan.placement import devices_of, make_plan
from meshrun.plan.values import Mesh, Plan
from meshrun.spec.values import Fake, Job

MOST = 256  # processes at a time, each with a torch of its own
CLASSES = "classes"
_PLACE = Place("--ranks")
_SPAN = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", re.ASCII)


def make_fake_plan(job: Job, fake: Fake) -> Plan:
    """The plan of the rehearsed hosts with the ranks that run. Raises InputError as `make_plan` and `choose_ranks`."""
    slots = [host.slots or 0 for host in fake.hosts]
    devices = [devices_of(host, count, ()) for host, count in zip(fake.hosts, slots, strict=True)]
    plan = make_plan(fake.hosts, slots, devices, job.mesh)
    return replace(plan, chosen=choose_ranks(fake.ranks, plan.mesh))


def choose_ranks(text: str, mesh: Mesh) -> tuple[int, ...]:
    """`0,4-7` or `classes` → ranks, ascending. Raises InputError: no such ranks, or more than MOST."""
    world_size = prod(mesh.shape)
    spans = [(rank, rank) for rank in _classes(mesh)] if text.strip() == CLASSES else _parse(text)
    outside = [last for _, last in spans if last >= world_size]
    if outside:
        hint = f"ranks are 0 to {world_size - 1}"
        raise InputError(Problem(f"there is no rank {outside[0]}", _PLACE, text, hint))
    count = sum(last - first + 1 for first, last in spans)
    if count > MOST:
        text = f"{count} ranks are more than the {MOST} that are rehearsed at a time, a process each"
        raise InputError(Problem(text, _PLACE, hint="fewer, for example one of each kind"))
    return tuple(sorted({rank for first, last in spans for rank in range(first, last + 1)}))


def _classes(mesh: Mesh) -> list[int]:
    """One rank of each kind: the first, the middle and the last place of every dim, in all combinations."""
    strides = [prod(mesh.shape[at + 1 :]) for at in range(len(mesh.shape))]
    places = [sorted({0, size // 2, size - 1}) for size in mesh.shape]
    return [sum(at * stride for at, stride in zip(place, strides, strict=True)) for place in product(*places)]


def _parse(text: str) -> list[tuple[int, int]]:
    spans = []
    for item in text.split(","):
        match = _SPAN.fullmatch(item.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if last < first:
            hint = "ranks like 0,4-7, or `classes`"
            raise InputError(Problem(f"{item.strip()!r} is not a rank or a range of ranks", _PLACE, text, hint))
        spans.append((first, last))
    return spans
