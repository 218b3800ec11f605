"""Owns: looking for devices in files: where to look, what is seen, and what this user may open.
Must not: open a device, or know a vendor.
Called by: agent.vendors, agent.nvidia, agent.accelerators."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from meshrun.dataclass import dataclass
from meshrun.wire.masks import Have


@dataclass(frozen=True, slots=True)
class Look:
    """Where and how to look."""

    env: Mapping[str, str]
    root: str = ""  # before every path; tests make a tree of their own
    system: str = ""  # "Linux x86_64"
    integrated: bool = False  # a GPU on the processor counts too


@dataclass(frozen=True, slots=True)
class Seen:
    """What there is, and what the user should know about it."""

    have: Have = Have(())
    notes: tuple[str, ...] = ()


def may_open(path: str) -> bool:
    """Whether this user may open a device, asked without doing so."""
    return os.access(path, os.R_OK | os.W_OK)


def split_closed(paths: Sequence[str]) -> tuple[list[str], list[str]]:
    """The devices that are there: those that this user may open, and those that not."""
    there = [path for path in paths if os.path.exists(path)]
    return [path for path in there if may_open(path)], [path for path in there if not may_open(path)]


def explain_closed(paths: Sequence[str], root: str) -> tuple[str, ...]:
    """One line for devices that are there and closed to us."""
    if not paths:
        return ()
    more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
    return (f"{paths[0][len(root) :]}{more}: this user may not open it (its group is {_group_of(paths[0])})",)


def _group_of(path: str) -> str:
    import grp

    try:
        number = os.stat(path).st_gid
        return grp.getgrgid(number).gr_name
    except OSError:
        return "unknown"
    except KeyError:
        return str(number)
