"""Owns: a result's way through JSON and back.
Must not: test the machine.
Called by: pytest."""

import json

import pytest

from meshrun.errors import Cause, CauseKind, WireError
from meshrun.watch.collectives import Disagreement, Kind, Place
from meshrun.watch.values import Failure, NodeCause, Outcome, RaisedException, RunResult
from meshrun.watch.verdict import TEXT_LIMIT, describe_result, read_result
from tests.watch.history import Run, make_job

EXCEPTION = RaisedException("ValueError", "b\udcffm", "t.py", 3, ("3| x",), "Traceback", "init")
FULL = RunResult(
    outcome=Outcome.FAILED,
    exit_code=3,
    attempt=1,
    first=Failure(3, 1, 4.5, "exception", 3, 0, "", EXCEPTION, True, "the machine", "said", "cause", "hint"),
    followed=(0, 2, 4, 5),
    causes=(NodeCause(1, "b", Cause(CauseKind.LOST, "gone", "look"), "noise"),),
    reason="why",
    stacks=((1, "File"),),
    disagreements=(Disagreement(Kind.COUNT, "dp group", (0, 1), (Place((1,), 0, "", "", "", 0.0),)),),
    left=((0, "7 x D"),),
)


@pytest.mark.parametrize("result", [FULL, RunResult(Outcome.SUCCEEDED, 0)])
def test_there_and_back(result):
    assert read_result(json.loads(json.dumps(describe_result(result, None)))) == result


def test_where_the_first_failure_ran():
    run = Run(make_job())
    run.run()
    worker = describe_result(FULL, run.state.plan)["worker"]
    assert (worker["host"], worker["local_rank"], worker["coords"]) == ("h1", 1, {"dp": 3})


def test_long_texts_are_bounded():
    exception = RaisedException("E", "m", "f", 1, (), "x" * 10 * TEXT_LIMIT)
    big = RunResult(
        Outcome.FAILED,
        1,
        first=Failure(0, 0, 0.0, "exception", 1, exception=exception),
        causes=(NodeCause(0, "a", Cause(CauseKind.LOST, "m"), "n" * 10 * TEXT_LIMIT),),
        stacks=tuple((rank, "s" * 5000) for rank in range(100)),
    )
    assert len(json.dumps(describe_result(big, None))) < 4 * TEXT_LIMIT


def test_all_ranks_but_one_take_few_bytes():
    ranks = (*range(5000), *range(5001, 8192))
    stopped = RunResult(Outcome.FAILED, 1, followed=ranks)
    plain = json.dumps(describe_result(stopped, None))
    assert len(plain) < 300 and read_result(json.loads(plain)) == stopped


@pytest.mark.parametrize(
    "change", [{"followed": [1]}, {"followed": [[0, 10**400]]}, {"followed": [[0, 200_000], [0, 200_000]]}]
)
def test_ranks_that_cannot_be_are_refused(change):
    with pytest.raises(WireError):
        read_result({**describe_result(FULL, None), **change})


@pytest.mark.parametrize(
    "change", [{"outcome": "won"}, {"first": {"rank": 1}}, {"stacks": [[1]]}, {"causes": [3]}, {"collectives": [3]}]
)
def test_anything_else_is_refused(change):
    plain = describe_result(FULL, None)
    with pytest.raises(WireError):
        read_result({**plain, **change})
    with pytest.raises(WireError):
        read_result({})
