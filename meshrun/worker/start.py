"""Owns: a worker's life from its order to its script: environment, threads, stacks, hooks, groups, `Ready`, script.
Must not: return; how it ends is ending's.
Called by: `__main__`, in a forked worker or a fresh interpreter."""

from __future__ import annotations

import os
from typing import NoReturn

from meshrun import wire
from meshrun.worker import child, ending, hooks, script, stacks, threads
from meshrun.worker.job import Job
from meshrun.worker.session import Owner, Session, read_master, read_rank, set_current


def run(job: Job, bundle: str) -> NoReturn:
    """Become the worker that `job` describes and run its script."""
    try:
        session = become(job)
        argv = job.order.argv_of(str(session.place.local_rank))
        start_script = script.prepare(job.order.form, argv, bundle, job.order.typed)
        if job.order.init == "eager":
            make_groups(session)
        if job.order.tensors:
            rehearse(session)
    except Exception as error:
        ending.fail_init(error)
    job.line.tell(wire.Ready(session.place.rank, job.order.attempt, 0.0))
    try:
        try:
            start_script()
        except BaseException as error:
            ending.end(error)
    except BaseException as late:  # a signal handler of the user's raised before the record of `error` was begun
        ending.end(late)
    ending.end(None)


def become(job: Job) -> Session:
    """Environment, directory, random numbers, threads, stack dumps, and (unless `--init off`) the hooks."""
    order = job.order
    child.bind(job.fork.cpus)
    child.set_environment(job.fork.env)
    place, master = read_rank(os.environ), read_master(os.environ)
    session = Session(order, place, launched=True, line=job.line, master=master)
    set_current(session)
    child.refresh(order.workdir)
    threads.apply(_thread_count())
    stacks.enable_fatal()
    stacks.register(order.tmp, job.fork.rank)
    if order.init != "off":
        hooks.install()
    if order.tensors:
        prepare_rehearsal(session)
    return session


def make_groups(session: Session) -> None:
    """Eager: the world group and the meshes, before the script."""
    from meshrun.worker import groups

    groups.make_world(session, Owner.MESHRUN)


def prepare_rehearsal(session: Session) -> None:
    """`--fake`: torch's parts that need others get their stand-ins, before a group is made."""
    from meshrun.worker import rehearsal

    rehearsal.install(session)


def rehearse(session: Session) -> None:
    """`--fake`: from here on the script's tensors are what was asked for."""
    from meshrun.worker import rehearsal

    rehearsal.enter(session)


def _thread_count() -> int:
    text = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    return int(text) if text.isascii() and text.isdigit() else 0
