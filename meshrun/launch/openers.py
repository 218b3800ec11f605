"""Owns: one opener per host of a job, local or SSH, and what each writes first.
Must not: open anything; paramiko is only imported here if a host needs it.
Called by: cli."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from meshrun import wire
from meshrun.launch.boot import make_prologue
from meshrun.launch.channel import Opener
from meshrun.launch.local import open_local
from meshrun.launch.sources import bundle
from meshrun.spec.values import Job


def make_openers(job: Job, briefs: Sequence[wire.Brief]) -> tuple[Opener, ...]:
    """In node order: `job.local[node]` decides local or SSH. `briefs`: per node, the first frame on its channel."""
    return tuple(_make_opener(job, node, brief) for node, brief in enumerate(briefs))


def _make_opener(job: Job, node: int, brief: wire.Brief) -> Opener:
    host = job.hosts[node]
    make_start = partial(_make_start, host.python or job.python, job.prelude, brief)
    if job.local[node]:
        return open_local(make_start)
    from meshrun.launch.ssh import open_ssh

    return open_ssh(host, job.ssh, job.connect_timeout_s, make_start)


def _make_start(python: str, prelude: str, brief: wire.Brief) -> bytes:
    return make_prologue([python], prelude, bundle()) + wire.encode(brief)
