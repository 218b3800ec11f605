"""Owns: the plan for people: hosts, ranks, coordinates, what crosses nodes, where each value came from.
Must not: print, or show a secret (names of variables only).
Called by: cli.plan."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from meshrun.plan.advice import advise
from meshrun.plan.reach import Reach, find_reach
from meshrun.plan.runs import compact_ids, compact_names, compact_range
from meshrun.plan.values import NodePlan, Plan

# Up to so many nodes each has a line of its own; beyond, like nodes share one.
MAX_LINES = 32


def render_plan(
    plan: Plan,
    sources: Mapping[str, tuple[str, str]] | None = None,
    variables: Mapping[str, str] | None = None,
    remarks: Sequence[str] = (),
) -> str:
    """The plan as a few tables, legible also for 1,024 hosts.

    `sources`: option → (value, where it came from); `variables`: exported name → where it came from; `remarks`: on
    what was asked for."""
    sections = [_render_head(plan), _render_mesh(plan), *_render_warnings(plan)]
    sections += [_render_nodes(plan), *_render_shares(plan), *_render_extras(plan)]
    if sources:
        rows = [(name, value, source) for name, (value, source) in sources.items()]
        sections.append(
            "\n".join([*make_table(("option", "value", "from"), rows), "every other option has its default"])
        )
    if variables:
        sections.append("\n".join(_render_variables(variables)))
    if remarks:
        sections.append("\n".join(f"note: {text}" for text in remarks))
    return "\n\n".join(sections) + "\n"


def _render_head(plan: Plan) -> str:
    shape = " x ".join(f"{name}={size}" for name, size in plan.mesh.dims)
    return (
        f"{_count(plan.world_size, 'worker')} on {_count(len(plan.nodes), 'node')}: {shape}   plan {plan.fingerprint}"
    )


def _render_mesh(plan: Plan) -> str:
    """Each dim, then what the factorings and views add, and how many groups that makes for one rank."""
    found = find_reach(plan)
    rows = [(reach.name, str(reach.size), str(reach.groups), describe_reach(reach)) for reach in found]
    lines = list(make_table(("dim", "size", "groups", ""), rows))
    if len(found) > len(plan.mesh.dims):
        kinds = 1 + sum(not reach.same_as for reach in found)
        lines.append(f"{kinds} groups for each rank, the world's included")
    return "\n".join(lines)


def describe_reach(reach: Reach) -> str:
    """`within a node`; `crosses nodes, within a rack`; `crosses nodes and racks`; and whose groups they are."""
    words = "crosses nodes" if reach.crosses else "within a node"
    over = [label for label, values in reach.labels if values > 1]
    inside = [label for label, values in reach.labels if values == 1 and reach.crosses]
    words += "".join(f" and {label}s" for label in over)
    words += "".join(f", within a {label}" for label in inside)
    return words + (f" (same groups as {reach.same_as})" if reach.same_as else "")


def _render_warnings(plan: Plan) -> Iterator[str]:
    warnings = advise(plan)
    if warnings:
        yield "\n".join(f"warning: {text}" for text in warnings)


def _render_nodes(plan: Plan) -> str:
    rows = [_node_row(plan, like) for like in _alike(plan.nodes)]
    return "\n".join(make_table(("node", "host", "slots", "devices", "ranks", "coordinates"), rows))


def _alike(nodes: Sequence[NodePlan]) -> Iterator[list[NodePlan]]:
    """Runs of neighbouring nodes with the same slots and devices; each alone while there are few."""
    if len(nodes) <= MAX_LINES:
        yield from ([node] for node in nodes)
        return
    for _, like in groupby(nodes, key=lambda node: (node.slots, node.devices)):
        yield list(like)


def _node_row(plan: Plan, nodes: Sequence[NodePlan]) -> tuple[str, ...]:
    first, last = nodes[0], nodes[-1]
    end = last.first_rank + last.slots - 1
    slots = str(first.slots) if first is last else f"{first.slots} each"
    return (
        compact_range(first.node_rank, last.node_rank),
        compact_names(node.host.name for node in nodes),
        slots,
        compact_ids(first.devices),
        compact_range(first.first_rank, end),
        _render_coords(plan, first.first_rank, end),
    )


def _render_coords(plan: Plan, first: int, last: int) -> str:
    """`dp=0 tp=0-3` where the ranks fill a box of the mesh, else the first and the last coordinate."""
    low, high = plan.workers[first].coords, plan.workers[last].coords
    box = 1
    for (_, a), (_, b) in zip(low, high, strict=True):
        box *= max(0, b - a + 1)
    if box == last - first + 1:
        return " ".join(f"{name}={compact_range(a, b)}" for (name, a), (_, b) in zip(low, high, strict=True))
    return f"{_spell(low)} ... {_spell(high)}"


def _render_shares(plan: Plan) -> Iterator[str]:
    """With --bind: whose CPUs are known. A node that was not asked yet is missing."""
    rows = [(str(w.rank), w.host, w.share.cpus, str(w.share.threads)) for w in plan.workers if w.share.cpus]
    if rows:
        yield "\n".join(make_table(("rank", "host", "cpus", "threads"), rows))


def _render_extras(plan: Plan) -> Iterator[str]:
    mesh = plan.mesh
    rows = [("view", name, " ".join(dims)) for name, dims in mesh.views]
    rows += [("factoring", name, " x ".join(f"{dim}={n}" for dim, n in dims)) for name, dims in mesh.factorings]
    rows += [("backend", dim, backend) for dim, backend in mesh.backend]
    rows += [("time-out", dim, f"{seconds:g} s") for dim, seconds in mesh.timeout_s]
    for dim, options in mesh.options:
        rows.append(("options", dim, " ".join(f"{name}={value}" for name, value in options)))
    rows += [("across nodes", dim, "one rank a node") for dim in mesh.across_nodes]
    rows += [("within", dim, f"a {label}") for dim, label in mesh.within_label]
    rows += [("device", mesh.device, "")] if mesh.device != "auto" else []
    if rows:
        yield "\n".join(make_table(("mesh file", "", ""), rows))


def _render_variables(variables: Mapping[str, str]) -> Iterator[str]:
    rows = [(_printable(name), origin) for name, origin in variables.items()]
    yield from make_table(("variable", "from"), rows[:MAX_LINES])
    if len(rows) > MAX_LINES:
        yield f"and {len(rows) - MAX_LINES} more"


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in text)


def make_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Columns as wide as they need to be; the head first."""
    lines = [tuple(head), *map(tuple, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]


def _spell(coords: Iterable[tuple[str, int]]) -> str:
    return " ".join(f"{name}={at}" for name, at in coords)


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
