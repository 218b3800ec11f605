"""Owns: jobs, facts and plans that the tests of this folder share.
Must not: do I/O.
Called by: tests/plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from meshrun.plan.placement import devices_of, known_slots, make_plan
from meshrun.plan.values import Plan
from meshrun.spec.hostfile import parse_hostfile
from meshrun.spec.mesh import parse_mesh
from meshrun.spec.values import Host, Job, MeshSpec
from meshrun.wire import PROTOCOL, Facts

FACTS = Facts(
    protocol=PROTOCOL,
    hostname="a",
    user="u",
    pid=1,
    python="3.11.7",
    executable="/usr/bin/python3",
    torch="2.13.0+cpu",
    cores=4,
    memory_bytes=1,
    device="cpu",
    devices=(),
    mask="",
    slots=4,
    addresses=("10.0.0.1",),
    offer_port=0,
    workdir_error="",
    script_hash="h",
    script_error="",
    script_file="",
    script_line=0,
    tmp="/tmp/x",
    free_bytes=1,
    omp_threads="",
)


def facts(**changes: Any) -> Facts:
    return replace(FACTS, **changes)


def hosts(text: str) -> tuple[Host, ...]:
    return parse_hostfile(text.encode(), "hosts")


def plan(text: str, mesh: MeshSpec | str | None = None) -> Plan:
    listed = hosts(text)
    slots = [known_slots(host, None) or 1 for host in listed]
    devices = [devices_of(host, count, ()) for host, count in zip(listed, slots, strict=True)]
    return make_plan(listed, slots, devices, parse_mesh(mesh) if isinstance(mesh, str) else mesh)


def job(listed: Sequence[Host] = (Host("a"), Host("b")), **changes: Any) -> Job:
    base = Job(
        run_id="r1",
        form="script",
        argv=("/data/train.py", "--lr", "1e-3"),
        hosts=tuple(listed),
        local=(False,) * len(listed),
        workdir="/data",
        python="/usr/bin/python3",
        log_dir="/data/meshrun-runs/r1",
    )
    return replace(base, **changes)
