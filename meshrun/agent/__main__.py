"""Owns: the first moments of an agent: the line is taken over, the guard is set, then the loop runs.
Must not: import more than the guard needs before the fork; the guard's memory is paid for as long as the run lasts.
Called by: the boot code on every node (`main(bundle, ...)`); `python -m meshrun.agent` from a checkout."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
from typing import TYPE_CHECKING, NoReturn

from meshrun.agent import group, guard, kernel

if TYPE_CHECKING:
    from meshrun.agent.home import Home

_LINE_FD = 200  # out of the way of whatever a worker may find at 3, 4, ...


def main(bundle: str, watcher: int = 0, stands: int = -1) -> NoReturn:
    """Serve the launcher on descriptors 0 and 1. `bundle`: our zip, or the folder of a checkout.

    `watcher`: a child that ends us if we are stopped before there are two of us who look after each other; it leaves
    when it hears something on `stands`. Only now is anything made that one of us has to remove."""
    token = os.urandom(8).hex()
    kernel.adopt_orphans()
    us = os.getpid()
    gc.freeze()  # collections in the agent leave the pages that it shares with the guard alone
    try:
        agent = os.fork()
    except OSError as error:
        _refuse(watcher, error)
    if agent:
        if watcher:
            os.kill(watcher, signal.SIGKILL)  # it may be stopped itself; `wait` knows it as any orphan
        guard.stand_guard(agent, token)
    if watcher:
        with contextlib.suppress(OSError):  # the guard may have ended it already
            os.write(stands, b".")
        os.close(stands)
    _run_agent(us, bundle, token)


def _refuse(watcher: int, error: OSError) -> NoReturn:
    """There is no process for the agent: say so in the boot code's way."""
    if watcher:
        os.kill(watcher, signal.SIGKILL)
    os.write(2, f"meshrun-boot: no-process {error.strerror}\n".encode())
    os._exit(125)


def _run_agent(parent: int, bundle: str, token: str) -> NoReturn:
    status = 125
    try:
        # Held back until the loop has its handlers: what comes before would end us with the directory made.
        signal.pthread_sigmask(signal.SIG_BLOCK, (*guard.FORWARDED, signal.SIGCONT))
        kernel.adopt_orphans()
        kernel.follow_parent(signal.SIGCONT)  # the one signal that a stopped process hears
        if os.getppid() != parent:
            os._exit(status)
        os.setsid()
        home = _make_home(token, bundle)
        reading, writing = _take_over_line(home.path)
        membership = group.Membership(home.group)
        from meshrun.agent.loop import Agent

        gc.enable()  # off since the boot code: imports leave no garbage
        Agent(home, membership, token, parent, reading, writing).run()
        status = 0
    except BaseException:  # the one place where an agent's own failure becomes words: the guard passes them on
        sys.excepthook(*sys.exc_info())
        sys.stderr.flush()
    finally:
        if os.getppid() == parent:
            os.kill(parent, signal.SIGCONT)  # a stopped guard would see neither our end nor its own, and stay for good
        os._exit(status)


def _make_home(token: str, bundle: str) -> Home:
    from meshrun.agent import home

    try:
        return home.make(token, bundle)
    except home.NoPlaceError as error:
        os.write(2, f"meshrun-boot: no-tmp {error}\n".encode("utf-8", "backslashreplace"))  # launch.boot.explain
        os._exit(125)


def _take_over_line(tmp: str) -> tuple[int, int]:
    """Move the line away from 0 and 1, so that nothing that prints can disturb the frames."""
    import fcntl
    import resource

    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    first = _LINE_FD if limit == resource.RLIM_INFINITY else min(_LINE_FD, limit // 2)
    reading = fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, first)
    writing = fcntl.fcntl(1, fcntl.F_DUPFD_CLOEXEC, first)
    nothing = os.open(os.devnull, os.O_RDWR)
    said = os.open(f"{tmp}/agent.err", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for source, target in ((nothing, 0), (nothing, 1), (said, 2)):
        os.dup2(source, target)
    os.close(nothing)
    os.close(said)
    os.set_blocking(reading, False)
    os.set_blocking(writing, False)
    return reading, writing


def _main_from_checkout() -> NoReturn:
    main(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))


if __name__ == "__main__":
    _main_from_checkout()
