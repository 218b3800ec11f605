"""Owns: the plan's JSON (`plan --format json`) back to a `Plan`; reading a mesh, a label, a count that others wrote.
Must not: trust it: whatever does not fit together is a WireError; nor compute a placement.
Called by: cli.compare, plan.packed."""

from __future__ import annotations

from typing import Any

from meshrun.errors import InputError, WireError
from meshrun.plan.values import Mesh, NodePlan, Plan, WorkerPlan
from meshrun.spec.group_options import KINDS
from meshrun.spec.labels import parse_label
from meshrun.spec.solve import solve_mesh
from meshrun.spec.values import Host, MeshSpec, Options
from meshrun.wire import Share
from meshrun.wire.cpus import parse_cpus


def read_plan(plain: dict[str, Any]) -> Plan:
    """The plan that `plan.describe.describe_plan` wrote, as far as it tells (hosts: the name only).

    Raises WireError if it is anything else, or if its ranks, nodes and mesh do not fit together."""
    try:
        mesh = plain["mesh"]
        nodes = _read_nodes(plain["nodes"])
        plan = Plan(
            fingerprint=read_text(plain["fingerprint"]),
            mesh=read_mesh(mesh),
            nodes=nodes,
            workers=tuple(_read_worker(entry) for entry in plain["workers"]),
            groups=tuple(
                (read_text(dim), tuple(tuple(map(read_count, group)) for group in groups))
                for dim, groups in plain["groups"].items()
            ),
            crosses_nodes=tuple((read_text(dim), bool(value)) for dim, value in mesh["crosses_nodes"].items()),
        )
        _check_plan(plan)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise WireError(f"a plan that cannot be read: {error}") from None
    return plan


def read_text(value: Any) -> str:
    """The value if it is text. Raises TypeError."""
    if type(value) is not str:
        raise TypeError(f"{value!r} is not text")
    return value


def read_count(value: Any) -> int:
    """The value if it is an integer from 0 to 2**31 - 1. Raises TypeError."""
    if type(value) is not int or not 0 <= value < 2**31:
        raise TypeError(f"{value!r} is not a count")
    return value


def _sizes(plain: dict[str, Any]) -> tuple[tuple[str, int], ...]:
    return tuple((read_text(name), read_count(size)) for name, size in plain.items())


def read_mesh(plain: dict[str, Any]) -> Mesh:
    """What `describe_mesh` wrote. Raises KeyError, TypeError, ValueError or AttributeError for anything else."""
    return Mesh(
        dims=_sizes(plain["dims"]),
        views=tuple((read_text(name), tuple(map(read_text, dims))) for name, dims in plain.get("views", {}).items()),
        factorings=tuple((read_text(name), _sizes(dims)) for name, dims in plain.get("factorings", {}).items()),
        backend=tuple((read_text(dim), read_text(name)) for dim, name in plain.get("backend", {}).items()),
        timeout_s=tuple((read_text(dim), float(limit)) for dim, limit in plain.get("timeout_s", {}).items()),
        options=_read_options(plain.get("options", {})),
    )


def _read_nodes(entries: list[dict[str, Any]]) -> tuple[NodePlan, ...]:
    nodes, first = [], 0
    for entry in entries:
        slots = read_count(entry["slots"])
        devices = tuple(map(read_text, entry["devices"]))
        host = Host(read_text(entry["host"]), label=read_label(entry.get("labels", {})))
        nodes.append(NodePlan(read_count(entry["node_rank"]), host, slots, devices, first))
        first += slots
    return tuple(nodes)


def read_label(plain: dict[str, Any]) -> str | None:
    """A host's label from its names and values; None if there are none. Raises ValueError or TypeError."""
    label = ",".join(f"{read_text(name)}:{read_text(value)}" for name, value in plain.items())
    if label:
        parse_label(label)
    return label or None


def _read_options(plain: dict[str, Any]) -> tuple[tuple[str, Options], ...]:
    for options in plain.values():
        for name, value in options.items():
            if name not in KINDS or type(value) not in (int, str):
                raise ValueError(f"{name!r} is not an option")
    return tuple((read_text(dim), tuple(options.items())) for dim, options in plain.items())


def _read_worker(entry: dict[str, Any]) -> WorkerPlan:
    return WorkerPlan(
        rank=read_count(entry["rank"]),
        node_rank=read_count(entry["node_rank"]),
        local_rank=read_count(entry["local_rank"]),
        host=read_text(entry["host"]),
        device=read_text(entry["device"]),
        coords=tuple((read_text(dim), read_count(at)) for dim, at in entry["coords"].items()),
        share=_read_share(entry),
    )


def _read_share(entry: dict[str, Any]) -> Share:
    cpus = read_text(entry.get("cpus", ""))
    parse_cpus(cpus)
    return Share(cpus, read_count(entry.get("threads", 0)))


def _check_plan(plan: Plan) -> None:
    mesh = plan.mesh
    expected = [(node.node_rank, local) for node in plan.nodes for local in range(node.slots)]
    placed = [(worker.node_rank, worker.local_rank) for worker in plan.workers]
    ranks = [worker.rank for worker in plan.workers]
    in_order = [node.node_rank for node in plan.nodes] == list(range(len(plan.nodes)))
    if not in_order or placed != expected or ranks != list(range(len(ranks))) or not ranks:
        raise WireError("a plan whose ranks, nodes and mesh do not fit together")
    try:
        solve_mesh(MeshSpec(mesh.dims, views=mesh.views, factorings=mesh.factorings), len(ranks))
    except InputError as error:
        raise WireError(f"a plan whose mesh cannot be: {error}") from None
