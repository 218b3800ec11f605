"""Owns: running a piece of a script in real ranks, with a few helpers at its top.
Must not: expect anything but success.
Called by: test_groups, test_adopt."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent
from typing import Any

from tests.worker.player import End, Player

START = """
import os, sys, warnings
from datetime import timedelta
import torch, torch.distributed as dist
import meshrun
from torch.distributed import distributed_c10d as c10d

def groups():
    "Every group this rank has, by name."
    return sorted(name for name in c10d._world.pg_names.values())

def timeout(group):
    return group._get_backend(torch.device("cpu")).options._timeout.total_seconds()

def total(group=None):
    x = torch.tensor([float(dist.get_rank())]); dist.all_reduce(x, group=group); return int(x.item())
"""


def script(player: Player, text: str) -> Path:
    path = player.tmp / "script.py"
    path.write_text(START + dedent(text))
    return path


def run(
    player: Player, text: str, n: int, dims: dict[str, int], mesh: dict[str, Any] | None = None, **order: Any
) -> list[End]:
    order.setdefault("init", "eager")
    ends = player.run(player.order(script(player, text), mesh={"dims": dims, **(mesh or {})}, **order), n)
    for end in ends:
        assert end.code == 0, (end.rank, end.code, end.out, end.err)
        assert end.err == "", end.err
    return ends
