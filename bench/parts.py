"""Owns: the parts of the benchmark, by name.
Must not: know how to measure.
Called by: bench.__main__."""

from __future__ import annotations

from collections.abc import Callable

from bench.bind import part_bind
from bench.ending import part_failure, part_interrupt, part_restart
from bench.hand import part_hand
from bench.measure import Asked, Found
from bench.memory import part_agent, part_idle, part_memory
from bench.meshes import part_mesh
from bench.output import part_copy, part_output
from bench.planning import part_help, part_plan
from bench.scale import part_core, part_scale, part_store
from bench.start import part_added, part_ssh, part_start

PARTS: dict[str, Callable[[Asked], Found]] = {
    "start": part_start,
    "added": part_added,
    "ssh": part_ssh,
    "restart": part_restart,
    "failure": part_failure,
    "interrupt": part_interrupt,
    "memory": part_memory,
    "agent": part_agent,
    "idle": part_idle,
    "output": part_output,
    "bind": part_bind,
    "copy": part_copy,
    "plan": part_plan,
    "help": part_help,
    "mesh": part_mesh,
    "core": part_core,
    "hand": part_hand,
    "scale": part_scale,
    "store": part_store,
}
