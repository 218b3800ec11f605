"""Owns: the placement rules of a mesh file, checked on a plan: which group breaks one, on which hosts, in which line.
Must not: move a rank: a plan that does not fit is refused, with what would fit.
Called by: plan.placement."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from meshrun.dataclass import dataclass, field
from meshrun.errors import Place, Problem
from meshrun.plan.reach import named_axes, nodes_of
from meshrun.plan.runs import compact_names
from meshrun.plan.values import Mesh, NodePlan
from meshrun.spec.grid import Partition
from meshrun.spec.labels import labels_of
from meshrun.spec.values import MeshSpec

Group = Sequence[int]


@dataclass(slots=True)
class _Placed:
    """What the rules look at."""

    mesh: Mesh
    nodes: Sequence[NodePlan]
    spec: MeshSpec | None
    node_of: list[int] = field(default_factory=list)
    groups: dict[str, Partition] = field(default_factory=dict)

    def place(self, *path: str) -> Place | None:
        return self.spec.place_of(*path) if self.spec else None

    def hosts(self, group: Group) -> str:
        names = list(dict.fromkeys(self.nodes[self.node_of[rank]].host.name for rank in group))
        return _list(names)


def check_rules(mesh: Mesh, nodes: Sequence[NodePlan], spec: MeshSpec | None) -> list[Problem]:
    """Every broken rule: `within_node`, `across_nodes`, `within_label`."""
    if not (mesh.within_node or mesh.across_nodes or mesh.within_label):
        return []
    groups = {name: axis.groups() for name, axis in named_axes(mesh)}
    placed = _Placed(mesh, nodes, spec, nodes_of(nodes), groups)
    return [*_check_within(placed), *_check_across(placed), *_check_labels(placed)]


def _check_within(placed: _Placed) -> Iterator[Problem]:
    for index, name in enumerate(placed.mesh.within_node):
        group = _first(placed.groups[name], lambda g: len({placed.node_of[rank] for rank in g}) > 1)
        if group:
            span = group[-1] - group[0] + group[1] - group[0]
            message = f"{name} must stay within a node, but its group {_ranks(group)} lies on {placed.hosts(group)}"
            hint = f"give every host a multiple of {span} slots, or place {name} further right in the mesh"
            yield Problem(message, placed.place("within_node", str(index)), hint=hint)


def _check_across(placed: _Placed) -> Iterator[Problem]:
    """At most one rank of a group on any node: what one node loses, every group can lose only once."""
    for index, name in enumerate(placed.mesh.across_nodes):
        group = _first(placed.groups[name], lambda g: len({placed.node_of[rank] for rank in g}) < len(g))
        if group:
            seen = [placed.node_of[rank] for rank in group]
            full = next(node for node in seen if seen.count(node) > 1)
            there = [str(rank) for rank, node in zip(group, seen, strict=True) if node == full]
            text = f"{name} must have at most one rank of a group on a node, but its group {_ranks(group)} has ranks"
            message = f"{text} {_list(there)} on {placed.nodes[full].host.name}"
            hint = f"place {name} further left in the mesh, so that a node's slots are filled by the dims right of it"
            yield Problem(message, placed.place("across_nodes", str(index)), hint=hint)


def _check_labels(placed: _Placed) -> Iterator[Problem]:
    for name, label in placed.mesh.within_label:
        place = placed.place("within_label", name)
        values = [labels_of(node.host).get(label) for node in placed.nodes]
        without = [node.host for node, value in zip(placed.nodes, values, strict=True) if value is None]
        if without:
            names = compact_names(host.name for host in without[:64])
            more = f" and {len(without) - 64} more" if len(without) > 64 else ""
            text = f"{name} must stay within one {label}, but {names}{more}"
            hint = f"label={label}:NAME on the host's line" + (f" ({without[0].place})" if without[0].place else "")
            yield Problem(f"{text} {'has' if len(without) == 1 else 'have'} no such label", place, hint=hint)
            continue
        of_rank = [values[node] for node in placed.node_of]
        group = _first(placed.groups[name], lambda g, of_rank=of_rank: len({of_rank[rank] for rank in g}) > 1)  # type: ignore[misc]
        if group:
            parts = dict.fromkeys(str(of_rank[rank]) for rank in group)
            message = (
                f"{name} must stay within one {label}, but its group {_ranks(group)} lies on {placed.hosts(group)}, "
                f"in {label} {_list(list(parts))}"
            )
            yield Problem(message, place, hint=_other_order(placed, name, label, values))


def _other_order(placed: _Placed, name: str, label: str, values: Sequence[str | None]) -> str:
    """If the hosts fit one label after the other, say that: ranks follow the hostfile, so it is all it takes."""
    firsts = list(dict.fromkeys(values))
    order = sorted(range(len(values)), key=lambda node: firsts.index(values[node]))
    of_rank = [values[node] for node in order for _ in range(placed.nodes[node].slots)]
    if all(len({of_rank[rank] for rank in group}) == 1 for group in placed.groups[name]):
        names = compact_names(placed.nodes[node].host.name for node in order)
        return f"with the hosts in this order in the hostfile it fits: {names}"
    return f"no order of these hosts by {label} fits: place {name} further right in the mesh, or make it smaller"


def _first(groups: Partition, broken: Callable[[Group], bool]) -> Group:
    return next((group for group in groups if broken(group)), ())


def _ranks(group: Group) -> str:
    return f"of ranks {_list([str(rank) for rank in group])}"


def _list(words: Sequence[str]) -> str:
    return ", ".join(words) if len(words) <= 8 else f"{', '.join(words[:4])}, ... {words[-1]} ({len(words)})"
