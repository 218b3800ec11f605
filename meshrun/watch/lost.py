"""Owns: what it means that a line closed, fell silent, or brought word of trouble: first in each phase differs.
Must not: do I/O or read a clock.
Called by: watch.state."""

from __future__ import annotations

from meshrun import wire
from meshrun.errors import Cause, CauseKind
from meshrun.watch import greeting
from meshrun.watch.ending import add_cause, halt_run, lose_node
from meshrun.watch.model import Step
from meshrun.watch.nodes import Node
from meshrun.watch.phases import Link, Phase, Timer
from meshrun.watch.values import Note

_OVER = (Phase.LEAVING, Phase.ENDED)


def on_closed(step: Step, node: int, reason: str, noise: str) -> None:
    """The line to `node` ended. Before its greeting the agent may be tried again; after it the node is lost."""
    view = step.state.nodes[node]
    if step.state.phase is Phase.CONNECTING and view.link is not Link.GREETED:
        greeting.on_death(step, node, reason, noise)
        return
    cause = Cause(CauseKind.LOST, f"the connection to it ended: {reason}" if reason else "the connection to it ended")
    _lose(step, node, cause, noise)


def _lose(step: Step, node: int, cause: Cause, noise: str = "") -> None:
    if step.state.phase is Phase.CONNECTING:
        greeting.fail_node(step, node, cause, noise)
    else:
        lose_node(step, node, cause, noise)


def on_silence(step: Step) -> None:
    """Find the nodes from which nothing came for the limit, and set the timer for the next look."""
    limit = step.state.job.silence_s
    for node, view in enumerate(step.state.nodes):
        silent = view.link is Link.GREETED and _heard(view) + limit <= step.now
        if silent and step.state.phase not in _OVER:
            hint = "is the node up, and the network between here and there?"
            _lose(step, node, Cause(CauseKind.LOST, f"nothing was heard from it for {limit:g} s", hint))
    heard = [_heard(view) for view in step.state.nodes if view.link is Link.GREETED]
    if heard and step.state.phase not in _OVER:
        step.set_timer(Timer.SILENCE, min(heard) + limit)


def _heard(view: Node) -> float:
    return max(view.heard, view.flow)


def on_trouble(step: Step, node: int, message: wire.Trouble) -> None:
    """The agent could not do something: a remark for the user, or a reason to end the run with 125."""
    host = step.host(node)
    step.record("trouble", node=node, cause=message.kind, message=message.message, fatal=message.fatal)
    if not message.fatal:
        hint = f" ({message.hint})" if message.hint else ""
        step.do(Note("warning", f"{host}: {message.message}{hint}"))
        return
    cause = Cause(_read_kind(message.kind), message.message, message.hint)
    if step.state.phase is Phase.CONNECTING:
        greeting.fail_node(step, node, cause)
    elif step.state.phase not in _OVER:
        add_cause(step, node, cause)
        halt_run(step, f"{host}: {message.message}")


def _read_kind(name: str) -> CauseKind:
    known = {kind.value: kind for kind in CauseKind}
    return known.get(name, CauseKind.AGENT)
