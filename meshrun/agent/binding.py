"""Owns: which CPUs each worker of a node gets: whole cores, near its accelerator, nobody else's where there are enough.
Must not: do I/O: the cores, their NUMA nodes and the accelerators' are given.
Called by: agent.shares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from meshrun.dataclass import dataclass, field

NOWHERE = -1  # the NUMA node of what is on none, or not said to be on one
_FAR = 255  # as the kernel says "unreachable"


@dataclass(frozen=True, slots=True)
class Core:
    """One physical core: the CPUs (hyper-threads) of it that we may use."""

    cpus: tuple[int, ...]
    node: int = NOWHERE  # NUMA


@dataclass(frozen=True, slots=True)
class Topology:
    """The usable cores of a machine, and how far its NUMA nodes are apart."""

    cores: tuple[Core, ...]
    distances: Mapping[tuple[int, int], int] = field(default_factory=dict)

    def distance(self, here: int, there: int) -> int:
        """As the kernel counts: 10 is the node itself."""
        return 10 if here == there else self.distances.get((here, there), _FAR)

    @property
    def nodes(self) -> dict[int, tuple[Core, ...]]:
        """The cores of each NUMA node that has any, nodes and cores in the order of their numbers."""
        found: dict[int, list[Core]] = {}
        for core in sorted(self.cores, key=lambda core: (core.node, core.cpus)):
            found.setdefault(core.node, []).append(core)
        return {node: tuple(cores) for node, cores in found.items()}


def divide(topology: Topology, wanted: Sequence[int], how: str) -> tuple[tuple[Core, ...], ...]:
    """The cores of each worker. `wanted`: the NUMA node of its accelerator, NOWHERE for none; `how`: "numa" | "cores".

    No core is given twice, unless there are more workers than cores: then a core is shared, evenly.
    numa: the cores of a NUMA node, all of them, divided among the workers placed there, within one of each other.
    cores: the same number of cores for every worker, what does not divide stays free; from its own NUMA node first."""
    places = place(topology, wanted)
    if how == "numa":
        return _split_nodes(topology, places)
    if len(topology.cores) < len(wanted):
        return tuple(cores[:1] for cores in _split_nodes(topology, places))
    return _deal_cores(topology, places)


def place(topology: Topology, wanted: Sequence[int]) -> tuple[int, ...]:
    """The NUMA node of each worker: its accelerator's while that has a core for it, then the nearest one that has; who
    has no accelerator is spread over all nodes in proportion to their cores, neighbours together."""
    nodes = topology.nodes
    room = {node: len(cores) for node, cores in nodes.items()}
    if len(topology.cores) < len(wanted):  # cores are shared: room is no matter
        room = dict.fromkeys(nodes, len(wanted))
    places: dict[int, int] = {}
    for worker, node in enumerate(wanted):
        if node != NOWHERE and room.get(node):
            places[worker] = _take_nearest(topology, room, node)
    known = {*nodes, *(here for here, _ in topology.distances)} - {NOWHERE}
    for worker, node in enumerate(wanted):
        if node in known and worker not in places:
            places[worker] = _take_nearest(topology, room, node)
    lonely = [worker for worker in range(len(wanted)) if worker not in places]
    order = [node for node, cores in nodes.items() for _ in cores]
    for at, worker in enumerate(lonely):
        places[worker] = _take_nearest(topology, room, order[at * len(order) // len(lonely)])
    return tuple(places[worker] for worker in range(len(wanted)))


def _take_nearest(topology: Topology, room: dict[int, int], wanted: int) -> int:
    node = min((node for node in room if room[node]), key=lambda node: (topology.distance(wanted, node), node))
    room[node] -= 1
    return node


def _split_nodes(topology: Topology, places: Sequence[int]) -> tuple[tuple[Core, ...], ...]:
    given: list[tuple[Core, ...]] = [()] * len(places)
    for node, cores in topology.nodes.items():
        here = [worker for worker, at in enumerate(places) if at == node]
        for number, worker in enumerate(here):
            first, end = number * len(cores) // len(here), (number + 1) * len(cores) // len(here)
            given[worker] = cores[first : max(end, first + 1)]
    return tuple(given)


def _deal_cores(topology: Topology, places: Sequence[int]) -> tuple[tuple[Core, ...], ...]:
    """Everyone's own node first: who must go elsewhere takes only what the workers there leave."""
    each = len(topology.cores) // len(places)
    free = {node: list(cores) for node, cores in topology.nodes.items()}
    given: list[list[Core]] = [[] for _ in places]
    for worker, node in enumerate(places):
        given[worker] += _take(free[node], each)
    for worker, node in enumerate(places):
        for near in sorted(free, key=lambda other: (topology.distance(node, other), other)):
            given[worker] += _take(free[near], each - len(given[worker]))
    return tuple(map(tuple, given))


def _take(cores: list[Core], count: int) -> list[Core]:
    taken, cores[:] = cores[:count], cores[count:]
    return taken
