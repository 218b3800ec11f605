"""Owns: a dim's process-group options as torch's object, and whether the group has a use for them.
Must not: make groups.
Called by: mesh."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from meshrun.spec.group_options import STREAM

log = logging.getLogger("meshrun")


def make_options(asked: Mapping[str, Any], backend: str, timeout_s: float, name: str) -> Any:
    """NCCL's options for the dim `name`, or None: nothing asked, or a group without NCCL (rank 0 says so once).

    Raises ValueError for a field that this torch's NCCL does not have."""
    if not asked:
        return None
    if "nccl" not in backend:
        if dist.get_rank() == 0:
            log.warning("the options of %s are NCCL's; its group here is %s, so they are left out", name, backend)
        return None
    nccl: Any = dist.ProcessGroupNCCL
    options = nccl.Options(is_high_priority_stream=bool(asked.get(STREAM, False)))
    options._timeout = timedelta(seconds=timeout_s)
    for field, value in asked.items():
        if field == STREAM:
            continue
        if not hasattr(getattr(options, "config", None), field):
            raise ValueError(f"the NCCL of this torch has no option {field}: take it out of the options of {name}")
        setattr(options.config, field, value)
    return options
