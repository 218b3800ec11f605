"""Owns: Report as the command line uses it: files and screen together, what is consumed when, the end of a run.
Must not: depend on how fast anything is.
Called by: pytest."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshrun.errors import InputError
from meshrun.report.report import Report, Settled
from meshrun.spec.values import ByHand, Job
from meshrun.watch.values import Again, Emit, Failure, Note, Outcome, Planned, Record, RunResult
from meshrun.wire import STDERR, STDOUT
from tests.report.make import make_job, make_plan

HOSTS = {"a": 2, "b": 2}
PLAN = make_plan(HOSTS, dp=2, tp=2)
DONE = RunResult(Outcome.SUCCEEDED, 0)


class Desk:
    """A report that writes to two files, and what it called back."""

    def __init__(self, tmp: Path) -> None:
        self.tmp = tmp
        self.log_dir = tmp / "run"
        self.consumed: dict[int, int] = {}
        self.heard = threading.Event()
        self._fds = [os.open(tmp / name, os.O_WRONLY | os.O_CREAT, 0o600) for name in ("out", "err")]

    def open(self, job: Job) -> Report:
        return Report(job, self.count, lambda: pytest.fail("nobody left"), *self._fds)

    def count(self, node: int, count: int) -> None:
        self.consumed[node] = self.consumed.get(node, 0) + count
        self.heard.set()

    def wait_for(self, node: int, count: int) -> None:
        while self.consumed.get(node, 0) < count:
            assert self.heard.wait(60)
            self.heard.clear()

    @property
    def out(self) -> str:
        return (self.tmp / "out").read_text()

    @property
    def err(self) -> str:
        return (self.tmp / "err").read_text()

    def file(self, name: str) -> str:
        return (self.log_dir / name).read_text()


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    yield Desk(tmp_path)


def test_a_run_that_fails(desk: Desk) -> None:
    report = desk.open(make_job(desk.log_dir, HOSTS, dp=2, tp=2))
    report.perform(Record("began", {}))
    report.perform(Planned(PLAN))
    report.perform(Note("info", "the address is 10.0.0.1"))
    report.perform(Emit(0, 0, STDOUT, b"hello\npart"))
    report.perform(Emit(1, 3, STDERR, b"Killed soon\n"))
    report.perform(Record("exited", {"rank": 3, "node": 1}))
    failure = Failure(3, 1, 1.0, "signal", 137, 9, "no")
    summary = report.finish(RunResult(Outcome.FAILED, 137, first=failure, followed=(0, 1, 2)))
    assert desk.out == "[a:0 dp=0,tp=0] hello\n[a:0 dp=0,tp=0] part\n"
    lines = desk.err.splitlines()
    assert lines[:3] == [
        "meshrun: the address is 10.0.0.1",
        "[b:3 dp=1,tp=1] Killed soon",
        "meshrun: rank 3 failed first: killed by SIGKILL (exit code 137)",
    ]
    assert "    Killed soon" in lines and any("OOM killer: no" in line for line in lines)
    assert lines[-1].split()[1] == str(desk.log_dir)
    assert desk.file("rank0.out") == "hello\npart"
    assert json.loads(desk.file("summary.json")) == summary and summary["first_failure"]["rank"] == 3
    assert json.loads(desk.file("plan.json"))["world_size"] == 4
    events = [json.loads(line) for line in desk.file("events.jsonl").splitlines()]
    assert [event["kind"] for event in events] == ["began", "note", "exited"]
    assert all(event["t"] > 1.7e9 for event in events)
    ranks = {f"rank{rank}.{name}" for rank in range(4) for name in ("out", "err")}
    assert {path.name for path in desk.log_dir.iterdir()} == ranks | {"plan.json", "events.jsonl", "summary.json"}
    assert desk.consumed == {0: 10, 1: 12}


def test_a_run_that_succeeds_says_nothing(desk: Desk) -> None:
    report = desk.open(make_job(desk.log_dir, HOSTS, quiet=True, dp=2, tp=2))
    report.perform(Planned(PLAN))
    report.perform(Note("info", "hidden by --quiet"))
    report.perform(Note("warning", "meshrun: seen all the same"))
    report.finish(DONE)
    assert (desk.out, desk.err) == ("", "meshrun: seen all the same\n")


def test_what_is_not_shown_is_stored_and_consumed(desk: Desk) -> None:
    report = desk.open(make_job(desk.log_dir, HOSTS, show="tp=1", dp=2, tp=2))
    report.perform(Planned(PLAN))
    for worker in PLAN.workers:
        report.perform(Emit(worker.node_rank, worker.rank, STDOUT, b"%d\n" % worker.rank))
    report.finish(DONE)
    assert desk.out == "[a:1 dp=0,tp=1] 1\n[b:3 dp=1,tp=1] 3\n"
    assert [desk.file(f"rank{rank}.out") for rank in range(4)] == ["0\n", "1\n", "2\n", "3\n"]
    assert desk.consumed == {0: 4, 1: 4}


def test_a_selection_of_nobody_is_told(desk: Desk) -> None:
    report = desk.open(make_job(desk.log_dir, HOSTS, show="8-9", dp=2, tp=2))
    report.perform(Planned(PLAN))
    report.finish(DONE)
    assert "--show 8-9 selects no rank" in desk.err


def test_ranks_of_no_plan_are_shown_and_stored(desk: Desk) -> None:
    report = desk.open(make_job(desk.log_dir, {"a": 1}, dp=2))
    report.perform(Emit(0, 7, STDERR, b"early\n"))
    report.finish(DONE)
    assert desk.err == "[7] early\n" and desk.file("rank7.err") == "early\n"


def test_by_hand_a_node_stores_its_own_ranks_only(desk: Desk) -> None:
    job = replace(make_job(desk.log_dir, HOSTS, dp=2, tp=2), by_hand=ByHand(2, 1, "10.0.0.1", 29400))
    report = desk.open(job)
    report.perform(Planned(PLAN))
    report.finish(RunResult(Outcome.FAILED, 3, first=Failure(0, 0, 1.0, "exit", 3)))
    names = {path.name for path in desk.log_dir.iterdir()}
    assert {name for name in names if name.startswith("rank")} == {"rank2.out", "rank2.err", "rank3.out", "rank3.err"}
    assert "rank 0 failed first" in desk.err and "rank0.err" not in desk.err


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda path: make_job(path, HOSTS, show="ep=0", dp=2, tp=2), "no dim 'ep'"),
        (lambda path: make_job(path, HOSTS, show="x", dp=2, tp=2), "not a number"),
        (lambda path: make_job(path / "out" / "sub", HOSTS, dp=2, tp=2), "cannot make the run directory"),
    ],
)
def test_refused_before_anything_starts(desk: Desk, change: Callable[[Path], Job], said: str) -> None:
    with pytest.raises(InputError, match=said):
        desk.open(change(desk.tmp))


def test_a_full_run_directory_is_one_warning_and_the_run_goes_on(desk: Desk) -> None:
    desk.log_dir.mkdir()
    for name in ("rank0.out", "rank1.out"):
        (desk.log_dir / name).symlink_to("/dev/full")
    report = desk.open(make_job(desk.log_dir, HOSTS, dp=2, tp=2))
    report.perform(Planned(PLAN))
    for rank in (0, 1, 2):
        report.perform(Emit(0, rank, STDOUT, b"line\n"))
    desk.wait_for(0, 15)
    report.finish(DONE)
    assert len(desk.out.splitlines()) == 3
    assert desk.err.count("warning") == 1 and f"{desk.log_dir}: No space left on device" in desk.err
    assert desk.file("rank2.out") == "line\n" and json.loads(desk.file("summary.json"))["exit_code"] == 0


STEPS = st.lists(st.tuples(st.booleans(), st.integers(0, 2), st.integers(0, 9)))


@given(STEPS)
def test_settled_is_the_lesser_of_stored_and_shown(steps: list[tuple[bool, int, int]]) -> None:
    told = {0: 0, 1: 0, 2: 0}

    def consumed(node: int, count: int) -> None:
        assert count > 0
        told[node] += count

    settled = Settled(consumed)
    stored, shown = dict.fromkeys(told, 0), dict.fromkeys(told, 0)
    for is_stored, node, count in steps:
        (stored if is_stored else shown)[node] += count
        (settled.stored if is_stored else settled.shown)(node, count)
        assert told == {n: min(stored[n], shown[n]) for n in told}


def test_attempts_have_their_own_files_and_blocks(desk: Desk) -> None:
    report = desk.open(make_job(desk.log_dir, HOSTS, dp=2, tp=2))
    report.perform(Planned(PLAN))
    results = []
    for attempt in range(3):
        for rank in (0, 3):
            report.perform(Emit(PLAN.workers[rank].node_rank, rank, STDOUT, b"line\nrest of %d" % attempt))
        failure = Failure(attempt, 0, 1.0, "exit", attempt + 3)
        result = RunResult(Outcome.FAILED, attempt + 3, attempt, failure, earlier=tuple(results))
        if attempt < 2:
            report.perform(Again(result, attempt + 1, 3, float(attempt)))
        results.append(result)
    summary = report.finish(results[-1])
    for attempt, folder in enumerate(("", "attempt1/", "attempt2/")):
        assert desk.file(f"{folder}rank3.out") == f"line\nrest of {attempt}"
        assert desk.file(f"{folder}rank1.err") == ""
    assert desk.out.count("[b:3 dp=1,tp=1] rest of ") == 3 and desk.out.count("\n") == 12
    said = [line for line in desk.err.splitlines() if line.startswith("meshrun: ")]
    assert said == [
        "meshrun: rank 0 failed first: exit code 3",
        "meshrun: restart 1 of 2",
        "meshrun: rank 1 failed first: exit code 4",
        "meshrun: restart 2 of 2 in 1 s",
        "meshrun: rank 2 failed first: exit code 5",
    ]
    assert f"logs:      {desk.log_dir}/attempt1\n" in desk.err
    assert [(item["attempt"], item["first_failure"]["rank"]) for item in summary["earlier"]] == [(0, 0), (1, 1)]
    assert (summary["attempt"], summary["first_failure"]["rank"]) == (2, 2)


def test_a_folder_of_an_attempt_that_cannot_be_made_is_one_warning(desk: Desk) -> None:
    report = desk.open(make_job(desk.log_dir, HOSTS, dp=2, tp=2))
    report.perform(Planned(PLAN))
    (desk.log_dir / "attempt1").write_text("in the way")
    report.perform(Again(RunResult(Outcome.FAILED, 3, first=Failure(0, 0, 1.0, "exit", 3)), 1, 2, 0.0))
    report.perform(Emit(0, 0, STDOUT, b"shown\n"))
    report.finish(replace(DONE, attempt=1))
    assert desk.out == "[a:0 dp=0,tp=0] shown\n" and desk.err.count("warning") == 1
    assert json.loads(desk.file("summary.json"))["attempt"] == 1
