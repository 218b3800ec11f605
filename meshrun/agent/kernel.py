"""Owns: the two prctl calls that Python has no name for.
Must not: do anything else.
Called by: agent.__main__ (subreaper, parent's death) and agent.spawn (in a child, before exec)."""

from __future__ import annotations

import ctypes

_SET_PDEATHSIG, _SET_CHILD_SUBREAPER = 1, 36
_prctl = ctypes.CDLL(None, use_errno=True).prctl


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends."""
    _prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def follow_parent(number: int) -> None:
    """Get signal `number` when the parent process ends; survives exec, not fork."""
    _prctl(_SET_PDEATHSIG, number, 0, 0, 0)
