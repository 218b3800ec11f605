"""Owns: the messages by which a launcher looks into a running job: who moves, and where every rank is.
Must not: do I/O, or import anything but messages; it travels to every node.
Called by: through `meshrun.wire` watch, launch.handshake, agent."""

from __future__ import annotations

from typing import Any

from meshrun.dataclass import dataclass, field
from meshrun.wire.messages import message


@message
@dataclass(frozen=True, slots=True)
class Dump:
    """Send the Python stacks of these local ranks' processes (empty: all), as `Stacks`."""

    ranks: tuple[int, ...]


@message
@dataclass(frozen=True, slots=True)
class Stacks:
    """What faulthandler says of one rank's process: all its threads, the main one last.

    `calls`: what torch's flight recorder says there: `groups`, each with `name`, `desc`, `ranks` (none: the world) and
    `calls`, by backend the last ones as `[number, op, sizes, state, age in seconds]`. Empty where there is none."""

    rank: int
    text: str
    calls: dict[str, Any] = field(default_factory=dict)


@message
@dataclass(frozen=True, slots=True)
class Progress:
    """These local ranks have written output or used a processor since the last look. Not sent where none has."""

    attempt: int
    ranks: tuple[int, ...]
