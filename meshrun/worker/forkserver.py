"""Owns: the fork server: one import of torch per node, then a worker for each `Fork`, as a child of the agent.
Must not: start a thread, hold a store, touch an accelerator, or outlive the agent.
Called by: `__main__`."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from meshrun import wire
from meshrun.worker import child
from meshrun.worker.job import Job
from meshrun.worker.line import Line
from meshrun.worker.store import serve_store

# Every worker needs these; what is imported after the fork is paid once per rank.
_WITH_TORCH = (
    "torch.distributed.device_mesh",
    "torch.distributed.rendezvous",
    "torch.utils._device",
    "meshrun.worker.adopt",
    "meshrun.worker.groups",
)
_ALWAYS = ("meshrun.worker.start", "meshrun.worker.stacks", "meshrun.worker.threads", "runpy", "traceback")


def serve(line: Line, preload: Sequence[str]) -> Job | None:
    """Import, report, fork on request until end-of-file. Returns a `Job` in each forked worker, None in the server."""
    agent = os.getppid()
    child.die_with_parent(agent)
    before = child.open_descriptors()
    line.send(prepare(preload))
    keep = child.open_descriptors() - before
    order: wire.Order | None = None
    while (message := line.receive()) is not None:
        if isinstance(message, wire.Order):
            order = message
        elif isinstance(message, wire.ForkStore):
            _fork_store(line, agent, message, keep)
        elif isinstance(message, wire.Fork) and order is not None:
            job = _fork_workers(line, agent, order, [message, *line.receive_more(wire.Fork)], keep)
            if job is not None:
                return job
    return None


def prepare(preload: Sequence[str]) -> wire.Imported:
    """Import all that workers need, and check that this process may be forked.

    Variables that torch reads at its import (torch-facts 5.3) are the node's, which this process has; what a script
    sets at its top comes after the import here and has no effect: `--start-method spawn` is for that."""
    began = time.monotonic()
    with no_collections():
        problem = import_all([*_ALWAYS, *preload, *(_WITH_TORCH if "torch" in preload else ())])
    gc.collect()
    gc.freeze()
    threads = count_threads()
    version = str(getattr(sys.modules.get("torch"), "__version__", ""))
    return wire.Imported(version, time.monotonic() - began, threads, problem or unsafe(threads))


@contextlib.contextmanager
def no_collections() -> Iterator[None]:
    """Collections are a twentieth of torch's import, and find nothing. A threshold or `gc.disable()` of a module's own
    stays."""
    before = gc.get_threshold()
    gc.set_threshold(0)
    try:
        yield
    finally:
        if gc.get_threshold()[0] == 0:
            gc.set_threshold(*before)


def import_all(names: Sequence[str]) -> str:
    """Import each `module` or `module:name`; the first failure in words, or "". A `?` behind it: if it can be."""
    for name in names:
        try:
            _import(*name.removesuffix("?").split(":"))
        except Exception as error:  # a user's module may raise anything
            if not name.endswith("?"):
                return f"cannot import {name}: {type(error).__name__}: {error}"
    return ""


def _import(module: str, name: str = "") -> None:
    """As `from module import name`: packages as transformers load what a name needs when it is asked for."""
    found = importlib.import_module(module)
    if name and not hasattr(found, name):
        importlib.import_module(f"{module}.{name}")


def count_threads() -> int:
    """OS threads of this process, native ones included."""
    return len(os.listdir("/proc/self/task"))


def unsafe(threads: int) -> str:
    """Why workers must not be forked from this process, or ""."""
    if threads != 1:
        return f"{threads} threads run after the imports (a preloaded module started them), and a fork keeps only one"
    try:
        pid = os.fork()
    except OSError as error:
        return f"the kernel refused to fork: {error.strerror}"
    if pid == 0:
        os._exit(1 if _in_bad_fork() else 0)
    _, status = os.waitpid(pid, 0)
    if status:
        return "a forked process could not use the accelerator: a preloaded module has started it"
    return ""


def _in_bad_fork() -> bool:
    torch: Any = sys.modules.get("torch")
    modules = (getattr(torch, name, None) for name in ("cuda", "xpu", "npu", "mtia"))
    checks = (getattr(module, "_is_in_bad_fork", None) for module in modules)
    return any(check() for check in checks if check is not None)


def fork_for_agent(agent: int, count: int = 1) -> tuple[int, tuple[int, ...]]:
    """Fork `count` children of the agent, not of this process: (its number, ()) in each, (-1, their pids) here.

    One intermediate process forks them all and leaves; the agent is the subreaper that inherits them. A fork of a
    process that has imported torch costs 10 ms, so that the intermediate is shared. Ends this process if the kernel
    refuses."""
    sys.stdout.flush()
    sys.stderr.flush()
    reading, writing = os.pipe()
    try:
        first = os.fork()
    except OSError:
        _refuse()
    if first == 0:
        middle = os.getpid()
        number = _fork_again(writing, count)
        child.wait_for_parent(agent, middle)
        return number, ()
    os.close(writing)
    with open(reading) as answer:
        pids = tuple(int(text) for text in answer.read().split())
    os.waitpid(first, 0)
    if len(pids) < count:
        _refuse()
    return -1, pids


def _refuse() -> NoReturn:
    """No process can be had (a limit of the user or the container): the agent reports these words and ends the run."""
    print(
        "meshrun: the kernel refused to fork a worker (see ulimit -u and the container's pids limit)", file=sys.stderr
    )
    sys.stderr.flush()
    os._exit(1)


def _fork_again(writing: int, count: int) -> int:
    """In the intermediate process: returns in the workers only, with their numbers; the intermediate tells their pids
    and leaves."""
    try:
        for number in range(count):
            pid = os.fork()
            if pid == 0:
                os.close(writing)
                return number
            os.write(writing, f"{pid}\n".encode())
    except OSError:
        os._exit(1)
    os._exit(0)


def _fork_workers(line: Line, agent: int, order: wire.Order, forks: Sequence[wire.Fork], keep: set[int]) -> Job | None:
    given = [line.take_fds(3) for _ in forks]
    number, pids = fork_for_agent(agent, len(forks))
    if number >= 0:
        stdout, stderr, own = given[number]
        child.own_session()
        child.die_with_parent(agent)
        child.default_signals()
        child.set_stdio(stdout, stderr)
        child.close_others({own, *keep})
        return Job(order, forks[number], Line.of(own))
    for fd in (fd for fds in given for fd in fds):
        os.close(fd)
    for fork, pid in zip(forks, pids, strict=True):
        line.send(wire.Forked(fork.rank, pid))
    return None


def _fork_store(line: Line, agent: int, order: wire.ForkStore, keep: set[int]) -> None:
    (listening,) = line.take_fds(1)
    number, pids = fork_for_agent(agent)
    if number >= 0:
        child.own_session()
        child.die_with_parent(agent)
        child.default_signals()
        child.close_others({listening, *keep})
        serve_store(order, listening)
    os.close(listening)
    line.send(wire.Forked(-1, *pids))
