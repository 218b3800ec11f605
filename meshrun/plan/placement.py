"""Owns: placing workers: mesh sizes, ranks, coordinates, groups, the fingerprint.
Must not: permute a mesh: ranks follow host order, and a plan that does not fit is refused.
Called by: cli (plan, run), watch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from itertools import chain, product
from math import prod

from meshrun.dataclass import replace
from meshrun.errors import InputError, Place, Problem
from meshrun.plan.values import Mesh, NodePlan, Plan, WorkerPlan
from meshrun.spec.mesh import check_spec, solve_dims
from meshrun.spec.values import Host, MeshSpec

MAX_WORKERS = 262_144
Groups = tuple[tuple[int, ...], ...]


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
    if spec is None:
        spec = MeshSpec((("dp", None),))
    wrong = check_spec(spec)
    if wrong:
        raise InputError(Problem(message, spec.place, hint=hint) for _, message, hint in wrong)
    problems: list[Problem] = []

    def solve(dims: tuple[tuple[str, int | None], ...], what: str, place: Place | None) -> tuple[tuple[str, int], ...]:
        try:
            return solve_dims(dims, world_size, place, what)
        except InputError as error:
            problems.extend(error.problems)
            return ()

    dims = solve(spec.dims, "mesh", spec.place)
    factorings = tuple((name, solve(inner, f"factoring {name}", spec.place)) for name, inner in spec.factorings)
    problems += [] if problems else _check_shared(dims, factorings, spec.place)
    if problems:
        raise InputError(problems)
    return Mesh(dims, spec.within_node, spec.views, factorings, spec.backend, spec.timeout_s, spec.device)


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

    Raises InputError if the mesh does not fit the slots, or if a dim of `within_node` crosses a node."""
    world_size = sum(slots)
    if world_size > MAX_WORKERS:
        raise InputError(f"{world_size} workers are more than the {MAX_WORKERS} that one run takes")
    try:
        mesh = make_mesh(spec, world_size)
    except InputError as error:
        raise InputError(_with_nodes(problem, spec, slots) for problem in error.problems) from None
    nodes = tuple(_make_nodes(hosts, slots, devices))
    groups = tuple((name, make_groups(mesh.dims, name)) for name in mesh.names)
    node_of = list(chain.from_iterable([node.node_rank] * node.slots for node in nodes))
    # Ranks of a node are consecutive and a group ascends: its ends tell whether it lies on one node.
    crosses = tuple((name, any(node_of[g[0]] != node_of[g[-1]] for g in of_dim)) for name, of_dim in groups)
    _check_within(mesh, nodes, dict(groups), dict(crosses), node_of, spec.place if spec else None)
    return Plan(make_fingerprint(mesh, slots), mesh, nodes, tuple(_make_workers(nodes, mesh)), groups, crosses)


def make_groups(dims: Sequence[tuple[str, int]], name: str) -> Groups:
    """The rank groups along one dim, by first rank, ranks ascending in each."""
    names = [dim for dim, _ in dims]
    sizes = [size for _, size in dims]
    at = names.index(name)
    size, stride = sizes[at], prod(sizes[at + 1 :])
    block = size * stride
    firsts = (outer + inner for outer in range(0, prod(sizes), block) for inner in range(stride))
    return tuple(tuple(range(first, first + block, stride)) for first in firsts)


def make_fingerprint(mesh: Mesh, slots: Sequence[int]) -> str:
    """16 hex digits over everything that all nodes must agree on; host names are not part of it (by hand, a node
    does not know the others')."""
    agreed = {
        "version": 1,
        "dims": mesh.dims,
        "views": mesh.views,
        "factorings": mesh.factorings,
        "backend": mesh.backend,
        "timeout_s": mesh.timeout_s,
        "device": mesh.device,
        "slots": list(slots),
    }
    return hashlib.sha256(json.dumps(agreed, sort_keys=True).encode()).hexdigest()[:16]


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


def _check_shared(
    dims: Sequence[tuple[str, int]], factorings: Sequence[tuple[str, Sequence[tuple[str, int]]]], place: Place | None
) -> Iterator[Problem]:
    """A dim that a factoring shares with the mesh has one size, also where one of them said `auto`."""
    sizes = dict(dims)
    for factoring, inner in factorings:
        for name, size in inner:
            if sizes.get(name, size) != size:
                message = f"{name} is {size} in the factoring {factoring}, but {sizes[name]} in the mesh"
                yield Problem(message, place, hint="a shared dim has one size")


def _check_within(
    mesh: Mesh,
    nodes: Sequence[NodePlan],
    groups: dict[str, Groups],
    crosses: dict[str, bool],
    node_of: list[int],
    place: Place | None,
) -> None:
    problems = []
    for name in mesh.within_node:
        if crosses[name]:
            group = next(g for g in groups[name] if node_of[g[0]] != node_of[g[-1]])
            span = group[-1] - group[0] + group[1] - group[0]
            parts = dict.fromkeys(nodes[node_of[rank]].host.name for rank in group)
            message = f"{name} must stay within a node, but its group {_list_ranks(group)} lies on {_list(list(parts))}"
            hint = f"give every host a multiple of {span} slots, or place {name} further right in the mesh"
            problems.append(Problem(message, place, hint=hint))
    if problems:
        raise InputError(problems)


def _list_ranks(group: Sequence[int]) -> str:
    return f"of ranks {_list([str(rank) for rank in group])}"


def _list(words: Sequence[str]) -> str:
    return ", ".join(words) if len(words) <= 8 else f"{', '.join(words[:4])}, ... {words[-1]} ({len(words)})"
