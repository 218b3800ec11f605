"""Owns: which device this process uses, and the backends that fit it.
Must not: make groups; it may start the accelerator only through `use_device`.
Called by: groups, api, adopt."""

from __future__ import annotations

import importlib
import os
from typing import Any

import torch

from meshrun.worker.session import is_ours

_BACKENDS = {"cpu": "gloo", "cuda": "nccl", "xpu": "xccl", "npu": "hccl", "hpu": "hccl", "mps": "gloo"}
# What registers an out-of-tree device with torch, and its backend.
_PLUGINS = {"npu": ("torch_npu",), "hpu": ("habana_frameworks.torch", "habana_frameworks.torch.distributed.hccl")}


def find_device() -> str:
    """The accelerator that torch finds here, else "cpu"."""
    accelerator: Any = getattr(torch, "accelerator", None)  # torch 2.6 and later
    if accelerator is not None and accelerator.is_available():
        return str(accelerator.current_accelerator().type)
    return "cuda" if torch.cuda.is_available() else "cpu"


def import_plugin(device: str) -> None:
    """Out-of-tree accelerators register themselves with torch when their modules are imported."""
    for name in _PLUGINS.get(device, ()):
        importlib.import_module(name)


def default_backend(device: str) -> str:
    """`gloo` on CPU; `cpu:gloo,<acc>:<ccl>` on an accelerator, so that CPU tensors work too. Never "undefined"."""
    if device in ("cpu", "mps"):
        return "gloo"
    return f"cpu:gloo,{device}:{_BACKENDS.get(device, 'nccl')}"


def _module(device: str) -> Any:
    return getattr(torch, device)


def use_device(device: str, local_rank: int) -> None:
    """Make LOCAL_RANK's accelerator the current one. torch does this only in some cases (torch-facts 1.2)."""
    if device in ("cpu", "mps"):
        return
    import_plugin(device)
    _module(device).set_device(device_index(device, local_rank))


def device_index(device: str, local_rank: int) -> int:
    """LOCAL_RANK, or 0 where the launcher shows each worker one device of its own (torchrun with a mask per rank)."""
    if is_ours(os.environ):
        return local_rank
    count = int(_module(device).device_count())
    return local_rank if local_rank < count else local_rank % max(count, 1)


def make_device(device: str, local_rank: int) -> torch.device:
    """The torch.device of this process."""
    if device in ("cpu", "mps"):
        return torch.device(device)
    import_plugin(device)
    if device == "hpu":  # a process has one Gaudi, which it counts as it likes
        return torch.device(device, int(_module(device).current_device()))
    return torch.device(device, device_index(device, local_rank))
