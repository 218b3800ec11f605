"""Owns: a run in which nothing moves: the start deadline, `--hang-timeout`, and the stacks that say where ranks are.
Must not: do I/O or read a clock; say what the stacks mean (report does).
Called by: watch.running, watch.state (messages and timers)."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from meshrun import wire
from meshrun.dataclass import replace
from meshrun.errors import EXIT_CLUSTER, EXIT_TIME_LIMIT
from meshrun.watch.collectives import Disagreement, describe_disagreement, find_disagreements
from meshrun.watch.ending import halt_run
from meshrun.watch.model import Halt, Purpose, Step, name_some, name_worker
from meshrun.watch.nodes import Node, Sign
from meshrun.watch.phases import Link, Phase, Timer
from meshrun.watch.values import Answer, Note, Outcome, Send

DUMP_S = 2.0
STACK_LIMIT = 64 * 1024  # of one rank
Stacks = tuple[tuple[int, str], ...]
Calls = tuple[int, dict[str, Any]]
NO_ANSWER = "(its node did not answer in time)"
_WITH_WORKERS = (Phase.STARTING, Phase.RUNNING, Phase.STOPPING)


# ---- who wants stacks ------------------------------------------------------------------------------------------------


def on_start_timer(step: Step) -> None:
    """The start deadline: where are those who are not in their script?"""
    _gather(step, Purpose.START, _find_late(step))


def note_progress(step: Step) -> None:
    """Something moved: from here on it counts anew."""
    limit = step.state.job.hang_timeout_s
    if limit is not None and step.state.phase is Phase.RUNNING:
        step.set_timer(Timer.HANG, step.now + limit)


def on_progress(step: Step, node: int, message: wire.Progress) -> None:
    """Some ranks of a node have moved."""
    if message.attempt == step.state.attempt and set(message.ranks) & set(step.state.nodes[node].ranks):
        note_progress(step)


def on_hang_timer(step: Step) -> None:
    """No rank has moved for too long: where are they all?"""
    alive = _find_alive(step)
    if alive:  # else only output is under way
        step.do(Note("warning", f"{_hang_reason(step)}: looking where each is"))
        _gather(step, Purpose.HANG, alive)


def on_asked(step: Step) -> None:
    """`meshrun stacks`."""
    if step.state.phase in _WITH_WORKERS and (alive := _find_alive(step)):
        _gather(step, Purpose.ASK, alive)
    else:
        step.do(Answer(step.state.plan, (), f"no worker is running (the run is {step.state.phase.value})"))


def _find_late(step: Step) -> set[int]:
    return {rank for view in step.state.nodes for rank in view.unready}


def _find_alive(step: Step) -> set[int]:
    return {rank for view in step.state.nodes for rank in view.alive}


def _hang_reason(step: Step) -> str:
    return f"no rank has made progress for {step.state.job.hang_timeout_s:g} s (--hang-timeout)"


# ---- gathering them --------------------------------------------------------------------------------------------------


def _gather(step: Step, purpose: Purpose, ranks: Collection[int]) -> None:
    for node, view in enumerate(step.state.nodes):
        mine = view.alive.intersection(ranks) - view.asked - {rank for rank, _ in view.stacks}
        if mine and view.link is Link.GREETED:
            step.do(Send(node, wire.Dump(tuple(sorted(mine)))))
            step.set_node(node, asked=view.asked | mine)
    step.set(purposes=step.state.purposes | {purpose})
    step.set_timer(Timer.DUMP, step.now + DUMP_S)


def on_stacks(step: Step, node: int, message: wire.Stacks) -> None:
    """One rank's Python stacks."""
    view = step.state.nodes[node]
    if message.rank not in view.asked:
        return
    stacks = (*view.stacks, (message.rank, message.text[-STACK_LIMIT:]))
    calls = (*view.calls, (message.rank, message.calls)) if message.calls else view.calls
    step.set_node(node, asked=view.asked - {message.rank}, stacks=stacks, calls=calls)
    if not step.state.nodes.count(Sign.ASKED):
        on_dump_timer(step)


def on_dump_timer(step: Step) -> None:
    """The stacks are here, or do not come: whoever wanted them goes on, unless that has been overtaken."""
    purposes, nodes = step.state.purposes, step.state.nodes
    step.drop_timer(Timer.DUMP)
    step.set(purposes=frozenset(), nodes=nodes.map(_forget_stacks) if purposes else nodes)
    came = [item for view in nodes for item in view.stacks]
    stacks = (*came, *((rank, NO_ANSWER) for view in nodes for rank in sorted(view.asked)))
    calls = [item for view in nodes for item in view.calls]
    found = find_disagreements(calls, step.state.plan)
    if Purpose.ASK in purposes:
        step.do(Answer(step.state.plan, stacks, "" if stacks else "no rank can be asked", found))
    if Purpose.START in purposes and step.state.phase is Phase.STARTING:
        _keep(step, stacks, calls, found)
        _end(step, Outcome.LOST, EXIT_CLUSTER, _start_reason(step))
    elif Purpose.HANG in purposes and step.state.phase is Phase.RUNNING:
        _keep(step, stacks, calls, found)
        _end(step, Outcome.STOPPED, EXIT_TIME_LIMIT, _hang_reason(step))


def _forget_stacks(node: Node) -> Node:
    return replace(node, asked=frozenset(), stacks=(), calls=()) if node.asked or node.stacks else node


def _keep(step: Step, stacks: Stacks, calls: Iterable[Calls], found: tuple[Disagreement, ...]) -> None:
    step.set(stacks=stacks, disagreements=found)
    for rank, told in calls:
        step.record("collectives", rank=rank, groups=told.get("groups"))
    for one in found:
        step.record("disagreement", about=describe_disagreement(one))


def _end(step: Step, outcome: Outcome, exit_code: int, reason: str) -> None:
    halt_run(step, reason, Halt(outcome, exit_code, reason))


def _start_reason(step: Step) -> str:
    job, plan = step.state.job, step.state.plan
    names = name_some([name_worker(plan, rank) if plan else f"rank {rank}" for rank in sorted(_find_late(step))])
    goal = "build the mesh and reach the script" if job.init == "eager" else "reach the script"
    return f"{names} did not {goal} within {job.start_timeout_s:g} s (--start-timeout)"
