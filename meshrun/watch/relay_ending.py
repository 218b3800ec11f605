"""Owns: how a by-hand node's command ends: lost lines, signals, silence, and the agent's leave.
Must not: do I/O or read a clock.
Called by: watch.relay, watch.relay_orders."""

from __future__ import annotations

from math import inf

from meshrun import wire
from meshrun.dataclass import replace
from meshrun.errors import EXIT_CLUSTER, Cause, CauseKind
from meshrun.watch.relay_model import BEAT_S, OWN, UPSTREAM, Link, RelayState, RelayStep
from meshrun.watch.values import Finish, NodeCause, Note, Outcome, RunResult, Signalled

ANSWER_S = 5.0  # how long node 0 may take to end the run after it was told of trouble here
LEAVE_EXTRA_S = 2.0
KILL_S = 1.0  # after the second signal
SIGPIPE = 13


# ---- lost lines ------------------------------------------------------------------------------------------------------


def lost(state: RelayState, why: str) -> Cause:
    """The cause of everything that ends because node 0 is not there any more."""
    where = f"{state.hand.master_addr}:{state.hand.master_port}"
    hint = "see what node 0 says; is it up, and the network?"
    return Cause(CauseKind.LOST, f"lost the connection to node 0 ({where}): {why}", hint)


def lose_own(step: RelayStep, cause: Cause) -> None:
    """The agent here is gone: the end if that was awaited, else trouble that node 0 must hear of."""
    if step.state.result is not None:
        end(step)
    elif step.state.trouble is None:
        step.set(trouble=NodeCause(step.state.hand.node_rank, step.state.host, cause))
        step.send(UPSTREAM, wire.Trouble(cause.kind.value, cause.message, cause.hint, True))
        # Nothing more will be heard of the workers here (their guard ends them): node 0 need not wait for it.
        step.send(UPSTREAM, wire.Drained(step.state.attempt))
        await_verdict(step)


def await_verdict(step: RelayStep) -> None:
    """Node 0 knows what broke here; its Leave, which names the culprit to everybody, is due."""
    if step.link(UPSTREAM) is Link.OPEN:
        step.set(until=min(step.state.until, step.now + step.state.job.grace_s + ANSWER_S))
    else:
        give_up(step)


def lose_upstream(step: RelayStep, cause: Cause) -> None:
    """Node 0 cannot be reached, refused us or is gone: what runs here is stopped."""
    if step.state.result is None and step.state.trouble is None:
        host = step.state.hand.master_addr
        step.set(trouble=NodeCause(0, host, cause))
    give_up(step)


def give_up(step: RelayStep) -> None:
    """No verdict comes from node 0 any more: end here with our own."""
    trouble, signals = step.state.trouble, step.state.signals
    causes = (trouble,) if trouble else ()
    if signals:
        finish(step, RunResult(Outcome.STOPPED, 128 + signals[0], causes=causes, reason=_name_signal(signals[0])))
    else:
        finish(step, RunResult(Outcome.LOST, EXIT_CLUSTER, causes=causes))


# ---- the end ---------------------------------------------------------------------------------------------------------


def finish(step: RelayStep, result: RunResult) -> None:
    """The result is decided (the first decision counts): the agent stops what is left, in order, and leaves."""
    if step.state.result is not None:
        return
    step.set(result=replace(result, attempt=step.state.attempt, earlier=step.state.past), until=inf)
    if step.link(OWN) is Link.OPEN:
        step.send(OWN, wire.Leave(result.exit_code, {}, ""))
        step.set(until=step.now + step.state.job.grace_s + LEAVE_EXTRA_S)
    else:
        end(step)


def end(step: RelayStep) -> None:
    """Nothing runs here any more: say so, close both lines, finish."""
    result = step.state.result
    assert result is not None
    rank, left = step.state.hand.node_rank, step.state.left
    step.send(UPSTREAM, wire.Bye(left))
    step.close(UPSTREAM)
    step.close(OWN)
    result = replace(result, left=(*result.left, *((rank, text) for text in left)))
    step.set(over=True, result=result)
    step.record("finish", outcome=result.outcome.value, exit_code=result.exit_code, reason=result.reason)
    step.actions.append(Finish(result))


# ---- the user --------------------------------------------------------------------------------------------------------


def _name_signal(number: int) -> str:
    names = {1: "hung up", 2: "interrupted", SIGPIPE: "the reader of stdout is gone", 15: "terminated"}
    return names.get(number, f"signal {number}")


def on_signalled(step: RelayStep, event: Signalled) -> None:
    """The first asks node 0 to stop all nodes in order; the second kills what runs here at once, and leaves."""
    step.set(signals=(*step.state.signals, event.signal))
    count = len(step.state.signals)
    step.record("signal", signal=event.signal, count=count)
    step.send(UPSTREAM, wire.Interrupted(event.signal))
    if count == 1:
        if step.link(UPSTREAM) is not Link.OPEN or not step.state.run_id:
            give_up(step)
        elif step.state.result is None:
            text = f"{_name_signal(event.signal)}: node 0 is asked to stop the run (again: leave at once)"
            step.actions.append(Note("info", text))
        return
    step.send(OWN, wire.Stop(0.0, "killed"))
    give_up(step)
    if not step.state.over:
        step.set(until=step.now + (KILL_S if count == 2 else 0.0))


# ---- time ------------------------------------------------------------------------------------------------------------


def watch_time(step: RelayStep) -> None:
    """Whatever is due by the clock: a wait that is over, a silent line, a beat."""
    if not step.state.over and step.now >= step.state.until:
        _on_wait_over(step)
    for which, lose in ((OWN, _silent_own), (UPSTREAM, _silent_upstream)):
        line = step.state.ends[which]
        if step.state.over or line.link is not Link.OPEN:
            continue
        if step.now >= line.heard + step.state.job.silence_s:
            step.close(which)
            lose(step)
        elif step.now >= line.sent + BEAT_S:
            step.send(which, wire.Beat())


def _on_wait_over(step: RelayStep) -> None:
    step.set(until=inf)
    if step.state.result is None:
        give_up(step)
        return
    if step.link(OWN) is Link.OPEN:
        step.actions.append(Note("warning", "the agent here did not confirm that nothing is left"))
    end(step)


def _silent_own(step: RelayStep) -> None:
    lose_own(step, Cause(CauseKind.LOST, f"nothing was heard from its agent for {step.state.job.silence_s:g} s"))


def _silent_upstream(step: RelayStep) -> None:
    lose_upstream(step, lost(step.state, f"nothing was heard from it for {step.state.job.silence_s:g} s"))
