"""Owns: one opener per host of a job, local or SSH, and what each writes first.
Must not: open anything; paramiko is only imported here if a host needs it.
Called by: cli."""

from __future__ import annotations

from functools import partial

from meshrun.launch.boot import make_prologue
from meshrun.launch.channel import Opener
from meshrun.launch.local import open_local
from meshrun.launch.sources import bundle
from meshrun.spec.values import Job


def make_openers(job: Job) -> tuple[Opener, ...]:
    """In node order: `job.local[node]` decides local or SSH. The first frame (the Brief) is the state machine's."""
    return tuple(_make_opener(job, node) for node in range(len(job.hosts)))


def _make_opener(job: Job, node: int) -> Opener:
    host = job.hosts[node]
    make_start = partial(_make_start, host.python or job.python, job.prelude)
    if job.local[node]:
        return open_local(make_start)
    from meshrun.launch.ssh import open_ssh

    return open_ssh(host, job.ssh, job.connect_timeout_s, make_start)


def _make_start(python: str, prelude: str) -> bytes:
    return make_prologue([python], prelude, bundle())
