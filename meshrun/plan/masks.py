"""Owns: what a device mask in the launcher's environment says, without looking at a device.
Must not: read the environment (it is an argument).
Called by: cli.plan."""

from __future__ import annotations

from collections.abc import Mapping

from meshrun.wire.masks import LAYERS, Pool, read_pool

# In the order in which the first one that is set counts, where the device is not said.
_VENDORS = (("cuda", "nvidia"), ("cuda", "amd"), ("xpu", "intel"), ("npu", "ascend"), ("hpu", "gaudi"))


def masked_devices(environ: Mapping[str, str], device: str) -> Pool | None:
    """What the masks leave for `device` ("auto": any kind); None if there is no mask.

    Whose devices they are is not known here: ROCm's own names, where they are set, say AMD."""
    for kind, vendor in _VENDORS:
        if device not in ("auto", kind) or (vendor == "nvidia" and _says_amd(environ)):
            continue
        pool = read_pool(vendor, environ)
        if pool is not None:
            return pool
    return None


def _says_amd(environ: Mapping[str, str]) -> bool:
    outer, inner = LAYERS["amd"]
    return any(name in environ for name in (*outer, inner[0])) and "CUDA_VISIBLE_DEVICES" not in environ
