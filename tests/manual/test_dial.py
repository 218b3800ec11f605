"""Owns: tests of dialling node 0 with real sockets: what is tried again, what is not, and what may come in.
Must not: use anything but loopback.
Called by: pytest."""

from __future__ import annotations

import socket
import threading
from typing import Any

import pytest

from meshrun import wire
from meshrun.errors import CauseKind
from meshrun.launch import handshake
from meshrun.launch.channel import Closed, Opened, Received, Unreachable
from meshrun.launch.dial import dial
from tests.manual.helpers import Caller, Mailbox, calling, claim_of, free_port, open_gate
from tests.manual.test_gate import BRIEF


def test_a_node_that_dials_first_waits_for_node_0() -> None:
    port = free_port()
    with calling(Caller(port, claim_of(1, 2))) as (caller,), open_gate(2, port=port) as (_, mailbox, _):
        caller.joined()
        assert mailbox.next() == Opened(1)


def test_nobody_there_is_named_with_address_and_limit() -> None:
    port = free_port()
    with calling(Caller(port, claim_of(1), timeout_s=0.3)) as (caller,):
        event = caller.mailbox.next()
    assert isinstance(event, Unreachable) and event.cause.kind is CauseKind.REFUSED
    assert f"node 0 did not answer at 127.0.0.1:{port} within 0.3 s: connection refused" in event.cause.message
    assert "--node-rank 0" in event.cause.hint


def test_a_name_that_nobody_knows_is_said_so() -> None:
    mailbox = Mailbox()
    channel = dial("no-such-host.invalid", 1, claim_of(1), b"", 0.1)(1, mailbox.events.put)
    event = mailbox.next()
    channel.close()
    assert isinstance(event, Unreachable) and event.cause.kind is CauseKind.NAME_UNKNOWN


def test_closing_while_dialling_gives_no_event() -> None:
    port = free_port()
    caller = Caller(port, claim_of(1, 2))
    caller.channel.close()
    with open_gate(2, port=port) as (_, mailbox, _), calling(Caller(port, claim_of(1, 2)).joined()):
        assert mailbox.next() == Opened(1)
    assert caller.mailbox.empty


@pytest.mark.parametrize("words", [b"SSH-2.0-OpenSSH_9\r\n", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0" * 99])
def test_what_is_not_meshrun_is_said_at_once(words: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with calling(Caller(port, claim_of(1))) as (caller,):
            sock, _ = server.accept()
            with sock:
                sock.sendall(words)
                event = caller.mailbox.next()
    assert isinstance(event, Unreachable) and event.cause.kind is CauseKind.AUTH
    assert f"127.0.0.1:{port}: it does not speak meshrun's protocol" in event.cause.message


def test_a_connection_that_ends_before_the_welcome_is_tried_again() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        calling(Caller(server.getsockname()[1], claim_of(1))) as (caller,),
    ):
        server.accept()[0].close()
        with server.accept()[0] as sock:
            _serve(sock)
            caller.joined()


@pytest.mark.parametrize("kind", [CauseKind.DROPPED, CauseKind.TIMED_OUT])
def test_a_node_0_that_has_no_room_or_no_time_is_tried_again(kind: CauseKind) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        calling(Caller(server.getsockname()[1], claim_of(1))) as (caller,),
    ):
        with server.accept()[0] as sock:
            sock.sendall(handshake.PREAMBLE + wire.encode(handshake.Refusal(kind.value, "too many", "")))
        with server.accept()[0] as sock:
            _serve(sock)
            caller.joined()


def _serve(sock: socket.socket, *then: Any) -> None:
    """Node 0's end without its checks: welcomes anybody, then sends anything."""
    side, ear = handshake.Side(b"", "7" * 64, claim_of(0)), handshake.Ear()
    sock.sendall(handshake.PREAMBLE + wire.encode(side.hello))
    claim = None
    while claim is None:
        for heard in ear.feed(sock.recv(65536)):
            side, claim = handshake.advance_gate(side, heard)
    sock.sendall(b"".join(map(wire.encode, (handshake.make_welcome(side, "run-1"), *then))))


@pytest.mark.parametrize("message", [BRIEF, wire.Output(0, 1, b"x"), wire.Interrupted(2), wire.Fork(0, {})])
def test_a_command_from_node_0_never_gets_in(message: Any) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        calling(Caller(server.getsockname()[1], claim_of(1))) as (caller,),
    ):
        with server.accept()[0] as sock:
            _serve(sock, wire.Beat(), message, wire.Beat())
            caller.joined()
            assert caller.mailbox.next() == Received(1, wire.Beat())
            event = caller.mailbox.next()
            assert isinstance(event, Closed) and f"it sent a {type(message).__name__}" in event.reason
            assert sock.recv(1) == b""
        assert caller.mailbox.empty


def test_many_ends_leave_no_thread_behind() -> None:
    before = threading.active_count()
    with open_gate(4) as (gate, _, _), calling(*(Caller(gate.port, claim_of(rank)) for rank in (1, 2, 3))) as callers:
        for caller in callers:
            caller.joined()
    assert threading.active_count() == before
