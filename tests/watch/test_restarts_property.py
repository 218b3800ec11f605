"""Owns: what must hold in every history of a run with --max-restarts, tried with random ones.
Must not: expect one particular end.
Called by: pytest."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshrun import wire
from meshrun.launch.channel import Received
from meshrun.watch.restarts import PAUSES_S
from meshrun.watch.state import next_deadline
from meshrun.watch.values import Finish, Outcome
from tests.watch import test_property as random
from tests.watch.history import Run, exited, make_job, sends
from tests.watch.test_restarts import STOPPED, agains, attempts


def replay(history, max_restarts):
    """A random history in which the messages of workers are of the attempt that runs when they come."""
    run = Run(make_job(random.NODES, random.SLOTS, max_restarts=max_restarts))
    run.run()
    now = run.now
    for wait, event in history:
        now += wait
        if isinstance(event, Received) and hasattr(event.message, "attempt"):
            fields = {name: getattr(event.message, name) for name in event.message.__dataclass_fields__}
            event = Received(event.node, type(event.message)(**{**fields, "attempt": run.state.attempt}))
        run.at(now, event)
        if wait and (next_deadline(run.state) or now) < now:
            run.at(now, random.Tick())
    limit = now + random.BOUND_S + sum(PAUSES_S)
    while (at := next_deadline(run.state)) is not None:
        assert at <= limit, "no end in sight"
        run.tick()
    return run


# Failures of all nodes and the ends that lead to a restart, more often than chance would have them.
crash = st.builds(
    lambda rank, code: [
        (0.0, Received(rank // random.SLOTS, exited(rank, exit_code=code))),
        *(
            (0.0, Received(node, message))
            for node in range(random.NODES)
            for message in (
                *(exited(rank, **STOPPED) for rank in range(random.SLOTS * node, random.SLOTS * (node + 1))),
                wire.Drained(0),
            )
        ),
    ],
    random.ranks,
    st.integers(1, 9),
)
opened = st.just([(4.0, random.Tick()), (0.0, Received(0, wire.StoreOpened(0, "10.0.0.1", 1)))])
all_ready = st.just(
    [(0.0, Received(rank // random.SLOTS, wire.Ready(rank, 0, 0.0))) for rank in range(random.NODES * random.SLOTS)]
)
anything = random.steps.map(lambda steps: steps[:4])
again = st.builds(lambda *parts: [step for part in parts for step in part], crash, opened)
chapters = st.lists(st.one_of(again, again, again, crash, opened, all_ready, anything), max_size=14).map(
    lambda parts: [step for part in parts for step in part]
)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(chapters, st.integers(0, 3))
def test_there_is_one_finish_and_never_more_than_n_plus_one_attempts(history, max_restarts):
    run = replay(history, max_restarts)
    assert [n for n, action in enumerate(run.all) if isinstance(action, Finish)] == [len(run.all) - 1]
    assert (run.result.first is not None) == (run.result.outcome is Outcome.FAILED)
    assert len(attempts(run)) <= max_restarts + 1 and attempts(run) == list(range(len(attempts(run))))
    for attempt in attempts(run):
        nodes = [node for node, start in sends(run.all, wire.Start) if start.attempt == attempt]
        assert nodes == list(range(random.NODES)), "Start goes to all or none"
    assert len(run.result.earlier) == len(agains(run.all)) == run.result.attempt
