"""Owns: the guard: the agent's parent, which ends everything if the agent is killed.
Must not: import more than it needs; it lives as long as the agent and costs memory.
Called by: agent.__main__, in the process that the launcher started."""

from __future__ import annotations

import os
import signal
import time
from typing import NoReturn

from meshrun.agent import group, procs, remains

_SWEEP_S = 3.0
_EMPTY_S = 0.5
_SAID_BYTES = 8192
_FROZEN_S = 10.0  # as long as the launcher waits for a silent agent
_LOOK_S = 0.1
FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


def stand_guard(agent: int, token: str) -> NoReturn:
    """Wait for the agent. It is our child and we adopt orphans, so whatever it leaves becomes ours: not even a
    descendant with a new session and an empty environment escapes. Signals are passed on to the agent."""
    for number in FORWARDED:
        signal.signal(number, lambda got, frame: procs.send_signal(agent, got))
    status = _wait_for(agent)
    home, path = remains.find_home(token), group.find(token)
    if status != 0:
        remains.end_everything(token, path, os.getpid(), _SWEEP_S)
        _repeat_last_words(home)
    else:
        _remove_group(path)
    if home:
        procs.remove_tree(home)
    os._exit(0 if status == 0 else 125)


def _remove_group(path: str) -> None:
    """The agent was in it to its end, and what it ended may need a moment more to be gone for the kernel."""
    end = time.monotonic() + _EMPTY_S
    while not remains.remove_group(path) and time.monotonic() < end:
        time.sleep(_LOOK_S / 20)


def _wait_for(agent: int) -> int:
    """The status that the agent ended with. One that is stopped hears neither the launcher nor us: the launcher gives
    it up after its silence, and so do we, unless it goes on."""
    while True:
        pid, status = os.waitpid(-1, os.WUNTRACED)
        if pid == agent and os.WIFSTOPPED(status):
            ended = _wait_for_frozen(agent)
            if ended is not None:
                return ended
        elif pid == agent:
            return status


def _wait_for_frozen(agent: int) -> int | None:
    """None if the agent goes on, else the status that it ended with."""
    end = time.monotonic() + _FROZEN_S
    while True:
        pid, status = os.waitpid(agent, os.WNOHANG | os.WCONTINUED)
        if pid:
            return None if os.WIFCONTINUED(status) else status
        if time.monotonic() > end:
            procs.send_signal(agent, signal.SIGKILL)
        time.sleep(_LOOK_S)


def _repeat_last_words(home: str) -> None:
    """A traceback of the agent goes to our stderr, which the launcher shows as the reason."""
    try:
        with open(f"{home}/agent.err", "rb") as file:
            os.write(2, file.read()[-_SAID_BYTES:])
    except OSError:
        pass
