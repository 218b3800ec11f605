"""Owns: the options that a process group can be made with: NCCL's; which backend takes them.
Must not: import torch: the worker turns them into torch's objects.
Called by: spec.mesh, spec.mesh_file, worker.options."""

from __future__ import annotations

import re

from meshrun.spec.near import find_near

# As torch.distributed.ProcessGroupNCCL.Options and its `config` (ncclConfig_t) have them. Whether the NCCL of a node
# is new enough for one is known there only.
STREAM = "is_high_priority_stream"
KINDS: dict[str, str] = {
    STREAM: "true or false",
    "blocking": "0 or 1",
    "min_ctas": "a number from 1",
    "max_ctas": "a number from 1",
    "cga_cluster_size": "a number from 0 to 8",
    "net_name": "a word, as IB or Socket",
    "split_share": "0 or 1",
    "traffic_class": "a number from 0",
    "collnet_enable": "0 or 1",
    "cta_policy": "a number from 0",
    "nvls_ctas": "a number from 1",
}
_RANGES = {"0 or 1": (0, 1), "a number from 1": (1, 2**31 - 1), "a number from 0": (0, 2**31 - 1)}
_RANGES["a number from 0 to 8"] = (0, 8)
_WORD = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_FLAGS = {"true": 1, "false": 0}
# As torch.distributed.ProcessGroupNCCL.Options(is_high_priority_stream=...), Megatron's files and people write them.
_MEANT = {"high_priority": STREAM, "high_priority_stream": STREAM, "priority": STREAM, "cga": "cga_cluster_size"}


def read_option(name: str, text: str) -> int | str | None:
    """The value that `text` says for the option `name`; None if it says none that fits."""
    kind = KINDS[name]
    if name == STREAM:
        return _FLAGS.get(text)
    if kind not in _RANGES:
        return text if _WORD.fullmatch(text) else None
    low, high = _RANGES[kind]
    return int(text) if re.fullmatch(r"[0-9]{1,10}", text) and low <= int(text) <= high else None


def nearest_option(name: str) -> str:
    """A hint for a name that is no option."""
    near = [_MEANT[name]] if name in _MEANT else find_near(name[:40].lower(), KINDS, 0.5)
    return f"did you mean {near[0]}?" if near else f"NCCL's options are {' '.join(KINDS)}"


def takes_options(backend: str, device: str) -> bool:
    """False if a group of this backend (of this device, where none is named) surely has no NCCL in it."""
    if backend:
        return "nccl" in backend
    return device in ("auto", "cuda")
