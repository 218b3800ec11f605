"""Owns: how far the groups of each dim, factoring's dim and view reach: over nodes, over racks and other labels.
Must not: judge it (rules, advice) or render it (text, describe).
Called by: plan.rules, plan.advice, plan.text, plan.describe, plan.explain, report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from meshrun.dataclass import dataclass
from meshrun.plan.values import Mesh, NodePlan, Plan
from meshrun.spec.grid import Axis, Partition, axes
from meshrun.spec.labels import labels_of

WORLD = "world"


@dataclass(frozen=True, slots=True)
class Reach:
    """Of all the groups with one name."""

    name: str
    size: int
    groups: int
    nodes: int  # nodes that one group lies on, at most
    labels: tuple[tuple[str, int], ...] = ()  # values of each label that one group lies on, at most
    same_as: str = ""  # an earlier name with the same groups: they are made once

    @property
    def crosses(self) -> bool:
        """True if a group lies on several nodes."""
        return self.nodes > 1


def named_axes(mesh: Mesh) -> list[tuple[str, Axis]]:
    """Every name that stands for groups, in the order in which they are made."""
    return list(axes(mesh.dims, dict(mesh.factorings), dict(mesh.views)))


def nodes_of(nodes: Sequence[NodePlan]) -> list[int]:
    """The node of each rank."""
    return list(chain.from_iterable([node.node_rank] * node.slots for node in nodes))


def label_names(nodes: Sequence[NodePlan]) -> list[str]:
    """The labels that every host has, in the order of the first host's line."""
    if not nodes[0].host.label:
        return []
    per_host = [labels_of(node.host) for node in nodes]
    return [name for name in per_host[0] if all(name in labels for labels in per_host)]


def spread(groups: Partition, where: Sequence[object]) -> int:
    """The most different places (by rank) that one group lies on."""
    return max(len({where[rank] for rank in group}) for group in groups)


def find_reach(plan: Plan) -> list[Reach]:
    """One for each name, in the order in which their groups are made."""
    return list(_each(plan))


def _settings(mesh: Mesh, name: str) -> object:
    """What makes a group another one although its ranks are the same: backend, options, time-out."""
    timeouts = dict(mesh.timeout_s)
    return dict(mesh.backend).get(name), dict(mesh.options).get(name), timeouts.get(name, timeouts.get("default"))


def _each(plan: Plan) -> Iterator[Reach]:
    node_of = nodes_of(plan.nodes)
    labels = {}
    for name in label_names(plan.nodes):
        by_node = [labels_of(node.host)[name] for node in plan.nodes]
        labels[name] = [by_node[node] for node in node_of]
    made: dict[tuple[Partition, object], str] = {}
    for name, axis in named_axes(plan.mesh):
        groups, settings = axis.groups(), _settings(plan.mesh, name)
        own = WORLD if len(groups) == 1 and settings == _settings(plan.mesh, "default") else name
        first = made.setdefault((groups, settings), own)
        over = tuple((label, spread(groups, where)) for label, where in labels.items())
        yield Reach(name, axis.size, len(groups), spread(groups, node_of), over, first if first != name else "")
