"""Owns: the status line, as a history of records.
Must not: need a terminal.
Called by: pytest."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from meshrun.report.board import begin_progress, fit, progress_after, progress_planned, render_board, render_clock
from meshrun.spec.values import ByHand
from meshrun.watch.values import Record
from tests.report.make import make_job, make_plan

HOSTS = {f"n{n}": 2 for n in range(1, 6)}

HISTORY: list[tuple[float, str, dict[str, object], str]] = [
    (0, "began", {}, "00:00:00 connecting 0/5: waiting for n1, n2, n3 and 2 more"),
    (1, "facts", {"node": 1}, "00:00:01 connecting 1/5: waiting for n1, n3, n4 and 1 more"),
    (2, "facts", {"node": 0}, "00:00:02 connecting 2/5: waiting for n3, n4, n5"),
    (2, "unreachable", {"node": 2}, "00:00:02 connecting 2/5: waiting for n3, n4, n5"),
    (3, "facts", {"node": 2}, "00:00:03 connecting 3/5: waiting for n4, n5"),
    (3, "facts", {"node": 3}, "00:00:03 connecting 4/5: waiting for n5"),
    (3, "facts", {"node": 4}, "00:00:03 connecting 5/5"),
    (4, "start", {}, "00:00:00 starting 10 ranks"),
    (5, "spawned", {"rank": 0}, "00:00:00 started 0/10: waiting for ranks 0-9"),
    (6, "ready", {"rank": 1}, "00:00:01 started 1/10: waiting for ranks 0,2-9"),
    *((7.0, "ready", {"rank": n}, f"00:00:02 started {n}/10: waiting for ranks 0,{n + 1}-9") for n in range(2, 8)),
    (8, "ready", {"rank": 9}, "00:00:03 started 8/10: waiting for ranks 0,8"),
    (8, "ready", {"rank": 8}, "00:00:03 started 9/10: waiting for ranks 0"),
    (9, "ready", {"rank": 0}, "00:00:00 running, 10 ranks"),
    (3609, "exited", {"rank": 3}, "01:00:00 running, 10 ranks, 1 ended"),
    (3610, "stop", {"why": "rank 4 failed"}, "00:00:00 stopping: rank 4 failed"),
    (3612, "exited", {"rank": 4}, "00:00:02 stopping: rank 4 failed"),
]


def test_a_whole_run(tmp_path: Path) -> None:
    progress = begin_progress(make_job(tmp_path, HOSTS, dp=10), 0.0)
    for now, kind, fields, line in HISTORY:
        if kind == "start":
            progress = progress_planned(progress, make_plan(HOSTS, dp=10))
        progress = progress_after(progress, Record(kind, fields), now)
        assert render_board(progress, 120, now) == f"meshrun {line}"


RESTART: list[tuple[float, str, dict[str, object], str]] = [
    (0, "stop", {"why": "rank 1 failed"}, "00:00:00 stopping: rank 1 failed"),
    (1, "exited", {"rank": 1}, "00:00:01 stopping: rank 1 failed"),
    (
        2,
        "restart",
        {"attempt": 1, "attempts": 3, "pause_s": 4.0},
        "00:00:00 restart 1/2: after a pause of 4 s",
    ),
    (6, "store", {}, "00:00:00 restart 1/2: starting 2 ranks"),
    (7, "ready", {"rank": 1}, "00:00:00 restart 1/2: started 1/2: waiting for ranks 0"),
    (8, "ready", {"rank": 0}, "00:00:00 restart 1/2: running, 2 ranks"),
    (9, "exited", {"rank": 0}, "00:00:01 restart 1/2: running, 2 ranks, 1 ended"),
]


def test_a_restart_begins_anew(tmp_path: Path) -> None:
    progress = progress_planned(begin_progress(make_job(tmp_path, {"a": 2}, dp=2), 0.0), make_plan({"a": 2}, dp=2))
    for rank in (0, 1):
        progress = progress_after(progress, Record("ready", {"rank": rank}), 0.0)
    for now, kind, fields, line in RESTART:
        progress = progress_after(progress, Record(kind, fields), now)
        assert render_board(progress, 120, now) == f"meshrun {line}"


def test_by_hand_a_node_waits_for_its_own_ranks_only(tmp_path: Path) -> None:
    job = replace(make_job(tmp_path, {"n2": 2}, dp=10), by_hand=ByHand(5, 1, "10.0.0.1", 29400))
    progress = progress_planned(begin_progress(job, 0.0), make_plan(HOSTS, dp=10))
    for rank in (2, 3):
        progress = progress_after(progress, Record("ready", {"rank": rank}), 1.0)
    assert render_board(progress, 80, 1.0) == "meshrun 00:00:00 running, 2 ranks"


def test_a_program_runs_once_it_is_spawned(tmp_path: Path) -> None:
    job = replace(make_job(tmp_path, {"a": 1}, dp=1), form="program")
    progress = progress_planned(begin_progress(job, 0.0), make_plan({"a": 1}, dp=1))
    progress = progress_after(progress, Record("spawned", {"rank": 0}), 1.0)
    assert render_board(progress, 80, 1.0) == "meshrun 00:00:00 running, 1 ranks"


@given(st.text(alphabet="ab進é\u0301", max_size=30), st.integers(0, 40))
def test_it_fits(text: str, width: int) -> None:
    cut = fit(text, width)
    wide = sum(2 if char == "進" else 0 if char == "\u0301" else 1 for char in cut)
    assert wide <= width
    assert cut == text or width == 0 or cut.endswith("…")


def test_clock() -> None:
    assert [render_clock(s) for s in (-1, 59.9, 751, 360_000)] == ["00:00:00", "00:00:59", "00:12:31", "100:00:00"]
