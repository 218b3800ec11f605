"""Owns: whether another attempt follows a failure, after which pause, and what is forgotten before it starts.
Must not: do I/O or read a clock; say what a failure means (blame and ending do).
Called by: watch.ending; watch.relay_orders for `shorten`."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from meshrun import wire
from meshrun.dataclass import replace
from meshrun.watch.model import State, Step
from meshrun.watch.nodes import Node
from meshrun.watch.phases import Timer, Turn
from meshrun.watch.values import Again, Failure, RunResult, Send
from meshrun.watch.verdict import describe_result

# An attempt whose first failure comes within so long of all workers being in the script is a short one.
SHORT_S = 10.0
# Before the restart that follows the first, second, ... short attempt in a row; the last stands for all after it.
PAUSES_S = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
# So many short attempts in a row with the same failure are a crash loop: more of them would only hide it.
LOOP = 5


def follows(state: State) -> bool:
    """Whether another attempt follows what has happened in this one so far."""
    return bool(state.first) and not state.causes and state.halt is None and not find_bar(state)


def find_bar(state: State) -> str:
    """Why no attempt follows a worker's failure, for people; "" if one does."""
    limit = state.job.max_restarts
    if state.attempt >= limit:
        return f"all {limit} used" if limit > 1 else "the only one was used"
    if state.warned:
        return "none, as the signal that announces the time limit had been sent"
    if _is_loop(state):
        return f"given up after {state.attempt} of {limit}: {LOOP} attempts in a row failed alike within {SHORT_S:g} s"
    return ""


def explain_end(state: State) -> str:
    """What the run's last block says about restarts; "" where none were asked for."""
    return find_bar(state) if state.job.max_restarts else ""


def count_lived_s(state: State, first: Failure) -> float:
    """How long all workers had been in their script when the first one failed."""
    return max(0.0, first.when - state.ready_at) if state.ready_at < inf else 0.0


def _is_loop(state: State) -> bool:
    first = state.first
    if first is None or count_lived_s(state, first) >= SHORT_S:
        return False
    last = state.past[len(state.past) - (LOOP - 1) :]
    alike = [result.first and _sign(result.first) == _sign(first) for result in last]
    return len(alike) == LOOP - 1 and all(alike) and count_short(last) == LOOP - 1


def _sign(failure: Failure) -> tuple[object, ...]:
    # Not the rank: of several that fail in the same way another may be first each time.
    raised = failure.exception
    place = (raised.type, raised.file, raised.line) if raised else ()
    return (failure.kind, failure.exit_code, failure.signal, *place)


def count_short(results: Sequence[RunResult]) -> int:
    """How many of the last attempts, without a break, were short."""
    count = 0
    for result in reversed(results):
        if result.lived_s >= SHORT_S:
            break
        count += 1
    return count


def choose_pause_s(results: Sequence[RunResult]) -> float:
    """The pause after the last of these attempts: none unless short ones follow each other."""
    short = count_short(results)
    return PAUSES_S[min(short, len(PAUSES_S)) - 1] if short else 0.0


def go_again(step: Step, result: RunResult) -> None:
    """This attempt is over, with `result`; the next one begins after the pause."""
    state = step.state
    attempt, attempts = state.attempt + 1, state.job.max_restarts + 1
    pause_s = choose_pause_s((*state.past, result))
    short = shorten(result)
    step.turn(Turn.AGAIN)
    step.record(
        "restart", attempt=attempt, attempts=attempts, pause_s=pause_s, failed=describe_result(short, state.plan)
    )
    step.do(Again(result, attempt, attempts, pause_s))
    _tell_nodes(step, wire.Restart(attempt, attempts, pause_s, describe_result(result, state.plan)))
    _forget(step)
    step.set(attempt=attempt, past=(*state.past, short))
    step.set_timer(Timer.PAUSE, step.now + pause_s)


def _tell_nodes(step: Step, message: wire.Restart) -> None:
    # By hand the other nodes report for themselves.
    if step.state.job.by_hand:
        step.do(*(Send(node, message) for node in range(1, len(step.state.nodes))))


def _forget(step: Step) -> None:
    """All that was known of the attempt's workers; what is known of the nodes stays."""
    step.set(
        nodes=step.state.nodes.map(_forget_workers),
        first=None,
        stop_at=inf,
        ready_at=inf,
        purposes=frozenset(),
        stacks=(),
        disagreements=(),
    )


def _forget_workers(node: Node) -> Node:
    none: frozenset[int] = frozenset()
    return replace(
        node,
        alive=frozenset(node.ranks),
        unready=frozenset(node.ranks),
        failed=none,
        stopped=none,
        drained=False,
        asked=none,
        stacks=(),
        calls=(),
    )


def shorten(result: RunResult) -> RunResult:
    """What is kept of an attempt while others follow: its verdict, without tracebacks and source lines."""
    first = result.first
    if first is not None and first.exception is not None:
        first = replace(first, exception=replace(first.exception, lines=(), traceback=""))
    return replace(result, first=first, stacks=(), disagreements=(), earlier=())
