"""Owns: by hand among many nodes: what is made once for all of them, how much crosses, and that all may come at once.
Must not: measure time.
Called by: pytest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from bench import hand
from bench.core import Agents
from meshrun import wire
from meshrun.launch import manual
from meshrun.launch.channel import Channel, Deliver, Opened, Received
from meshrun.launch.crossing import DOWNWARD, Sieve
from meshrun.launch.fleet import Fleet
from meshrun.launch.handshake import Whole
from meshrun.plan.describe import describe_plan
from meshrun.plan.packed import unpack_plan
from meshrun.spec.values import Host
from meshrun.watch.relay_orders import check_assign
from meshrun.watch.state import advance, begin
from meshrun.watch.values import Began, Event, Send
from meshrun.wire import codec

NODES = 1024


class Crossed:
    """The far ends of all lines of node 0, without sockets: what the gate would have written to each."""

    def __init__(self) -> None:
        self.sieve = Sieve(DOWNWARD)
        self.frames: dict[int, list[bytes]] = {}

    def __call__(self, node: int, deliver: Deliver) -> Channel:
        return _Line(self, node)


class _Line:
    def __init__(self, crossed: Crossed, node: int) -> None:
        self.crossed, self.kept = crossed, crossed.frames.setdefault(node, [])

    def send(self, data: bytes) -> None:
        self.kept.append(self.crossed.sieve.sift(data)[0])

    def close(self) -> None:
        """Nothing to end."""


def _count(patch: pytest.MonkeyPatch, counts: Counter[tuple[str, str]]) -> None:
    """From now on, what is encoded and decoded, by the type of message."""

    def encode(message: Any, real: Callable[[Any], bytes] = wire.encode) -> bytes:
        counts["encoded", type(message).__name__] += 1
        return real(message)

    def decode(kind: int, body: bytes, real: Callable[[int, bytes], Any] = codec.decode) -> Any:
        message = real(kind, body)
        counts["decoded", type(message).__name__] += 1
        return message

    patch.setattr(wire, "encode", encode)
    patch.setattr(codec, "decode", decode)


def _greet_all(crossed: Crossed) -> Any:
    """Node 0's machine until it has told all nodes their part; its state."""
    job, agents = hand.make_hand_job(0, NODES), Agents("good", NODES)
    fleet = Fleet([crossed] * NODES, lambda event: None)
    for node in range(NODES):
        fleet.open(node)
    events: list[Event] = [Began(), *map(Opened, range(NODES))]
    events += [Received(node, message) for node in range(NODES) for message in agents.greet(node)]
    state = begin(job)
    for event in events:
        state, actions = advance(state, event, 0.0)
        for action in actions:
            if isinstance(action, Send):
                fleet.send(action.node, action.message)
    return state


def test_the_plan_is_made_encoded_and_looked_at_once_for_1024_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: Counter[tuple[str, str]] = Counter()
    crossed = Crossed()
    with monkeypatch.context() as patch:
        _count(patch, counts)
        state = _greet_all(crossed)
    assert counts["encoded", "Whole"] == counts["decoded", "Whole"] == 1
    assert counts["encoded", "Assign"] == counts["decoded", "Assign"] == NODES  # each node's own part: not again
    told = [sum(map(len, crossed.frames[node])) for node in range(1, NODES)]
    assert max(told) < 16_000 and sum(told) < 16 * 2**20  # the plan's JSON, as it is kept, has 1.3 MB
    whole, assign = (next(wire.Decoder().feed(frame)) for frame in [*filter(None, crossed.frames[NODES - 1])][:2])
    assert isinstance(whole, Whole) and isinstance(assign, wire.Assign)
    plan = unpack_plan(whole.plan)
    assert describe_plan(plan) == describe_plan(state.plan)
    there = replace(hand.make_hand_job(NODES - 1, NODES), hosts=(Host("gpu01023", slots=8),))
    assert check_assign(there, assign, plan) == ""


def test_all_nodes_may_come_at_once_and_none_is_turned_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manual, "MAX_PENDING", 2)
    done = hand.measure(64, 64)
    assert (done["exit_code"], done["dialled_again"]) == (0, 0)
    assert done["bytes_a_node"] < 8_000
