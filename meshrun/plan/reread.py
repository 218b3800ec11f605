"""Owns: the plan's JSON back to a `Plan`, for a node whose plan was made elsewhere (by hand).
Must not: trust it: whatever does not fit together is a WireError; nor compute a placement.
Called by: watch.relay."""

from __future__ import annotations

from typing import Any

from meshrun.errors import WireError
from meshrun.plan.values import Mesh, NodePlan, Plan, WorkerPlan
from meshrun.spec.values import Host


def read_plan(plain: dict[str, Any]) -> Plan:
    """The plan that `plan.describe.describe_plan` wrote, as far as it tells (hosts: the name only).

    Raises WireError if it is anything else, or if its ranks, nodes and mesh do not fit together."""
    try:
        mesh = plain["mesh"]
        nodes = _read_nodes(plain["nodes"])
        plan = Plan(
            fingerprint=_text(plain["fingerprint"]),
            mesh=Mesh(tuple((_text(name), _count(size)) for name, size in mesh["dims"].items())),
            nodes=nodes,
            workers=tuple(_read_worker(entry) for entry in plain["workers"]),
            groups=tuple(
                (_text(dim), tuple(tuple(map(_count, group)) for group in groups))
                for dim, groups in plain["groups"].items()
            ),
            crosses_nodes=tuple((_text(dim), bool(value)) for dim, value in mesh["crosses_nodes"].items()),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise WireError(f"a plan that cannot be read: {error}") from None
    _check_plan(plan)
    return plan


def _text(value: Any) -> str:
    if type(value) is not str:
        raise TypeError(f"{value!r} is not text")
    return value


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**31:
        raise TypeError(f"{value!r} is not a count")
    return value


def _read_nodes(entries: list[dict[str, Any]]) -> tuple[NodePlan, ...]:
    nodes, first = [], 0
    for entry in entries:
        slots = _count(entry["slots"])
        devices = tuple(map(_text, entry["devices"]))
        nodes.append(NodePlan(_count(entry["node_rank"]), Host(_text(entry["host"])), slots, devices, first))
        first += slots
    return tuple(nodes)


def _read_worker(entry: dict[str, Any]) -> WorkerPlan:
    return WorkerPlan(
        rank=_count(entry["rank"]),
        node_rank=_count(entry["node_rank"]),
        local_rank=_count(entry["local_rank"]),
        host=_text(entry["host"]),
        device=_text(entry["device"]),
        coords=tuple((_text(dim), _count(at)) for dim, at in entry["coords"].items()),
    )


def _check_plan(plan: Plan) -> None:
    size = 1
    for dim in plan.mesh.shape:
        size *= dim
    expected = [(node.node_rank, local) for node in plan.nodes for local in range(node.slots)]
    placed = [(worker.node_rank, worker.local_rank) for worker in plan.workers]
    ranks = [worker.rank for worker in plan.workers]
    in_order = [node.node_rank for node in plan.nodes] == list(range(len(plan.nodes)))
    if not in_order or placed != expected or ranks != list(range(len(ranks))) or size != len(ranks) or not ranks:
        raise WireError("a plan whose ranks, nodes and mesh do not fit together")
