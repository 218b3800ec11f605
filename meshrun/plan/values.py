"""Owns: the plan: which worker runs where and who its neighbours are, as plain frozen values.
Must not: compute or do I/O.
Called by: plan's functions, launch, watch, report, cli."""

from __future__ import annotations

from collections.abc import Sequence

from meshrun.dataclass import dataclass
from meshrun.spec.grid import Grid
from meshrun.spec.values import Host, Options
from meshrun.wire import Share


@dataclass(frozen=True, slots=True)
class Mesh:
    """A resolved mesh: every size known, the product equal to the world size."""

    dims: Grid
    within_node: tuple[str, ...] = ()
    views: tuple[tuple[str, tuple[str, ...]], ...] = ()
    factorings: tuple[tuple[str, Grid], ...] = ()
    backend: tuple[tuple[str, str], ...] = ()
    timeout_s: tuple[tuple[str, float], ...] = ()
    device: str = "auto"
    across_nodes: tuple[str, ...] = ()
    within_label: tuple[tuple[str, str], ...] = ()
    options: tuple[tuple[str, Options], ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Dim names, outermost first."""
        return tuple(name for name, _ in self.dims)

    @property
    def shape(self) -> tuple[int, ...]:
        """Dim sizes, outermost first."""
        return tuple(size for _, size in self.dims)


@dataclass(frozen=True, slots=True)
class NodePlan:
    """A host that takes part, numbered in plan order."""

    node_rank: int
    host: Host
    slots: int
    devices: tuple[str, ...]
    first_rank: int


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """One worker: ranks are global, `coords` are in mesh order."""

    rank: int
    node_rank: int
    local_rank: int
    host: str
    device: str
    coords: tuple[tuple[str, int], ...]
    share: Share = Share()  # of its node's processor, as far as the node has said


@dataclass(frozen=True, slots=True)
class Plan:
    """What will happen. `groups[dim]` lists the rank groups of that dim, in one fixed order, ranks ascending."""

    fingerprint: str
    mesh: Mesh
    nodes: tuple[NodePlan, ...]
    workers: tuple[WorkerPlan, ...]
    groups: tuple[tuple[str, tuple[tuple[int, ...], ...]], ...]
    crosses_nodes: tuple[tuple[str, bool], ...]
    chosen: tuple[int, ...] | None = None  # the ranks that run, ascending (`--fake`); None: all

    @property
    def shares(self) -> tuple[Sequence[int], ...]:
        """The ranks of each agent: one agent a node, or one for all that were chosen."""
        if self.chosen is not None:
            return (self.chosen,)
        return tuple(range(node.first_rank, node.first_rank + node.slots) for node in self.nodes)

    @property
    def running(self) -> Sequence[WorkerPlan]:
        """The workers that run."""
        return self.workers if self.chosen is None else [self.workers[rank] for rank in self.chosen]

    @property
    def world_size(self) -> int:
        """Number of workers."""
        return len(self.workers)
