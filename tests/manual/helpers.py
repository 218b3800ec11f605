"""Owns: what the socket tests of by-hand mode share: a mailbox of events, ends that close, a free port.
Must not: sleep.
Called by: the tests beside it."""

from __future__ import annotations

import queue
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from meshrun import wire
from meshrun.launch.channel import Channel, ChannelEvent, Opened, Received
from meshrun.launch.dial import dial
from meshrun.launch.handshake import Claim, Welcome
from meshrun.launch.manual import Gate

WAIT_S = 20.0  # a bound for broken code only
CLAIM = Claim(1, 4, "gpu1", "dp=2,tp=4", "script", "", "ab" * 32, "eager")


class Mailbox:
    """Events of one or more channels, in order."""

    def __init__(self) -> None:
        self.events: queue.SimpleQueue[ChannelEvent] = queue.SimpleQueue()
        self.skipped: list[ChannelEvent] = []

    def next(self) -> ChannelEvent:
        return self.events.get(timeout=WAIT_S)

    def until(self, kind: type[Any]) -> Any:
        """The next event of that type; what came before it is in `skipped`."""
        while True:
            event = self.next()
            if isinstance(event, kind):
                return event
            self.skipped.append(event)

    @property
    def empty(self) -> bool:
        return self.events.empty()


def claim_of(rank: int, nnodes: int = 4, **changes: Any) -> Claim:
    return replace(CLAIM, node_rank=rank, nnodes=nnodes, hostname=f"gpu{rank}", **changes)


@contextmanager
def open_gate(nnodes: int = 4, **options: Any) -> Iterator[tuple[Gate, Mailbox, dict[int, Channel]]]:
    """A gate on loopback with every seat opened into one mailbox."""
    port = options.pop("port", 0)
    gate = Gate("127.0.0.1", port, claim_of(0, nnodes), run_id="run-1", **options)
    mailbox = Mailbox()
    try:
        yield gate, mailbox, {node: gate.opener(node)(node, mailbox.events.put) for node in range(1, nnodes)}
    finally:
        gate.close()


class Caller:
    """A node that dials: its channel and its events."""

    def __init__(self, port: int, claim: Claim, token: bytes = b"", timeout_s: float = WAIT_S) -> None:
        self.mailbox = Mailbox()
        self.channel = dial("127.0.0.1", port, claim, token, timeout_s)(1, self.mailbox.events.put)

    def joined(self) -> Caller:
        assert self.mailbox.next() == Opened(1)
        event = self.mailbox.next()
        assert isinstance(event, Received) and isinstance(event.message, Welcome)
        assert event.message.run_id == "run-1"
        return self

    def send(self, *messages: Any) -> None:
        for message in messages:
            self.channel.send(wire.encode(message))


@contextmanager
def calling(*callers: Caller) -> Iterator[tuple[Caller, ...]]:
    try:
        yield callers
    finally:
        for caller in callers:
            caller.channel.close()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


def read_to_end(sock: socket.socket) -> bytes:
    """All that comes until end-of-file (or a reset)."""
    sock.settimeout(WAIT_S)
    data = b""
    try:
        while piece := sock.recv(65536):
            data += piece
    except ConnectionResetError:
        pass
    return data
