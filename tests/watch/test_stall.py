"""Owns: histories of runs in which nothing moves: --hang-timeout, and stacks for a user who asks.
Must not: test what the stacks mean.
Called by: pytest."""

import pytest

from meshrun import wire
from meshrun.launch.channel import Received
from meshrun.watch.phases import Timer
from meshrun.watch.stall import NO_ANSWER
from meshrun.watch.values import Answer, Asked, Outcome, Record
from tests.watch.history import Run, exited, make_job, raised, said, sends, words

ALL = [(0, wire.Dump((0, 1))), (1, wire.Dump((2, 3)))]


def started(**changes):
    run = Run(make_job(**changes))
    run.run()
    return run


def stacks(*ranks):
    return [wire.Stacks(rank, f"File {rank}") for rank in ranks]


def answers(actions):
    return [action for action in actions if isinstance(action, Answer)]


def moved(node, *ranks, attempt=0):
    return Received(node, wire.Progress(attempt, ranks))


def has_timer(run, timer):
    return timer in [name for name, _ in run.state.timers]


def test_history_of_a_hang():
    run = started(hang_timeout_s=3.0)
    history = [
        (2.0, [moved(1, 2)], []),
        (4.9, [moved(0, 0, 1)], []),
        (7.0, [], []),
        (7.9, [], ["Dump>0", "Dump>1"]),
        (8.0, said(0, *stacks(0, 1)), []),
        (8.1, said(1, *stacks(3)), []),
        (8.2, said(1, *stacks(2)), ["Stop>0", "Stop>1"]),
    ]
    for now, events, expected in history:
        new = run.ticks(now, alive=[0, 1]) + run.at(now, *events)
        assert [word for word in words(new) if not word.startswith("Beat")] == expected, now
    assert sends(run.all, wire.Dump) == ALL
    run.end(8.5, signal=15, stopped=True)
    run.bye(8.6)
    result = run.result
    assert (result.outcome, result.exit_code) == (Outcome.STOPPED, 124)
    assert result.reason == "no rank has made progress for 3 s (--hang-timeout)"
    assert dict(result.stacks) == {rank: f"File {rank}" for rank in range(4)}


def test_a_hang_is_ended_without_stacks_that_do_not_come():
    run = started(hang_timeout_s=3.0)
    run.ticks(3.0, alive=[0, 1])
    run.at(3.5, *said(0, *stacks(0)))
    assert sends(run.ticks(4.9, alive=[0, 1]), wire.Stop) == []
    assert len(sends(run.ticks(5.0, alive=[0, 1]), wire.Stop)) == 2
    assert run.state.stacks == ((0, "File 0"), *((rank, NO_ANSWER) for rank in (1, 2, 3)))


def test_without_the_option_nothing_is_asked():
    run = started()
    assert not has_timer(run, Timer.HANG)
    run.at(1.0, moved(0, 0))
    assert not has_timer(run, Timer.HANG)
    assert {message.progress_s for _, message in sends(run.all, wire.Assign)} == {0.0}


@pytest.mark.parametrize(("limit", "every"), [(1.0, 0.3), (20.0, 2.0), (600.0, 5.0)])
def test_agents_look_several_times_within_the_limit(limit, every):
    run = started(hang_timeout_s=limit)
    assert {message.progress_s for _, message in sends(run.all, wire.Assign)} == {every}


@pytest.mark.parametrize(
    ("event", "counts"),
    [
        (moved(0, 1), True),
        (moved(0, 1, attempt=1), False),
        (moved(0, 2), False),
        (Received(0, exited(0)), True),
        (Received(0, wire.Beat()), False),
    ],
)
def test_what_counts_as_progress(event, counts):
    run = started(hang_timeout_s=3.0)
    run.at(2.0, event)
    assert dict(run.state.timers)[Timer.HANG] == (5.0 if counts else 3.0)


def test_a_start_that_takes_long_is_no_hang():
    run = Run(make_job(hang_timeout_s=3.0))
    run.start()
    run.ticks(60.0, alive=[0, 1])
    assert run.phase == "starting" and sends(run.all, wire.Dump) == []


def test_output_that_is_still_on_its_way_is_no_hang():
    run = started(hang_timeout_s=3.0)
    for node in (0, 1):
        run.at(1.0, *said(node, *(exited(rank) for rank in run.state.nodes[node].ranks)))
    run.ticks(30.0, alive=[0, 1])
    assert run.phase == "running" and sends(run.all, wire.Dump) == []


def test_a_failure_while_stacks_are_gathered_is_the_end():
    run = started(hang_timeout_s=3.0)
    run.ticks(3.0, alive=[0, 1])
    run.at(3.1, Received(1, raised(3, exit_code=7)))
    run.at(3.2, *said(0, *stacks(0, 1)), *said(1, *stacks(2, 3)))
    run.end(3.5, signal=15, stopped=True)
    run.bye(3.6)
    assert (run.result.exit_code, run.result.stacks) == (7, ())


def test_a_hang_is_not_restarted():
    run = started(hang_timeout_s=3.0, max_restarts=3)
    run.ticks(5.0, alive=[0, 1])
    run.end(5.5, signal=15, stopped=True)
    run.bye(5.6)
    assert run.result.exit_code == 124


def test_the_next_attempt_counts_anew():
    run = started(hang_timeout_s=3.0, max_restarts=1)
    run.at(2.0, Received(0, raised(0)))
    run.end(2.5, signal=15, stopped=True)
    run.tick()
    run.open_store(2.6)
    assert not has_timer(run, Timer.HANG)
    run.ready(2.7)
    assert dict(run.state.timers)[Timer.HANG] == pytest.approx(5.7)


# ---- what torch's recorders tell with the stacks ----


def recorded(rank, count):
    issued = [[number, "all_reduce", "[4]", "scheduled", 0.5] for number in range(1, count + 1)]
    group = {"name": "0", "desc": "default_pg", "ranks": [], "calls": {"gloo": issued}}
    return wire.Stacks(rank, f"File {rank}", {"groups": [group]})


def test_collectives_are_compared_recorded_and_part_of_the_result():
    run = started(hang_timeout_s=3.0)
    run.ticks(3.0, alive=[0, 1])
    new = run.at(3.1, *said(0, recorded(0, 2), recorded(1, 1)), *said(1, recorded(2, 2), wire.Stacks(3, "File 3")))
    kinds = [action.kind for action in new if isinstance(action, Record)]
    assert kinds[:4] == ["collectives"] * 3 + ["disagreement"]
    run.end(3.5, signal=15, stopped=True)
    run.bye(3.6)
    (one,) = run.result.disagreements
    assert [(place.ranks, place.number) for place in one.places] == [((1,), 1), ((0, 2), 2)]


def test_collectives_of_a_live_run_are_in_the_answer_only():
    run = started()
    run.at(1.0, Asked())
    new = run.at(1.1, *said(0, recorded(0, 2), recorded(1, 1)), *said(1, recorded(2, 2), recorded(3, 2)))
    assert [place.ranks for place in answers(new)[0].disagreements[0].places] == [(1,), (0, 2, 3)]
    run.end(2.0)
    run.bye(2.1)
    assert run.result.disagreements == ()


# ---- meshrun stacks ----


def test_a_user_who_asks_is_answered_and_the_run_goes_on():
    run = started()
    assert sends(run.at(1.0, Asked()), wire.Dump) == ALL
    new = run.at(1.1, *said(0, *stacks(0, 1)), *said(1, *stacks(2, 3)))
    assert words(new) == ["Answer"]
    assert [rank for rank, _ in answers(new)[0].stacks] == [0, 1, 2, 3]
    assert not has_timer(run, Timer.DUMP) and run.phase == "running"
    run.end(2.0)
    run.bye(2.1)
    assert (run.result.exit_code, run.result.stacks) == (0, ())


def test_ranks_that_do_not_answer_are_named():
    run = started()
    run.at(1.0, Asked())
    run.at(1.1, *said(0, *stacks(0)))
    (answer,) = answers(run.ticks(3.0, alive=[0, 1]))
    assert answer.stacks == ((0, "File 0"), *((rank, NO_ANSWER) for rank in (1, 2, 3))) and not answer.why


@pytest.mark.parametrize("stage", ["greet", "start"])
def test_before_any_worker_the_answer_is_why(stage):
    run = Run(make_job())
    getattr(run, stage)()
    if stage == "greet":
        (answer,) = answers(run.at(1.0, Asked()))
        assert (answer.stacks, answer.why) == ((), "no worker is running (the run is addressing)")
    else:
        assert sends(run.at(1.0, Asked()), wire.Dump) == ALL


def test_an_answer_survives_the_last_ready():
    run = Run(make_job())
    run.start()
    run.at(1.0, Asked())
    run.ready(1.1)
    (answer,) = answers(run.ticks(3.0, alive=[0, 1]))
    assert len(answer.stacks) == 4 and run.phase == "running"


def test_a_hang_joins_what_is_being_gathered():
    run = started(hang_timeout_s=3.0)
    run.at(2.9, Asked())
    run.at(2.95, *said(0, *stacks(0, 1)))
    assert sends(run.ticks(3.0, alive=[0, 1]), wire.Dump) == []
    new = run.at(3.1, *said(1, *stacks(2, 3)))
    assert words(new) == ["Answer", "Stop>0", "Stop>1"]
    assert len(run.state.stacks) == 4


def test_the_start_deadline_names_only_those_who_are_late_when_somebody_else_asked_too():
    run = Run(make_job(start_timeout_s=10.0))
    run.start()
    run.at(1.0, *said(0, wire.Ready(0, 0, 0.0), wire.Ready(1, 0, 0.0)), *said(1, wire.Ready(2, 0, 0.0)))
    run.ticks(9.9, alive=[0, 1])
    run.at(9.9, Asked())
    run.ticks(10.0, alive=[0, 1])
    run.at(10.1, *said(0, *stacks(0, 1)), *said(1, *stacks(2, 3)))
    assert run.phase == "stopping" and run.state.halt.reason.startswith("rank 3 ")
