"""Owns: one opener per host of a job, local or SSH, and what each writes first.
Must not: open anything; paramiko is only imported here if a host needs it.
Called by: cli."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import lru_cache, partial

from meshrun.launch.boot import make_prologue
from meshrun.launch.channel import Opener
from meshrun.launch.intake import MakeStart
from meshrun.launch.local import open_local
from meshrun.launch.sources import bundle
from meshrun.spec.values import Host, Job, SshSettings

_one_at_a_time = threading.Lock()


def make_openers(job: Job) -> tuple[Opener, ...]:
    """In node order: `job.local[node]` decides local or SSH. The first frame (the Brief) is the state machine's.

    Raises InputError if the client that was asked for is not on this machine."""
    return tuple(_make_opener(job, node) for node in range(len(job.hosts)))


def _make_opener(job: Job, node: int) -> Opener:
    host = job.hosts[node]
    make_start = partial(_make_start, host.python or job.python, job.prelude)
    if job.local[node]:
        return open_local(make_start)
    return _find_client(job.ssh.client)(host, job.ssh, job.connect_timeout_s, make_start)


def _find_client(name: str) -> Callable[[Host, SshSettings, float, MakeStart], Opener]:
    if name == "openssh":
        from meshrun.launch.openssh import open_openssh

        return open_openssh
    from meshrun.launch.ssh import open_ssh

    return open_ssh


def _make_start(python: str, prelude: str) -> bytes:
    # All hosts' threads come at once: without the lock each would compile the bundle where none is kept.
    with _one_at_a_time:
        return _make_start_once(python, prelude)


@lru_cache(maxsize=64)  # half a megabyte: hosts that start alike share it
def _make_start_once(python: str, prelude: str) -> bytes:
    return make_prologue([python], prelude, bundle())
