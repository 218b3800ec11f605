"""Owns: what `meshrun.mesh()`, `coords()`, `device()` and `init()` do, under meshrun, torchrun and plain python.
Must not: be imported before one of them is called.
Called by: `meshrun/__init__.py`."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from meshrun import wire
from meshrun.dataclass import replace
from meshrun.errors import InputError
from meshrun.worker.session import (
    DEFAULT_TIMEOUT_S,
    Owner,
    Session,
    coordinate,
    current,
    dims_from,
    read_rank,
    set_current,
)

if TYPE_CHECKING:
    import torch
    from torch.distributed.device_mesh import DeviceMesh

    from meshrun.spec.values import MeshSpec


def mesh(name: str | None) -> DeviceMesh:
    """See `meshrun.mesh`."""
    session = _mine()
    if session is None:
        init(None)
        session = _mine()
    assert session is not None
    if session.order.init == "off" and not session.meshes and not session.destroyed:
        raise RuntimeError("--init off builds no mesh: call meshrun.init() first")
    return _pick(_built(session), name)


def coords() -> dict[str, int]:
    """See `meshrun.coords`."""
    session = _mine()
    if session is not None:
        return coordinate(session.dims, session.place.rank)
    return coordinate(dims_from(os.environ), read_rank(os.environ).rank)


def device() -> torch.device:
    """See `meshrun.device`."""
    from meshrun.worker import devices

    session = _mine()
    kind = session.order.device if session is not None else devices.find_device()
    place = session.place if session is not None else read_rank(os.environ)
    return devices.make_device(kind, place.local_rank)


def init(text: str | None, *, device: str = "auto", backend: str = "", timeout_s: float | None = None) -> DeviceMesh:
    """See `meshrun.init`."""
    session = _mine()
    if session is None:
        session = _make_session(text, device, backend, timeout_s)
        set_current(session)
    elif text is not None:
        _agree(session, text)
    return _pick(_built(session, again=True), None)


def _mine() -> Session | None:
    """The session of this very process; a process that a worker forked is no rank and has none."""
    session = current()
    return session if session is not None and session.here else None


def _built(session: Session, again: bool = False) -> dict[str, DeviceMesh]:
    """The session's meshes, built now if nothing was built yet (or `again` after a destroy)."""
    import torch.distributed as dist

    if session.meshes and dist.is_initialized():
        return session.meshes
    if (session.destroyed or session.meshes) and not again:
        raise RuntimeError(
            "the process group was destroyed, and the mesh with it: "
            "call torch.distributed.init_process_group() or meshrun.init() to build it again"
        )
    _build(session)
    return session.meshes


def _build(session: Session) -> None:
    import torch.distributed as dist

    from meshrun.worker import adopt, devices, groups

    if not dist.is_initialized():
        _make = adopt.make_or_die if session.launched else groups.make_world
        _make(session, Owner.MESHRUN)
        return
    if session.problem or dist.get_world_size() != session.place.world_size:
        raise RuntimeError(f"there is no mesh: {session.problem or 'the process group is not the whole world'}")
    devices.use_device(session.order.device, session.place.local_rank)
    groups.make_meshes(session, Owner.SCRIPT, groups.world_timeout(session))


def _pick(meshes: Mapping[str, DeviceMesh], name: str | None) -> DeviceMesh:
    if name is None:
        return meshes[""]
    if name in meshes and name:
        return meshes[name]
    names = meshes[""].mesh_dim_names or ()
    if name in names:
        return meshes[""][name]
    known = ", ".join([*names, *filter(None, meshes)])
    raise KeyError(f"there is no mesh, view or dim called {name!r}; known: {known}")


def _make_session(text: str | None, device: str, backend: str, timeout_s: float | None) -> Session:
    """A session without a launcher: torchrun's variables, or a world of one."""
    from meshrun.worker import devices

    place = read_rank(os.environ)
    spec = _parse(text) if text is not None else None
    found = device if device != "auto" else spec.device if spec is not None else "auto"
    order = wire.Order(
        form="script",
        argv=(),
        init="off",
        device=devices.find_device() if found == "auto" else found,
        backend=backend,
        timeout_s=DEFAULT_TIMEOUT_S if timeout_s is None else timeout_s,
        mesh=_resolve(spec, place.world_size) if spec is not None else {"dims": {"dp": place.world_size}},
        fingerprint="",
        workdir=os.getcwd(),
        attempt=int(os.environ.get("TORCHELASTIC_RESTART_COUNT") or 0),
        tmp="",
        exit_bound_s=0.0,
    )
    return Session(order, place, launched=False)


def _parse(text: str) -> MeshSpec:
    from meshrun.spec.mesh import parse_mesh

    return parse_mesh(text, source="meshrun.init")


def _resolve(spec: MeshSpec, world_size: int) -> dict[str, Any]:
    """The mesh object that a plan would hold; the launcher's own resolution has the richer messages."""
    fixed = math.prod(size for _, size in spec.dims if size is not None)
    auto = world_size // fixed
    dims = {name: auto if size is None else size for name, size in spec.dims}
    if math.prod(dims.values()) != world_size:
        asked = ",".join(f"{name}={size or 'auto'}" for name, size in spec.dims)
        raise InputError(f"the mesh {asked} needs {fixed} workers or a multiple, but WORLD_SIZE is {world_size}")
    return {"dims": dims, "backend": dict(spec.backend), "timeout_s": dict(spec.timeout_s)}


def _agree(session: Session, text: str) -> None:
    """A mesh in the script and one on the command line must be the same; without --mesh the script's counts."""
    asked = _resolve(_parse(text), session.place.world_size)
    if asked["dims"] == session.dims and list(asked["dims"]) == list(session.dims):
        return
    if session.order.init != "eager" and session.dims == {"dp": session.place.world_size} and not session.meshes:
        session.order = replace(session.order, mesh=asked)
        return
    have = ",".join(f"{name}={size}" for name, size in session.dims.items())
    raise RuntimeError(f"the script asks for the mesh {text}, but this run has {have} (--mesh): drop one of the two")
