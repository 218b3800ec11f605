"""Owns: histories of the ends that no worker caused: signals, limits, lost nodes, troubles; leaving.
Must not: test whose failure was first.
Called by: pytest."""

import pytest

from meshrun import wire
from meshrun.errors import CauseKind
from meshrun.launch.channel import Closed, Opened, Received
from meshrun.watch.values import Began, Note, Outcome, ReaderGone, Signalled, Tick
from tests.watch.history import Run, exited, facts, gloo, make_job, raised, sends, words


def started(**changes):
    run = Run(make_job(**changes))
    run.run()
    return run


STOPPED = {"signal": 15, "stopped": True}


# ---- signals ----


@pytest.mark.parametrize(("number", "code"), [(2, 130), (15, 143), (1, 129)])
def test_first_signal_stops_in_order(number, code):
    run = started()
    assert words(run.at(1.0, Signalled(number))) == ["Stop>0", "Stop>1"]
    assert {stop.grace_s for _, stop in sends(run.all, wire.Stop)} == {5.0}
    run.end(2.0, **STOPPED)
    run.bye(2.0)
    assert (run.result.exit_code, run.result.outcome, run.result.first) == (code, Outcome.STOPPED, None)


def test_second_signal_kills_and_the_first_sets_the_code():
    run = started()
    run.at(1.0, Signalled(15))
    new = run.at(1.5, Signalled(2))
    assert [(node, stop.grace_s) for node, stop in sends(new, wire.Stop)] == [(0, 0.0), (1, 0.0)]
    assert words(run.ticks(2.5)) == ["Beat>0", "Beat>1", "Leave>0", "Leave>1", "Close 0", "Close 1", "Finish"]
    assert run.result.exit_code == 143


def test_third_signal_ends_at_once():
    run = started()
    run.at(1.0, Signalled(2), Signalled(2), Signalled(2))
    run.tick()
    assert run.now == 1.0 and run.result.exit_code == 130


def test_interrupt_while_connecting_with_nobody_there_ends_at_once():
    run = Run(make_job())
    run.at(0.0, Began())
    assert words(run.at(0.5, Signalled(2))) == ["Close 0", "Close 1", "Finish"]
    assert run.result.exit_code == 130


def test_interrupt_while_connecting_lets_agents_leave_for_a_second():
    run = Run(make_job())
    run.at(0.0, Began(), Opened(1))
    assert words(run.at(0.5, Signalled(2))) == ["Leave>1", "Close 0"]
    assert "Finish" in words(run.ticks(1.5))
    assert run.result.exit_code == 130


@pytest.mark.parametrize("phase", ["addressing", "storing", "starting"])
def test_interrupt_before_workers_run(phase):
    run = Run(make_job())
    run.greet()
    if phase != "addressing":
        run.at(0.0, Received(1, wire.Reached({"10.0.0.1": "eth0"}, {})))
    if phase == "starting":
        run.at(0.0, Received(0, wire.StoreOpened(0, "10.0.0.1", 1)))
    assert run.phase == phase
    new = words(run.at(1.0, Signalled(2)))
    assert new == (["Stop>0", "Stop>1"] if phase == "starting" else ["Leave>0", "Leave>1"])


def test_a_failure_that_was_first_keeps_its_code():
    run = started()
    run.at(1.0, Received(0, raised(0, exit_code=3)), Signalled(2))
    run.end(2.0, **STOPPED)
    run.bye(2.0)
    assert run.result.exit_code == 3


def test_a_broken_connection_that_still_waits_for_its_cause_is_first_too():
    run = started()
    run.at(1.0, Received(0, gloo(0)), Signalled(2))
    assert run.phase == "stopping"
    run.end(2.0, **STOPPED)
    run.bye(2.0)
    assert (run.result.exit_code, run.result.first.rank) == (1, 0)


def test_failures_after_an_interrupt_do_not_change_the_code():
    run = started()
    run.at(1.0, Signalled(2), Received(0, raised(0, "KeyboardInterrupt")))
    run.end(2.0, **STOPPED)
    run.bye(2.0)
    assert (run.result.exit_code, run.result.first) == (130, None)


def test_ctrl_c_on_another_node_by_hand():
    run = started()
    run.at(1.0, Received(1, wire.Interrupted(2)))
    run.end(2.0, **STOPPED)
    run.bye(2.0)
    assert (run.result.exit_code, run.result.reason) == (130, "interrupted on h1")


# ---- limits and the reader ----


def test_time_limit():
    run = started(time_limit_s=60.0)
    run.ticks(59.9, alive=[0, 1])
    assert run.phase == "running"
    run.ticks(60.0, alive=[0, 1])
    run.end(61.0, **STOPPED)
    run.bye(61.0)
    assert (run.result.exit_code, run.result.reason) == (124, "time limit of 60 s")


def test_time_limit_while_connecting():
    run = Run(make_job(time_limit_s=3.0))
    run.at(0.0, Began())
    run.ticks(3.0)
    assert run.result.exit_code == 124


def test_reader_gone():
    run = started()
    assert words(run.at(1.0, ReaderGone())) == ["Stop>0", "Stop>1"]
    assert run.at(1.1, ReaderGone()) == []
    run.end(2.0, **STOPPED)
    run.bye(2.0)
    assert run.result.exit_code == 141


# ---- lost nodes ----


def test_a_closed_line_is_a_lost_node():
    run = started()
    assert words(run.at(1.0, Closed(1, "reset", "Killed"))) == ["Close 1", "Stop>0"]
    run.end_node(0, 2.0, **STOPPED)
    run.at(2.0, Received(0, wire.Bye(())))
    result = run.result
    assert (result.exit_code, result.outcome) == (125, Outcome.LOST)
    assert [(c.host, c.cause.kind, c.noise) for c in result.causes] == [("h1", CauseKind.LOST, "Killed")]


def test_ten_seconds_of_silence_are_a_lost_node():
    run = started()
    run.ticks(9.9, alive=[0])
    assert run.phase == "running"
    assert "Close 1" in words(run.ticks(10.0, alive=[0]))
    assert run.phase == "stopping"


def test_silence_is_noticed_whenever_it_begins():
    run = started()
    run.ticks(24.0, alive=[0, 1])
    run.ticks(33.9, alive=[0])
    assert run.phase == "running"
    run.ticks(34.0, alive=[0])
    assert [entry.host for entry in run.state.causes] == ["h1"]


def test_a_failure_after_the_loss_does_not_win():
    run = started()
    run.at(1.0, Closed(1, "eof"))
    run.at(1.1, Received(0, exited(0, exit_code=3)))
    run.end_node(0, 2.0, **STOPPED)
    run.at(2.0, Received(0, wire.Bye(())))
    assert (run.result.exit_code, run.result.first) == (125, None)


def test_a_failure_that_was_older_than_the_loss_but_told_later_wins():
    run = started()
    run.at(1.0, Closed(1, "eof"))
    run.at(1.1, Received(0, exited(0, exit_code=3, age_s=0.2)))
    run.end_node(0, 2.0, **STOPPED)
    run.at(2.0, Received(0, wire.Bye(())))
    assert run.result.exit_code == 3


def test_late_words_of_a_lost_node_are_not_heard():
    run = started()
    run.at(1.0, Closed(1, "eof"))
    before = run.state
    assert run.at(1.1, Received(1, exited(3, exit_code=9)), Closed(1, "again")) == []
    assert run.state == before


def test_beats_keep_a_run_alive_and_are_sent_every_two_seconds():
    run = started()
    new = run.ticks(100.0, alive=[0, 1])
    assert run.phase == "running" and len(sends(new, wire.Beat)) == 100


def test_a_failure_before_the_loss_wins():
    run = started()
    run.at(1.0, Received(0, raised(0, exit_code=4)), Closed(1, "eof"))
    run.end_node(0, 2.0, **STOPPED)
    run.at(2.0, Received(0, wire.Bye(())))
    assert (run.result.exit_code, run.result.first.rank) == (4, 0)
    assert [entry.host for entry in run.result.causes] == ["h1"]


def test_a_broken_connection_to_a_lost_node_does_not():
    run = started()
    run.at(1.0, Received(0, gloo(0)))
    run.at(1.2, Closed(1, "eof"))
    assert run.phase == "stopping"
    run.end_node(0, 2.0, **STOPPED)
    run.at(2.0, Received(0, wire.Bye(())))
    assert (run.result.exit_code, run.result.first) == (125, None)


def test_a_node_that_fell_silent_is_found_while_stopping_and_explains_the_broken_connection():
    run = started()
    run.at(1.0, Received(0, gloo(0)))
    run.ticks(1.5, alive=[0])
    run.end_node(0, 2.0, **STOPPED)
    run.ticks(12.0, alive=[0])
    run.at(12.0, Received(0, wire.Bye(())))
    assert (run.result.exit_code, run.result.first) == (125, None)
    assert [entry.host for entry in run.result.causes] == ["h1"]


@pytest.mark.parametrize("phase", ["addressing", "storing"])
def test_a_node_lost_before_the_start(phase):
    run = Run(make_job())
    run.greet()
    if phase == "storing":
        run.at(0.0, Received(1, wire.Reached({"10.0.0.1": "eth0"}, {})))
    assert words(run.at(1.0, Closed(0, "eof"))) == ["Close 0", "Leave>1"]
    run.at(1.1, Received(1, wire.Bye(())))
    assert run.result.exit_code == 125


def test_all_nodes_lost():
    run = started()
    run.at(1.0, Closed(0, "eof"), Closed(1, "eof"))
    assert [entry.host for entry in run.result.causes] == ["h0", "h1"]


def test_fatal_trouble():
    run = started()
    run.at(1.0, Received(1, wire.Trouble("store", "the store was killed", "", True)))
    assert run.phase == "stopping"
    run.end(2.0, **STOPPED)
    run.bye(2.0)
    assert (run.result.exit_code, run.result.causes[0].cause.message) == (125, "the store was killed")


def test_an_unknown_kind_of_trouble_is_still_told():
    run = started()
    run.at(1.0, Received(1, wire.Trouble("flood", "water", "", True)))
    assert run.state.causes[0].cause.kind is CauseKind.AGENT


def test_an_agent_that_says_why_and_leaves_has_one_cause():
    run = started()
    run.at(1.0, Received(1, wire.Trouble("agent", "told to end", "", True)), Received(1, wire.Bye(())))
    assert [entry.cause.message for entry in run.state.causes] == ["told to end"]


# ---- stopping and leaving that do not go well ----


def test_workers_that_do_not_stop_are_waited_for_within_a_bound():
    run = started()
    run.at(1.0, Signalled(2))
    run.ticks(11.9, alive=[0, 1])
    assert run.phase == "stopping"
    new = run.ticks(12.0, alive=[0, 1])
    assert run.phase == "leaving"
    assert sum(isinstance(action, Note) for action in new) == 2


def test_output_after_the_workers_end_is_waited_for_without_a_bound():
    run = started(nodes=1)
    run.at(1.0, Signalled(2))
    run.at(1.2, *(Received(0, exited(rank, **STOPPED)) for rank in (0, 1)))
    run.ticks(60.0, alive=[0])
    assert run.phase == "stopping"
    assert words(run.at(60.1, Received(0, wire.Output(0, 1, b"late")))) == ["Emit"]
    run.at(60.2, Received(0, wire.Drained(0)))
    run.bye(60.3)
    assert run.result.exit_code == 130


def test_an_agent_that_does_not_say_bye():
    run = started()
    run.end(1.0)
    run.at(1.0, Received(0, wire.Bye(())))
    new = run.ticks(8.0, alive=[1])
    assert any(isinstance(action, Note) and "h1" in action.text for action in new)
    assert run.result.exit_code == 0


def test_a_line_that_closes_while_leaving_is_no_failure():
    run = started()
    run.end(1.0)
    run.at(1.1, Closed(1, "eof"), Received(0, wire.Bye(())))
    assert run.result.exit_code == 0 and run.result.causes == ()


def test_greeting_after_the_run_was_ended_changes_nothing():
    run = Run(make_job())
    run.at(0.0, Began(), Opened(1), Signalled(2))
    assert words(run.at(0.1, Received(1, facts(1)), Tick(), Opened(0))) == []
