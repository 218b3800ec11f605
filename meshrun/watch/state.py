"""Owns: the launcher's state machine: which stage handles which event, and when the next timer is due.
Must not: do I/O or read a clock; decisions are in the stages.
Called by: watch.loop through `Machine`, cli, tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshrun import wire
from meshrun.errors import EXIT_PIPE, EXIT_TIME_LIMIT
from meshrun.launch.channel import Closed, Opened, Received, Remark, Unreachable
from meshrun.spec.values import Job
from meshrun.watch import address, ending, greeting, lost, running, stall
from meshrun.watch.model import BEAT_S, FLOW_STEP_S, Halt, State, Step
from meshrun.watch.nodes import Node, Nodes
from meshrun.watch.phases import Link, Phase, Timer
from meshrun.watch.values import (
    Action,
    Asked,
    Began,
    Consumed,
    Emit,
    Event,
    Note,
    Outcome,
    ReaderGone,
    Send,
    Signalled,
    Tick,
)

Transition = tuple[State, tuple[Action, ...]]


def begin(job: Job) -> State:
    """The state before the first event, which must be `Began`."""
    return State(job=job, nodes=Nodes((Node(),) * len(job.hosts)))


def advance(state: State, event: Event, now: float) -> Transition:
    """The next state and what to do, in order. `now`: seconds on any clock that never goes back."""
    if type(event) is Received and type(event.message) is wire.Output:
        return _pass_output(state, event.node, event.message, now)
    if state.phase is Phase.ENDED:
        return state, ()
    step = Step(state, now)
    _EVENTS[type(event)](step, event)
    return step.state, tuple(step.actions)


def next_deadline(state: State) -> float | None:
    """When a `Tick` is due at the latest; None once the run is over."""
    return min((at for _, at in state.timers), default=None)


def _pass_output(state: State, node: int, message: wire.Output, now: float) -> Transition:
    # The busiest path by far: no Step, and mostly no new state.
    view = state.nodes[node]
    if message.rank not in view.ranks or state.phase is Phase.ENDED:
        return state, ()
    emit = (Emit(node, message.rank, message.stream, message.data),)
    if now - view.flow < FLOW_STEP_S:
        return state, emit
    step = Step(state, now)
    step.set_node(node, flow=now)
    return step.state, emit


# ---- events ----------------------------------------------------------------------------------------------------------


def _on_began(step: Step, event: Began) -> None:
    if not step.state.timers:
        greeting.on_began(step)


def _on_opened(step: Step, event: Opened) -> None:
    greeting.on_opened(step, event.node)


def _on_unreachable(step: Step, event: Unreachable) -> None:
    greeting.on_unreachable(step, event.node, event.cause)


def _on_closed(step: Step, event: Closed) -> None:
    if step.state.nodes[event.node].link is not Link.GONE:
        lost.on_closed(step, event.node, event.reason, event.noise)


def _on_remark(step: Step, event: Remark) -> None:
    step.do(Note("warning", f"{step.host(event.node)}: {event.text}"))


def _on_signalled(step: Step, event: Signalled) -> None:
    ending.on_signal(step, event.signal)


def _on_consumed(step: Step, event: Consumed) -> None:
    if step.state.nodes[event.node].link is Link.GREETED:
        step.do(Send(event.node, wire.Ack(event.count)))


def _on_reader_gone(step: Step, event: ReaderGone) -> None:
    reason = "the reader of stdout closed it"
    ending.halt_run(step, reason, Halt(Outcome.STOPPED, EXIT_PIPE, reason))


def _on_tick(step: Step, event: Tick) -> None:
    while True:
        due = [(at, timer.value, timer) for timer, at in step.state.timers if at <= step.now]
        if not due:
            return
        fired = min(due)[2]
        step.set(timers=tuple(item for item in step.state.timers if item[0] is not fired))
        _TIMERS[fired](step)


def _on_received(step: Step, event: Received) -> None:
    message = event.message
    view = step.state.nodes[event.node]
    if view.link not in (Link.OPENED, Link.GREETED):
        return
    step.set_node(event.node, heard=step.now)
    handle = _MESSAGES.get(type(message))
    if handle is not None and _concerns(step.state, view, message):
        handle(step, event.node, message)


def _concerns(state: State, view: Node, message: Any) -> bool:
    # A message about a worker counts only from the node that has it, in this attempt, while workers are ours to judge.
    if type(message) not in _ABOUT_WORKERS:
        return True
    if message.rank not in view.ranks or getattr(message, "attempt", state.attempt) != state.attempt:
        return False
    return state.phase in (Phase.STARTING, Phase.RUNNING, Phase.STOPPING)


_EVENTS: dict[type[Any], Callable[[Step, Any], None]] = {
    Began: _on_began,
    Opened: _on_opened,
    Unreachable: _on_unreachable,
    Received: _on_received,
    Closed: _on_closed,
    Remark: _on_remark,
    Signalled: _on_signalled,
    Consumed: _on_consumed,
    ReaderGone: _on_reader_gone,
    Asked: lambda step, _event: stall.on_asked(step),
    Tick: _on_tick,
}


# ---- messages and timers ---------------------------------------------------------------------------------------------


def _on_interrupted(step: Step, node: int, message: wire.Interrupted) -> None:
    ending.on_signal(step, message.signal, step.host(node))


def _on_drained(step: Step, node: int, message: wire.Drained) -> None:
    if step.state.phase in (Phase.STARTING, Phase.RUNNING, Phase.STOPPING):
        ending.on_drained(step, node, message)


_MESSAGES: dict[type[Any], Callable[[Step, int, Any], None]] = {
    wire.Facts: greeting.on_facts,
    wire.Reached: address.on_reached,
    wire.StoreOpened: address.on_store_opened,
    wire.Spawned: running.on_spawned,
    wire.Ready: running.on_ready,
    wire.Raised: running.on_raised,
    wire.Exited: running.on_exited,
    wire.Stacks: stall.on_stacks,
    wire.Progress: stall.on_progress,
    wire.Drained: _on_drained,
    wire.Trouble: lost.on_trouble,
    wire.Bye: ending.on_bye,
    wire.Interrupted: _on_interrupted,
}

_ABOUT_WORKERS = frozenset({wire.Spawned, wire.Ready, wire.Raised, wire.Exited, wire.Stacks})


def _on_beat_timer(step: Step) -> None:
    step.send_all(wire.Beat(), Link.OPENED, Link.GREETED)
    step.set_timer(Timer.BEAT, step.now + BEAT_S)


def _on_limit_timer(step: Step) -> None:
    reason = f"time limit of {step.state.job.time_limit_s:g} s"
    ending.halt_run(step, reason, Halt(Outcome.STOPPED, EXIT_TIME_LIMIT, reason))


_TIMERS: dict[Timer, Callable[[Step], None]] = {
    Timer.CONNECT: greeting.report,
    Timer.SLOW: greeting.on_slow_timer,
    Timer.REPORT: greeting.report,
    Timer.ADDRESS: address.on_address_timer,
    Timer.STORE: address.on_store_timer,
    Timer.START: stall.on_start_timer,
    Timer.HANG: stall.on_hang_timer,
    Timer.DUMP: stall.on_dump_timer,
    Timer.CAUSE: running.on_cause_timer,
    Timer.STOP: ending.on_stop_timer,
    Timer.PAUSE: address.on_pause_timer,
    Timer.LEAVE: ending.on_leave_timer,
    Timer.LIMIT: _on_limit_timer,
    Timer.SIGNAL: running.on_signal_timer,
    Timer.KILL: ending.on_kill_timer,
    Timer.BEAT: _on_beat_timer,
    Timer.SILENCE: lost.on_silence,
}
