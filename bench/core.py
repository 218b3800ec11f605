"""Owns: the launcher's core without processes: in-memory agents answer through the codec; what the core costs by size.
Must not: time the agents' side; start anything but itself, once for each figure (memory is a process's).
Called by: bench.parts; `python -m bench.core CASE NODES` prints one measurement."""

from __future__ import annotations

import json
import resource
import sys
import time
from collections import deque
from collections.abc import Iterable
from typing import Any

from meshrun import wire
from meshrun.launch.channel import Closed, Opened, Received
from meshrun.plan.describe import describe_plan
from meshrun.report.board import begin_progress, progress_after, progress_planned
from meshrun.report.summary import make_summary, render_summary
from meshrun.spec.values import Host, Job
from meshrun.watch.state import advance, begin, next_deadline
from meshrun.watch.values import Asked, Began, Event, Finish, Planned, Record, RunResult, Send

SLOTS = 8  # workers of a node
LINE = b"step 0000 loss 1.2345\n"
CASES = {
    "good": "every rank writes two lines and ends with 0",
    "fail": "one rank fails while all others run",
    "crash": "every rank of every node raises the same exception",
    "stacks": "the stacks of all ranks are asked for, then all end with 0",
    "lost": "every line closes while all ranks run",
}


def make_job(nodes: int) -> Job:
    """A job of so many hosts with 8 workers each, whose script is the same everywhere."""
    hosts = tuple(Host(f"gpu{number:05}", slots=SLOTS) for number in range(nodes))
    return Job(
        run_id="bench",
        form="script",
        argv=("/w/train.py",),
        hosts=hosts,
        local=(False,) * nodes,
        workdir="/w",
        python="/usr/bin/python3",
        log_dir="/w/runs/bench",
    )


class Agents:
    """What the agents of all nodes answer: messages in, encoded messages out. Nothing here is timed."""

    def __init__(self, case: str, nodes: int) -> None:
        self.case, self.nodes = case, nodes
        self._address = "10.0.0.1"

    def greet(self, node: int) -> list[Any]:
        """An agent's first message."""
        return [
            wire.Facts(
                protocol=wire.PROTOCOL, hostname=f"gpu{node:05}", user="u", pid=4711, python="3.11.7",
                executable="/usr/bin/python3", torch="2.13.0", cores=64, memory_bytes=1 << 39, device="cuda",
                devices=tuple(map(str, range(SLOTS))), mask="", slots=SLOTS, offer_port=4000, workdir_error="",
                addresses=(f"10.0.{node // 250}.{node % 250 + 1}",), script_hash="ab" * 32, script_error="",
                script_file="", script_line=0, tmp="/tmp/x", free_bytes=1 << 39, omp_threads="", files=1 << 20,
            )
        ]  # fmt: skip

    def answer(self, node: int, message: Any) -> list[Any]:
        """What node `node` says to one message."""
        if type(message) is wire.TryAddresses:
            return [wire.Reached({message.addresses[0]: "eth0"}, {})]
        if type(message) is wire.OpenStore:
            return [wire.StoreOpened(message.attempt, message.address, 29500)]
        if type(message) is wire.Start:
            return [
                *(wire.Spawned(r, 5000, 0, 0.0) for r in ranks(node)),
                *(wire.Ready(r, 0, 0.0) for r in ranks(node)),
            ]
        if type(message) is wire.Dump:
            return [wire.Stacks(rank, "Thread 0x1\n" * 20) for rank in message.ranks]
        if type(message) is wire.Stop:
            return self.end(node, 143, 15, True)
        return [wire.Bye(())] if type(message) is wire.Leave else []

    def act(self, node: int) -> list[Any]:
        """What a node's workers do once all run."""
        if self.case == "good":
            lines = [wire.Output(rank, wire.STDOUT, LINE) for rank in ranks(node) for _ in range(2)]
            return [*lines, *self.end(node)]
        if self.case == "crash":
            return [*map(raise_one, ranks(node)), *self.end(node, 1)]
        if self.case == "fail" and node == self.nodes // 2:
            return [raise_one(ranks(node)[-1])]
        return []

    def end(self, node: int, code: int = 0, signal: int = 0, stopped: bool = False) -> list[Any]:
        """All workers of a node end in one way."""
        ends = [wire.Exited(rank, 0, 0.0, code, signal, "", stopped) for rank in ranks(node)]
        return [*ends, wire.Drained(0)]


def ranks(node: int) -> range:
    """The ranks of one node."""
    return range(node * SLOTS, (node + 1) * SLOTS)


def raise_one(rank: int) -> wire.Raised:
    """A worker's exception record."""
    return wire.Raised(
        rank, 0, 0.0, "script", "ModuleNotFoundError", "No module named 'nowhere'", "/w/train.py", 3, (), "", 1
    )


class Core:
    """Launcher and agents in one thread; the seconds of the launcher's side alone are counted."""

    def __init__(self, case: str, nodes: int) -> None:
        self.case, self.nodes = case, nodes
        self.agents = Agents(case, nodes)
        self.job = make_job(nodes)
        self.state = begin(self.job)
        self.progress = begin_progress(self.job, 0.0)
        self.events, self.core_s, self.board_s, self.now = 0, 0.0, 0.0, 0.0
        self.result: RunResult | None = None
        self._decoders = [wire.Decoder() for _ in range(nodes)]
        self._todo: deque[tuple[int, Any, bytes]] = deque()  # an event of the launcher's own, or a node's bytes
        self._last: tuple[Any, bytes] = (None, b"")

    def feed(self, *events: Event) -> None:
        """Events, and all that follows from them."""
        self._todo.extend((0, event, b"") for event in events)
        self._drain()

    def hear(self, messages: Iterable[tuple[int, Any]]) -> None:
        """Messages of nodes, in this order, and all that follows from them."""
        self._say(messages)
        self._drain()

    def _say(self, messages: Iterable[tuple[int, Any]]) -> None:
        self._todo.extend((node, None, wire.encode(message)) for node, message in messages)

    def _drain(self) -> None:
        while self._todo:
            node, event, data = self._todo.popleft()
            began = time.process_time()
            events = [event] if event else [Received(node, message) for message in self._decoders[node].feed(data)]
            heard, records = [], []
            for one in events:
                self.events += 1
                self.state, actions = advance(self.state, one, self.now)
                next_deadline(self.state)  # the loop asks after every batch
                heard += [(action.node, self._encode(action.message)) for action in actions if type(action) is Send]
                records += [action for action in actions if type(action) in (Record, Planned, Finish)]
            self.core_s += time.process_time() - began
            self._show(records)
            self._pass_on(heard)

    def _encode(self, message: Any) -> bytes:
        if self._last[0] is not message:
            self._last = (message, wire.encode(message))
        return self._last[1]

    def _show(self, records: Iterable[Any]) -> None:
        began = time.process_time()
        for record in records:
            if type(record) is Record:
                self.progress = progress_after(self.progress, record, self.now)
            elif type(record) is Planned:
                self.progress = progress_planned(self.progress, record.plan)
            else:
                self.result = record.result
        self.board_s += time.process_time() - began

    def _pass_on(self, heard: Iterable[tuple[int, bytes]]) -> None:
        seen: dict[int, Any] = {}
        for node, data in heard:
            if id(data) not in seen:
                (seen[id(data)],) = wire.Decoder().feed(data)
            self._say((node, answer) for answer in self.agents.answer(node, seen[id(data)]))


def measure(case: str, nodes: int) -> dict[str, Any]:
    """One run of one size: seconds of the core to start, to play the case and to end, and what it needed."""
    base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    core = Core(case, nodes)
    core.feed(Began(), *map(Opened, range(nodes)))
    core.hear((node, message) for node in range(nodes) for message in core.agents.greet(node))
    assert core.state.phase.value == "running", core.state.phase
    start_s, events = core.core_s, core.events
    _play(core)
    assert core.result is not None, core.state.phase
    return {
        "case": case,
        "nodes": nodes,
        "exit_code": core.result.exit_code,
        "events": core.events,
        "start_s": start_s,
        "end_s": core.core_s - start_s,
        "start_us": start_s / events * 1e6,
        "end_us": (core.core_s - start_s) / (core.events - events) * 1e6,
        "events_per_s": core.events / core.core_s,
        "board_s": core.board_s,
        "mib": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - base) / 1024,
        **_report(core, core.result),
    }


def _play(core: Core) -> None:
    everybody = range(core.nodes)
    core.now = 100.0
    if core.case == "stacks":
        core.feed(Asked())
        core.hear((node, message) for node in everybody for message in core.agents.end(node))
    elif core.case == "lost":
        core.feed(*(Closed(node, "reset") for node in everybody))
    else:
        core.hear((node, message) for node in everybody for message in core.agents.act(node))


def _report(core: Core, result: RunResult) -> dict[str, float]:
    """What the report makes of a run of this size."""
    plan, began = core.state.plan, time.process_time()
    assert plan
    json.dumps(describe_plan(plan))
    described = time.process_time()
    json.dumps(make_summary(result, plan, "bench"))
    render_summary(result, plan, "bench", "/w", {})
    return {"plan_json_s": described - began, "summary_s": time.process_time() - described}


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], int(sys.argv[2]))))
