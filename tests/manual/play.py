"""Owns: what the relay's histories share: one job, its plan, and a relay that lives through events.
Must not: open anything.
Called by: the tests beside it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from meshrun import wire
from meshrun.launch.channel import Opened, Received
from meshrun.launch.handshake import Welcome, Whole
from meshrun.plan.orders import make_assign
from meshrun.plan.packed import pack_plan
from meshrun.plan.placement import make_plan
from meshrun.spec.values import ByHand, Host, Job, MeshSpec
from meshrun.watch.relay import advance, begin_relay, next_deadline
from meshrun.watch.relay_model import OWN, UPSTREAM
from meshrun.watch.values import (
    Began,
    Failure,
    Finish,
    Outcome,
    RunResult,
)

JOB = Job(
    run_id="mine",
    form="script",
    argv=("/w/train.py", "--lr", "1"),
    hosts=(Host("gpu1", slots=2),),
    local=(True,),
    workdir="/w",
    python="python3",
    log_dir="/runs/mine",
    mesh=MeshSpec((("dp", 2), ("tp", None))),
    env=(("SECRET", "hunter2"),),
    by_hand=ByHand(2, 1, "gpu0", 29500),
)
NODE0 = replace(JOB, hosts=(Host("gpu0"), Host("gpu1")), by_hand=ByHand(2, 0, "gpu0", 29500))
PLAN = make_plan(NODE0.hosts, [2, 2], [("0", "1"), ("0", "1")], NODE0.mesh)
FACTS = wire.Facts(
    1, "gpu1", "me", 1, "3.11.1", "/py", "2.13", 4, 1, "cpu", (), "", 2, ("10.0.0.1",), 0, "", "ab", "", "", 0, "/t",
    1, "",
)  # fmt: skip
WHOLE = Whole(pack_plan(PLAN))
ASSIGN = make_assign(NODE0, PLAN, 1, FACTS)
START = wire.Start(0, "10.0.0.1", 4242)
BYE = wire.Bye(())
FAILED = RunResult(
    Outcome.FAILED, 3, 0, Failure(0, 0, 1.0, "exit", 3), followed=(2, 3), causes=(), reason="", stacks=(), left=()
)


class Play:
    """A relay that lives through events; `said` holds the actions of the latest one, without records."""

    def __init__(self, job: Job = JOB) -> None:
        self.state, self.now = begin_relay(job), 100.0
        self.said: list[Any] = []

    def on(self, event: Any, after_s: float = 0.0) -> list[Any]:
        self.now += after_s
        self.state, actions = advance(self.state, event, self.now)
        self.said = [action for action in actions if type(action).__name__ != "Record"]
        return self.said

    def hear(self, *messages: Any, after_s: float = 0.0) -> list[Any]:
        """From node 0."""
        return [action for message in messages for action in self.on(Received(UPSTREAM, message), after_s)]

    def own(self, *messages: Any, after_s: float = 0.0) -> list[Any]:
        """From the agent here."""
        return [action for message in messages for action in self.on(Received(OWN, message), after_s)]

    def joined(self) -> Play:
        self.on(Began())
        self.on(Opened(UPSTREAM))
        self.hear(Welcome("run-1"))
        self.on(Opened(OWN))
        self.own(FACTS)
        return self

    def running(self) -> Play:
        self.joined().hear(WHOLE, ASSIGN, START)
        return self

    @property
    def result(self) -> RunResult:
        finish = self.said[-1]
        assert isinstance(finish, Finish), self.said
        assert next_deadline(self.state) is None
        return finish.result

    def leave(self) -> RunResult:
        """The agent here says its last word."""
        self.own(BYE)
        return self.result
