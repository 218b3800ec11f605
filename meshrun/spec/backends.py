"""Owns: names of process group backends, as torch reads them: which there are, and which device each needs.
Must not: know what a machine has; a name that a package registers must stay possible.
Called by: spec.job, plan.checks, worker.arguments."""

from __future__ import annotations

import re

from meshrun.spec.near import find_near

_FORM = re.compile(r"(?:[a-z]\w*:)?[a-z]\w*(?:,[a-z]\w*:[a-z]\w*)*\Z", re.ASCII)
# torch's own, and those that accelerators' plugins register when torch loads them by itself.
KNOWN = ("gloo", "nccl", "mpi", "ucc", "xccl", "hccl", "fake", "cncl", "mccl", "tccl", "eccl", "neuron", "ccl")
# Which devices a backend that knows no others must have.
_NEEDS = {"nccl": ("cuda",), "xccl": ("xpu",), "hccl": ("npu", "hpu")}
_FORM_HINT = "as in gloo, nccl or cpu:gloo,cuda:nccl"
PACKAGE_HINT = "if a package registers it: --preload ITS_MODULE, or --init lazy and a script that imports it"


def find_names(text: str) -> tuple[str, ...]:
    """The backends in `gloo` or `cpu:gloo,cuda:nccl`; torch does not mind capitals."""
    return tuple(part.rpartition(":")[2] for part in text.lower().split(",")) if text else ()


def check_backend(text: str, registers: bool, early: bool) -> tuple[str, str] | None:
    """What is wrong with a backend, and a hint; None if it may exist.

    `registers`: the user names modules to import first, one of which may bring it. `early`: the groups are made before
    the script, so that the script cannot bring it; else only what looks like a slip is refused."""
    if not _FORM.match(text.lower()):
        return f"{text[:60]!r} is not a backend", _FORM_HINT
    for name in find_names(text):
        near = find_near(name[:40], KNOWN, 0.7)
        if name not in KNOWN and not registers and (early or near):
            first = f"did you mean {near[0]}? " if near else f"torch has {' '.join(KNOWN[:6])}; "
            return f"no backend is named {name[:60]}", first + PACKAGE_HINT
    return None


def find_misfit(text: str, device: str) -> str:
    """The first backend of `text` that cannot work where the device is of this kind, or ""."""
    return next((name for name in find_names(text) if device not in _NEEDS.get(name, (device,))), "")


def needed_device(name: str) -> str:
    """The kind of device that a backend needs, in words."""
    return " or ".join(_NEEDS[name])
