"""Owns: what is left of a run whose agent is gone: its processes and its directory, found by the run's token alone.
Must not: touch what does not descend from the caller, carry the run's mark or stand in the run's group.
Called by: agent.guard, agent.home (so: os only, to stay small)."""

from __future__ import annotations

import os
import signal
import time

from meshrun.agent import group, procs

GROUP = "group"  # the file in the directory that names the run's control group


def list_bases() -> list[str]:
    """Where the private directory may be, best first."""
    places = (os.environ.get("TMPDIR"), "/tmp", "/dev/shm", "/var/tmp", os.environ.get("HOME"))
    return list(dict.fromkeys(os.path.abspath(place).rstrip("/") for place in places if place))


def make_name(token: str) -> str:
    """The name of a run's private directory."""
    return f"meshrun-{os.getuid()}.{token}"


def find_home(token: str) -> str:
    """The private directory of a run that was started with our environment, "" if there is none."""
    paths = (f"{base}/{make_name(token)}" for base in list_bases())
    return next((path for path in paths if os.path.isdir(path)), "")


def end_everything(token: str, path: str, root: int | None, within_s: float) -> None:
    """SIGKILL until a whole pass finds nothing, or what is left does not react; then the group goes.

    `path`: of the run's group, "" if it has none; `root`: us, if our descendants are meant too."""
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        if root is not None:
            _reap()
        left = [*procs.find_marked(token), *group.find_members(path)]
        left += procs.find_descendants(root) if root is not None else []
        if not left and remove_group(path):
            return
        if path:
            group.kill(path)
        for process in left:
            procs.send_signal(process.pid, signal.SIGKILL)
        time.sleep(0.005)
    remove_group(path)


def remove_group(path: str) -> bool:
    """True if it is gone, or never was."""
    return not path or group.remove(path)


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
