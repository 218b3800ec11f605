"""Owns: the roles of the processes that an agent starts here: fork server, worker, store.
Must not: import torch for a role that may not need it.
Called by: `python -c BOOT <bundle> <role> <fd> <preload>`, started by the agent."""

from __future__ import annotations

import os
import sys

from meshrun import wire
from meshrun.worker import child
from meshrun.worker.job import Job
from meshrun.worker.line import Line


def main() -> None:
    """Read the role from sys.argv and play it; returns only in a fork server whose agent closed the line."""
    bundle, role, fd, preload = sys.argv[1:5]
    line = Line.of(int(fd))
    if role == "store":
        serve(line)
    elif role == "worker":
        run(receive_job(line), bundle)
    elif role == "forkserver":
        from meshrun.worker import forkserver

        job = forkserver.serve(line, [name for name in preload.split(",") if name])
        if job is not None:
            run(job, bundle)
        os._exit(0)
    else:
        sys.exit(f"meshrun: there is no role {role!r}")


def run(job: Job | None, bundle: str) -> None:
    """Run a job, if there is one."""
    if job is not None:
        from meshrun.worker import start

        start.run(job, bundle)


def receive_job(line: Line) -> Job | None:
    """A fresh interpreter's job: `Order`, then `Fork` without descriptors (its stdio is in place). None: agent gone."""
    child.die_with_parent(os.getppid())
    child.own_session()
    child.default_signals()
    order, fork = line.receive(), line.receive()
    if not isinstance(order, wire.Order) or not isinstance(fork, wire.Fork):
        return None
    return Job(order, fork, line)


def serve(line: Line) -> None:
    """Serve the store on the socket that comes with `ForkStore`."""
    from meshrun.worker.store import serve_store

    child.die_with_parent(os.getppid())
    message = line.receive()
    if isinstance(message, wire.ForkStore):
        serve_store(message, *line.take_fds(1))
