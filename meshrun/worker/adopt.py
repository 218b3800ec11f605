"""Owns: what `init_process_group`, `destroy_process_group` and `init_device_mesh` do in a script that meshrun started.
Must not: hide torch's own errors, or run in a process that is not the worker itself.
Called by: hooks (the script and its frameworks, unknowingly), api."""

from __future__ import annotations

import inspect
import logging
import warnings
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import torch.distributed as dist

from meshrun.worker import devices, ending, groups, recorder
from meshrun.worker.session import Owner, Session
from meshrun.worker.store import open_at

log = logging.getLogger("meshrun")
Function = Callable[..., Any]
Args = tuple[Any, ...]
Kwargs = dict[str, Any]


def _asked(function: Function, args: Args, kwargs: Kwargs) -> Kwargs | None:
    """The arguments by name, or None if they do not fit: then torch's own TypeError should be seen."""
    try:
        return dict(inspect.signature(function).bind(*args, **kwargs).arguments)
    except TypeError:
        return None


def init_process_group(session: Session, original: Function, args: Args, kwargs: Kwargs) -> Any:
    """The first call after an eager start adopts; otherwise it makes the group as asked, then the mesh."""
    asked = _asked(original, args, kwargs)
    if asked is None or asked.get("_ranks") or (asked := session.translate(asked)).get("backend") in _own(session):
        return original(*args, **kwargs)
    if not dist.is_initialized():
        return make_as_asked(session, asked)
    if session.owner is not Owner.MESHRUN:
        return original(*args, **kwargs)  # a second call is a mistake in the script: torch says so
    return adopt(session, asked)


def call_in_child(session: Session, original: Function, args: Args, kwargs: Kwargs) -> Any:
    """A process that the script forked is no worker: torch does it, without what an eager start had made before."""
    if original.__name__ == "init_process_group" and session.owner is Owner.MESHRUN:
        groups.leave_behind(session)
    return original(*args, **kwargs)


def destroy_process_group(session: Session, original: Function, args: Args, kwargs: Kwargs) -> Any:
    """Forget the meshes before the world goes: a DeviceMesh that lives on keeps dead groups and their store."""
    asked = _asked(original, args, kwargs)
    if asked is None or not dist.is_initialized():
        return original(*args, **kwargs)
    group = asked.get("group")
    if group is None or group is dist.group.WORLD:
        groups.retire(session)
    elif group is not dist.GroupMember.NON_GROUP_MEMBER:
        session.known.clear()
    return original(*args, **kwargs)


def init_device_mesh(session: Session, original: Function, args: Args, kwargs: Kwargs) -> Any:
    """A mesh of a shape and names that exist is the one that exists; any other is torch's to make."""
    asked = _asked(original, args, kwargs)
    if asked is None:
        return original(*args, **kwargs)
    asked = session.translate(asked)
    if not dist.is_initialized():
        make_or_die(session, Owner.MESHRUN)
    if asked.get("backend_override") or not asked.get("mesh_dim_names"):
        return original(**asked)
    key = (asked["device_type"], tuple(asked["mesh_shape"]), tuple(asked["mesh_dim_names"]))
    if key not in session.known:
        session.known[key] = original(**asked)
    return session.known[key]


def _own(session: Session) -> tuple[str, ...]:
    """Back ends that a script makes by itself, without our store and meshes."""
    return ("mpi",) if session.order.backend == "fake" else ("mpi", "fake")


def make_as_asked(session: Session, asked: Kwargs) -> None:
    """A script's own first (or next) init: its arguments, our device, store prefix and time-out, then the mesh."""
    place, timeout = session.place, asked.get("timeout") or timedelta(seconds=session.order.timeout_s)
    problem = _wrong_world(session, asked)
    if problem and session.order.init == "eager":
        raise ValueError(problem)
    devices.use_device(session.order.device, place.local_rank)
    session.generation += 1
    call = {**asked, "timeout": timeout, "backend": _backend_as_asked(session, asked)}
    if not problem:
        call |= {"store": _store_as_asked(session, asked, timeout), "rank": place.rank, "world_size": place.world_size}
        if asked.get("store") is None:  # with both, torch says that they exclude each other
            call.pop("init_method", None)
    groups.unwrapped("init_process_group")(**call)
    recorder.start(session)
    session.owner, session.problem = Owner.SCRIPT, problem
    if not problem:
        _or_die(lambda: groups.make_meshes(session, Owner.SCRIPT, timeout))


def _backend_as_asked(session: Session, asked: Kwargs) -> str | None:
    """The script's backend; without one --backend's or the device's, since torch's own default is named "undefined"."""
    backend: str | None = asked.get("backend") or session.order.backend or None
    if backend is None and asked.get("device_id") is None:
        return devices.default_backend(session.order.device)
    return backend


def _store_as_asked(session: Session, asked: Kwargs, timeout: timedelta) -> Any:
    """The script's own store or URL where it named one, else ours; always under this generation's prefix."""
    store, url = asked.get("store"), asked.get("init_method")
    if store is None and (url is None or url == "env://"):
        return groups.next_store(session, timeout)
    if store is None:
        store = _store_at(session, str(url), timeout)
    return groups.own_prefix(session, store)


def _store_at(session: Session, url: str, timeout: timedelta) -> Any:
    """Where a URL of the script's says: our own store, if it is the address that we gave; else rank 0 serves one."""
    place, parts = session.place, urlsplit(url)
    if parts.scheme == "tcp" and parts.port is not None and parts.port != session.master[1] and not parts.query:
        return open_at(session, str(parts.hostname), parts.port, timeout.total_seconds(), serve=place.rank == 0)
    return next(dist.rendezvous(url, place.rank, place.world_size, timeout=timeout))[0]


def _wrong_world(session: Session, asked: Kwargs) -> str:
    """Why the script's idea of the world is not ours, or ""."""
    place = session.place
    rank, size = asked.get("rank", -1), asked.get("world_size", -1)
    if rank in (-1, place.rank) and size in (-1, place.world_size):
        return ""
    wanted = ", ".join(f"{name}={value}" for name, value in (("rank", rank), ("world_size", size)) if value != -1)
    return (
        f"the script calls init_process_group({wanted}), but this worker is rank {place.rank} of {place.world_size}: "
        "leave rank and world_size out, or take them from RANK and WORLD_SIZE"
    )


def make_or_die(session: Session, owner: Owner) -> None:
    """Make world and meshes with the run's own settings. A failure ends the worker: group names would differ."""
    _or_die(lambda: groups.make_world(session, owner))


def _or_die(make: Callable[[], None]) -> None:
    try:
        make()
    except Exception as error:
        ending.fail_init(error)


def adopt(session: Session, asked: Kwargs) -> None:
    """The script's first init after an eager start: keep what we built if it is what was asked, else build that."""
    problem = _wrong_world(session, asked)
    if problem:
        raise ValueError(problem)
    backend = asked.get("backend")
    if asked.get("pg_options") is not None or not _covered(backend) or _elsewhere(session, asked):
        log.info("init_process_group asks for %s: the groups are made again", backend)
        groups.destroy_world(session)
        make_as_asked(session, {k: v for k, v in asked.items() if k not in ("store", "init_method")})
        return
    if backend is not None:
        groups.call_backend(backend)
    if asked.get("timeout") is not None:
        for group in session.plain_groups:
            groups.set_timeout(asked["timeout"], group)
    session.owner = Owner.SCRIPT


def _covered(backend: str | None) -> bool:
    """True if the world group has, for each device of the request, the backend that was asked."""
    if backend is None:
        return True
    have, want = _by_device(dist.get_backend_config()), _by_device(backend)
    return bool(want) and all(have.get(device) == name for device, name in want.items())


def _elsewhere(session: Session, asked: Kwargs) -> bool:
    """True for a `device_id` that is not this worker's accelerator: torch then does it, or says what is wrong with it.

    With its own as `device_id` a group is bound to it, which changes when communicators are made, not results."""
    if asked.get("device_id") is None:
        return False
    own = devices.make_device(session.order.device, session.place.local_rank)
    return own.index is None or asked["device_id"] not in (own, own.index)


def _by_device(backend: str) -> dict[str, str]:
    """Device → backend, as torch reads the string ("cpu:gloo,cuda:nccl", "gloo", "nccl")."""
    from torch.distributed.distributed_c10d import Backend, BackendConfig

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an unknown backend: torch says it again where the script asked for it
        table = BackendConfig(Backend(backend)).get_device_backend_map()
    return {str(device): str(name) for device, name in table.items()}
