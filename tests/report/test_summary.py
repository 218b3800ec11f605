"""Owns: the last block of every kind of end, against golden files; summary.json.
Must not: start anything. `MESHRUN_WRITE_GOLDEN=1 pytest ...` writes the files anew: read the difference.
Called by: pytest."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from meshrun.errors import Cause, CauseKind
from meshrun.report.summary import Tail, make_summary, render_summary
from meshrun.spec.signals import signal_name
from meshrun.watch.values import Failure, NodeCause, Outcome, RaisedException, RunResult
from tests.report.make import make_plan

GOLDEN = Path(__file__).parent / "golden"
PLAN = make_plan({"gpu01": 4, "gpu02": 4}, dp=2, tp=4)
PLANS = {
    "unfit": make_plan({f"gpu{n:02}": 1 for n in range(1, 9)}, dp=8),
    "unfit-many": make_plan({f"gpu{n:03}.cluster": 1 for n in range(64)}, dp=64),
    "unfit-alike": make_plan({f"gpu{n}": 1 for n in range(1, 33)}, dp=32),
}
RUN_ID = "20261130-114501-a3f9"
LOG_DIR = f"/w/meshrun-runs/{RUN_ID}"
ALL_BUT_5 = (0, 1, 2, 3, 4, 6, 7)

RAISED = RaisedException(
    type="my.pkg.BadBatch",
    message="shapes do not match\n  left:  (4, 8)\n  right: (8, 4)",
    file="/w/train.py",
    line=42,
    lines=("  40|     for batch in data:", "  41|         x, y = batch", "> 42|         loss = step(x, y)"),
    traceback="Traceback ...",
)
TAIL = Tail(
    ("step 17 loss 2.31", "  indented\tand \udcff"), ("Traceback (most recent call last):", "my.pkg.BadBatch: ...")
)
TIMED_OUT = Cause(CauseKind.TIMED_OUT, "no answer within 30 s", "is the host up? is a firewall in the way?")
HANG = 'File "/w/train.py", line 7 in load\nFile "/w/train.py", line 20 in <module>\n'


def failure(kind: str, code: int, sig: int = 0, oom: str = "", exception: RaisedException | None = None) -> Failure:
    return Failure(5, 1, 100.0, kind, code, sig, oom, exception)


def failed(first: Failure, **more: object) -> RunResult:
    return RunResult(Outcome.FAILED, first.exit_code, 0, first, ALL_BUT_5, **more)  # type: ignore[arg-type]


def lost(*causes: NodeCause, reason: str = "", **more: object) -> RunResult:
    return RunResult(Outcome.LOST, 125, causes=causes, reason=reason, **more)  # type: ignore[arg-type]


SILENT = NodeCause(0, "gpu01", Cause(CauseKind.LOST, "nothing heard for 10 s"))
BARE = RaisedException("KeyboardInterrupt", "", "", 0)
LONG = RaisedException("RuntimeError", "\n".join(f"missing key {n}" for n in range(30)), "/w/t.py", 3)


def refused_by(name: str) -> Cause:
    return Cause(CauseKind.REFUSED, f"{name} port 22 refused the connection", "is sshd running there?")


STACK = (
    'Fatal Python error: Segmentation fault\nCurrent thread 0x1 (most recent call first):\n  File "t.py", line 3 in f'
)
CRASHED = replace(failure("signal", 139, 11), said=STACK, cause="native code crashed", hint="see the stack")

RESULTS = {
    "crash": failed(CRASHED),
    "crash-behind-words": failed(CRASHED),
    "exception": failed(failure("exception", 1, exception=RAISED)),
    "exception-long": failed(failure("exception", 1, exception=LONG)),
    "exception-without-message": failed(
        failure("exception", 1, exception=RaisedException("KeyboardInterrupt", "", "", 0))
    ),
    "exit": failed(failure("exit", 3)),
    "exit-on-cpu": failed(replace(failure("exit", 3), device="cpu")),
    "init": failed(failure("init", 1, exception=RaisedException("DistNetworkError", "refused", "", 0, phase="init"))),
    "segv": failed(failure("signal", 139, 11)),
    "kill-oom": failed(failure("signal", 137, 9, "yes")),
    "kill-no-oom": failed(failure("signal", 137, 9, "no")),
    "kill-unknown": failed(failure("signal", 137, 9, "unknown")),
    "failed-and-lost": failed(
        failure("exit", 3), causes=(NodeCause(0, "gpu01", Cause(CauseKind.LOST, "silent for 10 s")),)
    ),
    "unfit": lost(
        NodeCause(0, "gpu01", TIMED_OUT),
        NodeCause(1, "gpu02", Cause(CauseKind.PRELUDE, "the prelude ended with 1"), "line one\nmodule: not found"),
        NodeCause(2, "gpu03", TIMED_OUT),
        NodeCause(3, "gpu04", Cause(CauseKind.HOST_KEY_CHANGED, "its key changed:\n/h/known_hosts:3", "ask its admin")),
        started=False,
    ),
    "unfit-many": lost(*(NodeCause(n, f"gpu{n:03}.cluster", TIMED_OUT) for n in range(40)), started=False),
    "unfit-alike": lost(
        *(NodeCause(n, f"gpu{n}", refused_by(f"gpu{n}.cluster")) for n in range(1, 13)),
        NodeCause(13, "gpu14", refused_by("10.0.0.14")),
        NodeCause(
            14, "gpu15", Cause(CauseKind.AUTH, "gpu15 lets nobody in", "`ssh gpu15` by hand"), "bye\n from gpu15"
        ),
        NodeCause(15, "a", Cause(CauseKind.AUTH, "a lets nobody in", "`ssh a` by hand"), "bye\n from a"),
        NodeCause(16, "b", Cause(CauseKind.AUTH, "b lets nobody in", "`ssh b` by hand"), "bye\n from elsewhere"),
        started=False,
    ),
    "lost-after-failure": lost(SILENT, first=failure("exit", 3)),
    "lost": lost(NodeCause(1, "gpu02", Cause(CauseKind.LOST, "nothing heard for 10 s", "see its console"))),
    "agent": lost(NodeCause(1, "gpu02", Cause(CauseKind.AGENT, "the fork server was killed by SIGKILL"))),
    "start-deadline": lost(
        reason="start deadline of 300 s: ranks 1-2,5 have not reached the mesh",
        stacks=((1, HANG), (5, HANG), (2, 'File "/w/train.py", line 9 in other')),
    ),
    "interrupted": RunResult(Outcome.STOPPED, 130, reason="interrupted", followed=tuple(range(8))),
    "time-limit": RunResult(Outcome.STOPPED, 124, reason="time limit of 60 s"),
    "left": RunResult(Outcome.STOPPED, 130, reason="interrupted", left=((1, "4711 python D"), (9, "12 sh D"))),
    "succeeded": RunResult(Outcome.SUCCEEDED, 0),
    "succeeded-left": RunResult(Outcome.SUCCEEDED, 0, left=((0, "4711 python D"),)),
    "nothing-known": RunResult(Outcome.LOST, 125),
}
CRASH_TAIL = Tail(stderr=("step 7", *STACK.split("\n"), "", "Thread 0x2 (most recent call first):", "  ..."))
TAILS = {
    "exception": {5: TAIL},
    "crash-behind-words": {5: CRASH_TAIL},
    "exit": {5: Tail(stdout=("bye",))},
    "segv": {5: Tail()},
}


def check_golden(name: str, text: str) -> None:
    path = GOLDEN / name
    if os.environ.get("MESHRUN_WRITE_GOLDEN"):
        path.write_bytes(text.encode("utf-8", "surrogateescape"))
    assert text == path.read_bytes().decode("utf-8", "surrogateescape")


@pytest.mark.parametrize("name", RESULTS)
def test_last_block(name: str) -> None:
    check_golden(f"{name}.txt", render_summary(RESULTS[name], PLANS.get(name, PLAN), RUN_ID, LOG_DIR, TAILS.get(name)))


@pytest.mark.parametrize("name", ["exit", "unfit", "left"])
def test_last_block_without_a_plan_or_directory(name: str) -> None:
    check_golden(f"{name}-no-plan.txt", render_summary(RESULTS[name], None, RUN_ID, ""))


def test_no_golden_file_is_left_over() -> None:
    names = {f"{name}.txt" for name in RESULTS} | {f"{name}-no-plan.txt" for name in ("exit", "unfit", "left")}
    assert {path.name for path in GOLDEN.iterdir()} == names


@pytest.mark.parametrize("name", [name for name, result in RESULTS.items() if result.first])
def test_the_first_rank_named_is_the_culprit(name: str) -> None:
    text = render_summary(RESULTS[name], PLAN, RUN_ID, LOG_DIR, TAILS.get(name))
    assert text.split("rank ", 1)[1].startswith("5 ")


def test_summary_of_a_failure() -> None:
    summary = make_summary(RESULTS["exception"], PLAN, RUN_ID)
    assert {key: summary[key] for key in ("summary_version", "run_id", "outcome", "exit_code", "attempt")} == {
        "summary_version": 1,
        "run_id": RUN_ID,
        "outcome": "failed",
        "exit_code": 1,
        "attempt": 0,
    }
    assert summary["first_failure"] == {
        "rank": 5,
        "node_rank": 1,
        "host": "gpu02",
        "local_rank": 1,
        "device": "1",
        "coords": {"dp": 1, "tp": 1},
        "kind": "exception",
        "exit_code": 1,
        "signal": None,
        "signal_name": None,
        "oom": None,
        "oom_where": None,
        "exception": {"type": "my.pkg.BadBatch", "message": RAISED.message, "file": "/w/train.py", "line": 42},
        "said": None,
        "cause": None,
        "hint": None,
    }
    assert summary["followed"] == [0, 1, 2, 3, 4, 6, 7]


def test_summary_of_a_killed_rank_and_of_lost_hosts() -> None:
    first = make_summary(RESULTS["kill-oom"], None, RUN_ID)["first_failure"]
    assert (first["signal"], first["signal_name"], first["oom"], first["exit_code"]) == (9, "SIGKILL", "yes", 137)
    summary = make_summary(RESULTS["lost"], PLAN, RUN_ID)
    assert summary["first_failure"] is None
    assert summary["causes"][0]["kind"] == "lost" and summary["causes"][0]["host"] == "gpu02"


@pytest.mark.parametrize("name", RESULTS)
def test_every_summary_is_plain_json(name: str) -> None:
    summary = make_summary(RESULTS[name], PLAN, RUN_ID)
    assert json.loads(json.dumps(summary)) == summary


def test_signal_names() -> None:
    assert [signal_name(n) for n in (1, 6, 9, 11, 15, 31, 34)] == (
        ["SIGHUP", "SIGABRT", "SIGKILL", "SIGSEGV", "SIGTERM", "SIGSYS", "signal 34"]
    )
