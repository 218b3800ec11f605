"""Owns: what a script may say to `meshrun.init`, judged before anything is built.
Must not: make groups, or start an accelerator.
Called by: api."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from meshrun.dataclass import replace
from meshrun.errors import InputError, Place, Problem
from meshrun.spec.backends import check_backend, find_names
from meshrun.spec.mesh import DEVICES
from meshrun.spec.values import MeshSpec

_PLACE = Place("meshrun.init")


def check_arguments(mesh: object, device: object, backend: object, timeout_s: object) -> None:
    """Raise InputError, all at once, for arguments that cannot be meant. What the mesh says is read later."""
    found = [*_mesh(mesh), *_device(device), *_backend(backend), *_timeout(timeout_s)]
    if found:
        raise InputError(Problem(message, _PLACE, hint=hint) for message, hint in found)


def _mesh(mesh: object) -> Iterator[tuple[str, str]]:
    if mesh is not None and not isinstance(mesh, str):
        yield f"the mesh is a {type(mesh).__name__}, not text", 'as in "dp=2,tp=4", or the name of a mesh file as a str'


def _device(device: object) -> Iterator[tuple[str, str]]:
    if device not in DEVICES:
        yield f"device {str(device)[:60]!r} is not a device", f"text, one of {' '.join(DEVICES)}"


def _backend(backend: object) -> Iterator[tuple[str, str]]:
    if not backend:
        return
    if not isinstance(backend, str):
        yield f"the backend is a {type(backend).__name__}, not text", "as in gloo, nccl or cpu:gloo,cuda:nccl"
        return
    from torch.distributed import Backend  # what the script's own imports registered is known to torch

    wrong = check_backend(backend, all(name in Backend.backend_list for name in find_names(backend)), early=True)
    if wrong is not None:
        yield wrong[0], "as in gloo, nccl or cpu:gloo,cuda:nccl; if a package registers it, import that first"


def _timeout(timeout_s: object) -> Iterator[tuple[str, str]]:
    if timeout_s is None:
        return
    number = isinstance(timeout_s, (int, float)) and not isinstance(timeout_s, bool)
    if not (number and math.isfinite(float(str(timeout_s))) and float(str(timeout_s)) > 0):
        yield f"timeout_s {str(timeout_s)[:60]!r} is not a number of seconds", "more than 0, as in 60"


def check_world(spec: MeshSpec, text: str, environ: Mapping[str, str], error: InputError) -> InputError:
    """The same error; where plain python is one process and the mesh wants several, with how to start them."""
    if "WORLD_SIZE" in environ or all(size in (None, 1) for _, size in spec.dims):
        return error
    started = f"plain python is one rank: meshrun --mesh {text} SCRIPT starts them all"
    return InputError(replace(one, hint=f"{one.hint}; {started}" if one.hint else started) for one in error.problems)


def check_present(device: str) -> None:
    """Raise InputError for an accelerator that was asked for and that torch does not find here."""
    if device in ("auto", "cpu", "mps"):
        return
    import torch

    from meshrun.worker import devices

    devices.import_plugin(device)
    module = getattr(torch, device, None)
    if module is None or not module.is_available():
        hint = f"leave it out, and it is what torch finds ({devices.find_device()})"
        raise InputError(Problem(f"device {device}, but torch finds none here", _PLACE, hint=hint))
