"""Owns: what a plan's reader should know although it is not wrong: an order of the dims that would be faster.
Must not: change a plan.
Called by: plan.describe, plan.text, cli.plan."""

from __future__ import annotations

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
    heavy = [name for name in sorted(plan.mesh.names, key=_weight) if _weight(name) < len(TALKATIVE)]
    if not any(crosses for name, crosses in plan.crosses_nodes if name in heavy):
        return ()
    better = tuple(sorted(plan.mesh.dims, key=lambda dim: -_weight(dim[0])))
    before, after = _nodes(plan, plan.mesh.dims), _nodes(plan, better)
    # Compared from the most talkative on: one that comes nearer is worth another that is torn apart.
    if [after[name] for name in heavy] >= [before[name] for name in heavy]:
        return ()
    nearer = [name for name in heavy if after[name] < before[name]]
    price = [f"{name}'s then lie on {after[name]}" for name in heavy if after[name] > before[name]]
    gains = [f"{name}'s groups lie on {before[name]} nodes each, and would on {after[name]}" for name in nearer]
    text = f"{', '.join(gains)} with {_spell(plan, better)}"
    return ("; ".join([text, *price]),)


def _nodes(plan: Plan, dims: Grid) -> dict[str, int]:
    """How many nodes a group of each dim lies on, at most, if the mesh were `dims`."""
    node_of = nodes_of(plan.nodes)
    return {name: spread(Axis(dims, (at,)).groups(), node_of) for at, (name, _) in enumerate(dims)}


def _spell(plan: Plan, dims: Grid) -> str:
    """As it is to be written: in a mesh file that says more than dims, the short form would lose the rest."""
    if plan.mesh.factorings or plan.mesh.views or plan.mesh.options or plan.mesh.backend:
        return f"dims: {{{', '.join(f'{name}: {size}' for name, size in dims)}}}"
    return f"--mesh {spell_dims(dims)}"


def _weight(name: str) -> int:
    return next((at for at, names in enumerate(TALKATIVE) if name in names), len(TALKATIVE))
