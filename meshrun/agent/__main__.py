"""Owns: the first moments of an agent: the line is taken over, the guard is set, then the loop runs.
Must not: import more than the guard needs before the fork; the guard's memory is paid for as long as the run lasts.
Called by: the boot code on every node (`main(tmp, bundle)`); `python -m meshrun.agent` from a checkout."""

from __future__ import annotations

import gc
import os
import signal
import sys
from typing import NoReturn

from meshrun.agent import guard, kernel

_LINE_FD = 200  # out of the way of whatever a worker may find at 3, 4, ...


def main(tmp: str, bundle: str) -> NoReturn:
    """Serve the launcher on descriptors 0 and 1. `tmp`: private directory, removed at the end; `bundle`: our zip."""
    token = os.urandom(8).hex()
    kernel.adopt_orphans()
    us = os.getpid()
    gc.freeze()  # collections in the agent leave the pages that it shares with the guard alone
    try:
        agent = os.fork()
    except OSError as error:
        _refuse(tmp, error)
    if agent:
        guard.stand_guard(agent, tmp, token)
    _run_agent(us, tmp, bundle, token)


def _refuse(tmp: str, error: OSError) -> NoReturn:
    """There is no process for the agent: take away what the boot code has placed, and say so in its way."""
    try:
        os.unlink(f"{tmp}/bundle.zip")
        os.rmdir(tmp)
    except OSError:
        pass
    os.write(2, f"meshrun-boot: no-process {error.strerror}\n".encode())
    os._exit(125)


def _run_agent(parent: int, tmp: str, bundle: str, token: str) -> NoReturn:
    status = 125
    try:
        kernel.adopt_orphans()
        kernel.follow_parent(signal.SIGTERM)
        if os.getppid() != parent:
            os._exit(status)
        os.setsid()
        reading, writing = _take_over_line(tmp)
        from meshrun.agent.loop import Agent

        Agent(tmp, bundle, token, reading, writing).run()
        status = 0
    except BaseException:  # the one place where an agent's own failure becomes words: the guard passes them on
        sys.excepthook(*sys.exc_info())
        sys.stderr.flush()
    finally:
        if os.getppid() == parent:
            os.kill(parent, signal.SIGCONT)  # a stopped guard would see neither our end nor its own, and stay for good
        os._exit(status)


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
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    tmp = f"{os.environ.get('TMPDIR', '/tmp')}/meshrun-agent-{os.urandom(8).hex()}"
    os.mkdir(tmp, 0o700)
    main(tmp, root)


if __name__ == "__main__":
    _main_from_checkout()
