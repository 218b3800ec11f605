"""Owns: each worker's share of this node's CPUs for `--bind`, from what the node is.
Must not: bind anything.
Called by: agent.probe, for the greeting."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from meshrun.agent.binding import NOWHERE, Core, divide
from meshrun.agent.topology import read_device_nodes, read_topology
from meshrun.wire import Share
from meshrun.wire.cpus import render_cpus

# How OpenMP is told where its threads go. Each runtime reads them as it is loaded, and means the CPUs of that moment.
_PLACING = ("OMP_PLACES", "OMP_PROC_BIND", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")

_NOT_PLACING = ("", "false", "none", "disabled")


def make_shares(
    how: str, device: str, ids: Sequence[str], workers: int, quota: int, root: str = ""
) -> tuple[Share, ...]:
    """A share for each of `workers`, in the order of their local ranks; () for `--bind none`.

    `ids`: the accelerators, the first worker's first. `quota`: CPUs' worth of time that this node's container may use,
    0 for no limit: with 64 cores and time for 8, two workers have 32 cores and 4 threads each."""
    if how == "none" or not workers:
        return ()
    topology = read_topology(os.sched_getaffinity(0), root)
    nodes = read_device_nodes(device, ids[:workers], root)
    wanted = [*nodes, *[NOWHERE] * (workers - len(nodes))]
    time = quota // workers if quota else len(topology.cores)
    return tuple(_share(cores, time) for cores in divide(topology, wanted, how))


def _share(cores: Sequence[Core], time: int) -> Share:
    return Share(render_cpus({cpu for core in cores for cpu in core.cpus}), max(1, min(len(cores), time)))


def cannot_bind() -> str:
    """Why processes of this system cannot be bound, or ""."""
    return "" if hasattr(os, "sched_setaffinity") else f"{os.uname().sysname} cannot bind a process to CPUs"


def find_placing(env: Mapping[str, str]) -> str:
    """The variables in `env` with which the user places OpenMP's threads, in words; "" if there are none."""
    return ", ".join(name for name in _PLACING if env.get(name, "").lower() not in _NOT_PLACING)
