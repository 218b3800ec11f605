"""Owns: how a run ends: stopping the workers, letting the agents leave, and what the result is.
Must not: do I/O or read a clock.
Called by: every other stage, and watch.state for the timers and messages of these phases."""

from __future__ import annotations

from math import inf

from meshrun import wire
from meshrun.dataclass import replace
from meshrun.errors import EXIT_CLUSTER, EXIT_OK, Cause, CauseKind
from meshrun.watch import restarts
from meshrun.watch.model import Halt, State, Step
from meshrun.watch.nodes import Sign
from meshrun.watch.phases import Link, Phase, Timer, Turn
from meshrun.watch.recognise import name_early
from meshrun.watch.values import Close, Failure, Finish, NodeCause, Note, Outcome, RunResult, Send
from meshrun.watch.verdict import describe_result

STOP_EXTRA_S = 3.0  # beyond the grace: an agent kills its workers in that time, or it is not obeying
LEAVE_EXTRA_S = 2.0
EARLY_LEAVE_S = 1.0  # for an interrupt before any worker exists
KILL_S = 1.0  # after the second signal
STOPPED_BY = {1: "hung up", 2: "interrupted", 15: "terminated"}

_WORKING = (Phase.STARTING, Phase.RUNNING)
_OVER = (Phase.LEAVING, Phase.ENDED)


# ---- stopping --------------------------------------------------------------------------------------------------------


def halt_run(step: Step, why: str, halt: Halt | None = None) -> None:
    """End the run in order. The first call decides; `halt` is the verdict unless failures and causes give it."""
    if step.state.phase is Phase.STOPPING and restarts.follows(step.state):
        step.set(halt=halt)  # the run would have gone on after this stop: what prevents that is its end
    if step.state.phase is Phase.STOPPING or step.state.phase in _OVER:
        return
    working = step.state.phase in _WORKING
    step.set(halt=halt)
    step.turn(Turn.HALT)
    if working:
        _stop_workers(step, why)
    else:
        leave(step)


def _stop_workers(step: Step, why: str) -> None:
    grace = step.state.job.grace_s
    step.record("stop", why=why, grace_s=grace)
    step.set(stop_at=step.now)
    _send_stop(step, grace, why)
    step.set_timer(Timer.STOP, step.now + stop_limit_s(step.state))
    check_over(step)


def stop_limit_s(state: State) -> float:
    """How long the nodes may take to stop: beyond the silence limit, so that a lost node is told from a slow one."""
    return max(state.job.grace_s + STOP_EXTRA_S, state.job.silence_s + 1.0)


def _send_stop(step: Step, grace_s: float, why: str) -> None:
    for rank, node in enumerate(step.state.nodes):
        if node.link is Link.GREETED and not node.drained:
            step.do(Send(rank, wire.Stop(grace_s, why)))


def check_over(step: Step) -> None:
    """If no worker is left on any node: the next attempt if one follows, else let the agents leave."""
    if not step.state.nodes.all(Sign.DONE) or step.state.phase not in (*_WORKING, Phase.STOPPING):
        return
    if restarts.follows(step.state):
        restarts.go_again(step, judge(step.state))
    else:
        step.turn(Turn.OVER)
        leave(step)


def on_drained(step: Step, node: int, message: wire.Drained) -> None:
    """All processes of this attempt on `node` are gone and their output is here."""
    if message.attempt != step.state.attempt or step.state.nodes[node].drained:
        return
    silent = sorted(step.state.nodes[node].alive)
    step.set_node(node, drained=True)
    step.record("drained", node=node)
    if silent and step.state.phase in _WORKING:
        text = f"the agent did not say how rank {silent[0]} ended"
        add_cause(step, node, Cause(CauseKind.AGENT, text, "see the agent's own words above, if there are any"))
        halt_run(step, text)
    check_over(step)


def on_stop_timer(step: Step) -> None:
    """The grace is long over. Go on without the nodes that still have workers; for mere output there is no limit."""
    stuck = [rank for rank, node in enumerate(step.state.nodes) if node.alive and not node.drained]
    stuck = [rank for rank in stuck if step.state.nodes[rank].link is Link.GREETED]
    if stuck:
        for rank in stuck:
            text = f"{step.host(rank)} did not say within {stop_limit_s(step.state):g} s that it stopped"
            step.do(Note("warning", text))
        step.turn(Turn.OVER)
        leave(step)


# ---- lost nodes and other troubles of ours ---------------------------------------------------------------------------


def add_cause(step: Step, node: int, cause: Cause, noise: str = "") -> None:
    """Put `cause` among the reasons of this run's end."""
    entry = NodeCause(node, step.host(node), cause, noise)
    step.set_node(node, blamed=True)
    step.set(causes=(*step.state.causes, entry), lost_at=min(step.state.lost_at, step.now))


def lose_node(step: Step, node: int, cause: Cause, noise: str = "") -> None:
    """`node`'s agent is gone or cannot be heard any more; from ADDRESSING on."""
    step.set_node(node, link=Link.GONE)
    step.do(Close(node))
    if step.state.phase is Phase.LEAVING:
        _check_gone(step)
        return
    step.record("lost", node=node, host=step.host(node), cause=cause.kind.value, message=cause.message)
    if not step.state.nodes[node].blamed:  # else it said itself what was wrong
        add_cause(step, node, cause, noise)
    halt_run(step, f"{step.host(node)} was lost")
    check_over(step)


# ---- signals ---------------------------------------------------------------------------------------------------------


def on_signal(step: Step, number: int, where: str = "") -> None:
    """The first signal stops in order, the second kills at once; the first sets the exit code (128 + number)."""
    count = step.state.signals + 1
    step.set(signals=count)
    step.record("signal", signal=number, count=count, where=where)
    if count > 1:
        _hurry(step, KILL_S if count == 2 else 0.0)
        return
    reason = STOPPED_BY.get(number, f"signal {number}") + (f" on {where}" if where else "")
    if step.state.phase in _WORKING:
        step.do(Note("info", f"{reason}: stopping the workers (again: kill them at once)"))
    known = (step.state.first or step.state.causes) and not restarts.follows(step.state)
    halt_run(step, reason, None if known else Halt(Outcome.STOPPED, 128 + number, reason))


def _hurry(step: Step, within_s: float) -> None:
    if step.state.phase is Phase.STOPPING:
        _send_stop(step, 0.0, "killed")
    step.set_timer(Timer.KILL, step.now + within_s)


def on_kill_timer(step: Step) -> None:
    """The second signal's time is over: close every line (the agents kill what is left) and end."""
    if step.state.phase is Phase.STOPPING:
        step.turn(Turn.OVER)
        leave(step)
    _close_all(step)


# ---- leaving ---------------------------------------------------------------------------------------------------------


def leave(step: Step) -> None:
    """Settle the result, tell it to every agent, and wait for each to say that nothing is left."""
    result = judge(step.state)
    step.set(result=result)
    summary = describe_result(result, step.state.plan)
    step.send_all(wire.Leave(result.exit_code, summary, ""), Link.OPENED, Link.GREETED)
    for rank, node in enumerate(step.state.nodes):
        if node.link is Link.OPENING:
            _close(step, rank)
    step.set_timer(Timer.LEAVE, step.now + _leave_limit(step.state))
    _check_gone(step)


def _leave_limit(state: State) -> float:
    early = state.signals and state.stop_at == inf
    return EARLY_LEAVE_S if early else state.job.grace_s + LEAVE_EXTRA_S


def _close(step: Step, node: int) -> None:
    step.set_node(node, link=Link.GONE)
    step.do(Close(node))


def on_bye(step: Step, node: int, message: wire.Bye) -> None:
    """The agent has ended all that it started, except what it names."""
    step.record("bye", node=node, left=list(message.left))
    if message.left:
        step.set(left=(*step.state.left, *((node, text) for text in message.left)))
    if step.state.phase is Phase.LEAVING:
        _close(step, node)
        _check_gone(step)
    else:
        lose_node(step, node, Cause(CauseKind.LOST, "its agent left on its own"))


def on_leave_timer(step: Step) -> None:
    """The agents' time to leave is over: close what is open. Without its line an agent kills all and goes."""
    late = [step.host(rank) for rank, node in enumerate(step.state.nodes) if node.link is Link.GREETED]
    for host in late:
        step.do(Note("warning", f"{host} did not confirm that nothing is left there"))
    _close_all(step)


def _close_all(step: Step) -> None:
    for rank, node in enumerate(step.state.nodes):
        if node.link is not Link.GONE:
            _close(step, rank)
    _check_gone(step)


def _check_gone(step: Step) -> None:
    result = step.state.result
    if result is None or step.state.phase is not Phase.LEAVING:
        return
    if step.state.nodes.all(Sign.GONE):
        result = replace(result, left=step.state.left)
        step.turn(Turn.GONE)
        step.set(result=result, timers=())
        step.record("finish", outcome=result.outcome.value, exit_code=result.exit_code, reason=result.reason)
        step.do(Finish(result))


# ---- the result ------------------------------------------------------------------------------------------------------


def judge(state: State) -> RunResult:
    """How this run ended (DESIGN §4 exit codes, §7 which failure came first)."""
    halt = state.halt
    if halt is not None:
        return _result(state, halt.outcome, halt.exit_code, reason=halt.reason)
    first = state.first
    if first is not None and _outranks_causes(first, state):
        first = name_early(first, _ended_well(state))
        return _result(state, Outcome.FAILED, first.exit_code, first, restarts.explain_end(state))
    if state.causes:
        return _result(state, Outcome.LOST, EXIT_CLUSTER)
    return _result(state, Outcome.SUCCEEDED, EXIT_OK)


def _ended_well(state: State) -> tuple[int, ...]:
    """Ranks that ended with 0, not because they were stopped."""
    return tuple(r for node in state.nodes for r in node.ranks if r not in node.alive | node.failed | node.stopped)


def _outranks_causes(first: Failure, state: State) -> bool:
    return not state.causes or (not first.follower and first.when <= state.lost_at)


def _result(
    state: State, outcome: Outcome, exit_code: int, first: Failure | None = None, reason: str = ""
) -> RunResult:
    return RunResult(
        outcome=outcome,
        exit_code=exit_code,
        attempt=state.attempt,
        first=first,
        followed=_followed(state, first) if first else (),
        causes=state.causes,
        reason=reason,
        stacks=state.stacks,
        disagreements=state.disagreements,
        started=state.started,
        lived_s=restarts.count_lived_s(state, first) if first else 0.0,
        earlier=state.past,
    )


def _followed(state: State, first: Failure) -> tuple[int, ...]:
    ranks = {rank for node in state.nodes for rank in node.failed | node.stopped}
    return tuple(sorted(ranks - {first.rank}))
