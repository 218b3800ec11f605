"""Owns: histories of an agent as tables, and the property that it always ends.
Must not: start a process or open a socket.
Called by: pytest."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshrun import wire
from meshrun.agent import events as ev
from meshrun.agent.state import Phase, State, next_deadline
from meshrun.agent.supervisor import advance, begin
from tests.agent.driver import make_assign, make_brief

TERM, KILL = 15, 9
BRIEF = make_brief(Path("/w"), "prog", grace_s=5.0)
SCRIPT = make_brief(Path("/w"), "/w/a.py", form="script", init="eager", grace_s=5.0)
START = wire.Start(0, "127.0.0.1", 29500)
IMPORTED = ev.FromServer(wire.Imported("2", 1.0, 1, ""))


def ended(pid: int, code: int = 0, number: int = 0) -> ev.Reaped:
    return ev.Reaped(pid, code, number, "", 2.0)


class Run:
    """A machine, the time, and all actions so far."""

    def __init__(self) -> None:
        self.state = begin(0.0)
        self.now = 0.0
        self.log: list[Any] = []

    def do(self, *events: Any, at: float | None = None) -> list[Any]:
        self.now = self.now if at is None else at
        fresh: list[Any] = []
        for event in events:
            self.state, actions = advance(self.state, event, self.now)
            fresh += actions
        self.log += fresh
        return fresh

    def hear(self, *messages: Any, at: float | None = None) -> list[Any]:
        return self.do(*(ev.Heard(message) for message in messages), at=at)


def running(ranks: int = 2, brief: wire.Brief = BRIEF) -> Run:
    run = Run()
    run.hear(brief, make_assign(ranks), START)
    if brief.form != "program":
        run.do(IMPORTED)
    run.do(*(ev.Started(rank, 100 + rank, 1.0) for rank in range(ranks)))
    assert run.state.phase is Phase.RUNNING
    return run


def sent(actions: list[Any], kind: type[Any]) -> list[Any]:
    messages = [a.exited if type(a) is ev.TellEnd else a.message for a in actions if type(a) in (ev.Send, ev.TellEnd)]
    return [message for message in messages if isinstance(message, kind)]


def of(actions: list[Any], kind: type[Any]) -> list[Any]:
    return [action for action in actions if type(action) is kind]


def test_a_whole_run_of_a_program() -> None:
    run = Run()
    assert [type(a) for a in run.hear(BRIEF)] == [ev.Greet]
    assert run.hear(make_assign(2)) == []
    assert run.hear(START) == [ev.Launch("program")]
    spawned = run.do(ev.Started(0, 100, 1.0), ev.Started(1, 101, 1.0))
    assert [message.pid for message in sent(spawned, wire.Spawned)] == [100, 101]
    first = run.do(ended(100))
    assert sent(first, wire.Exited)[0] == wire.Exited(0, 0, 0.0, 0, 0, "", False)
    assert of(first, ev.EndTree) == [ev.EndTree(0, 100, TERM)]
    last = run.do(ended(101, 3))
    assert of(last, ev.EndAll) == [ev.EndAll(TERM)] and of(last, ev.Look) == [ev.Look()]
    run.do(ev.StreamsClosed(0), ev.Left(()))
    assert run.state.phase is Phase.CLEARING, "rank 1's output is not complete yet"
    assert run.do(ev.StreamsClosed(1)) == [ev.Send(wire.Drained(0), last=True)]
    gone = run.hear(wire.Leave(3, {}, ""))
    assert ev.EndAll(KILL, all=True) in gone and ev.Look(all=True) in gone
    assert run.do(ev.Left(())) == [ev.Depart(wire.Bye(()))]
    assert run.state.phase is Phase.GONE


def test_the_fork_server_starts_with_the_brief_and_workers_wait_for_its_import() -> None:
    run = Run()
    assert [type(a) for a in run.hear(SCRIPT)] == [ev.StartServer, ev.Greet]
    assert run.hear(make_assign(1), START) == []
    assert run.do(IMPORTED) == [ev.Launch("fork")]


def test_what_a_worker_says_before_its_pid_is_known_is_told_after_it() -> None:
    run = Run()
    run.hear(SCRIPT, make_assign(2), START)
    run.do(IMPORTED)
    said = ev.Said(1, wire.Ready(1, 0, 0.0), 1.0)
    assert run.do(said, ended(101)) == []
    told = sent(run.do(ev.Started(1, 101, 1.0)), object)
    assert [type(message) for message in told] == [wire.Spawned, wire.Ready, wire.Exited]
    assert [type(message) for message in sent(run.do(ev.Started(0, 100, 1.0)), object)] == [wire.Spawned]


@pytest.mark.parametrize(
    ("event", "word"),
    [(ev.FromServer(wire.Imported("2", 1.0, 9, "9 threads")), "9 threads"), (ev.ServerLost("signal 11"), "signal 11")],
)
def test_without_a_usable_fork_server_fresh_interpreters_are_started_and_it_is_said_once(event: Any, word: str) -> None:
    run = Run()
    run.hear(SCRIPT, make_assign(1), START)
    actions = run.do(event)
    (told,) = sent(actions, wire.Trouble)
    assert not told.fatal and word in told.message
    assert of(actions, ev.Launch) == [ev.Launch("exec")]
    assert sent(run.do(ev.ServerLost("signal 9")), wire.Trouble) == []


def test_a_fork_server_that_ends_while_forking_is_fatal_and_the_rest_is_stopped() -> None:
    run = Run()
    run.hear(SCRIPT, make_assign(2), START)
    run.do(IMPORTED, ev.Started(0, 100, 1.0))
    actions = run.do(ev.ServerLost("signal 9"))
    assert sent(actions, wire.Trouble)[0].fatal
    assert of(actions, ev.SignalWorker) == [ev.SignalWorker(100, TERM)]


def test_a_fork_server_that_ends_later_is_nobodys_business() -> None:
    assert running(2, SCRIPT).do(ev.ServerLost("signal 9")) == []


def test_a_worker_that_ended_before_its_pid_was_known() -> None:
    run = Run()
    run.hear(SCRIPT, make_assign(1), START)
    run.do(IMPORTED)
    assert run.do(ended(100, 7)) == []
    actions = run.do(ev.Started(0, 100, 1.0))
    assert [m.exit_code for m in sent(actions, wire.Exited)] == [7]
    assert sent(actions, wire.Spawned)


@pytest.mark.parametrize("init", ["eager", "off"])
def test_the_store_is_forked_where_torch_is_and_fresh_where_not(init: str) -> None:
    run = Run()
    run.hear(make_brief(Path("/w"), "/w/a.py", form="script", init=init), make_assign(1))
    request = wire.OpenStore("127.0.0.1", 0, 0, True)
    assert run.hear(request) == [ev.BindStore(request)]
    bound = run.do(ev.StoreBound(4711))
    assert sent(bound, wire.StoreOpened) == [wire.StoreOpened(0, "127.0.0.1", 4711)]
    later = run.do(IMPORTED)
    serve = of(bound if init == "off" else later, ev.ServeStore)
    assert serve == [ev.ServeStore("wait" if init == "off" else "fork", 1, 60.0)]
    assert len(of(run.log, ev.ServeStore)) == 1
    assert ev.StoreStarted(77) in run.do(ev.Started(ev.STORE, 77, 1.0))


def test_a_busy_port_is_told_and_ends_nothing_by_itself() -> None:
    run = Run()
    run.hear(BRIEF, make_assign(1), wire.OpenStore("127.0.0.1", 80, 0, False))
    (told,) = sent(run.do(ev.StoreRefused("127.0.0.1:80 is in use")), wire.Trouble)
    assert (told.kind, told.fatal) == ("store", True) and "127.0.0.1:80" in told.message


def test_stop_is_sigterm_once_then_one_grace_then_sigkill() -> None:
    run = running()
    assert run.hear(wire.Stop(5.0, "x"), at=10.0) == [ev.SignalWorker(100, TERM), ev.SignalWorker(101, TERM)]
    assert run.hear(wire.Stop(5.0, "x"), at=11.0) == []
    assert sent(run.do(ended(100, 143, TERM)), wire.Exited)[0].stopped
    assert next_deadline(run.state) == 15.0
    assert ev.EndAll(KILL) in run.do(ev.Tick(), at=15.0)
    run.do(ended(101, 137, KILL), ev.StreamsClosed(0), ev.StreamsClosed(1), ev.Left(()))
    assert run.state.phase is Phase.DRAINED


@pytest.mark.parametrize(("grace_s", "kill_at"), [(1.0, 11.0), (0.0, None)])
def test_a_second_stop_shortens(grace_s: float, kill_at: float | None) -> None:
    run = running()
    run.hear(wire.Stop(60.0, "x"), at=9.0)
    actions = run.hear(wire.Stop(grace_s, "again"), at=10.0)
    assert run.state.kill_at == kill_at
    assert of(actions, ev.EndAll) == ([ev.EndAll(KILL)] if kill_at is None else [])


def test_what_an_early_finisher_left_is_killed_after_the_grace_while_the_others_run() -> None:
    run = running()
    run.do(ended(100), at=20.0)
    assert next_deadline(run.state) == 20.0, "silence_s after the last message"
    run.hear(wire.Beat(), at=20.0)
    assert next_deadline(run.state) == 25.0
    assert of(run.do(ev.Tick(), at=25.0), ev.EndTree) == [ev.EndTree(0, 100, KILL)]
    assert run.state.phase is Phase.RUNNING


def test_a_restart_uses_the_warm_fork_server_again() -> None:
    run = running(1, SCRIPT)
    run.do(ended(100, 1), ev.StreamsClosed(0), ev.Left(()))
    assert run.state.phase is Phase.DRAINED
    assert run.hear(wire.Start(1, "127.0.0.1", 29501)) == [ev.Launch("fork")]
    (spawned,) = sent(run.do(ev.Started(0, 200, 1.0)), wire.Spawned)
    assert spawned.attempt == 1
    (exited,) = sent(run.do(ended(200, 0)), wire.Exited)
    assert exited.attempt == 1


@pytest.mark.parametrize("end", [ev.LineLost(), ev.Signalled(TERM), ev.Heard(wire.Leave(1, {}, ""))])
def test_the_three_ways_to_be_sent_away_stop_in_order(end: Any) -> None:
    run = running()
    assert ev.SignalWorker(100, TERM) in run.do(end, at=1.0)
    assert ev.EndAll(KILL) in run.do(ev.Tick(), at=6.0)
    run.do(ended(100, 137, 9), ended(101, 137, 9), ev.StreamsClosed(0), ev.StreamsClosed(1), ev.Left(()))
    (depart,) = of(run.do(ev.Left(())), ev.Depart)
    assert (depart.bye is None) == (type(end) is ev.LineLost)


def test_an_agent_that_never_gets_its_brief_leaves() -> None:
    run = Run()
    run.do(ev.Tick(), at=9.9)
    assert run.state.phase is Phase.WAITING and next_deadline(run.state) == 10.0, "as long as any silence"
    run.do(ev.Tick(), at=10.1)
    assert run.state.phase is Phase.LEAVING


def test_silence_counts_as_a_lost_line() -> None:
    run = running()
    assert of(run.do(ev.Tick(), at=19.9), ev.CloseLine) == []
    actions = run.do(ev.Tick(), at=20.0)
    assert ev.CloseLine() in actions and ev.SignalWorker(100, TERM) in actions


def test_a_process_that_survives_sigkill_is_named_and_left() -> None:
    run = running(1)
    run.hear(wire.Leave(1, {}, ""), at=0.0)
    run.do(ev.Tick(), at=5.0)
    run.do(ended(100, 137, 9), ev.StreamsClosed(0), ev.Left(("7 stuck D",)))
    run.do(ev.Tick(), at=6.0)
    assert run.state.phase is Phase.LEAVING
    run.do(ev.Left(("7 stuck D",)))
    (depart,) = of(run.do(ev.Tick(), at=7.0), ev.Depart)
    assert depart.bye == wire.Bye(("7 stuck D",))


def test_output_held_open_by_somebody_out_of_reach_does_not_hold_up_the_end() -> None:
    run = running(1)
    run.do(ended(100), ev.Left(()))
    assert run.state.phase is Phase.CLEARING
    run.hear(wire.Beat(), at=5.0)
    run.do(ev.Tick(), ev.Left(()), at=5.0)
    assert ev.CloseStreams() in run.do(ev.Tick(), at=6.0)
    assert run.state.phase is Phase.DRAINED


@pytest.mark.parametrize("message", [START, make_assign(1), wire.OpenStore("h", 0, 0, True)])
def test_a_message_out_of_order_is_refused_by_name(message: Any) -> None:
    (told,) = sent(Run().hear(message), wire.Trouble)
    assert told.fatal and type(message).__name__ in told.message


def test_another_protocol_is_refused_and_the_agent_goes() -> None:
    run = Run()
    actions = run.hear(make_brief(Path("/w"), "x", protocol=999))
    assert "999" in sent(actions, wire.Trouble)[0].message
    run.do(ev.Left(()))
    assert run.state.phase is Phase.GONE


def test_a_stop_before_anything_started_is_answered() -> None:
    run = Run()
    run.hear(BRIEF)
    assert run.hear(wire.Stop(1.0, "x")) == [ev.Send(wire.Drained(0), last=True)]


MESSAGES = [
    BRIEF,
    SCRIPT,
    make_assign(2),
    START,
    wire.Start(1, "127.0.0.1", 1),
    wire.OpenStore("127.0.0.1", 0, 0, True),
    wire.Stop(2.0, "x"),
    wire.Stop(0.0, "x"),
    wire.Dump(()),
    wire.Beat(),
    wire.Ack(5),
    wire.Leave(0, {}, ""),
    wire.TryAddresses((), 1, 1.0),
]
EVENTS = st.one_of(
    st.sampled_from(MESSAGES).map(ev.Heard),
    st.sampled_from([ev.LineLost(), ev.Signalled(15), ev.Tick(), IMPORTED, ev.ServerLost("x")]),
    st.builds(ev.Started, st.integers(-1, 2), st.integers(100, 103), st.just(0.0)),
    st.builds(ev.Reaped, st.integers(99, 104), st.integers(0, 2), st.just(0), st.just(""), st.just(0.0)),
    st.builds(ev.StreamsClosed, st.integers(0, 2)),
    st.builds(ev.StartFailed, st.integers(0, 2), st.just("no")),
    st.builds(ev.StoreBound, st.integers(1, 3)),
    st.builds(ev.Left, st.sampled_from([(), ("1 x D",)])),
)


def end_of(state: State, now: float, seed: int) -> float:
    """Close the line and let only time pass, with a node that answers looks as it likes; when it was gone."""
    choose = random.Random(seed)
    state, actions = advance(state, ev.LineLost(), now)
    while state.phase is not Phase.GONE:
        for _ in of(actions, ev.Look):
            state, _ = advance(state, ev.Left(choose.choice([(), ("1 x D",)])), now)
        if state.phase is Phase.GONE:
            break
        deadline = next_deadline(state)
        assert deadline is not None, f"waits for ever in {state.phase}"
        now = max(now, deadline)
        state, actions = advance(state, ev.Tick(), now)
    return now


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(EVENTS, st.floats(0, 3)), max_size=40), st.integers(0, 99))
def test_after_the_line_is_lost_the_agent_is_gone_within_the_graces(
    history: list[tuple[Any, float]], seed: int
) -> None:
    state, now = begin(0.0), 0.0
    for event, passed in history:
        now += passed
        state, actions = advance(state, event, now)
        for action in actions:
            assert type(action) is not ev.Launch or state.phase is not Phase.GONE
    assert end_of(state, now, seed) <= now + 5.0 + 4.0


@pytest.mark.parametrize(
    ("code", "number", "stopped", "raised", "told"),
    [
        (0, 0, False, False, None),
        (3, 0, False, False, False),
        (1, 0, False, True, True),
        (139, 11, False, False, False),
        (143, 15, True, False, None),
    ],
)
def test_a_failure_of_its_own_is_told_with_its_last_words(
    code: int, number: int, stopped: bool, raised: bool, told: bool | None
) -> None:
    """None: a plain message; else whether its exception is known already, so that no error file is read."""
    run = running(2)
    if raised:
        run.do(ev.Said(0, wire.Raised(0, 0, 0.0, "script", "E", "", "", 0, (), "", 1), 1.5))
    if stopped:
        run.hear(wire.Stop(5.0, "test"))
    actions = run.do(ended(100, code, number))
    assert [action.recorded for action in of(actions, ev.TellEnd)] == ([] if told is None else [told])
    assert len(sent(actions, wire.Exited)) == 1


def test_a_signal_for_the_workers_goes_to_their_main_processes_while_they_run() -> None:
    run = running(2)
    assert run.hear(wire.SignalWorkers(10)) == [ev.SignalMain(100, 10), ev.SignalMain(101, 10)]
    run.do(ended(100))
    assert run.hear(wire.SignalWorkers(10)) == [ev.SignalMain(101, 10)]
    run.hear(wire.Stop(5.0, "x"))
    assert run.hear(wire.SignalWorkers(10)) == []
