"""Owns: turning a process into a worker: parent, session, signals, stdio, descriptors, environment, random numbers.
Must not: know the order or run anything of the user's.
Called by: forkserver (after a fork), `__main__` (a fresh interpreter)."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Collection, Mapping
from typing import Any

from meshrun.wire.cpus import parse_cpus

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """SIGKILL when `parent` dies. Leaves at once if it is dead already."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def wait_for_parent(parent: int, middle: int) -> None:
    """Wait until `middle` has left and `parent` (a subreaper) has us; the kernel tells nobody, so look."""
    while (now := os.getppid()) != parent:
        if now != middle:
            os._exit(1)
        time.sleep(0.0002)


def own_session() -> None:
    """A session of its own, so that the agent can signal the worker's whole group."""
    if os.getsid(0) != os.getpid():
        os.setsid()


def default_signals() -> None:
    """What a fresh interpreter has: our own handlers and masks are not the user's."""
    for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def set_stdio(stdout: int, stderr: int) -> None:
    """fd 0 reads nothing, fds 1 and 2 are the agent's pipes; the objects in `sys` write to them already."""
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (stdout, 1), (stderr, 2)):
        os.dup2(source, target, inheritable=True)


def close_others(keep: Collection[int]) -> None:
    """Close every descriptor but stdio and `keep` (what a preloaded module opened stays its own)."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) not in keep:
            with contextlib.suppress(OSError):  # the listing's own
                os.close(int(name))


def open_descriptors() -> set[int]:
    """The descriptors of this process."""
    return {int(name) for name in os.listdir("/proc/self/fd")}


def bind(cpus: str) -> None:
    """Run on these CPUs, and every thread that starts from now on ("": wherever). Where that fails (they may have gone
    since the node was asked) unbound, and it is said."""
    if cpus:
        try:
            os.sched_setaffinity(0, parse_cpus(cpus))
        except OSError as error:
            print(f"meshrun: cannot bind to CPUs {cpus}: {error.strerror}", file=sys.stderr, flush=True)


def set_environment(env: Mapping[str, str]) -> None:
    """Exactly `env`, for Python and for C (`putenv`)."""
    os.environ.clear()
    os.environ.update(env)
    time.tzset()


def refresh(workdir: str) -> None:
    """What forked siblings must not share, and what loaded modules read at their import (torch-facts 5.3, 5.4)."""
    os.chdir(workdir)
    drawn: Any = sys.modules.get("random")
    if drawn is not None:
        drawn.seed()
    process: Any = sys.modules.get("multiprocessing.process")
    if process is not None:
        process.ORIGINAL_DIR = os.path.abspath(os.getcwd())
        process.current_process().authkey = os.urandom(32)
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()
    if "torch" in sys.modules:
        _refresh_torch(sys.modules["torch"])


def _refresh_torch(torch: Any) -> None:
    torch.default_generator.seed()
    if torch.distributed.is_available():
        torch.distributed.set_debug_level_from_env()
    if os.environ.get("TORCH_LOGS"):
        torch._logging._internal._init_logs()
