"""Owns: signals by name and number as Linux counts them, and `--signal-workers SIG@SECONDS`.
Must not: ask the machine it runs on: the nodes are Linux, whatever the launcher runs on.
Called by: spec.job, plan.commands, report.summary, watch."""

from __future__ import annotations

import re

from meshrun.errors import InputError, Place, Problem
from meshrun.spec.near import find_near
from meshrun.spec.values import EarlySignal

_ALL = (
    "HUP INT QUIT ILL TRAP ABRT BUS FPE KILL USR1 SEGV USR2 PIPE ALRM TERM STKFLT CHLD CONT STOP TSTP TTIN TTOU URG "
    "XCPU XFSZ VTALRM PROF WINCH IO PWR SYS"
)
_NAMES = _ALL.split()
_DEAF = ("KILL", "STOP")  # no program can act on these
_FORM = re.compile(r"([A-Za-z0-9]+)@([0-9]+(?:\.[0-9]+)?)s?")
_PLACE = Place("--signal-workers")


def signal_name(number: int) -> str:
    """`SIGKILL` for 9."""
    return f"SIG{_NAMES[number - 1]}" if 0 < number <= len(_NAMES) else f"signal {number}"


def parse_early_signal(text: str) -> EarlySignal:
    """`USR1@60`, also `SIGUSR1@60` and `10@60`. Raises InputError."""
    found = _FORM.fullmatch(text.strip())
    if not found:
        raise InputError(Problem(f"SIG@SECONDS is needed, got {text[:80]!r}", _PLACE, hint="such as USR1@60"))
    before_s = float(found[2])
    if not 0 < before_s < float("inf"):
        raise InputError(Problem(f"more than 0 seconds are needed, got {found[2][:40]}", _PLACE))
    return EarlySignal(_parse_signal(found[1]), before_s)


def _parse_signal(word: str) -> int:
    name = word.upper().removeprefix("SIG")
    if word.isdigit():
        name = _NAMES[int(word) - 1] if len(word) < 3 and 0 < int(word) <= len(_NAMES) else word
    if name in _DEAF:
        raise InputError(Problem(f"no program can handle {word}", _PLACE, hint="USR1 is what most scripts listen for"))
    if name not in _NAMES:
        close = find_near(name, _NAMES)
        hint = f"did you mean {close[0]}?" if close else "USR1, USR2, HUP, INT, TERM, ..."
        raise InputError(Problem(f"unknown signal {word[:40]}", _PLACE, hint=hint))
    return _NAMES.index(name) + 1


def render_early_signal(early: EarlySignal) -> str:
    """What `parse_early_signal` reads."""
    return f"{signal_name(early.signal).removeprefix('SIG')}@{early.before_s:.15g}"
