"""Owns: placing workers: mesh sizes, ranks, coordinates, groups, the fingerprint.
Must not: permute a mesh: ranks follow host order, and a plan that does not fit is refused.
Called by: cli (plan, run), watch."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import prod
from typing import Any

from meshrun.dataclass import fields, replace
from meshrun.errors import InputError, Problem
from meshrun.plan.reach import nodes_of
from meshrun.plan.rules import check_rules
from meshrun.plan.values import Mesh, NodePlan, Plan, WorkerPlan
from meshrun.spec.grid import split_ranks
from meshrun.spec.solve import solve_mesh
from meshrun.spec.values import Host, MeshSpec
from meshrun.wire import Share
from meshrun.wire.digest import hash_content

MAX_WORKERS = 262_144


def known_slots(host: Host, nproc_per_node: int | None) -> int | None:
    """How many workers a host takes, as far as that is said: its line, then `--nproc-per-node`; None: ask the node."""
    if host.slots is not None:
        return host.slots
    return len(host.devices) if host.devices is not None else nproc_per_node


def devices_of(host: Host, slots: int, found: tuple[str, ...]) -> tuple[str, ...]:
    """The device of each worker: `devices=`, else the first of those `found` on the node, else 0..slots-1.

    `found` is empty for a node without accelerators, which takes any number. Raises InputError if there are too few."""
    ids = host.devices if host.devices is not None else found
    if not ids:
        return tuple(map(str, range(slots)))
    if len(ids) < slots:
        message = f"{host.name} is to run {slots} workers, but has {len(ids)} visible accelerators"
        hint = f"slots={len(ids)}, or --device cpu; check the device mask"
        raise InputError(Problem(message, host.place, hint=hint))
    return ids[:slots]


def make_mesh(spec: MeshSpec | None, world_size: int) -> Mesh:
    """The mesh with every size known; without a spec one dim `dp` over all workers.

    Raises InputError if the mesh is unsound, or if the product of its dims (or of a factoring's) is not
    `world_size`; the message says how many slots there are and which sizes would fit."""
    solved = solve_mesh(MeshSpec((("dp", None),)) if spec is None else spec, world_size)
    known = {field.name: getattr(solved, field.name) for field in fields(Mesh)}
    return Mesh(**known)


def _with_nodes(problem: Problem, spec: MeshSpec | None, slots: Sequence[int]) -> Problem:
    """The same problem; if the mesh would fit the first hosts alone, the hint says that too."""
    needed = prod(size or 0 for _, size in spec.dims) if spec else 0
    first = next((n for n in range(1, len(slots)) if sum(slots[:n]) == needed), 0)
    if not first:
        return problem
    hint = f"{problem.hint}; or --nodes {first} for the first {first} hosts only" if problem.hint else ""
    return replace(problem, hint=hint.replace("first 1 hosts", "first host"))


def make_plan(
    hosts: Sequence[Host], slots: Sequence[int], devices: Sequence[tuple[str, ...]], spec: MeshSpec | None
) -> Plan:
    """The plan: ranks in host order, row-major in the mesh. `slots` and `devices` are per host.

    Raises InputError if the mesh does not fit the slots, or if a rule of the mesh file is broken."""
    world_size = sum(slots)
    if world_size > MAX_WORKERS:
        raise InputError(f"{world_size} workers are more than the {MAX_WORKERS} that one run takes")
    try:
        mesh = make_mesh(spec, world_size)
    except InputError as error:
        raise InputError(_with_nodes(problem, spec, slots) for problem in error.problems) from None
    nodes = tuple(_make_nodes(hosts, slots, devices))
    groups = tuple((name, split_ranks(mesh.shape, (at,))) for at, name in enumerate(mesh.names))
    node_of = nodes_of(nodes)
    # Ranks of a node are consecutive and a group ascends: its ends tell whether it lies on one node.
    crosses = tuple((name, any(node_of[g[0]] != node_of[g[-1]] for g in of_dim)) for name, of_dim in groups)
    problems = check_rules(mesh, nodes, spec)
    if problems:
        raise InputError(problems)
    return Plan(make_fingerprint(mesh, slots), mesh, nodes, tuple(_make_workers(nodes, mesh)), groups, crosses)


def with_shares(plan: Plan, shares: Mapping[int, Sequence[Share]]) -> Plan:
    """The same plan, with what the workers get of their nodes' processors, as the nodes that have said so divide it."""
    workers = list(plan.workers)
    for node, mine in shares.items():
        first = plan.nodes[node].first_rank
        for rank, share in zip(range(first, first + plan.nodes[node].slots), mine, strict=False):
            workers[rank] = replace(workers[rank], share=share)
    return replace(plan, workers=tuple(workers))


def make_fingerprint(mesh: Mesh, slots: Sequence[int]) -> str:
    """16 hex digits over everything that all nodes must agree on; host names are not part of it (by hand, a node
    does not know the others')."""
    agreed: dict[str, Any] = {
        "version": 1,
        "dims": mesh.dims,
        "views": mesh.views,
        "factorings": mesh.factorings,
        "backend": mesh.backend,
        "timeout_s": mesh.timeout_s,
        "device": mesh.device,
        "slots": list(slots),
    }
    if mesh.options:
        agreed["options"] = mesh.options
    return hash_content(json.dumps(agreed, sort_keys=True).encode())[:16]


def _make_nodes(hosts: Sequence[Host], slots: Sequence[int], devices: Sequence[tuple[str, ...]]) -> Iterator[NodePlan]:
    first = 0
    for number, (host, count, ids) in enumerate(zip(hosts, slots, devices, strict=True)):
        yield NodePlan(number, host, count, ids, first)
        first += count


def _make_workers(nodes: Sequence[NodePlan], mesh: Mesh) -> Iterator[WorkerPlan]:
    # One tuple per (name, position), shared by all workers: a plan of 8,192 stays small and quick.
    axes = [[(name, at) for at in range(size)] for name, size in mesh.dims]
    coords = product(*axes)
    for node in nodes:
        for local_rank in range(node.slots):
            rank, device = node.first_rank + local_rank, node.devices[local_rank]
            yield WorkerPlan(rank, node.node_rank, local_rank, node.host.name, device, next(coords))
