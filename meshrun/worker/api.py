"""Owns: what `meshrun.mesh()`, `coords()`, `device()` and `init()` do, under meshrun, torchrun and plain python.
Must not: be imported before one of them is called.
Called by: `meshrun/__init__.py`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from meshrun import wire
from meshrun.dataclass import replace
from meshrun.errors import InputError
from meshrun.worker.arguments import check_arguments, check_present, check_world
from meshrun.worker.session import (
    DEFAULT_TIMEOUT_S,
    Owner,
    Session,
    coordinate,
    current,
    find_axis,
    mesh_from,
    read_rank,
    set_current,
)

MAX_MESH_FILE = 1_048_576

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
    _build_once(session)
    return _pick(session, name)


def coords() -> dict[str, int]:
    """See `meshrun.coords`."""
    session = _mine()
    if session is not None:
        return coordinate(session.dims, session.place.rank)
    return coordinate(mesh_from(os.environ)["dims"], read_rank(os.environ).rank)


def position(name: str) -> tuple[int, int]:
    """This rank's place in its group of `name`, and the group's size. Raises KeyError."""
    session = _mine()
    mesh = session.order.mesh if session is not None else mesh_from(os.environ)
    axis = find_axis(mesh, name)
    return axis.place(session.place.rank if session is not None else read_rank(os.environ).rank), axis.size


def device() -> torch.device:
    """See `meshrun.device`."""
    from meshrun.worker import devices

    session = _mine()
    kind = session.order.device if session is not None else devices.find_device()
    place = session.place if session is not None else read_rank(os.environ)
    return devices.make_device(kind, place.local_rank)


def init(text: str | None, *, device: str = "auto", backend: str = "", timeout_s: float | None = None) -> DeviceMesh:
    """See `meshrun.init`."""
    check_arguments(text, device, backend, timeout_s)
    session = _mine()
    if session is None or not (session.launched or session.meshes or session.destroyed):
        session = _make_session(text, device, backend, timeout_s)
        set_current(session)
    else:
        if text is not None:
            _agree(session, text)
        if not session.launched:
            _refuse_change(session, device, backend, timeout_s)
    _build_once(session, again=True)
    return _pick(session, None)


def _mine() -> Session | None:
    """The session of this very process; a process that a worker forked is no rank and has none."""
    session = current()
    return session if session is not None and session.here else None


def _build_once(session: Session, again: bool = False) -> None:
    """Build the session's meshes if nothing was built yet (or `again` after a destroy)."""
    import torch.distributed as dist

    if session.meshes and dist.is_initialized():
        return
    if (session.destroyed or session.meshes) and not again:
        raise RuntimeError(
            "the process group was destroyed, and the mesh with it: "
            "call torch.distributed.init_process_group() or meshrun.init() to build it again"
        )
    _build(session)


def _build(session: Session) -> None:
    import torch.distributed as dist

    from meshrun.worker import adopt, groups

    if not dist.is_initialized():
        _make = adopt.make_or_die if session.launched else groups.make_world
        with session.aside():
            _make(session, Owner.MESHRUN)
        return
    if session.problem or dist.get_world_size() != session.place.world_size:
        raise RuntimeError(f"there is no mesh: {session.problem or 'the process group is not the whole world'}")
    with session.aside():
        _join(session)


def _join(session: Session) -> None:
    """Meshes over a world group that the script made."""
    from meshrun.worker import devices, groups

    devices.use_device(session.order.device, session.place.local_rank)
    groups.make_meshes(session, Owner.SCRIPT, groups.world_timeout(session))


def _pick(session: Session, name: str | None) -> DeviceMesh:
    meshes = session.meshes
    if name is None:
        return meshes[""]
    if name in meshes and name:
        return meshes[name]
    grids = ["", *(session.order.mesh.get("factorings") or {})]
    for grid in (meshes[key] for key in grids):
        if name in (grid.mesh_dim_names or ()):
            return grid[name]
    names = dict.fromkeys(dim for key in grids for dim in meshes[key].mesh_dim_names or ())
    known = ", ".join([*names, *filter(None, meshes)])
    raise KeyError(f"there is no mesh, view or dim called {name!r}; known: {known}")


def _make_session(text: str | None, device: str, backend: str, timeout_s: float | None) -> Session:
    """A session without a launcher: torchrun's variables, or a world of one."""
    from meshrun.worker import devices

    place = read_rank(os.environ)
    mesh, said = _read(text, place.world_size)
    found = device if device != "auto" else said
    check_present(found)
    order = wire.Order(
        form="script",
        argv=(),
        init="off",
        device=devices.find_device() if found == "auto" else found,
        backend=backend,
        timeout_s=_timeout_s(mesh, timeout_s),
        mesh=mesh,
        fingerprint="",
        workdir=os.getcwd(),
        attempt=int(os.environ.get("TORCHELASTIC_RESTART_COUNT") or 0),
        tmp="",
        exit_bound_s=0.0,
    )
    return Session(order, place, launched=False)


def _timeout_s(mesh: Mapping[str, Any], asked: float | None) -> float:
    if asked is not None:
        return asked
    return float((mesh.get("timeout_s") or {}).get("default", DEFAULT_TIMEOUT_S))


def _read(text: str | None, world_size: int) -> tuple[dict[str, Any], str]:
    """The mesh object that a plan would hold for `text`, and the device that a mesh file names. Raises InputError."""
    if text is None:
        return {"dims": {"dp": world_size}}, "auto"
    from meshrun.spec.solve import solve_mesh

    asked = _parse(text)
    try:
        spec = solve_mesh(asked, world_size)
    except InputError as error:
        raise check_world(asked, text, os.environ, error) from None
    mesh: dict[str, Any] = {"dims": dict(spec.dims)}
    extras = {
        "factorings": {name: dict(dims) for name, dims in spec.factorings},
        "views": {name: list(dims) for name, dims in spec.views},
        "backend": dict(spec.backend),
        "timeout_s": dict(spec.timeout_s),
        "options": {name: dict(options) for name, options in spec.options},
    }
    return mesh | {key: value for key, value in extras.items() if value}, spec.device


def _parse(text: str) -> MeshSpec:
    """A mesh in its short form, or the mesh file of that name, as on the command line."""
    from meshrun.spec.mesh import parse_mesh

    if not (text.endswith((".yaml", ".yml")) or os.sep in text):
        return parse_mesh(text, source="meshrun.init")
    try:
        from meshrun.spec.mesh_file import parse_mesh_file
    except ImportError:
        raise InputError(f"{text} cannot be read here: this python has no yaml (pip install pyyaml)") from None
    try:
        with open(text, "rb") as file:
            return parse_mesh_file(file.read(MAX_MESH_FILE), text)
    except OSError as error:
        raise InputError(f"cannot read the mesh file {text}: {error.strerror}") from None


def _agree(session: Session, text: str) -> None:
    """A mesh in the script and one on the command line must be the same; without --mesh the script's counts."""
    asked, _ = _read(text, session.place.world_size)
    if _same(asked, session.order.mesh):
        return
    lone = session.dims == {"dp": session.place.world_size} and not session.meshes
    if session.launched and session.order.init != "eager" and lone:
        session.order = replace(session.order, mesh=asked)
        return
    have = ",".join(f"{name}={size}" for name, size in session.dims.items())
    if session.launched:
        raise RuntimeError(
            f"the script asks for the mesh {text}, but this run has {have} (--mesh): drop one of the two"
        )
    raise RuntimeError(
        f"meshrun.init({text!r}), but this process has the mesh {have} already: restart it (in a notebook: the kernel) "
        "for another mesh"
    )


def _same(asked: Mapping[str, Any], have: Mapping[str, Any]) -> bool:
    """True if all that is asked is there: the dims in this order, and what else a mesh file names."""
    if list(asked["dims"].items()) != list(have["dims"].items()):
        return False
    return all(have.get(key) == asked[key] for key in asked if key != "dims")


def _refuse_change(session: Session, device: str, backend: str, timeout_s: float | None) -> None:
    """Without a launcher: what the first `init` settled stays; a later one that says otherwise is a mistake."""
    order = session.order
    for name, asked, have in (("device", device, order.device), ("backend", backend, order.backend)):
        if asked not in ("", "auto", have):
            raise RuntimeError(f"meshrun.init({name}={asked!r}), but this process was initialised with {have!r}")
    if timeout_s not in (None, order.timeout_s):
        text = f"meshrun.init(timeout_s={timeout_s:g}), but this process was initialised with {order.timeout_s:g}"
        raise RuntimeError(text)
