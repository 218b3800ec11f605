"""Owns: what a device mask in an environment says, without looking at a device.
Must not: read the environment (it is an argument).
Called by: cli.plan."""

from __future__ import annotations

from collections.abc import Mapping

# In the order in which the first one that is set counts; ROCm knows three names for its own.
MASKS: tuple[tuple[str, str], ...] = (
    ("cuda", "CUDA_VISIBLE_DEVICES"),
    ("cuda", "HIP_VISIBLE_DEVICES"),
    ("cuda", "ROCR_VISIBLE_DEVICES"),
    ("xpu", "ZE_AFFINITY_MASK"),
    ("npu", "ASCEND_RT_VISIBLE_DEVICES"),
    ("hpu", "HABANA_VISIBLE_MODULES"),
)


def masked_devices(environ: Mapping[str, str], device: str) -> tuple[str, tuple[str, ...]] | None:
    """The mask's name and the ids it leaves, for `device` ("auto": any kind); None if there is no mask.

    CUDA reads a mask up to its first invalid id, so `-1` and `NoDevFiles` leave nothing."""
    for kind, name in MASKS:
        if name in environ and device in ("auto", kind):
            ids = [item.strip() for item in environ[name].split(",")]
            valid = next(
                (at for at, item in enumerate(ids) if item.startswith("-") or item in ("", "NoDevFiles")), len(ids)
            )
            return name, tuple(ids[:valid])
    return None
