"""Owns: what must hold in every history, tried with random ones.
Must not: expect one particular end.
Called by: pytest."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshrun import wire
from meshrun.errors import Cause, CauseKind
from meshrun.launch.channel import Closed, Opened, Received, Remark, Unreachable
from meshrun.watch.state import next_deadline
from meshrun.watch.values import Asked, Began, Close, Consumed, Finish, Open, ReaderGone, Send, Signalled, Tick
from tests.watch.history import Run, exited, facts, gloo, make_job, raised, sends

NODES, SLOTS = 3, 2
# Limits: connect 30+1, address 7, store 10, start 300+2, stop 11, leave 7, and 10 s of silence before any of them.
BOUND_S = 400.0


def calls(number):
    """What a recorder tells of a rank that has issued so many collectives of the world."""
    issued = [[n, "all_reduce", "[4]", "scheduled", 0.5] for n in range(1, number + 1)]
    return {"groups": [{"name": "0", "desc": "default_pg", "ranks": [], "calls": {"gloo": issued}}]}


nodes = st.integers(0, NODES - 1)
ranks = st.integers(0, NODES * SLOTS - 1)
kinds = st.sampled_from([CauseKind.REFUSED, CauseKind.AUTH, CauseKind.TIMED_OUT])
messages = st.one_of(
    st.builds(facts, nodes, torch=st.sampled_from(["2.13.0", "2.13.0", "2.13.0", ""])),
    st.sampled_from(
        [
            wire.Reached({"10.0.0.1": "eth0"}, {}),
            wire.Reached({}, {"10.0.0.1": "refused"}),
            wire.StoreOpened(0, "10.0.0.1", 29500),
            wire.Drained(0),
            wire.Bye(()),
            wire.Beat(),
            wire.Trouble("agent", "broken", "", True),
            wire.Trouble("agent", "odd", "", False),
            wire.Interrupted(2),
        ]
    ),
    st.builds(lambda rank: wire.Ready(rank, 0, 0.1), ranks),
    st.builds(lambda rank: wire.Spawned(rank, 7, 0, 0.1), ranks),
    st.builds(lambda rank: wire.Output(rank, 1, b"x"), ranks),
    st.builds(wire.Stacks, ranks, st.just("File"), st.sampled_from([{}, {"groups": 1}, *map(calls, range(3))])),
    st.builds(lambda rank: wire.Progress(0, (rank,)), ranks),
    st.builds(raised, ranks),
    st.builds(gloo, ranks),
    st.builds(exited, ranks, exit_code=st.sampled_from([0, 0, 3])),
    st.builds(exited, ranks, signal=st.just(15), stopped=st.booleans()),
)
faults = st.one_of(
    st.builds(lambda node: Closed(node, "eof", "noise"), nodes),
    st.builds(lambda node, kind: Unreachable(node, Cause(kind, "no")), nodes, kinds),
    st.builds(Signalled, st.sampled_from([1, 2, 15])),
    st.just(ReaderGone()),
)
harmless = st.one_of(
    st.builds(Opened, nodes),
    st.builds(lambda node: Remark(node, "x"), nodes),
    st.builds(Consumed, nodes, st.just(10)),
    st.just(Tick()),
    st.just(Asked()),
)
events = st.one_of(st.builds(Received, nodes, messages), harmless, faults)
waits = st.sampled_from([0.0, 0.0, 0.01, 0.3, 2.0, 11.0])
steps = st.lists(st.tuples(waits, events), max_size=60)


def begin_at(stage):
    run = Run(make_job(NODES, SLOTS, time_limit_s=None, hang_timeout_s=20.0))
    if stage == "began":
        run.at(0.0, Began())
    else:
        getattr(run, stage)()
    return run


def play(run, history):
    now = run.now
    for wait, event in history:
        now += wait
        run.at(now, event)
        if wait and (next_deadline(run.state) or now) < now:
            run.at(now, Tick())
    limit = now + BOUND_S
    for _ in range(2000):
        if (at := next_deadline(run.state)) is None:
            break
        assert at <= limit, "no end in sight"
        run.tick()


def check(run):
    finishes = [n for n, action in enumerate(run.all) if isinstance(action, Finish)]
    assert finishes == [len(run.all) - 1], "one Finish, and nothing after it"
    started = [node for node, _ in sends(run.all, wire.Start)]
    assert started in ([], list(range(NODES))), "Start goes to all or none"
    for node in range(NODES):
        mine = [action for action in run.all if getattr(action, "node", None) == node]
        stops = [action.message.grace_s for action in mine if isinstance(action, Send) and is_stop(action)]
        assert [grace for grace in stops if grace] in ([], [5.0]) and (not stops or stops[0] == 5.0 or started)
        assert sum(isinstance(action, Send) and isinstance(action.message, wire.Leave) for action in mine) <= 1
        assert isinstance([a for a in mine if isinstance(a, Close | Open | Send)][-1], Close), "every line is closed"


def is_stop(action):
    return isinstance(action.message, wire.Stop)


def consistent(result):
    known = {0, 1, 3, 124, 125, 129, 130, 141, 143}
    assert result.exit_code in known
    assert (result.exit_code == 0) == (result.outcome.value == "succeeded")
    assert (result.first is not None) == (result.outcome.value == "failed")
    if result.first:
        assert result.first.rank not in result.followed
    if result.outcome.value == "lost":
        assert result.causes or result.reason


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(["began", "greet", "start", "run"]), steps)
def test_every_history_ends_in_one_finish_within_a_bound(stage, history):
    run = begin_at(stage)
    play(run, history)
    check(run)
    consistent(run.result)


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps)
def test_success_means_that_every_worker_said_zero(history):
    run = begin_at("run")
    play(run, history)
    if run.result.exit_code == 0:
        ended = {e.message.rank for _, e in history if isinstance(e, Received) and isinstance(e.message, wire.Exited)}
        assert ended == set(range(NODES * SLOTS))


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.permutations(range(NODES * SLOTS)), st.integers(0, NODES * SLOTS - 1), st.integers(0, 5))
def test_the_cause_is_found_whatever_order_the_broken_connections_arrive_in(order, culprit, at):
    run = begin_at("run")
    news = [gloo(rank) for rank in order if rank != culprit]
    news.insert(at, exited(culprit, exit_code=3))
    run.at(1.0, *(Received(message.rank // SLOTS, message) for message in news))
    run.end(1.2, signal=15, stopped=True)
    run.bye(1.2)
    assert (run.result.first.rank, run.result.exit_code) == (culprit, 3)
    assert run.result.followed == tuple(sorted(set(order) - {culprit}))


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(["began", "greet", "start", "run"]), st.sampled_from([2, 15]))
def test_two_signals_end_any_run_within_a_second(stage, number):
    run = begin_at(stage)
    run.at(5.0, Signalled(number), Signalled(2))
    run.ticks(6.0)
    assert run.result.exit_code == 128 + number
