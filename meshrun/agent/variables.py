"""Owns: the complete environment of the fork server and of each worker, computed from plain values.
Must not: read the process's own environment or do any I/O.
Called by: agent.loop, with the login environment and what was probed."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from meshrun.dataclass import dataclass
from meshrun.wire import Assign, Brief, Start, WorkerSlot

# Outermost first: accelerate builds its own mesh in this order, so a mesh in another order must not be announced.
ACCELERATE_DIMS = ("dp_replicate", "dp_shard", "cp", "sp", "tp")
INTERFACE_NAMES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
# While torch is imported, so that the fork server has one thread; workers get their own values (torch-facts 5.3).
IMPORT_THREADS = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
_REFERENCE = re.compile(r"\$(?:([A-Za-z_][A-Za-z0-9_]*)|\{([A-Za-z_][A-Za-z0-9_]*)\})")


@dataclass(frozen=True, slots=True)
class NodeValues:
    """What this node contributes: measured numbers and names."""

    cores: int  # physical ones usable by this process
    interface: str  # that reaches the master address, "" if unknown
    mask_name: str  # the visible-devices variable of the accelerator, "" for none
    tmp: str
    mark: str


def error_path(tmp: str, rank: int, attempt: int) -> str:
    """Where `rank`'s `@record` writes its exception."""
    return f"{tmp}/error{rank}-{attempt}.json"


def expand(expression: str, login: Mapping[str, str]) -> str:
    """`$NAME` and `${NAME}` replaced from the node's login environment; a name that is not there gives nothing."""
    return _REFERENCE.sub(lambda found: login.get(found[1] or found[2], ""), expression)


def make_base(login: Mapping[str, str], brief: Brief) -> dict[str, str]:
    """Login environment, then --env-remote, then exported and per-host values (DESIGN §6, "What comes from where")."""
    base = dict(login)
    base.update({name: expand(text, login) for name, text in brief.env_remote.items()})
    base.update(brief.env)
    return base


def make_server_env(base: Mapping[str, str], brief: Brief, mark: str) -> dict[str, str]:
    """The fork server's environment: the workers' without their numbers, one thread for the import."""
    return {**base, **_run_variables(brief, mark), **IMPORT_THREADS}


def make_worker_env(
    base: Mapping[str, str], brief: Brief, assign: Assign, slot: WorkerSlot, start: Start, node: NodeValues
) -> dict[str, str]:
    """The complete environment of one worker. What the user may set is kept: threads and interfaces."""
    env = dict(base)
    if brief.form == "program":
        env.pop("TORCHELASTIC_USE_AGENT_STORE", None)  # of a run around this one
    for name, value in _defaults(brief, assign, slot, node).items():
        env.setdefault(name, value)
    env |= _run_variables(brief, node.mark)
    env |= _numbers(assign, slot, start)
    env |= _elastic(brief, assign, slot, start, node)
    env |= _mesh(assign, slot)
    env |= _mask(brief, assign, node)
    return env


def _run_variables(brief: Brief, mark: str) -> dict[str, str]:
    return {
        "MESHRUN_RUN_ID": brief.run_id,
        "MESHRUN_MARK": mark,
        "MESHRUN_LOG_DIR": brief.log_dir,
        "TORCHELASTIC_RUN_ID": brief.run_id,
        "PYTHONUNBUFFERED": "1",
    }


def _defaults(brief: Brief, assign: Assign, slot: WorkerSlot, node: NodeValues) -> dict[str, str]:
    threads = slot.share.threads or max(1, node.cores // max(1, len(assign.workers)))
    values = {"OMP_NUM_THREADS": str(threads)}
    if node.interface:
        values.update(dict.fromkeys(INTERFACE_NAMES, node.interface))
    if assign.device == "cpu" and brief.form != "program":
        values["ACCELERATE_USE_CPU"] = "true"  # without it every rank is alone there, silently (torch-facts 3)
    return values


def _numbers(assign: Assign, slot: WorkerSlot, start: Start) -> dict[str, str]:
    rank, world = str(slot.rank), str(assign.world_size)
    local_rank, local_world = str(slot.local_rank), str(slot.local_world_size or len(assign.workers))
    node, nodes = str(assign.node_rank if slot.node_rank < 0 else slot.node_rank), str(assign.nnodes)
    return {
        "RANK": rank,
        "ROLE_RANK": rank,
        "WORLD_SIZE": world,
        "ROLE_WORLD_SIZE": world,
        "ROLE_NAME": "default",
        "LOCAL_RANK": local_rank,
        "LOCAL_WORLD_SIZE": local_world,
        "LOCAL_SIZE": local_world,
        "NODE_RANK": node,
        "GROUP_RANK": node,
        "CROSS_RANK": node,
        "GROUP_WORLD_SIZE": nodes,
        "CROSS_SIZE": nodes,
        "MASTER_ADDR": start.master_addr,
        "MASTER_PORT": str(start.master_port),
    }


def _elastic(brief: Brief, assign: Assign, slot: WorkerSlot, start: Start, node: NodeValues) -> dict[str, str]:
    values = {
        "TORCHELASTIC_RESTART_COUNT": str(start.attempt),
        "TORCHELASTIC_MAX_RESTARTS": str(assign.max_restarts),
        "TORCHELASTIC_ERROR_FILE": error_path(node.tmp, slot.rank, start.attempt),
    }
    if brief.form != "program":
        values["TORCHELASTIC_USE_AGENT_STORE"] = "True"
    return values


def _mesh(assign: Assign, slot: WorkerSlot) -> dict[str, str]:
    # What `coords`, `is_first` and `is_last` need also in a worker's own children.
    extras = [key for key in ("factorings", "views") if assign.mesh.get(key)]
    mesh = {key: assign.mesh[key] for key in ("dims", "crosses_nodes", *extras) if key in assign.mesh}
    values = {
        "MESHRUN_MESH": json.dumps(mesh),
        "MESHRUN_COORDS": ",".join(f"{dim}={at}" for dim, at in slot.coords.items()),
    }
    return values | _accelerate(mesh.get("dims", {}), assign.device)


def _accelerate(dims: Mapping[str, int], device: str) -> dict[str, str]:
    ordered = [dim for dim in ACCELERATE_DIMS if dim in dims]
    if not dims or ordered != list(dims):
        return {}
    values = {f"PARALLELISM_CONFIG_{dim.upper()}_SIZE": str(dims.get(dim, 1)) for dim in ACCELERATE_DIMS}
    if device != "cpu":
        values["ACCELERATE_USE_PARALLELISM_CONFIG"] = "true"  # accelerate raises for it on CPU
    return values


def _mask(brief: Brief, assign: Assign, node: NodeValues) -> dict[str, str]:
    """All the node's job devices stay visible to each worker; LOCAL_RANK indexes them. Only when devices were named."""
    if not brief.devices or not node.mask_name or assign.device == "cpu":
        return {}
    ordered = sorted(assign.workers, key=lambda worker: worker.local_rank)
    return {node.mask_name: ",".join(dict.fromkeys(worker.device for worker in ordered))}
