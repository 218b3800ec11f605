"""Owns: what a script can ask meshrun: its mesh, coordinates, device, and `init` where no launcher did it.
Must not: import torch or any other part before one of these functions is called.
Called by: users' scripts."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch.distributed.device_mesh import DeviceMesh

__version__ = "0.1.0"
__all__ = ["coords", "device", "init", "mesh"]


def mesh(name: str | None = None) -> DeviceMesh:
    """The mesh this process belongs to, or the view or factoring called `name`.

    Builds it first if nothing did yet (`--init lazy`, plain python, torchrun). Raises KeyError for an unknown name
    (listing the known ones), RuntimeError after `destroy_process_group()` or where `--init off` left it to `init`."""
    from meshrun.worker import api

    return api.mesh(name)


def coords() -> dict[str, int]:
    """This process's coordinate in each dim of the mesh, in mesh order. Needs no process group and no torch."""
    from meshrun.worker import api

    return api.coords()


def device() -> torch.device:
    """The device of this process: `cpu`, or the accelerator with this worker's index. Needs no process group."""
    from meshrun.worker import api

    return api.device()


def init(
    mesh: str | None = None, *, device: str = "auto", backend: str = "", timeout_s: float | None = None
) -> DeviceMesh:
    """Join the process group and build the mesh ("dp=2,tp=4"; one size may be `auto`), unless that is done already.

    Under meshrun it returns the mesh of the command line. Under torchrun it reads `RANK`, `WORLD_SIZE` and
    `MASTER_*`; under plain python it makes a world of one. Without `mesh`: one dim, `dp`. `timeout_s` is the
    time-out of the groups (600 s if nobody says). Raises InputError for a mesh that cannot be read or does not fit,
    RuntimeError if the command line asked for another mesh."""
    from meshrun.worker import api

    return api.init(mesh, device=device, backend=backend, timeout_s=timeout_s)
