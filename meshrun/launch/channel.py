"""Owns: what a connection to a node's agent reports (events), and finding the first frame behind login noise.
Must not: do I/O; the ways to open a channel are its neighbours (local, ssh, manual).
Called by: launch.fleet and the openers; watch reads the events."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

from meshrun import wire
from meshrun.dataclass import dataclass
from meshrun.errors import Cause

NOISE_LIMIT = 64 * 1024


@dataclass(frozen=True, slots=True)
class Opened:
    """The agent of `node` has printed its marker: frames may follow."""

    node: int


@dataclass(frozen=True, slots=True)
class Received:
    """One message from `node`'s agent."""

    node: int
    message: Any


@dataclass(frozen=True, slots=True)
class Closed:
    """The connection of `node` ended after it was open. `noise`: what was said outside the frames, for the report."""

    node: int
    reason: str
    noise: str = ""


@dataclass(frozen=True, slots=True)
class Unreachable:
    """An attempt to open `node` failed before its marker came."""

    node: int
    cause: Cause


@dataclass(frozen=True, slots=True)
class Remark:
    """Something the user should read once about `node` (a harmless option that was ignored, a key that was added)."""

    node: int
    text: str


ChannelEvent = Opened | Received | Closed | Unreachable | Remark
Deliver = Callable[[ChannelEvent], None]


class Channel(Protocol):
    """An open (or opening) line to one agent. Made by an `Opener`; events come through the `deliver` it was given."""

    def send(self, data: bytes) -> None:
        """Queue bytes for the agent; never blocks, never raises for a dead line (a `Closed` event says that)."""

    def close(self) -> None:
        """Close the line now; the agent sees end-of-file. Idempotent; no event follows."""


class Opener(Protocol):
    """One way to reach one node. Returns at once; connecting goes on in a thread of its own."""

    def __call__(self, node: int, deliver: Deliver) -> Channel: ...


class Scanner:
    """Bytes from a fresh connection → messages; keeps what stood before the marker as noise (last 64 KiB)."""

    def __init__(self, max_frame: int = wire.MAX_FRAME) -> None:
        self.opened = False
        self._before = bytearray()
        self._decoder = wire.Decoder(max_frame)

    def feed(self, data: bytes) -> Iterator[Any]:
        """Yield the messages complete after `data`; sets `opened` once the marker was seen. Raises WireError."""
        if not self.opened:
            self._before += data
            at = self._before.find(wire.MARKER)
            if at < 0:
                del self._before[: max(0, len(self._before) - NOISE_LIMIT)]
                return
            data = bytes(self._before[at + len(wire.MARKER) :])
            del self._before[at:]
            self.opened = True
        yield from self._decoder.feed(data)

    @property
    def noise(self) -> str:
        """What the far side printed before its first frame, as text."""
        return self._before.decode("utf-8", "replace").strip()
