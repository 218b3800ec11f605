"""Owns: what a script can ask meshrun: its mesh, coordinates, device, and `init` where no launcher did it.
Must not: import torch or any other part before one of these functions is called.
Called by: users' scripts."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch.distributed.device_mesh import DeviceMesh

__version__ = "0.1.0"
__all__ = ["coords", "device", "init", "is_first", "is_last", "mesh"]


def mesh(name: str | None = None) -> DeviceMesh:
    """The mesh this process belongs to, or the part of it called `name`.

    Shapes, for `{dims: {pp: 2, dp: 2, tp: 4}, views: {dp_tp: [dp, tp]}, factorings: {expert: {pp: 2, edp: 2, ep: 4}}}`:

    - `mesh()`: (2, 2, 4), dims ("pp", "dp", "tp"); `mesh()["dp", "tp"]`, a slice of it: (2, 4); `mesh()["tp"]`: (4,)
    - `mesh("tp")`, a dim by name: (4,); `mesh("dp_tp")`, a view of several dims: flat, (8,); of one dim: a slice
    - `mesh("expert")`, a factoring: (2, 2, 4), dims ("pp", "edp", "ep"); `mesh("ep")`, one of its dims: (4,)

    Equal groups of ranks are one process group, whatever they are called. Builds the mesh first if nothing did yet
    (`--init lazy`, plain python, torchrun). Raises KeyError for an unknown name (listing the known ones), RuntimeError
    after `destroy_process_group()` or where `--init off` left it to `init`."""
    from meshrun.worker import api

    return api.mesh(name)


def coords() -> dict[str, int]:
    """This process's coordinate in each dim of the mesh, in mesh order: `{"pp": 0, "dp": 1, "tp": 3}`.

    Needs no process group and no torch; the same in the worker's own child processes."""
    from meshrun.worker import api

    return api.coords()


def is_first(name: str) -> bool:
    """True on the first rank of each group of `name`: a dim, a factoring's dim or a view. As `coords`, needs no group.

    `is_first("pp")`: this rank holds the first stage. Raises KeyError for an unknown name, listing the known ones."""
    from meshrun.worker import api

    return api.position(name)[0] == 0


def is_last(name: str) -> bool:
    """True on the last rank of each group of `name`; as `is_first`. In a dim of size 1 every rank is both."""
    from meshrun.worker import api

    at, size = api.position(name)
    return at == size - 1


def device() -> torch.device:
    """The device of this process: `cpu`, or the accelerator with this worker's index. Needs no process group."""
    from meshrun.worker import api

    return api.device()


def init(
    mesh: str | None = None, *, device: str = "auto", backend: str = "", timeout_s: float | None = None
) -> DeviceMesh:
    """Join the process group and build the mesh, unless that is done already; the mesh is returned.

    `mesh` is "dp=2,tp=4" (one size may be `auto`) or the name of a mesh.yaml; without it: one dim, `dp`. Under meshrun
    it must be the mesh of the command line. Under torchrun it reads `RANK`, `WORLD_SIZE` and `MASTER_*`; under plain
    python, also in a notebook, it makes a world of one. `timeout_s` is the time-out of the groups (600 s if nobody
    says). Calling it again with the same arguments, or none, changes nothing.

    Raises InputError for a mesh that cannot be read or does not fit, RuntimeError if this process, or the command line,
    already has another one."""
    from meshrun.worker import api

    return api.init(mesh, device=device, backend=backend, timeout_s=timeout_s)
