"""Owns: histories of runs with --max-restarts and --signal-workers.
Must not: test whose failure was first.
Called by: pytest."""

import pytest

from meshrun import wire
from meshrun.launch.channel import Closed, Received
from meshrun.spec.values import ByHand, EarlySignal, Host
from meshrun.watch.restarts import LOOP, PAUSES_S, SHORT_S
from meshrun.watch.values import Again, Outcome, ReaderGone, Signalled
from meshrun.watch.verdict import read_result
from tests.watch.history import Run, exited, make_job, raised, said, sends, words

STOPPED = {"signal": 15, "stopped": True}


def started(max_restarts=2, **changes):
    run = Run(make_job(max_restarts=max_restarts, **changes))
    run.run()
    return run


def fail(run, now, **how):
    """Rank 1 fails, everybody is stopped and gone by then."""
    new = run.at(now, Received(0, raised(1, attempt=run.state.attempt, **how)))
    for node in range(run.size):
        new += run.end_node(node, now, **STOPPED)
    return new


def resume(run, now):
    """From the pause to every rank in its script."""
    new = run.tick(pause_end(run))
    return new + run.open_store(now) + run.ready(now)


def pause_end(run):
    return next(at for timer, at in run.state.timers if timer.value == "pause")


def agains(actions):
    return [action for action in actions if isinstance(action, Again)]


def attempts(run):
    return [start.attempt for node, start in sends(run.all, wire.Start) if node == 0]


def test_history_of_a_restart():
    run = started()
    history = [
        (5.0, raised(3), 1, ["Stop>0", "Stop>1"]),
        (5.1, exited(3, exit_code=1), 1, []),
        (5.1, exited(2, **STOPPED), 1, []),
        (5.1, wire.Drained(0), 1, []),
        (5.2, exited(0, **STOPPED), 0, []),
        (5.2, exited(1, **STOPPED), 0, []),
        (5.2, wire.Drained(0), 0, ["Again"]),
    ]
    for now, message, node, expected in history:
        assert words(run.at(now, Received(node, message))) == expected, (now, message)
    assert run.phase == "pausing" and pause_end(run) == 5.2
    assert words(run.tick(5.2)) == ["Beat>0", "Beat>1", "OpenStore>0"]
    assert words(run.at(5.3, Received(0, wire.StoreOpened(1, "10.0.0.1", 4711)))) == ["Start>0", "Start>1"]
    assert sends(run.all, wire.Start)[-1] == (1, wire.Start(1, "10.0.0.1", 4711))
    run.ready(5.4)
    assert run.phase == "running"
    run.end(9.0)
    run.bye(9.0)
    assert (run.result.outcome, run.result.exit_code, run.result.attempt) == (Outcome.SUCCEEDED, 0, 1)
    (before,) = run.result.earlier
    assert (before.attempt, before.first.rank, before.followed, before.lived_s) == (0, 3, (0, 1, 2), 5.0)


def test_restarts_used_up_end_with_the_last_attempts_code():
    run = started(max_restarts=1)
    fail(run, 1.0, exit_code=3)
    resume(run, 2.0)
    fail(run, 3.0, exit_code=4)
    run.bye(3.0)
    assert (run.result.exit_code, run.result.attempt, len(run.result.earlier)) == (4, 1, 1)
    assert run.result.reason == "the only one was used"
    assert attempts(run) == [0, 1]


def test_a_pinned_port_is_used_again_and_every_store_is_a_fresh_one():
    run = started(master_port=29777)
    fail(run, 1.0)
    resume(run, 2.0)
    assert [(open_.port, open_.attempt) for _, open_ in sends(run.all, wire.OpenStore)] == [(29777, 0), (29777, 1)]


def test_nothing_of_the_attempt_before_counts_in_the_next():
    run = started()
    fail(run, 1.0)
    resume(run, 2.0)
    stale = (raised(0), exited(1, exit_code=9), wire.Drained(0), wire.Ready(0, 0, 0.0), wire.StoreOpened(0, "x", 1))
    assert words(run.at(3.0, *said(0, *stale)), records=True) == []
    assert run.phase == "running" and not run.state.first
    run.at(4.0, Received(1, raised(2, attempt=1)))
    run.end(4.0, **STOPPED)
    assert run.state.past[1].followed == (0, 1, 3)


def test_a_failure_before_the_script_is_followed_too():
    run = Run(make_job(max_restarts=1))
    run.start()
    fail(run, 1.0, phase="init")
    assert run.phase == "pausing" and run.state.past[0].lived_s == 0.0


def test_all_gone_at_once_while_a_cause_is_awaited():
    run = started(nodes=1)
    text = "Connection closed by peer"
    run.at(1.0, *said(0, raised(0, text, "RuntimeError"), exited(0, exit_code=1), exited(1), wire.Drained(0)))
    assert run.phase == "pausing"


def test_the_start_deadline_is_anew_and_no_restart_follows_it():
    run = started(start_timeout_s=20.0)
    fail(run, 30.0)
    run.tick(30.0)
    run.open_store(31.0)
    run.ticks(53.0, alive=[0, 1])
    run.end(53.0, **STOPPED)
    run.bye(53.0)
    assert (run.result.exit_code, run.result.outcome, run.result.attempt) == (125, Outcome.LOST, 1)


def test_no_start_deadline_in_a_pause():
    run = started(start_timeout_s=0.5, max_restarts=3)
    fail(run, 1.0)
    resume(run, 1.1)
    fail(run, 1.2)
    run.ticks(2.1, alive=[0, 1])
    assert run.phase == "pausing"


# ---- what prevents a restart ----


@pytest.mark.parametrize(("number", "code"), [(2, 130), (15, 143)])
def test_an_interrupt_in_the_pause_ends_at_once(number, code):
    run = started()
    fail(run, 1.0)
    resume(run, 2.0)
    fail(run, 3.0)
    assert words(run.at(3.1, Signalled(number))) == ["Leave>0", "Leave>1"]
    run.bye(3.2)
    assert (run.result.exit_code, run.result.outcome, run.result.first) == (code, Outcome.STOPPED, None)
    assert len(run.result.earlier) == 2


@pytest.mark.parametrize(
    ("event", "code"), [(Signalled(2), 130), (ReaderGone(), 141), (Received(1, wire.Interrupted(2)), 130)]
)
def test_what_comes_while_the_workers_stop_for_a_restart_ends_the_run(event, code):
    run = started()
    run.at(1.0, Received(0, raised(1)))
    run.at(1.1, event)
    run.end(1.2, **STOPPED)
    run.bye(1.2)
    assert run.result.exit_code == code and agains(run.all) == []


def test_without_restarts_left_the_failure_keeps_its_code():
    run = started(max_restarts=0)
    run.at(1.0, Received(0, raised(1, exit_code=3)))
    run.at(1.1, Signalled(2))
    run.end(1.2, **STOPPED)
    run.bye(1.2)
    assert (run.result.exit_code, run.result.reason) == (3, "")


def test_the_time_limit_counts_from_the_beginning_and_in_pauses():
    run = started(max_restarts=9, time_limit_s=4.0)
    for now in (1.0, 2.0, 3.5):
        fail(run, now)
        if now < 3.5:
            run.ticks(now + 0.1, alive=[0, 1])
            run.ticks(now + 1.0, alive=[0, 1])
            run.open_store(run.now)
            run.ready(run.now)
    assert run.phase == "pausing"
    run.ticks(4.0, alive=[0, 1])
    run.bye(4.0)
    assert (run.result.exit_code, run.result.reason) == (124, "time limit of 4 s")


def test_a_time_limit_that_ends_while_workers_stop_is_no_restart():
    run = started(time_limit_s=4.0)
    run.at(3.0, Received(0, raised(1)))
    run.ticks(4.5, alive=[0, 1])
    run.end(4.6, **STOPPED)
    run.bye(4.6)
    assert run.result.exit_code == 124


@pytest.mark.parametrize("when", ["running", "stopping", "pausing"])
def test_a_lost_node_is_no_reason_to_restart(when):
    run = started()
    if when == "stopping":
        run.at(1.0, Received(0, raised(1)))
    if when == "pausing":
        fail(run, 1.0)
    run.at(1.1, Closed(1, "eof", ""))
    for node in range(run.size):
        if not run.state.nodes[node].drained and when != "pausing":
            run.end_node(node, 1.2, **STOPPED)
    run.bye(1.3)
    assert agains(run.all) == [] or when == "pausing"
    assert run.result.exit_code == (1 if when == "stopping" else 125)


def test_a_store_that_cannot_be_opened_again_ends_the_run():
    run = started()
    fail(run, 1.0)
    run.tick(1.0)
    run.at(1.1, Received(0, wire.Trouble("store", "10.0.0.1:29777 is in use", "", True)))
    run.bye(1.1)
    assert (run.result.exit_code, run.result.attempt) == (125, 1)


# ---- pauses and crash loops ----


def play_attempts(run, lives, **how):
    """Attempts that live so long; returns the pauses that followed."""
    now = run.now
    for life in lives:
        now += life
        fail(run, now, **how)
        if run.phase != "pausing":
            break
        now = pause_end(run)
        run.ticks(now, alive=[0, 1])
        run.open_store(now)
        run.ready(now)
    return [again.pause_s for again in agains(run.all)]


def test_pauses_grow_while_attempts_are_short():
    run = started(max_restarts=20)
    types = iter(f"Error{n}" for n in range(20))
    for _ in range(9):
        play_attempts(run, [1.0], type=next(types))
    pauses = [again.pause_s for again in agains(run.all)]
    assert pauses == [*PAUSES_S, PAUSES_S[-1], PAUSES_S[-1]]


def test_a_long_attempt_is_followed_at_once_and_begins_anew():
    assert play_attempts(started(max_restarts=9), [1.0, 1.0, SHORT_S, 1.0, 1.0]) == [0.0, 1.0, 0.0, 0.0, 1.0]


def test_a_crash_loop_ends_before_its_restarts_are_used():
    run = started(max_restarts=100)
    play_attempts(run, [1.0] * 20)
    run.bye(run.now)
    assert run.result.attempt == LOOP - 1 and attempts(run) == list(range(LOOP))
    assert run.result.reason == "given up after 4 of 100: 5 attempts in a row failed alike within 10 s"
    assert run.result.exit_code == 1


@pytest.mark.parametrize("lives", [[1.0, 1.0, 1.0, SHORT_S, *[1.0] * 4], [SHORT_S] * 12])
def test_attempts_that_live_are_no_crash_loop(lives):
    run = started(max_restarts=100)
    assert len(play_attempts(run, lives)) == len(lives)


def test_few_restarts_are_all_used():
    """torchrun's users expect N restarts in all; a crash loop is more than most ask for."""
    run = started(max_restarts=3)
    play_attempts(run, [0.0] * 9)
    run.bye(run.now)
    assert (attempts(run), run.result.reason) == ([0, 1, 2, 3], "all 3 used")


# ---- by hand ----


def test_by_hand_the_other_nodes_are_told_what_failed():
    hosts = (Host("a", slots=2), Host("b", slots=2))
    run = started(hosts=hosts, by_hand=ByHand(2, 0, "10.0.0.1", 29400))
    new = fail(run, 1.0, message="disk")
    ((node, message),) = sends(new, wire.Restart)
    assert (node, message.attempt, message.attempts, message.pause_s) == (1, 1, 3, 0.0)
    assert read_result(message.summary).first.exception.message == "disk"


# ---- the signal before the time limit ----


def signalled(actions):
    return [(node, message.signal) for node, message in sends(actions, wire.SignalWorkers)]


EARLY = {"time_limit_s": 100.0, "signal_workers": EarlySignal(10, 60.0)}


def test_workers_are_warned_once():
    run = started(max_restarts=0, **EARLY)
    assert signalled(run.ticks(39.9, alive=[0, 1])) == []
    assert signalled(run.ticks(40.0, alive=[0, 1])) == [(0, 10), (1, 10)]
    assert signalled(run.ticks(99.0, alive=[0, 1])) == []
    run.end(99.5)
    run.bye(99.5)
    assert run.result.exit_code == 0


def test_the_warning_waits_until_the_workers_are_in_their_script():
    run = Run(make_job(start_timeout_s=300.0, **EARLY))
    run.start()
    assert signalled(run.ticks(50.0, alive=[0, 1])) == []
    assert signalled(run.ready(50.0)) == [(0, 10), (1, 10)]


def test_after_the_warning_no_restart_follows():
    run = started(**EARLY)
    run.ticks(40.0, alive=[0, 1])
    fail(run, 41.0, exit_code=5)
    run.bye(41.0)
    assert run.result.exit_code == 5 and "signal" in run.result.reason
