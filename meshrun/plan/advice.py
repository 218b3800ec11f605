"""Owns: what a plan's reader should know although it is not wrong: an order of the dims that would be faster.
Must not: change a plan.
Called by: plan.describe, plan.text, cli.plan."""

from __future__ import annotations

from collections.abc import Sequence

from meshrun.plan.reach import nodes_of, spread
from meshrun.plan.values import Plan
from meshrun.spec.grid import Axis, Grid
from meshrun.spec.mesh import spell_dims

# How much a dim talks, the most talkative first: those of a layer's forward and backward, then once a layer, then once
# a step, then only between neighbours of a pipeline. A name that is not here says nothing about what it does.
TALKATIVE: tuple[tuple[str, ...], ...] = (
    ("tp", "tensor", "tensor_parallel", "model", "mp", "etp"),
    ("sp", "sequence", "sequence_parallel", "ulysses"),
    ("cp", "context", "context_parallel"),
    ("ep", "expert", "expert_parallel"),
)


def advise(plan: Plan) -> tuple[str, ...]:
    """Warnings in words, with the better mesh as it would be written."""
    dims = plan.mesh.dims
    crosses = dict(plan.crosses_nodes)
    heavy = [name for name in sorted(plan.mesh.names, key=_weight) if _weight(name) < len(TALKATIVE)]
    if not any(crosses[name] for name in heavy):
        return ()
    better = tuple(sorted(dims, key=lambda dim: -_weight(dim[0])))
    node_of = nodes_of(plan.nodes)
    after = {name: _crosses(better, at, node_of) for at, (name, _) in enumerate(better)}
    # Compared from the most talkative on: one that comes inside is worth another that goes out.
    if [after[name] for name in heavy] >= [crosses[name] for name in heavy]:
        return ()
    inside = [name for name in heavy if crosses[name] and not after[name]]
    out = [name for name in heavy if after[name] and not crosses[name]]
    verb, them = ("crosses", "it") if len(inside) == 1 else ("cross", "them")
    price = f"; {' and '.join(out)} would cross instead" if out else ""
    text = f"{' and '.join(inside)} {verb} nodes, where its traffic is slow; this order keeps {them} inside a node"
    return (f"{text}: {_spell(plan, better)}{price}",)


def _spell(plan: Plan, dims: Grid) -> str:
    """As it is to be written: in a mesh file that says more than dims, the short form would lose the rest."""
    if plan.mesh.factorings or plan.mesh.views or plan.mesh.options or plan.mesh.backend:
        return f"dims: {{{', '.join(f'{name}: {size}' for name, size in dims)}}}"
    return f"--mesh {spell_dims(dims)}"


def _weight(name: str) -> int:
    return next((at for at, names in enumerate(TALKATIVE) if name in names), len(TALKATIVE))


def _crosses(grid: Grid, at: int, node_of: Sequence[int]) -> bool:
    return spread(Axis(grid, (at,)).groups(), node_of) > 1
