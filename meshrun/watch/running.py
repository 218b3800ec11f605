"""Owns: the phases in which workers exist: from Start to the first thing that ends the run.
Must not: do I/O or read a clock.
Called by: watch.address (start), watch.state (messages and timers)."""

from __future__ import annotations

from meshrun import wire
from meshrun.dataclass import replace
from meshrun.spec.rehearsal import name_rehearsal
from meshrun.spec.signals import signal_name
from meshrun.watch.blame import describe_failure, find_first, make_exit_failure, make_raised_failure
from meshrun.watch.ending import halt_run
from meshrun.watch.model import State, Step, name_worker
from meshrun.watch.nodes import Sign
from meshrun.watch.phases import Phase, Timer, Turn
from meshrun.watch.recognise import explain
from meshrun.watch.stall import note_progress
from meshrun.watch.values import Failure, Note

CAUSE_WAIT_S = 0.5  # how long a broken connection waits for the failure behind it (DESIGN §7)


def start_workers(step: Step, port: int) -> None:
    """`Start` to every node at once; the start deadline begins."""
    step.turn(Turn.STORED)
    attempt = step.state.attempt
    step.record("start", attempt=attempt, address=step.state.address, port=port)
    step.set(started=True)
    step.send_all(wire.Start(attempt, step.state.address, port))
    step.set_timer(Timer.START, step.now + step.state.job.start_timeout_s)


# ---- messages --------------------------------------------------------------------------------------------------------


def on_spawned(step: Step, node: int, message: wire.Spawned) -> None:
    """A worker process exists. A program that is no Python has no script to reach: it counts as ready."""
    step.record("spawned", rank=message.rank, node=node, pid=message.pid)
    if step.state.job.form == "program":
        _mark_ready(step, node, message.rank)


def on_ready(step: Step, node: int, message: wire.Ready) -> None:
    """A worker is in its script."""
    if message.rank in step.state.nodes[node].unready:
        step.record("ready", rank=message.rank, node=node)
        _mark_ready(step, node, message.rank)


def _mark_ready(step: Step, node: int, rank: int) -> None:
    left = step.state.nodes[node].unready - {rank}
    step.set_node(node, unready=left)
    if step.state.phase is Phase.STARTING and not step.state.nodes.count(Sign.UNREADY):
        step.turn(Turn.READY)
        step.set(ready_at=step.now)
        note_progress(step)
        _watch_cause(step)
        if step.state.warned:
            _warn_workers(step)


def _watch_cause(step: Step) -> None:
    # A turn drops the phase's timers; a broken connection that was seen before it still waits for its cause.
    if step.state.first:
        step.set_timer(Timer.CAUSE, step.now + CAUSE_WAIT_S)


def on_raised(step: Step, node: int, message: wire.Raised) -> None:
    """A worker's exception: its failure from now on, however the process ends after this (DESIGN §7)."""
    if message.rank in step.state.nodes[node].failed:
        return
    kind = {"type": message.type, "message": message.message[:500], "file": message.file, "line": message.line}
    step.record("raised", rank=message.rank, node=node, age_s=message.age_s, exit_code=message.exit_code, **kind)
    _fail(step, node, make_raised_failure(node, message, step.now))


def on_exited(step: Step, node: int, message: wire.Exited) -> None:
    """A worker is gone."""
    view = step.state.nodes[node]
    rank = message.rank
    if rank not in view.alive:
        return
    ended = {"exit_code": message.exit_code, "signal": message.signal, "stopped": message.stopped, "oom": message.oom}
    step.record("exited", rank=rank, node=node, age_s=message.age_s, **ended)
    stopped = view.stopped | {rank} if message.stopped else view.stopped
    step.set_node(node, alive=view.alive - {rank}, stopped=stopped)
    failure = None if rank in view.failed else make_exit_failure(node, message, step.now)
    if failure is not None:
        _fail(step, node, failure, message.said)
    _mark_ready(step, node, rank)
    note_progress(step)


def _fail(step: Step, node: int, failure: Failure, said: str = "") -> None:
    state = step.state
    failure = explain(failure, said, step.host(node), _name_python(state, node), name_rehearsal(state.job))
    failure = replace(failure, device=_name_device(state, node))
    if failure.when > state.stop_at and failure.exception is not None and state.first:
        # Raised after our Stop went out (a SIGTERM handler that raises): a consequence, never the cause.
        failure = replace(failure, follower=True)
    step.set(first=find_first([failure, state.first] if state.first else [failure]))
    step.set_node(node, failed=state.nodes[node].failed | {failure.rank})
    if state.phase not in (Phase.STARTING, Phase.RUNNING):
        return
    if not failure.follower:
        _stop_for(step, failure)
    elif not step.has_timer(Timer.CAUSE):
        step.set_timer(Timer.CAUSE, step.now + CAUSE_WAIT_S)


def _name_device(state: State, node: int) -> str:
    facts = state.nodes[node].facts
    return facts.device if facts else ""


def _name_python(state: State, node: int) -> str:
    """The interpreter of that node's workers; a program that is no script chooses its own."""
    facts = state.nodes[node].facts
    return facts.executable if facts and state.job.form != "program" else ""


def _stop_for(step: Step, failure: Failure) -> None:
    plan = step.state.plan
    who = name_worker(plan, failure.rank) if plan else f"rank {failure.rank}"
    text = f"{who} {describe_failure(failure)}"
    others = "; stopping the other workers" if sum(len(view.ranks) for view in step.state.nodes) > 1 else ""
    step.do(Note("info", f"{text}{others}"))
    halt_run(step, text)


def on_cause_timer(step: Step) -> None:
    """No cause showed up behind the broken connection: it is the failure that stops the run."""
    if step.state.first:
        _stop_for(step, step.state.first)


# ---- the signal before the time limit --------------------------------------------------------------------------------


def on_signal_timer(step: Step) -> None:
    """Warn the workers; before they are in their script the signal would only kill them, so it waits for that."""
    step.set(warned=True)
    if step.state.phase is Phase.RUNNING:
        _warn_workers(step)


def _warn_workers(step: Step) -> None:
    job = step.state.job
    if job.signal_workers is None or job.time_limit_s is None:
        return
    left_s = step.state.began + job.time_limit_s - step.now
    name = signal_name(job.signal_workers.signal)
    step.do(Note("info", f"{name} to every worker: {left_s:.3g} s are left of the time limit"))
    step.record("signal-workers", signal=job.signal_workers.signal, left_s=left_s)
    step.send_all(wire.SignalWorkers(job.signal_workers.signal))
