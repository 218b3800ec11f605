"""Owns: a job and a plan → the messages that a node gets.
Must not: send anything.
Called by: watch."""

from __future__ import annotations

from typing import Any

from meshrun import wire
from meshrun.dataclass import replace
from meshrun.plan.describe import describe_mesh
from meshrun.plan.values import Plan, WorkerPlan
from meshrun.spec.rehearsal import HIDDEN, as_gloo
from meshrun.spec.values import Host, Job

# Output under way without an Ack, for the whole run and per node: the launcher's memory is bounded at any size.
WINDOW_TOTAL, WINDOW_LEAST, WINDOW_MOST = 64 * 2**20, 256 * 2**10, 8 * 2**20
_DEFAULT_TIMEOUT_S = 600.0
PROGRESS_LEAST_S, PROGRESS_MOST_S = 0.3, 5.0


def make_brief(job: Job, node: int, slots: int) -> wire.Brief:
    """What node `node` must know before there is a plan; `slots` 0 asks it how many accelerators it has."""
    host = host_of(job, node)
    nodes = job.by_hand.nnodes if job.by_hand else len(job.hosts)
    fake = job.rehearsal.fake if job.rehearsal else None
    return wire.Brief(
        protocol=wire.PROTOCOL,
        run_id=job.run_id,
        form=job.form,
        argv=job.argv,
        typed=job.typed,
        agents_here=nodes if job.rehearsal else 1,
        tensors=fake.tensors if fake else "",
        steps=fake.steps if fake else 0,
        pass_local_rank=job.pass_local_rank,
        init=job.init,
        start_method=job.start_method,
        preload=job.preload,
        workdir=host.workdir or job.workdir,
        env={**dict(job.env), **dict(host.env), **(HIDDEN if job.rehearsal else {})},
        env_remote=dict(job.env_remote),
        slots=slots,
        device=asked_device(job),
        devices=host.devices or (),
        log_dir=job.log_dir,
        offers=node == 0 and nodes > 1,
        # By hand, the pinned port is where node 0 listens for nodes; the store then has its own.
        offer_port=0 if job.by_hand else job.master_port,
        check_script=node == 0 and job.form == "script",
        grace_s=job.grace_s,
        silence_s=job.silence_s,
        window_bytes=min(WINDOW_MOST, max(WINDOW_LEAST, WINDOW_TOTAL // nodes)),
        bind=job.bind,
    )


def make_assign(job: Job, plan: Plan, node: int, facts: wire.Facts) -> wire.Assign:
    """Node `node`'s part of the plan. `device` is what was asked for, else what the node has."""
    asked = asked_device(job)
    return wire.Assign(
        node_rank=node,
        nnodes=len(plan.nodes),
        world_size=plan.world_size,
        fingerprint=plan.fingerprint,
        device=facts.device if asked == "auto" else asked,
        backend=job.backend,
        timeout_s=_timeout_s(job, plan),
        mesh=_mesh_for_workers(job, plan),
        workers=tuple(_make_slot(plan, plan.workers[rank]) for rank in plan.shares[node]),
        max_restarts=job.max_restarts,
        progress_s=_progress_s(job),
    )


def asked_device(job: Job) -> str:
    """The kind of device that was asked for: `--device`, then the mesh file's; "auto" if neither says."""
    if job.device != "auto":
        return job.device
    return job.mesh.device if job.mesh else "auto"


def host_of(job: Job, node: int) -> Host:
    """The host of a node; by hand, the one host of the command line is this node, whatever its number."""
    return job.hosts[node if node < len(job.hosts) else 0]


def _mesh_for_workers(job: Job, plan: Plan) -> dict[str, Any]:
    """The plan's mesh; in a rehearsal, with back ends that are there."""
    mesh = describe_mesh(plan)
    if job.rehearsal and "backend" in mesh:
        fake = job.rehearsal.fake is not None
        mesh["backend"] = {dim: "" if fake else as_gloo(name) for dim, name in mesh["backend"].items()}
    return mesh


def _timeout_s(job: Job, plan: Plan) -> float:
    """`--timeout`, else the mesh file's default, else 600 s."""
    if job.timeout_s is not None:
        return job.timeout_s
    return dict(plan.mesh.timeout_s).get("default", _DEFAULT_TIMEOUT_S)


def _progress_s(job: Job) -> float:
    """How often agents say who has moved: several times within `--hang-timeout`; 0 where nobody wants to know."""
    if job.hang_timeout_s is None:
        return 0.0
    return min(PROGRESS_MOST_S, max(PROGRESS_LEAST_S, job.hang_timeout_s / 10))


def _make_slot(plan: Plan, worker: WorkerPlan) -> wire.WorkerSlot:
    slot = wire.WorkerSlot(worker.rank, worker.local_rank, worker.device, dict(worker.coords), share=worker.share)
    if plan.chosen is None:
        return slot
    return replace(slot, node_rank=worker.node_rank, local_world_size=plan.nodes[worker.node_rank].slots)
