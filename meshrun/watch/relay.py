"""Owns: the machine of a by-hand node: the agent here (`OWN`) and the line to node 0 (`UPSTREAM`), state → actions.
Must not: do I/O, read a clock, or let a command in from node 0: the Brief is this node's own.
Called by: watch.loop, in place of watch.state, where `--node-rank` is above 0."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

from meshrun import wire
from meshrun.dataclass import replace
from meshrun.errors import Cause, CauseKind
from meshrun.launch.channel import Closed, Opened, Received, Remark, Unreachable
from meshrun.plan.orders import host_of, make_brief
from meshrun.plan.placement import known_slots
from meshrun.spec.values import Job
from meshrun.watch.relay_ending import SIGPIPE, await_verdict, lose_own, lose_upstream, lost, on_signalled, watch_time
from meshrun.watch.relay_model import BEAT_S, OWN, UPSTREAM, Link, RelayState, RelayStep
from meshrun.watch.relay_orders import on_order
from meshrun.watch.values import (
    Action,
    Answer,
    Asked,
    Began,
    Consumed,
    Emit,
    Event,
    NodeCause,
    Note,
    ReaderGone,
    Signalled,
    Tick,
)


def begin_relay(job: Job) -> RelayState:
    """The state before the first event. `job.by_hand` must be set, with a node rank above 0."""
    return RelayState(job)


def advance(state: RelayState, event: Event, now: float) -> tuple[RelayState, tuple[Action, ...]]:
    """The state and the actions that follow from one event at `now` (seconds, any monotonic clock)."""
    step = RelayStep(state, now)
    if not state.over:
        handler = _EVENTS.get(type(event))
        if handler is not None:
            handler(step, event)
        watch_time(step)
    return step.state, tuple(step.actions)


def next_deadline(state: RelayState) -> float | None:
    """When a `Tick` is due at the latest; None: only an event can change anything."""
    silence = state.job.silence_s
    lines = [end for end in state.ends if end.link is Link.OPEN]
    due = min([state.until, *(min(end.sent + BEAT_S, end.heard + silence) for end in lines)])
    return None if state.over or due == inf else due


# ---- lines -----------------------------------------------------------------------------------------------------------


def _on_began(step: RelayStep, event: Began) -> None:
    # The agent starts when node 0 has let us in: before that there is no run that it could belong to.
    step.open(UPSTREAM)


def _on_opened(step: RelayStep, event: Opened) -> None:
    step.set_end(event.node, link=Link.OPEN, heard=step.now, sent=step.now)
    if event.node == OWN:
        step.send(OWN, _make_own_brief(step.state))


def _make_own_brief(state: RelayState) -> wire.Brief:
    job, rank = state.job, state.hand.node_rank
    brief = make_brief(job, rank, known_slots(host_of(job, rank), job.nproc_per_node) or 0)
    return replace(brief, run_id=state.run_id)


def _on_unreachable(step: RelayStep, event: Unreachable) -> None:
    step.set_end(event.node, link=Link.GONE)
    if event.node == OWN:
        lose_own(step, event.cause)
    else:
        lose_upstream(step, event.cause)


def _on_closed(step: RelayStep, event: Closed) -> None:
    step.set_end(event.node, link=Link.GONE)
    if event.node == OWN:
        noise = f"; it said: {event.noise[-500:]}" if event.noise else ""
        lose_own(step, Cause(CauseKind.LOST, f"the agent's connection ended: {event.reason}{noise}"))
    else:
        lose_upstream(step, lost(step.state, event.reason))


# ---- the user --------------------------------------------------------------------------------------------------------


def _on_reader_gone(step: RelayStep, event: ReaderGone) -> None:
    if not step.state.signals:
        on_signalled(step, Signalled(SIGPIPE))


def _on_asked(step: RelayStep, event: Asked) -> None:
    hand = step.state.hand
    why = f"this is node {hand.node_rank} of a run by hand; node 0 ({hand.master_addr}) can be asked for all stacks"
    step.actions.append(Answer(None, (), why))


def _on_consumed(step: RelayStep, event: Consumed) -> None:
    step.send(OWN, wire.Ack(event.count))


def _on_remark(step: RelayStep, event: Remark) -> None:
    step.actions.append(Note("warning", event.text))


# ---- messages from the agent here ------------------------------------------------------------------------------------


def _on_received(step: RelayStep, event: Received) -> None:
    step.set_end(event.node, heard=step.now)
    if event.node == UPSTREAM:
        on_order(step, event.message)
    elif type(event.message) in _FROM_OWN:
        _FROM_OWN[type(event.message)](step, event.message)


def _forward_up(step: RelayStep, message: Any) -> None:
    step.send(UPSTREAM, message)


def _on_output(step: RelayStep, message: wire.Output) -> None:
    step.actions.append(Emit(step.state.hand.node_rank, message.rank, message.stream, message.data))


def _on_lifecycle(step: RelayStep, message: wire.Spawned | wire.Ready | wire.Raised | wire.Exited) -> None:
    known = {"rank": message.rank, "node": step.state.hand.node_rank, "age_s": message.age_s}
    if type(message) is wire.Exited:
        known |= {"exit_code": message.exit_code, "signal": message.signal, "stopped": message.stopped}
    step.record(type(message).__name__.lower(), **known)
    step.send(UPSTREAM, message)


def _on_trouble(step: RelayStep, message: wire.Trouble) -> None:
    step.send(UPSTREAM, message)
    if not message.fatal:
        step.actions.append(Note("warning", message.message))
    elif step.state.result is None and step.state.trouble is None:
        kind = next((kind for kind in CauseKind if kind.value == message.kind), CauseKind.AGENT)
        cause = Cause(kind, message.message, message.hint)
        step.set(trouble=NodeCause(step.state.hand.node_rank, step.state.host, cause))
        await_verdict(step)


def _on_bye(step: RelayStep, message: wire.Bye) -> None:
    step.set(left=message.left)
    step.close(OWN)
    lose_own(step, Cause(CauseKind.LOST, "its agent left on its own"))


def _ignore(step: RelayStep, what: Any) -> None:
    """Alive is all that it says; the time it came is noted already."""


_EVENTS: dict[type[Any], Callable[[RelayStep, Any], None]] = {
    Began: _on_began,
    Opened: _on_opened,
    Unreachable: _on_unreachable,
    Closed: _on_closed,
    Received: _on_received,
    Remark: _on_remark,
    Signalled: on_signalled,
    ReaderGone: _on_reader_gone,
    Asked: _on_asked,
    Consumed: _on_consumed,
    Tick: _ignore,
}
_FROM_OWN: dict[type[Any], Callable[[RelayStep, Any], None]] = {
    wire.Output: _on_output,
    wire.Spawned: _on_lifecycle,
    wire.Ready: _on_lifecycle,
    wire.Raised: _on_lifecycle,
    wire.Exited: _on_lifecycle,
    wire.Trouble: _on_trouble,
    wire.Bye: _on_bye,
    wire.Beat: _ignore,
    **dict.fromkeys((wire.Facts, wire.Reached, wire.Drained, wire.Stacks, wire.Progress), _forward_up),
}
