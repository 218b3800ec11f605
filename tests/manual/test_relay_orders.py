"""Owns: histories of a by-hand node that is asked for what does not fit its own command line.
Must not: open anything.
Called by: pytest."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from meshrun import wire
from meshrun.errors import CauseKind
from meshrun.launch.channel import Opened, Received
from meshrun.launch.handshake import Refusal, Welcome, Whole
from meshrun.plan.orders import make_assign
from meshrun.plan.packed import pack_plan
from meshrun.plan.placement import make_plan
from meshrun.spec.values import Host, MeshSpec
from meshrun.watch.relay_model import OWN, UPSTREAM
from meshrun.watch.values import (
    Began,
    Send,
    Signalled,
    Tick,
)
from meshrun.watch.verdict import describe_result
from tests.manual.play import ASSIGN, FACTS, FAILED, JOB, NODE0, PLAN, START, WHOLE, Play

# ---- what node 0 may not ask for -------------------------------------------------------------------------------------


def _whole_with(**changes: Any) -> Whole:
    return Whole({**WHOLE.plan, **changes})


OTHER_MESH = make_plan(NODE0.hosts, [2, 2], [("0", "1"), ("0", "1")], MeshSpec((("dp", 4), ("tp", 1))))


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (replace(ASSIGN, node_rank=0), "node rank 0 of 2"),
        (replace(ASSIGN, progress_s=float("nan")), "progress every nan s"),
        (replace(ASSIGN, progress_s=-1.0), "progress every -1 s"),
        (replace(ASSIGN, nnodes=3), "node rank 1 of 3"),
        (replace(ASSIGN, world_size=5), "5 ranks are announced"),
        (replace(ASSIGN, workers=ASSIGN.workers[:1]), "list of this node's workers"),
        (replace(ASSIGN, fingerprint="f"), "mesh and fingerprint"),
        (replace(ASSIGN, mesh={"dims": {"dp": 4}}), "mesh and fingerprint"),
        (Whole({}), "cannot be read"),
        (_whole_with(hosts=7), "cannot be read"),
        (_whole_with(fingerprint="f"), "and f on node 0"),
        (wire.TryAddresses(("x",) * 65, 1, 1.0), "65 addresses"),
        (wire.TryAddresses(("x",), 70000, 1.0), "port 70000"),
        (START, "without a plan"),
        (wire.Restart(2, 3, 0.0, describe_result(FAILED, PLAN)), "announces attempt 2 after attempt 0"),
        (wire.Restart(1, 3, 0.0, {}), "cannot be read"),
        (wire.SignalWorkers(0), "signal 0"),
        (wire.SignalWorkers(65), "signal 65"),
        (wire.Interrupted(2), "sent a Interrupted"),
        (wire.OpenStore("x", 1, 0, True), "sent a OpenStore"),
    ],
)
def test_an_order_that_does_not_fit_our_command_ends_this_node(message: Any, words: str) -> None:
    play = Play().joined()
    play.hear(WHOLE)
    (told, leave) = play.hear(message)
    assert told.node == UPSTREAM and told.message.kind == "mismatch" and words in told.message.message
    assert leave == Send(OWN, wire.Leave(125, {}, ""))
    assert words in play.leave().causes[0].cause.message


def test_a_plan_of_another_mesh_ends_this_node() -> None:
    play = Play().joined()
    assert play.hear(Whole(pack_plan(OTHER_MESH))) == []
    (told, _) = play.hear(make_assign(NODE0, OTHER_MESH, 1, FACTS))
    assert "its mesh is dp=4,tp=1, --mesh here is dp=2,tp=auto" in told.message.message


def test_a_part_without_the_whole_ends_this_node() -> None:
    assert "it came without one" in Play().joined().hear(ASSIGN)[0].message.message


def test_fewer_workers_than_were_asked_for_here_are_refused() -> None:
    play = Play(replace(JOB, hosts=(Host("gpu1"),), nproc_per_node=3)).joined()
    assert "--nproc-per-node says 3" in play.hear(WHOLE, ASSIGN)[0].message.message


def test_a_brief_from_node_0_never_reaches_the_agent() -> None:
    play = Play()
    play.on(Began())
    play.on(Opened(UPSTREAM))
    play.hear(Welcome("run-1"))
    brief = play.on(Opened(OWN))[0].message
    actions = play.hear(replace(brief, argv=("/bin/sh", "-c", "evil")))
    assert not any(isinstance(a, Send) and a.node == OWN and isinstance(a.message, wire.Brief) for a in actions)
    assert play.leave().exit_code == 125


def test_a_refusal_after_the_welcome_ends_this_node_with_its_words() -> None:
    play = Play().joined()
    play.hear(Refusal("mismatch", "node rank 1 was claimed twice: by a and by b", "h"))
    cause = play.leave().causes[0].cause
    assert (cause.kind, cause.message) == (CauseKind.MISMATCH, "node rank 1 was claimed twice: by a and by b")


def test_nothing_happens_after_the_end() -> None:
    play = Play()
    play.on(Began())
    play.on(Signalled(2))
    for event in (Began(), Tick(), Signalled(2), Received(UPSTREAM, Welcome("r")), Opened(OWN)):
        assert play.on(event, after_s=100) == []


def test_an_attempt_that_was_not_announced_is_not_started() -> None:
    play = Play().running()
    (told, _) = play.hear(replace(START, attempt=1))
    assert "start attempt 1, due is 0" in told.message.message


def test_a_signal_for_the_workers_is_passed_on() -> None:
    play = Play().running()
    assert play.hear(wire.SignalWorkers(10)) == [Send(OWN, wire.SignalWorkers(10))]
