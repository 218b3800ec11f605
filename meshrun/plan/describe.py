"""Owns: the plan as JSON (`plan --format json`, plan.json), and the mesh object that workers get.
Must not: hold a secret: no value of a variable is in a plan.
Called by: cli.plan, report, plan.orders."""

from __future__ import annotations

from typing import Any

from meshrun.plan.advice import advise
from meshrun.plan.reach import Reach, find_reach
from meshrun.plan.values import NodePlan, Plan
from meshrun.spec.labels import labels_of

PLAN_VERSION = 1


def describe_plan(plan: Plan) -> dict[str, Any]:
    """The plan as plain JSON values (DESIGN §5)."""
    described = {
        "plan_version": PLAN_VERSION,
        "fingerprint": plan.fingerprint,
        "mesh": describe_mesh(plan),
        "world_size": plan.world_size,
        "nodes": [_describe_node(node) for node in plan.nodes],
        "workers": [
            {
                "rank": w.rank,
                "node_rank": w.node_rank,
                "local_rank": w.local_rank,
                "host": w.host,
                "device": w.device,
                "coords": dict(w.coords),
                **({"cpus": w.share.cpus, "threads": w.share.threads} if w.share.cpus else {}),
            }
            for w in plan.workers
        ],
        "groups": {dim: [list(group) for group in groups] for dim, groups in plan.groups},
        "reach": {reach.name: _describe_reach(reach) for reach in find_reach(plan)},
        "warnings": list(advise(plan)),
    }
    return described if plan.chosen is None else described | {"rehearsed_ranks": list(plan.chosen)}


def _describe_node(node: NodePlan) -> dict[str, Any]:
    described = {
        "node_rank": node.node_rank,
        "host": node.host.name,
        "slots": node.slots,
        "devices": list(node.devices),
    }
    return described | ({"labels": labels_of(node.host)} if node.host.label else {})


def _describe_reach(reach: Reach) -> dict[str, Any]:
    described: dict[str, Any] = {"size": reach.size, "groups": reach.groups, "nodes": reach.nodes}
    extras = {"labels": dict(reach.labels), "same_as": reach.same_as}
    return described | {key: value for key, value in extras.items() if value}


def describe_mesh(plan: Plan) -> dict[str, Any]:
    """The plan's `mesh` object: dims and what crosses nodes; the rest where the mesh file gave it."""
    mesh = plan.mesh
    described: dict[str, Any] = {"dims": dict(mesh.dims), "crosses_nodes": dict(plan.crosses_nodes)}
    extras = {
        "views": {name: list(dims) for name, dims in mesh.views},
        "factorings": {name: dict(dims) for name, dims in mesh.factorings},
        "backend": dict(mesh.backend),
        "timeout_s": dict(mesh.timeout_s),
        "options": {name: dict(options) for name, options in mesh.options},
    }
    return described | {key: value for key, value in extras.items() if value}
