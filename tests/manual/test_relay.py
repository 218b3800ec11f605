"""Owns: histories of a by-hand node's machine: events in, actions out, on a clock of the test's own.
Must not: open anything.
Called by: pytest."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from meshrun import wire
from meshrun.errors import Cause, CauseKind
from meshrun.launch.channel import Closed, Opened, Received, Remark, Unreachable
from meshrun.launch.handshake import Welcome
from meshrun.plan.describe import describe_plan
from meshrun.watch.relay import next_deadline
from meshrun.watch.relay_model import OWN, UPSTREAM
from meshrun.watch.values import (
    Again,
    Answer,
    Asked,
    Began,
    Close,
    Consumed,
    Emit,
    Finish,
    NodeCause,
    Note,
    Open,
    Outcome,
    Planned,
    ReaderGone,
    RunResult,
    Send,
    Signalled,
    Tick,
)
from meshrun.watch.verdict import describe_result
from tests.manual.play import ASSIGN, BYE, FACTS, FAILED, JOB, PLAN, START, WHOLE, Play


def test_the_agent_starts_when_node_0_has_let_us_in_and_its_brief_is_our_own() -> None:
    play = Play()
    assert play.on(Began()) == [Open(UPSTREAM)]
    assert play.on(Opened(UPSTREAM)) == []
    assert play.hear(Welcome("run-1")) == [Open(OWN)]
    (sent,) = play.on(Opened(OWN))
    assert sent.node == OWN
    brief = sent.message
    assert (brief.argv, brief.env, brief.slots) == (JOB.argv, {"SECRET": "hunter2"}, 2)
    assert brief.run_id == "run-1"  # one run has one id
    assert (brief.offers, brief.check_script) == (False, False)
    assert play.own(FACTS) == [Send(UPSTREAM, FACTS)]


def test_a_good_run_from_the_plan_to_the_end() -> None:
    play = Play().joined()
    planned, sent = play.hear(WHOLE, ASSIGN)
    assert isinstance(planned, Planned) and describe_plan(planned.plan) == describe_plan(PLAN)
    assert sent == Send(OWN, ASSIGN)  # the agent gets its own part only
    tries = wire.TryAddresses(("10.0.0.1",), 4000, 2.0)
    assert play.hear(tries) == [Send(OWN, tries)]
    reached = wire.Reached({"10.0.0.1": "eth0"}, {})
    assert play.own(reached) == [Send(UPSTREAM, reached)]
    assert play.hear(START) == [Send(OWN, START)]
    for message in (
        wire.Spawned(2, 77, 0, 0.0),
        wire.Ready(2, 0, 0.0),
        wire.Exited(2, 0, 0.0, 0, 0, "", False),
        wire.Exited(3, 0, 0.0, 0, 0, "", False),
        wire.Drained(0),
    ):
        assert play.own(message) == [Send(UPSTREAM, message)]
    done = RunResult(Outcome.SUCCEEDED, 0)
    assert play.hear(wire.Leave(0, describe_result(done, PLAN), "")) == [Send(OWN, wire.Leave(0, {}, ""))]
    assert play.own(BYE) == [Close(OWN), Send(UPSTREAM, BYE), Close(UPSTREAM), Finish(done)]


def test_output_stays_here_and_is_acknowledged_here() -> None:
    play = Play().running()
    assert play.own(wire.Output(2, 1, b"loss\n")) == [Emit(1, 2, 1, b"loss\n")]
    assert play.on(Consumed(1, 5)) == [Send(OWN, wire.Ack(5))]


def test_stop_and_dump_reach_the_agent() -> None:
    play = Play().running()
    assert play.hear(wire.Stop(5.0, "why")) == [Send(OWN, wire.Stop(5.0, "why"))]
    assert play.hear(wire.Stop(-1.0, "why")) == [Send(OWN, wire.Stop(0.0, "why"))]
    assert play.hear(wire.Dump((2,))) == [Send(OWN, wire.Dump((2,)))]


def test_a_failed_run_returns_its_code_and_names_the_culprit_of_another_node() -> None:
    play = Play().running()
    play.hear(wire.Leave(3, describe_result(FAILED, PLAN), ""))
    result = play.leave()
    assert result == FAILED


def test_what_is_left_behind_here_is_in_the_result_and_told() -> None:
    play = Play().running()
    play.hear(wire.Leave(3, describe_result(FAILED, PLAN), ""))
    play.own(wire.Bye(("12 python D",)))
    assert play.result.left == ((1, "12 python D"),)
    assert Send(UPSTREAM, wire.Bye(("12 python D",))) in play.said


def test_an_agent_that_does_not_leave_is_not_waited_for_for_ever() -> None:
    play = Play().running()
    play.hear(wire.Leave(3, describe_result(FAILED, PLAN), ""))
    while not play.state.over:
        deadline = next_deadline(play.state)
        assert deadline is not None and deadline < 100 + JOB.grace_s + 10
        play.now = deadline
        play.on(Tick())
    assert play.result.exit_code == 3
    assert any(isinstance(action, Note) and "did not confirm" in action.text for action in play.said)


@pytest.mark.parametrize("summary", [{}, {"outcome": "odd"}, {"outcome": "failed", "exit_code": []}])
def test_a_result_that_cannot_be_read_still_ends_the_run_with_its_code(summary: dict[str, Any]) -> None:
    play = Play().running()
    play.hear(wire.Leave(7, summary, ""))
    result = play.leave()
    assert (result.outcome, result.exit_code) == (Outcome.FAILED, 7)
    assert "exit code 7" in result.reason


@pytest.mark.parametrize("code", [-1, 256, 10**30])
def test_an_exit_code_that_is_none_is_125(code: int) -> None:
    play = Play().running()
    play.hear(wire.Leave(code, describe_result(FAILED, PLAN), ""))
    assert play.leave().exit_code == 125


# ---- lost lines ------------------------------------------------------------------------------------------------------


def test_node_0_that_cannot_be_reached_is_the_result() -> None:
    play = Play()
    play.on(Began())
    cause = Cause(CauseKind.REFUSED, "node 0 did not answer")
    play.on(Unreachable(UPSTREAM, cause))
    assert play.result == RunResult(Outcome.LOST, 125, causes=(NodeCause(0, "gpu0", cause),))


def test_a_lost_line_to_node_0_stops_the_agent_in_order() -> None:
    play = Play().running()
    assert play.on(Closed(UPSTREAM, "reset")) == [Send(OWN, wire.Leave(125, {}, ""))]
    assert play.own(wire.Exited(2, 0, 0.0, 143, 15, "", True)) == []  # nobody is there to be told
    result = play.leave()
    assert (result.outcome, result.exit_code) == (Outcome.LOST, 125)
    assert "lost the connection to node 0 (gpu0:29500): reset" in result.causes[0].cause.message


def test_a_silent_node_0_is_lost_after_the_limit() -> None:
    play = Play().running()
    for _ in range(4):
        play.own(wire.Beat(), after_s=2.4)
    assert not any(isinstance(action, Close) for action in play.said)
    assert play.own(wire.Beat(), after_s=0.5) == [Close(UPSTREAM), Send(OWN, wire.Leave(125, {}, ""))]
    assert "nothing was heard from it for 10 s" in play.leave().causes[0].cause.message


def test_both_lines_get_a_beat_every_two_seconds() -> None:
    play = Play().running()
    beats: list[tuple[float, int]] = []
    while play.now < 109:
        deadline = next_deadline(play.state)
        assert deadline is not None
        play.now = deadline
        beats += [(play.now, action.node) for action in play.on(Tick()) if action == Send(action.node, wire.Beat())]
        play.hear(wire.Beat())
        play.own(wire.Beat())
    for which in (OWN, UPSTREAM):
        times = [at for at, node in beats if node == which]
        assert [round(b - a, 6) for a, b in pairwise(times)] == [2.0] * (len(times) - 1)
        assert len(times) >= 3


def test_a_lost_agent_is_told_to_node_0_whose_verdict_counts() -> None:
    play = Play().running()
    sent, drained = play.on(Closed(OWN, "killed"))
    assert drained == Send(UPSTREAM, wire.Drained(0))
    assert sent.node == UPSTREAM and sent.message.fatal and "killed" in sent.message.message
    verdict = RunResult(Outcome.LOST, 125, causes=(NodeCause(1, "gpu1", Cause(CauseKind.LOST, "killed")),))
    play.hear(wire.Leave(125, describe_result(verdict, PLAN), ""))
    assert play.result == verdict


def test_a_lost_agent_ends_the_command_even_if_node_0_says_nothing() -> None:
    play = Play().running()
    play.on(Closed(OWN, "killed"))
    for _ in range(7):
        if not play.state.over:
            play.hear(wire.Beat(), after_s=2.0)
    assert play.result.exit_code == 125
    assert play.result.causes[0].node == 1


@pytest.mark.parametrize(
    "event",
    [
        Unreachable(OWN, Cause(CauseKind.NO_PYTHON, "no python")),
        Received(OWN, wire.Trouble("store", "port in use", "", True)),
        Received(OWN, wire.Bye(())),
    ],
)
def test_every_fatal_trouble_here_reaches_node_0(event: Any) -> None:
    play = Play().joined()
    play.on(event)
    troubles = [a.message for a in play.said if isinstance(a, Send) and isinstance(a.message, wire.Trouble)]
    assert len(troubles) == 1 and troubles[0].fatal
    play.on(Closed(UPSTREAM, "node 0 ended"))
    if not play.state.over:
        play.leave()
    assert play.result.causes[0].node == 1  # our own trouble, not the line that ended because of it


def test_a_silent_agent_is_lost() -> None:
    play = Play().running()
    for _ in range(5):
        play.hear(wire.Beat(), after_s=2.0)
    assert Close(OWN) in play.said
    assert any(isinstance(action, Send) and isinstance(action.message, wire.Trouble) for action in play.said)


def test_a_remark_of_the_agent_is_shown_on_both_nodes() -> None:
    remark = wire.Trouble("agent", "slow disk", "", False)
    assert Play().running().own(remark) == [Send(UPSTREAM, remark), Note("warning", "slow disk")]


def test_a_remark_of_the_line_is_shown() -> None:
    assert Play().joined().on(Remark(OWN, "x")) == [Note("warning", "x")]


# ---- signals ---------------------------------------------------------------------------------------------------------


def test_a_signal_while_dialling_ends_at_once() -> None:
    play = Play()
    play.on(Began())
    assert play.on(Signalled(2))[0] == Close(UPSTREAM)
    assert (play.result.outcome, play.result.exit_code) == (Outcome.STOPPED, 130)


def test_the_first_signal_asks_node_0_and_the_second_kills_here() -> None:
    play = Play().running()
    first = play.on(Signalled(15))
    assert first[0] == Send(UPSTREAM, wire.Interrupted(15)) and isinstance(first[1], Note)
    second = play.on(Signalled(2), after_s=1.0)
    assert second[:3] == [
        Send(UPSTREAM, wire.Interrupted(2)),
        Send(OWN, wire.Stop(0.0, "killed")),
        Send(OWN, wire.Leave(143, {}, "")),
    ]
    deadline = next_deadline(play.state)
    assert deadline is not None and deadline <= play.now + 1.0
    result = play.leave()
    assert (result.outcome, result.exit_code) == (Outcome.STOPPED, 143)  # the first signal sets the code


def test_node_0_answers_the_first_signal_with_the_end_of_the_run() -> None:
    play = Play().running()
    play.on(Signalled(2))
    stopped = RunResult(Outcome.STOPPED, 130, reason="interrupted on gpu1")
    play.hear(wire.Leave(130, describe_result(stopped, PLAN), ""))
    assert play.leave() == stopped


def test_a_third_signal_waits_for_nothing() -> None:
    play = Play().running()
    for _ in range(3):
        play.on(Signalled(2))
    assert play.result.exit_code == 130


def test_a_signal_after_which_node_0_is_lost_keeps_its_code() -> None:
    play = Play().running()
    play.on(Signalled(1))
    play.on(Closed(UPSTREAM, "reset"))
    assert play.leave().exit_code == 129


def test_the_end_of_the_reader_of_stdout_stops_the_run_with_141() -> None:
    play = Play().running()
    assert play.on(ReaderGone())[0] == Send(UPSTREAM, wire.Interrupted(13))
    play.on(ReaderGone())
    play.on(Closed(UPSTREAM, "reset"))
    assert play.leave().exit_code == 141


def test_history_of_a_restart() -> None:
    play = Play().running()
    play.own(wire.Exited(2, 0, 0.0, 143, 15, "", True), wire.Drained(0))
    (again,) = play.hear(wire.Restart(1, 2, 0.5, describe_result(FAILED, PLAN)))
    assert again == Again(FAILED, 1, 2, 0.5)
    start = replace(START, attempt=1, master_port=4243)
    assert play.hear(start) == [Send(OWN, start)]
    assert play.own(wire.Drained(1)) == [Send(UPSTREAM, wire.Drained(1))]
    last = replace(FAILED, attempt=1, exit_code=4)
    play.hear(wire.Leave(4, describe_result(last, PLAN), ""))
    assert play.leave() == replace(last, earlier=(FAILED,))


def test_an_end_of_our_own_names_the_attempt_and_keeps_those_before() -> None:
    play = Play().running()
    play.hear(wire.Restart(1, 2, 0.5, describe_result(FAILED, PLAN)))
    play.on(Closed(UPSTREAM, "reset", ""))
    result = play.leave()
    assert (result.exit_code, result.attempt, result.earlier) == (125, 1, (FAILED,))


def test_who_moves_and_where_ranks_are_goes_up() -> None:
    play = Play().running()
    for message in (wire.Progress(0, (2,)), wire.Stacks(2, "File")):
        assert play.own(message) == [Send(UPSTREAM, message)]


def test_a_question_here_is_answered_with_where_to_ask() -> None:
    (answer,) = Play().running().on(Asked())
    assert isinstance(answer, Answer) and "node 0 (" in answer.why
