"""Owns: the plan as JSON (`plan --format json`, plan.json), and the mesh object that workers get.
Must not: hold a secret: no value of a variable is in a plan.
Called by: cli.plan, report, plan.orders."""

from __future__ import annotations

from typing import Any

from meshrun.plan.values import Plan

PLAN_VERSION = 1


def describe_plan(plan: Plan) -> dict[str, Any]:
    """The plan as plain JSON values (DESIGN §5)."""
    return {
        "plan_version": PLAN_VERSION,
        "fingerprint": plan.fingerprint,
        "mesh": describe_mesh(plan),
        "world_size": plan.world_size,
        "nodes": [
            {"node_rank": n.node_rank, "host": n.host.name, "slots": n.slots, "devices": list(n.devices)}
            for n in plan.nodes
        ],
        "workers": [
            {
                "rank": w.rank,
                "node_rank": w.node_rank,
                "local_rank": w.local_rank,
                "host": w.host,
                "device": w.device,
                "coords": dict(w.coords),
            }
            for w in plan.workers
        ],
        "groups": {dim: [list(group) for group in groups] for dim, groups in plan.groups},
    }


def describe_mesh(plan: Plan) -> dict[str, Any]:
    """The plan's `mesh` object: dims and what crosses nodes; views, factorings, backend and time-outs where given."""
    mesh = plan.mesh
    described: dict[str, Any] = {"dims": dict(mesh.dims), "crosses_nodes": dict(plan.crosses_nodes)}
    extras = {
        "views": {name: list(dims) for name, dims in mesh.views},
        "factorings": {name: dict(dims) for name, dims in mesh.factorings},
        "backend": dict(mesh.backend),
        "timeout_s": dict(mesh.timeout_s),
    }
    return described | {key: value for key, value in extras.items() if value}
