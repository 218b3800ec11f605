"""Owns: tests of node 0's gate with real sockets: mismatches, duplicates and missing nodes, which end the run.
Must not: use anything but loopback.
Called by: pytest."""

from __future__ import annotations

import socket
import threading
from dataclasses import replace
from typing import Any

import pytest

from meshrun import wire
from meshrun.errors import CauseKind
from meshrun.launch import handshake, manual
from meshrun.launch.channel import Closed, Opened, Received, Remark, Unreachable
from tests.manual.helpers import Caller, calling, claim_of, free_port, open_gate
from tests.manual.test_gate import START

# ---- what does end the run -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"mesh": "dp=8"}, ["dp=2,tp=4", "dp=8", "--mesh"]),
        ({"script_hash": "cd" * 32}, ["abababab", "cdcdcdcd", "script"]),
        ({"nnodes": 3}, ["has 4", "has 3", "--nnodes"]),
        ({"init": "off", "mesh": "(none)"}, ["eager", "off", "(none)"]),
    ],
)
def test_a_mismatch_ends_both_sides_with_both_values(changes: dict[str, Any], words: list[str]) -> None:
    claim = replace(claim_of(2), **changes)
    with open_gate(4) as (gate, mailbox, _), calling(Caller(gate.port, claim)) as (caller,):
        told, refused = mailbox.next(), caller.mailbox.next()
        assert isinstance(told, Unreachable) and told.node == 2
        assert isinstance(refused, Unreachable)
        for event in (told, refused):
            assert event.cause.kind is CauseKind.MISMATCH and not event.cause.heals
            assert all(word in event.cause.message for word in words)


def test_after_a_mismatch_everybody_else_is_told_why() -> None:
    with open_gate(4) as (gate, mailbox, _):
        with calling(Caller(gate.port, claim_of(2, mesh="dp=8"))):
            mailbox.until(Unreachable)
        with calling(Caller(gate.port, claim_of(3))) as (late,):
            event = late.mailbox.next()
            assert isinstance(event, Unreachable) and "the run has ended" in event.cause.message
            assert "dp=8" in event.cause.message


def test_a_rank_claimed_twice_ends_all_and_names_both() -> None:
    with open_gate(4) as (gate, mailbox, _), calling(Caller(gate.port, claim_of(1)).joined()) as (first,):
        assert mailbox.next() == Opened(1)
        with calling(Caller(gate.port, replace(claim_of(1), hostname="gpu9"))) as (second,):
            refused = second.mailbox.next()
            assert isinstance(refused, Unreachable) and refused.cause.kind is CauseKind.MISMATCH
        closed = mailbox.until(Closed)
        told = first.mailbox.next()
        assert isinstance(told, Received) and isinstance(told.message, handshake.Refusal)
        for text in (refused.cause.message, closed.reason, told.message.message):
            assert "node rank 1 was claimed twice" in text
            assert "gpu1 (127.0.0.1:" in text and "gpu9 (127.0.0.1:" in text
        # the launcher, if it opens the node again, learns that this cannot heal
        assert [mailbox.next().node, mailbox.next().node] == [2, 3]  # nobody else can join any more
        gate.opener(1)(1, mailbox.events.put)
        again = mailbox.until(Unreachable)
        assert again.node == 1
        assert again.cause.kind is CauseKind.MISMATCH and "claimed twice" in again.cause.message


def test_once_the_workers_run_a_late_claim_is_refused_and_nothing_ends() -> None:
    with open_gate(2) as (gate, mailbox, channels), calling(Caller(gate.port, claim_of(1, 2)).joined()) as (first,):
        assert mailbox.next() == Opened(1)
        channels[1].send(wire.encode(START))
        assert first.mailbox.next() == Received(1, START)
        for claim in (claim_of(1, 2), claim_of(1, 2, mesh="dp=8")):
            with calling(Caller(gate.port, claim)) as (late,):
                assert isinstance(late.mailbox.next(), Unreachable)
                assert isinstance(mailbox.next(), Remark)
        channels[1].send(wire.encode(wire.Beat()))
        assert first.mailbox.next() == Received(1, wire.Beat())


@pytest.mark.parametrize("rank", [0, 4, -1, 10**30])
def test_a_rank_that_does_not_exist_is_refused(rank: int) -> None:
    with open_gate(4) as (gate, mailbox, _), calling(Caller(gate.port, claim_of(rank))) as (caller,):
        event = caller.mailbox.next()
        assert isinstance(event, Unreachable) and f"node rank {rank}" in event.cause.message
        assert isinstance(mailbox.next(), Unreachable)


def test_missing_nodes_are_named_soon_and_end_the_run_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manual, "REMIND_FIRST_S", 0.3)
    with open_gate(4, start_timeout_s=1.5) as (gate, mailbox, _), calling(Caller(gate.port, claim_of(2)).joined()):
        assert mailbox.next() == Opened(2)
        remark = mailbox.next()
        assert isinstance(remark, Remark)
        assert f"waiting for node ranks 1, 3 of 4 at 127.0.0.1:{gate.port}" in remark.text
        missing = [mailbox.next(), mailbox.next()]
        assert [event.node for event in missing] == [1, 3]
        for event in missing:
            assert isinstance(event, Unreachable) and event.cause.kind is CauseKind.MISSING
            assert f"node rank {event.node} did not join" in event.cause.message
            assert "within 1.5 s" in event.cause.message
        with calling(Caller(gate.port, claim_of(3))) as (late,):
            event = late.mailbox.next()
            assert isinstance(event, Unreachable) and "node ranks 1, 3 did not join" in event.cause.message


def test_a_node_that_left_before_the_start_may_come_again() -> None:
    with open_gate(3) as (gate, mailbox, _):
        with calling(Caller(gate.port, claim_of(1, 3)).joined()):
            assert mailbox.next() == Opened(1)
        assert isinstance(mailbox.next(), Closed)
        gate.opener(1)(1, mailbox.events.put)
        with calling(Caller(gate.port, claim_of(1, 3)).joined()):
            assert mailbox.next() == Opened(1)


def test_a_closed_gate_does_not_listen() -> None:
    with open_gate(2) as (gate, _, _):
        port = gate.port
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port)).close()
    assert not any(thread.name == "meshrun-gate" for thread in threading.enumerate())
    with open_gate(2, port=port):
        assert free_port() != port
