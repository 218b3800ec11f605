"""Owns: by hand: which messages may cross the TCP line, in which direction, and of whom.
Must not: do I/O; let a command through.
Called by: launch.manual, launch.dial."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from meshrun import wire
from meshrun.errors import CauseKind
from meshrun.launch.handshake import Refused, Whole

# All that may cross the line once a node has joined. Output, Ack and Brief never do: each node shows and stores its
# own ranks, and a command never crosses (DESIGN §10). The store is node 0's, so neither does OpenStore/StoreOpened.
DOWNWARD: tuple[type[Any], ...] = (
    Whole, wire.Assign, wire.TryAddresses, wire.Start, wire.Stop, wire.Dump, wire.Leave, wire.Beat, wire.Restart,
    wire.SignalWorkers,
)  # fmt: skip
UPWARD: tuple[type[Any], ...] = (
    wire.Facts, wire.Reached, wire.Spawned, wire.Ready, wire.Raised, wire.Exited, wire.Drained, wire.Stacks,
    wire.Progress, wire.Trouble, wire.Bye, wire.Beat, wire.Interrupted,
)  # fmt: skip


class Sieve:
    """What of a sender's messages may cross; the rest (a Brief, an Ack, Output) is for one's own end alone.

    What is said to all nodes comes as one and the same bytes for each: it is decoded once, and never encoded again."""

    def __init__(self, allowed: Container[type[Any]]) -> None:
        self._allowed = allowed
        self._heard = b""
        self._kept: tuple[bytes, tuple[Any, ...]] = (b"", ())

    def sift(self, data: bytes) -> tuple[bytes, tuple[Any, ...]]:
        """Of `data` (whole messages) the frames that may cross, and the messages in them."""
        if data is not self._heard:
            said = tuple(wire.Decoder().feed(data))
            kept = tuple(message for message in said if type(message) in self._allowed)
            self._heard = data
            self._kept = (data if len(kept) == len(said) else b"".join(map(wire.encode, kept)), kept)
        return self._kept


def check_upward(message: Any, ranks: Container[int]) -> None:
    """A node may say what an agent says, of its own `ranks` only. Raises Refused."""
    if type(message) not in UPWARD:
        raise Refused(CauseKind.AUTH, f"it sent a {type(message).__name__}, which a node may not")
    rank = getattr(message, "rank", None)
    if rank is not None and rank not in ranks:
        raise Refused(CauseKind.AUTH, f"it spoke for rank {rank}, which is not one of its own")
