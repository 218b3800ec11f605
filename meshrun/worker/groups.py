"""Owns: making the world group and the meshes of a session, in the one order that every rank follows.
Must not: decide whether a script's request is compatible (adopt does).
Called by: start (eager), adopt (lazy, re-init), api."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from meshrun.worker import devices, recorder
from meshrun.worker.mesh import build_meshes, check_grids
from meshrun.worker.session import Owner, Session
from meshrun.worker.store import compare_plans, open_store


def unwrapped(name: str) -> Callable[..., Any]:
    """torch's own function, also where adopt has replaced it."""
    function: Any = getattr(dist, name)
    return getattr(function, "meshrun_original", function)  # type: ignore[no-any-return]


def make_world(session: Session, owner: Owner, backend: str | None = None, timeout: timedelta | None = None) -> None:
    """Device, store, comparison of plans, world group, meshes. Raises what torch raises, or PlanMismatch."""
    order, place = session.order, session.place
    backend = backend or order.backend or devices.default_backend(order.device)
    timeout = timeout or timedelta(seconds=order.timeout_s)
    devices.use_device(order.device, place.local_rank)
    check_grids(order.mesh, place.world_size)  # before a peer may see our end as a broken connection
    session.generation += 1
    store = next_store(session, timeout)
    unwrapped("init_process_group")(backend, store=store, rank=place.rank, world_size=place.world_size, timeout=timeout)
    recorder.start(session)
    make_meshes(session, owner, timeout)


def next_store(session: Session, timeout: timedelta) -> dist.Store:
    """The store of this generation: a prefix of its own, because group names start again at 0 after a destroy."""
    place = session.place
    if session.order.backend == "fake" or (place.world_size == 1 and "MASTER_ADDR" not in os.environ):
        base: dist.Store = dist.HashStore()
    else:
        base = open_store(session, timeout.total_seconds())
    if session.generation == 1 and session.order.fingerprint:
        compare_plans(dist.PrefixStore(f"meshrun/{session.order.attempt}", base), place.rank, session.order.fingerprint)
    return own_prefix(session, base)


def own_prefix(session: Session, base: dist.Store) -> dist.Store:
    """`base` under a prefix that no other attempt and no other generation of this process uses."""
    return dist.PrefixStore(f"meshrun/{session.order.attempt}/{session.generation}", base)


def make_meshes(session: Session, owner: Owner, timeout: timedelta) -> None:
    """The mesh, its views and factorings over the world group that was just made."""
    order = session.order
    session.forget()
    session.owner, session.destroyed = owner, False
    built = build_meshes(order.mesh, order.device, session.place.world_size, timeout.total_seconds())
    session.meshes, session.plain_groups = built.meshes, built.plain_groups
    grids = ["", *(order.mesh.get("factorings") or {})]
    for mesh in map(built.meshes.__getitem__, grids):
        session.known.setdefault((order.device, tuple(mesh.shape), tuple(mesh.mesh_dim_names)), mesh)


def retire(session: Session) -> None:
    """Before torch destroys the world: forget the meshes, but keep the groups themselves.

    A DDP model that lives on may hold the last reference. Its C++ part then joins a gloo group's thread without
    letting go of the GIL, while that thread waits for the GIL to drop a tensor: a hang at the end of a good script
    (seen with 2.13 in 1 of 20 runs on a loaded machine). Held here, a group ends with the process, or with the next
    generation, dropped from Python, where torch does let go of the GIL."""
    from torch.distributed import distributed_c10d

    session.forget()
    session.destroyed = True
    session.retired = list(getattr(distributed_c10d._world, "pg_map", ()))


def destroy_world(session: Session) -> None:
    """Destroy every group. The session's references go first, or the dead groups stay alive."""
    retire(session)
    if dist.is_initialized():
        unwrapped("destroy_process_group")()


_left_behind: list[object] = []


def leave_behind(session: Session) -> None:
    """In a process that the script forked to be a rank of a world of its own: torch's tables as before any group.

    The groups that an eager start had made in the parent stay referenced: their threads are not here, so that nothing
    of them may be ended. (Private in torch; where a name has moved, torch says that there is a group already.)"""
    from torch.distributed import distributed_c10d as c10d

    world = c10d._world
    session.owner = Owner.NOBODY
    with contextlib.suppress(AttributeError):
        tables = [world.pg_map, world.pg_names, world.pg_group_ranks, world.pg_backend_config, world.pg_to_tag]
        tables += [world.tags_to_pg, world.pg_coalesce_state]
        _left_behind.extend(dict(table) for table in tables)
        c10d._update_default_pg(None)
        for table in tables:
            table.clear()
        c10d._unregister_all_process_groups()
        world.group_count = 0


def world_timeout(session: Session) -> timedelta:
    """The time-out for dims over a world group that the script made without telling us: the run's."""
    return timedelta(seconds=session.order.timeout_s)


def call_backend(name: str) -> None:
    """Let `get_backend()` say what the script asked for, as if it had made the world group: frameworks compare that
    string ("nccl" is not "cpu:gloo,cuda:nccl"), and groups that the script makes get that backend. Private in torch."""
    from torch.distributed import distributed_c10d

    world = dist.group.WORLD
    with contextlib.suppress(AttributeError, KeyError, TypeError, ValueError):  # another torch: the name stays ours
        _, store = distributed_c10d._world.pg_map[world]
        distributed_c10d._world.pg_map[world] = (distributed_c10d.Backend(name), store)


def set_timeout(timeout: timedelta, group: dist.ProcessGroup) -> None:
    """Change a group's time-out after the fact: public in torch 2.14, where the private name of before warns."""
    from torch.distributed import distributed_c10d as c10d

    change: Callable[..., None] = getattr(c10d, "set_timeout", None) or c10d._set_pg_timeout
    change(timeout, group)
