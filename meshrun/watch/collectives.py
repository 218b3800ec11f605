"""Owns: where the ranks of a process group disagree about their collectives, from what each rank's recorder says.
Must not: do I/O, trust what comes from a node, or say that a rank waits (the stacks say that).
Called by: watch.stall; its values travel to report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Any

from meshrun.dataclass import asdict, dataclass
from meshrun.plan.values import Plan

# What every rank must call with tensors of one size; gathers and scatters may be uneven.
_SAME_SIZES = frozenset(["all_reduce", "reduce", "broadcast", "_allgather_base", "_reduce_scatter_base"])
_STATES = ("scheduled", "started", "completed")  # in this order; gloo never leaves the first
_OURS = "mesh_"  # before a dim's name in a group's description, torch's way and ours


class Kind(Enum):
    """In which way they disagree; the first of these that holds is said of a group."""

    OP = "different collectives"
    SIZES = "different sizes"
    COUNT = "different numbers of collectives"
    STATE = "different progress in one collective"


@dataclass(frozen=True, slots=True)
class Place:
    """Ranks of a group that are equally far: `number` collectives issued, and the one that is meant."""

    ranks: tuple[int, ...]
    number: int
    op: str
    sizes: str
    state: str
    age_s: float  # of the youngest of them


@dataclass(frozen=True, slots=True)
class Disagreement:
    """Of one group: who is where, the odd ones first."""

    kind: Kind
    group: str  # "tp group 1", "world group", or torch's own name of it
    members: tuple[int, ...]
    places: tuple[Place, ...]


@dataclass(frozen=True, slots=True)
class _Call:
    number: int
    op: str
    sizes: str
    state: str
    age_s: float


Key = tuple[str, str, tuple[int, ...]]  # name, description, members
Calls = dict[int, dict[str, tuple[_Call, ...]]]  # rank → backend → the last calls


def find_disagreements(told: Iterable[tuple[int, Mapping[str, Any]]], plan: Plan | None) -> tuple[Disagreement, ...]:
    """Different collectives before different sizes before different numbers; among equals the smaller groups first."""
    groups: dict[Key, Calls] = {}
    for rank, plain in told:
        for key, calls in _read(plain, plan):
            groups.setdefault(key, {})[rank] = calls
    found = []
    for key, ranks in groups.items():
        for backend in sorted({name for mine in ranks.values() for name in mine}):
            finding = _compare({rank: mine.get(backend, ()) for rank, mine in ranks.items()})
            if finding:
                found.append(Disagreement(finding[0], name_group(key, plan), key[2], finding[1]))
    order = list(Kind)
    return tuple(sorted(found, key=lambda one: (order.index(one.kind), len(one.members), one.members)))


def _read(plain: Mapping[str, Any], plan: Plan | None) -> list[tuple[Key, dict[str, tuple[_Call, ...]]]]:
    world = tuple(range(plan.world_size)) if plan else ()
    try:
        return [
            (
                (str(group["name"]), str(group["desc"]), tuple(map(int, group["ranks"])) or world),
                {str(name): tuple(map(_read_call, calls)) for name, calls in group["calls"].items()},
            )
            for group in plain.get("groups", ())
        ]
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        return []


def _read_call(plain: Sequence[Any]) -> _Call:
    number, op, sizes, state, age_s = plain
    return _Call(int(number), str(op), str(sizes), str(state), float(age_s))


# ---- one group -------------------------------------------------------------------------------------------------------


def _compare(calls: dict[int, tuple[_Call, ...]]) -> tuple[Kind, tuple[Place, ...]] | None:
    """The first call that two ranks made differently; else the last ones, if some are further than others."""
    by_number: dict[int, dict[int, _Call]] = {}
    for rank, mine in calls.items():
        for call in mine:
            by_number.setdefault(call.number, {})[rank] = call
    for kind, aspect in ((Kind.OP, _op), (Kind.SIZES, _op_and_sizes)):
        for _, made in sorted(by_number.items()):
            if len({aspect(call) for call in made.values()}) > 1:
                return kind, _gather(made, aspect)
    last = {rank: mine[-1] if mine else _Call(0, "", "", "", 0.0) for rank, mine in calls.items()}
    for kind, aspect in ((Kind.COUNT, _number), (Kind.STATE, _state)):
        if len({aspect(call) for call in last.values()}) > 1:
            return kind, _gather(last, aspect, by_count=False)
    return None


def _op(call: _Call) -> Any:
    return call.op


def _op_and_sizes(call: _Call) -> Any:
    return call.op, call.sizes if call.op in _SAME_SIZES else ""


def _number(call: _Call) -> Any:
    return call.number


def _state(call: _Call) -> Any:
    return _STATES.index(call.state) if call.state in _STATES else -1


def _gather(calls: dict[int, _Call], aspect: Any, by_count: bool = True) -> tuple[Place, ...]:
    """Ranks of one aspect together: the fewest first, or those that are the least far."""
    found: dict[Any, list[int]] = {}
    for rank, call in sorted(calls.items()):
        found.setdefault(aspect(call), []).append(rank)
    places = []
    for _, ranks in sorted(found.items(), key=lambda item: (len(item[1]), item[1]) if by_count else item[0]):
        one = calls[ranks[0]]
        youngest_s = min(calls[rank].age_s for rank in ranks)
        places.append(Place(tuple(ranks), one.number, one.op, one.sizes, one.state, youngest_s))
    return tuple(places)


# ---- its name --------------------------------------------------------------------------------------------------------


def name_group(key: Key, plan: Plan | None) -> str:
    """By the mesh: the dim whose group it is and which of that dim's; else by its description, else by torch's name."""
    name, desc, members = key
    dims = dict(plan.groups) if plan else {}
    said = desc.removeprefix(_OURS)
    for dim in (said, *dims):
        groups = dims.get(dim, ())
        if members in groups and len(members) > 1:
            return f"{dim} group" if len(groups) == 1 else f"{dim} group {groups.index(members)}"
    if plan and len(members) == plan.world_size:
        return "world group"
    if plan and said in dict(plan.mesh.views):
        return f"{said} group"
    return f"group {name}" if desc in ("", "undefined", "default_pg") else f"group {name} ({desc})"


# ---- as JSON ---------------------------------------------------------------------------------------------------------


def describe_disagreement(one: Disagreement) -> dict[str, Any]:
    """For summary.json, events.jsonl and the other nodes of a run by hand."""
    places = [{**asdict(place), "ranks": list(place.ranks)} for place in one.places]
    return {"kind": one.kind.value, "group": one.group, "ranks": list(one.members), "places": places}


def read_disagreement(plain: Mapping[str, Any]) -> Disagreement:
    """The opposite. Raises KeyError, TypeError or ValueError for anything else."""
    places = tuple(Place(**{**place, "ranks": tuple(map(int, place["ranks"]))}) for place in plain["places"])
    return Disagreement(Kind(plain["kind"]), str(plain["group"]), tuple(map(int, plain["ranks"])), places)
