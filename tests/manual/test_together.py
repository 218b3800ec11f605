"""Owns: whole by-hand runs in one process: the real machines, loops, gate and diallers; only the agents are scripted.
Must not: start workers.
Called by: pytest."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from meshrun import wire
from meshrun.errors import CauseKind
from meshrun.launch.channel import Channel, Deliver, Opened, Opener, Received
from meshrun.launch.dial import dial
from meshrun.launch.handshake import make_claim
from meshrun.launch.manual import Gate
from meshrun.spec.values import ByHand, Host, Job, MeshSpec
from meshrun.watch import relay, state
from meshrun.watch.loop import Machine, watch
from meshrun.watch.values import Again, Close, Consumed, Emit, Open, Outcome, Planned, RunResult, Send, Signalled
from tests.manual.helpers import WAIT_S
from tests.manual.play import FACTS

JOB = Job(
    run_id="r",
    form="script",
    argv=("/w/train.py",),
    hosts=(Host("gpu0", slots=1),),
    local=(True,),
    workdir="/w",
    python="python3",
    log_dir="/runs",
    script_hash="ab",
    mesh=MeshSpec((("dp", None),)),
    connect_timeout_s=WAIT_S,
    start_timeout_s=WAIT_S,
    grace_s=1.0,
)


class ScriptedAgent:
    """What an agent answers, without any process. `fails`: local rank 0 ends with that code; None: it runs on.

    From attempt `heals` on it ends with 0."""

    def __init__(self, fails: int | None = 0, name: str = "gpu", heals: int = 99) -> None:
        self.fails, self.name, self.heals, self.attempt = fails, name, heals, 0
        self.heard: list[Any] = []
        self.decoder = wire.Decoder()
        self.ranks: tuple[int, ...] = ()
        self.alive: set[int] = set()

    def __call__(self, node: int, deliver: Deliver) -> Channel:
        self.say = lambda *messages: [deliver(Received(node, message)) for message in messages]
        deliver(Opened(node))
        return self

    def send(self, data: bytes) -> None:
        for message in self.decoder.feed(data):
            self.heard.append(message)
            answer = getattr(self, f"on_{type(message).__name__.lower()}", None)
            if answer is not None:
                answer(message)

    def close(self) -> None:
        """Nothing to end."""

    def on_brief(self, brief: wire.Brief) -> None:
        self.say(
            replace(
                FACTS, hostname=self.name, slots=brief.slots, script_hash="ab", offer_port=4000 if brief.offers else 0
            )
        )

    def on_assign(self, assign: wire.Assign) -> None:
        self.ranks = tuple(worker.rank for worker in assign.workers)

    def on_tryaddresses(self, tries: wire.TryAddresses) -> None:
        self.say(wire.Reached(dict.fromkeys(tries.addresses, "eth0"), {}))

    def on_openstore(self, order: wire.OpenStore) -> None:
        self.say(wire.StoreOpened(order.attempt, order.address, 4242))

    def on_start(self, start: wire.Start) -> None:
        self.alive, self.attempt = set(self.ranks), start.attempt
        for rank in self.ranks:
            self.say(wire.Spawned(rank, 100 + rank, self.attempt, 0.0), wire.Ready(rank, self.attempt, 0.0))
            self.say(wire.Output(rank, 1, b"hello %d\n" % rank))
        if self.attempt >= self.heals:
            self._end(0, False)
        elif self.fails is not None:
            self._end(self.fails, False)

    def on_beat(self, beat: wire.Beat) -> None:
        self.say(beat)

    def on_stop(self, stop: wire.Stop) -> None:
        self._end(143, True)

    def _end(self, code: int, stopped: bool) -> None:
        for rank in sorted(self.alive):
            self.say(wire.Exited(rank, self.attempt, 0.0, code, 15 if stopped else 0, "", stopped))
        if self.alive:
            self.say(wire.Drained(self.attempt))
        self.alive = set()

    def on_leave(self, leave: wire.Leave) -> None:
        self.say(wire.Bye(()))


class Command:
    """One node's command: its machine and loop in a thread; `result` when it has ended."""

    def __init__(self, machine: Machine[Any], openers: list[Opener]) -> None:
        self.inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.actions: list[Any] = []
        self.emitted = threading.Event()
        self._machine, self._openers = machine, openers
        self._channels: dict[int, Channel] = {}
        self._results: queue.SimpleQueue[RunResult] = queue.SimpleQueue()
        threading.Thread(target=lambda: self._results.put(watch(machine, self.inbox, self._do)), daemon=True).start()

    def _do(self, action: Any) -> None:
        self.actions.append(action)
        if isinstance(action, Open):
            self._channels[action.node] = self._openers[action.node](action.node, self.inbox.put)
        elif isinstance(action, Send):
            self._channels[action.node].send(wire.encode(action.message))
        elif isinstance(action, Close) and action.node in self._channels:
            self._channels[action.node].close()
        elif isinstance(action, Emit):
            self.inbox.put(Consumed(action.node, len(action.data)))
            self.emitted.set()

    @property
    def result(self) -> RunResult:
        return self._results.get(timeout=WAIT_S)

    @property
    def output(self) -> list[bytes]:
        return [action.data for action in self.actions if isinstance(action, Emit)]


def _job(rank: int, nnodes: int, port: int, **changes: Any) -> Job:
    own = Host(f"gpu{rank}", slots=1)
    others = tuple(Host(f"node{other}") for other in range(1, nnodes)) if rank == 0 else ()
    job = replace(JOB, hosts=(own, *others), local=(True, *(False for _ in others)), **changes)
    return replace(job, by_hand=ByHand(nnodes, rank, "127.0.0.1", port, changes.pop("token", b"")))


@contextmanager
def node_0(nnodes: int, agent: ScriptedAgent, **changes: Any) -> Iterator[tuple[Command, int]]:
    job = _job(0, nnodes, 0, **changes)
    gate = Gate("127.0.0.1", 0, make_claim(job, "gpu0"), run_id="r", start_timeout_s=job.start_timeout_s)
    try:
        machine = Machine(state.begin(job), state.advance, state.next_deadline)
        yield Command(machine, [agent, *(gate.opener(node) for node in range(1, nnodes))]), gate.port
    finally:
        gate.close()


def node(rank: int, nnodes: int, port: int, agent: Callable[..., Channel], **changes: Any) -> Command:
    job = _job(rank, nnodes, port, **changes)
    upstream = dial("127.0.0.1", port, make_claim(job, f"gpu{rank}"), b"", job.connect_timeout_s)
    return Command(Machine(relay.begin_relay(job), relay.advance, relay.next_deadline), [agent, upstream])


def test_three_nodes_run_and_each_shows_its_own_ranks() -> None:
    agents = [ScriptedAgent(0, f"gpu{rank}") for rank in range(3)]
    with node_0(3, agents[0]) as (first, port):
        others = [node(rank, 3, port, agents[rank]) for rank in (2, 1)]
        results = [command.result for command in (first, *others)]
    assert [(result.outcome, result.exit_code) for result in results] == [(Outcome.SUCCEEDED, 0)] * 3
    assert first.output == [b"hello 0\n"]
    assert [command.output for command in others] == [[b"hello 2\n"], [b"hello 1\n"]]
    plans = [action.plan for command in (first, *others) for action in command.actions if isinstance(action, Planned)]
    assert {plan.fingerprint for plan in plans} == {plans[0].fingerprint}
    assert [[node.host.name for node in plan.nodes] for plan in plans[-2:]] == [["gpu0", "gpu1", "gpu2"]] * 2


def test_every_node_returns_the_code_and_names_the_culprit() -> None:
    agents = [ScriptedAgent(None), ScriptedAgent(None), ScriptedAgent(7)]
    with node_0(3, agents[0]) as (first, port):
        commands = [first, node(1, 3, port, agents[1]), node(2, 3, port, agents[2])]
        results = [command.result for command in commands]
    for result in results:
        assert (result.outcome, result.exit_code) == (Outcome.FAILED, 7)
        assert result.first is not None and result.first.rank == 2
        assert result.followed == (0, 1)
    for agent in agents[:2]:
        assert any(isinstance(message, wire.Stop) for message in agent.heard)


def test_a_restart_is_one_of_all_nodes_and_each_knows_why() -> None:
    agents = [ScriptedAgent(None, heals=1), ScriptedAgent(7, heals=1), ScriptedAgent(None, heals=1)]
    with node_0(3, agents[0], max_restarts=1) as (first, port):
        commands = [first, *(node(rank, 3, port, agents[rank], max_restarts=1) for rank in (1, 2))]
        results = [command.result for command in commands]
    for command, result in zip(commands, results, strict=True):
        assert (result.outcome, result.exit_code, result.attempt) == (Outcome.SUCCEEDED, 0, 1)
        (again,) = (action for action in command.actions if isinstance(action, Again))
        assert (again.attempt, again.attempts, again.result.first.rank, again.result.exit_code) == (1, 2, 1, 7)
        assert [before.first.rank for before in result.earlier] == [1]
    assert all([m.attempt for m in agent.heard if isinstance(m, wire.Start)] == [0, 1] for agent in agents)


@pytest.mark.parametrize("where", [0, 1])
def test_an_interrupt_on_any_node_ends_all(where: int) -> None:
    with node_0(2, ScriptedAgent(None)) as (first, port):
        commands = [first, node(1, 2, port, ScriptedAgent(None))]
        for command in commands:
            assert command.emitted.wait(WAIT_S)
        commands[where].inbox.put(Signalled(2))
        results = [command.result for command in commands]
    assert [(result.outcome, result.exit_code) for result in results] == [(Outcome.STOPPED, 130)] * 2


@pytest.mark.parametrize(
    ("change", "ours", "theirs"),
    [
        ({"mesh": MeshSpec((("tp", 2),))}, "dp=auto", "tp=2"),
        ({"max_restarts": 3}, "--max-restarts: node 0 has 0", "has 3"),
    ],
)
def test_another_mesh_or_setting_ends_both_sides_with_both_values(
    change: dict[str, Any], ours: str, theirs: str
) -> None:
    with node_0(2, ScriptedAgent()) as (first, port):
        other = node(1, 2, port, ScriptedAgent(), **change)
        results = [first.result, other.result]
    for result in results:
        assert result.exit_code == 125
        cause = result.causes[0].cause
        assert cause.kind is CauseKind.MISMATCH
        assert ours in cause.message and theirs in cause.message


def test_a_rank_that_is_taken_ends_all_sides() -> None:
    with node_0(3, ScriptedAgent()) as (first, port):
        twins = [node(1, 3, port, ScriptedAgent()), node(1, 3, port, ScriptedAgent())]
        results = [command.result for command in (first, *twins)]
    for result in results:
        assert result.exit_code == 125
        assert "node rank 1 was claimed twice" in result.causes[0].cause.message


def test_a_missing_node_is_named_on_every_side() -> None:
    with node_0(3, ScriptedAgent(), start_timeout_s=1.0) as (first, port):
        there = node(1, 3, port, ScriptedAgent(), start_timeout_s=1.0)
        results = [first.result, there.result]
    for result in results:
        assert (result.outcome, result.exit_code) == (Outcome.LOST, 125)
        assert [entry.node for entry in result.causes] == [2]
        assert result.causes[0].cause.kind is CauseKind.MISSING


def test_a_node_whose_agent_dies_ends_all_and_is_named() -> None:
    with node_0(2, ScriptedAgent(None)) as (first, port):
        agent = ScriptedAgent(None)
        other = node(1, 2, port, agent)
        for command in (first, other):
            assert command.emitted.wait(WAIT_S)
        agent.say(wire.Bye(()))
        results = [first.result, other.result]
    for result in results:
        assert result.exit_code == 125
        assert [entry.node for entry in result.causes] == [1]
