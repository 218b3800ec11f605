"""Owns: what this process knows about its run: the order, its place, the meshes that are built, who built them.
Must not: import torch or build anything.
Called by: every module of the worker side; `current()` is the one place they meet."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from enum import Enum
from typing import TYPE_CHECKING, Any

from meshrun import wire
from meshrun.dataclass import dataclass, field
from meshrun.spec.grid import Axis, axes, coordinates
from meshrun.worker.line import Line

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

DEFAULT_TIMEOUT_S = 600.0


class Owner(Enum):
    """Who made the process group that exists now. Only one made by meshrun can be adopted by the script."""

    NOBODY = "nobody"
    MESHRUN = "meshrun"
    SCRIPT = "script"


@dataclass(frozen=True, slots=True)
class Rank:
    """This worker's place in the world."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0


@dataclass(slots=True)
class Session:
    """One per process. Strong references to meshes and groups live here only, so that `forget` drops them all."""

    order: wire.Order
    place: Rank
    launched: bool  # started by meshrun (not by `meshrun.init` under torchrun or plain python)
    line: Line | None = None
    master: tuple[str, int] = ("", 0)  # of the run's store: a script may write another one into the environment
    pid: int = field(default_factory=os.getpid)
    owner: Owner = Owner.NOBODY
    generation: int = 0  # how often a world group was made in this process
    destroyed: bool = False
    problem: str = ""  # why there is no mesh although there is a group
    meshes: dict[str, DeviceMesh] = field(default_factory=dict)  # "": the mesh; then views and factorings
    known: dict[Any, DeviceMesh] = field(default_factory=dict)  # (device type, shape, names) → mesh
    plain_groups: list[ProcessGroup] = field(default_factory=list)  # groups with the default time-out
    retired: list[ProcessGroup] = field(default_factory=list)  # of the generation that was destroyed last
    # What a rehearsal makes of a script's request, and how it makes meshes beside its tensors without numbers.
    translate: Callable[[dict[str, Any]], dict[str, Any]] = dict
    aside: Callable[[], AbstractContextManager[Any]] = nullcontext

    @property
    def dims(self) -> dict[str, int]:
        """The mesh's dims, outermost first."""
        return dict(self.order.mesh["dims"])

    @property
    def here(self) -> bool:
        """False in a process that the worker forked: it is no rank of its own."""
        return self.pid == os.getpid()

    def forget(self) -> None:
        """Drop every mesh and group: after destroy an old DeviceMesh keeps dead groups alive (torch-facts 2.3)."""
        self.meshes.clear()
        self.known.clear()
        self.plain_groups.clear()
        self.owner = Owner.NOBODY
        self.problem = ""


_current: Session | None = None


def current() -> Session | None:
    """The session of this process, if it was launched or initialised."""
    return _current


def set_current(session: Session | None) -> None:
    """Make `session` the one that the public API and the adopted functions use."""
    global _current
    _current = session


def read_rank(env: Mapping[str, str]) -> Rank:
    """Rank, world size and local rank from torchrun's names; a process without them is a world of one."""
    numbers = {name: int(env.get(name) or default) for name, default in (("RANK", 0), ("WORLD_SIZE", 1))}
    local = int(env.get("LOCAL_RANK") or numbers["RANK"])
    return Rank(numbers["RANK"], numbers["WORLD_SIZE"], local)


def read_master(env: Mapping[str, str]) -> tuple[str, int]:
    """Where the run's store is."""
    return env.get("MASTER_ADDR", ""), int(env.get("MASTER_PORT") or 0)


def is_ours(env: Mapping[str, str]) -> bool:
    """Whether these variables are those of a meshrun worker, or of its child. A launcher that a worker has started (say
    torchrun) gives its own workers another run id, and leaves our names as they were."""
    return bool(env.get("MESHRUN_RUN_ID")) and env.get("TORCHELASTIC_RUN_ID") == env["MESHRUN_RUN_ID"]


def mesh_from(env: Mapping[str, str]) -> dict[str, Any]:
    """The mesh that a launcher left in the environment (also seen by a worker's own children), else one dim `dp`."""
    if is_ours(env) and env.get("MESHRUN_MESH"):
        found: dict[str, Any] = json.loads(env["MESHRUN_MESH"])
        return found
    return {"dims": {"dp": read_rank(env).world_size}}


def coordinate(dims: Mapping[str, int], rank: int) -> dict[str, int]:
    """`rank`'s coordinate in each dim (row-major, the last varies fastest), in mesh order."""
    return coordinates(tuple(dims.items()), rank)


def find_axis(mesh: Mapping[str, Any], name: str) -> Axis:
    """The axis that a mesh object calls `name`: a dim, a factoring's dim or a view. Raises KeyError: what is known."""
    factorings = {key: tuple(dims.items()) for key, dims in (mesh.get("factorings") or {}).items()}
    known = dict(axes(tuple(mesh["dims"].items()), factorings, mesh.get("views") or {}))
    if name not in known:
        raise KeyError(f"there is no dim or view called {name!r}; known: {', '.join(known)}")
    return known[name]
