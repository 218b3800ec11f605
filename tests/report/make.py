"""Owns: small plans, jobs and results for these tests.
Must not: compute what the tested code computes, beyond row-major coordinates.
Called by: tests/report."""

from __future__ import annotations

from itertools import product
from pathlib import Path

from meshrun.plan.values import Mesh, NodePlan, Plan, WorkerPlan
from meshrun.spec.values import Host, Job, MeshSpec


def make_plan(hosts: dict[str, int], **dims: int) -> Plan:
    """Hosts with their slots, in order; dims outermost first."""
    coords = [tuple(zip(dims, at, strict=True)) for at in product(*map(range, dims.values()))]
    nodes: list[NodePlan] = []
    workers: list[WorkerPlan] = []
    for node, (name, slots) in enumerate(hosts.items()):
        devices = tuple(map(str, range(slots)))
        nodes.append(NodePlan(node, Host(name), slots, devices, len(workers)))
        for local in range(slots):
            rank = len(workers)
            workers.append(WorkerPlan(rank, node, local, name, str(local), coords[rank]))
    return Plan("f00d", Mesh(tuple(dims.items())), tuple(nodes), tuple(workers), (), ())


def make_job(log_dir: Path, hosts: dict[str, int], *, show: str = "all", quiet: bool = False, **dims: int) -> Job:
    return Job(
        run_id="20261130-114501-a3f9",
        form="script",
        argv=("/w/train.py",),
        hosts=tuple(map(Host, hosts)),
        local=(False,) * len(hosts),
        workdir="/w",
        python="/usr/bin/python3",
        log_dir=str(log_dir),
        mesh=MeshSpec(tuple(dims.items())),
        show=show,
        quiet=quiet,
    )
