"""Owns: histories of STARTING and RUNNING: failures, who is to blame, the start deadline.
Must not: test signals or lost nodes.
Called by: pytest."""

import pytest

from meshrun import wire
from meshrun.launch.channel import Received
from meshrun.watch.values import Note, Outcome
from tests.watch.history import Run, exited, gloo, make_job, raised, said, sends, words


def started(**changes):
    run = Run(make_job(**changes))
    run.run()
    return run


def finish(run, now, **how):
    run.end(now, **how)
    run.bye(now)
    return run.result


def test_history_of_a_failure():
    run = started()
    history = [
        (5.0, raised(3, age_s=0.01), 1, ["Stop>0", "Stop>1"]),
        (5.1, exited(0, signal=15, stopped=True), 0, []),
        (5.1, exited(3, exit_code=1), 1, []),
        (5.2, exited(2, signal=15, stopped=True), 1, []),
        (5.2, wire.Drained(0), 1, []),
        (5.3, exited(1, signal=9, stopped=True), 0, []),
        (5.3, wire.Drained(0), 0, ["Leave>0", "Leave>1"]),
        (5.4, wire.Bye(()), 0, ["Close 0"]),
        (5.4, wire.Bye(("77 python D",)), 1, ["Close 1", "Finish"]),
    ]
    for now, message, node, expected in history:
        assert words(run.at(now, Received(node, message))) == expected, (now, message)
    result = run.result
    assert (result.outcome, result.exit_code, result.followed) == (Outcome.FAILED, 1, (0, 1, 2))
    assert (result.first.rank, result.first.node_rank, result.first.kind) == (3, 1, "exception")
    assert result.first.when == pytest.approx(4.99)
    assert result.left == ((1, "77 python D"),)
    assert {leave.exit_code for _, leave in sends(run.all, wire.Leave)} == {1}


@pytest.mark.parametrize(
    ("how", "code", "kind"),
    [
        (exited(1, exit_code=7), 7, "exit"),
        (exited(1, signal=11), 139, "signal"),
        (exited(1, signal=9, oom="yes"), 137, "signal"),
        (raised(1, exit_code=3), 3, "exception"),
        (raised(1, phase="init"), 1, "init"),
    ],
)
def test_exit_codes(how, code, kind):
    run = started()
    assert sends(run.at(1.0, Received(0, how)), wire.Stop) == [(n, s) for n, s in sends(run.all, wire.Stop)] != []
    result = finish(run, 2.0, signal=15, stopped=True)
    assert (result.exit_code, result.first.rank, result.first.kind) == (code, 1, kind)
    assert result.first.oom == (how.oom if isinstance(how, wire.Exited) else "")


def test_a_worker_that_ends_early_with_zero_stops_nobody():
    run = started()
    assert words(run.at(1.0, Received(0, exited(0)))) == []
    assert run.phase == "running"


def test_a_broken_connection_waits_half_a_second_for_its_cause():
    run = started()
    assert words(run.at(1.0, Received(0, gloo(0)))) == []
    new = run.at(1.3, Received(1, exited(3, exit_code=9)))
    assert words(new) == ["Stop>0", "Stop>1"]
    result = finish(run, 2.0, signal=15, stopped=True)
    assert (result.first.rank, result.exit_code) == (3, 9)
    assert result.followed == (0, 1, 2)


def test_a_broken_connection_without_a_cause_stops_the_run_by_itself():
    run = started()
    run.at(1.0, Received(0, gloo(1)))
    run.at(1.2, Received(0, gloo(0)))  # the wait is not prolonged
    assert sends(run.ticks(1.49), wire.Stop) == []
    assert [node for node, _ in sends(run.ticks(1.5), wire.Stop)] == [0, 1]
    result = finish(run, 2.0, signal=15, stopped=True)
    assert (result.first.rank, result.exit_code, result.first.follower) == (1, 1, True)


def test_the_cause_may_come_after_the_stop():
    run = started()
    run.at(1.0, Received(0, gloo(0)))
    run.ticks(1.5)
    run.at(1.6, Received(1, raised(2, age_s=0.3)))
    assert finish(run, 2.0, signal=15, stopped=True).first.rank == 2


def test_an_exception_that_our_sigterm_brought_about_is_no_cause():
    run = started()
    run.at(1.0, Received(0, gloo(0)))
    run.ticks(1.5)
    run.at(1.7, Received(1, raised(2, "terminated", "RuntimeError")))
    assert finish(run, 2.0, signal=15, stopped=True).first.rank == 0


def test_age_decides_not_the_order_of_arrival():
    run = started()
    run.at(1.0, Received(0, raised(0, age_s=0.0)))
    run.at(1.1, Received(1, exited(2, exit_code=4, age_s=0.5)))
    assert finish(run, 2.0, signal=15, stopped=True).first.rank == 2


def test_a_record_counts_even_if_our_sigterm_was_first():
    run = started()
    run.at(1.0, Received(0, gloo(0)))
    run.at(1.1, Received(1, raised(3, age_s=0.05)))
    run.at(1.2, *said(1, exited(3, signal=15, stopped=True)))
    result = finish(run, 2.0, signal=15, stopped=True)
    assert (result.first.rank, result.exit_code) == (3, 1)


def test_a_failure_that_ends_in_a_signal_stays_the_exception():
    run = started()
    run.at(1.0, Received(0, raised(0)), Received(0, exited(0, signal=6)))
    result = finish(run, 2.0, signal=15, stopped=True)
    assert (result.exit_code, result.first.kind, result.first.signal) == (1, "exception", 0)


def test_the_same_news_twice_counts_once():
    run = started()
    run.at(1.0, *said(0, raised(0), exited(0, exit_code=1)))
    before = run.state
    assert words(run.at(1.0, *said(0, raised(0, "again"), exited(0, exit_code=1))), records=True) == []
    assert run.state == before and before.first.exception.message == "boom"


def test_a_node_without_workers_needs_no_stop():
    run = started()
    run.end_node(0, 1.0)
    assert words(run.at(2.0, Received(1, raised(2)))) == ["Stop>1"]


def test_news_of_workers_after_the_end_are_no_news():
    run = started(nodes=1)
    run.at(1.0, *said(0, exited(0), exited(1), wire.Drained(0)))
    assert words(run.at(1.1, *said(0, raised(0), wire.Stacks(0, "x"))), records=True) == []


def test_all_gone_while_waiting_for_a_cause():
    run = started(nodes=1)
    run.at(1.0, *said(0, gloo(0), exited(0, exit_code=1), exited(1), wire.Drained(0)))
    run.bye(1.0)
    assert (run.result.exit_code, run.result.first.rank) == (1, 0)


def test_failure_is_told_at_once():
    run = started()
    new = run.at(1.0, Received(0, raised(1, "boom\nmore")))
    text = next(action.text for action in new if isinstance(action, Note))
    assert text == "rank 1 (dp=1) on h0 failed: ValueError: boom; stopping the other workers"


def test_drained_without_word_of_a_worker_is_no_success():
    run = started(nodes=1)
    run.at(1.0, *said(0, exited(0), wire.Drained(0)))
    run.bye(1.0)
    assert (run.result.exit_code, run.result.outcome) == (125, Outcome.LOST)


# ---- the start deadline ----


def starting(**changes):
    run = Run(make_job(start_timeout_s=20.0, **changes))
    run.start()
    run.at(1.0, *said(0, wire.Ready(0, 0, 0.0), wire.Ready(1, 0, 0.0)), *said(1, wire.Ready(2, 0, 0.0)))
    return run


def test_start_deadline_asks_for_stacks_of_those_missing_and_names_them():
    run = starting(init="eager")
    new = run.ticks(20.0, alive=[0, 1])
    assert sends(new, wire.Dump) == [(1, wire.Dump((3,)))]
    assert sends(new, wire.Stop) == []
    assert words(run.at(20.5, Received(1, wire.Stacks(3, "File x")))) == ["Stop>0", "Stop>1"]
    result = finish(run, 21.0, signal=15, stopped=True)
    assert (result.exit_code, result.outcome, result.stacks) == (125, Outcome.LOST, ((3, "File x"),))
    assert result.reason.startswith("rank 3 (dp=3) on h1 did not build the mesh")


def test_stacks_that_do_not_come_are_not_waited_for():
    run = starting()
    assert sends(run.ticks(21.9, alive=[0, 1]), wire.Stop) == []
    assert len(sends(run.ticks(22.0, alive=[0, 1]), wire.Stop)) == 2


def test_ready_in_the_last_moment_goes_on():
    run = starting()
    run.ticks(20.0, alive=[0, 1])
    run.at(20.1, Received(1, wire.Ready(3, 0, 0.0)))
    run.ticks(60.0, alive=[0, 1])
    assert run.phase == "running"


def test_a_worker_that_ends_before_its_script_is_not_waited_for():
    run = starting()
    run.at(2.0, Received(1, exited(3)))
    assert run.phase == "running"


def test_a_failure_while_starting_is_the_workers():
    run = starting()
    run.at(2.0, Received(1, raised(3, phase="init", exit_code=1)))
    assert run.phase == "stopping"
    assert finish(run, 3.0, signal=15, stopped=True).first.kind == "init"


def test_a_broken_connection_while_starting_still_waits_after_all_are_ready():
    run = starting()
    run.at(2.0, Received(0, gloo(0)))
    run.at(2.1, Received(1, wire.Ready(3, 0, 0.0)))
    assert len(sends(run.ticks(2.6), wire.Stop)) == 2
