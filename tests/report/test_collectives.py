"""Owns: the words for ranks that disagree about collectives.
Must not: find disagreements.
Called by: pytest."""

from __future__ import annotations

import pytest

from meshrun.report.collectives import LINES, render_disagreements
from meshrun.watch.collectives import Disagreement, Kind, Place
from tests.report.make import make_plan

PLAN = make_plan({"gpu01": 4, "gpu02": 4}, dp=2, tp=4)


def place(*ranks: int, number: int = 5, op: str = "all_reduce", sizes: str = "[1024]", state: str = "") -> Place:
    return Place(ranks, number, op, sizes, state, 12.34)


def about(kind: Kind, *places: Place) -> Disagreement:
    return Disagreement(kind, "tp group 1", (4, 5, 6, 7), places)


@pytest.mark.parametrize(
    ("one", "words"),
    [
        (
            about(Kind.COUNT, place(6, number=4), place(4, 5, 7)),
            "rank 6 (dp=1,tp=2) on gpu02 has issued 4 collectives, "
            "the other 3 have issued 5, the last is all_reduce [1024] (12.3 s ago)",
        ),
        (
            about(Kind.COUNT, place(4, 5, number=0), place(6, number=1)),
            "ranks 4-5 (dp=1) on gpu02 have issued no collectives, "
            "rank 6 (dp=1,tp=2) on gpu02 has issued 1, the last is all_reduce [1024] (12.3 s ago)",
        ),
        (
            about(Kind.COUNT, place(4, 5, number=1), place(6, 7, op="barrier", sizes="")),
            "ranks 4-5 (dp=1) on gpu02 have issued 1 collective, "
            "the other 2 have issued 5, the last is barrier (12.3 s ago)",
        ),
        (
            about(Kind.OP, place(4, op="all_gather", sizes="[4]"), place(5, 6, 7)),
            "collective 5 is all_gather [4] in rank 4 (dp=1,tp=0) on gpu02, "
            "all_reduce [1024] in the other 3: these do not match",
        ),
        (
            about(Kind.SIZES, place(4, sizes="[4]"), place(5), place(6, 7)),
            "collective 5 is all_reduce [4] in rank 4 (dp=1,tp=0) on gpu02, all_reduce [1024] in rank 5 (dp=1,tp=1) "
            "on gpu02, all_reduce [1024] in ranks 6-7 (dp=1) on gpu02: these do not match",
        ),
        (
            about(Kind.STATE, place(4, state="scheduled"), place(5, 6, 7, state="started")),
            "collective 5, all_reduce [1024], is scheduled in rank 4 (dp=1,tp=0) on gpu02, started in the other 3",
        ),
    ],
)
def test_words(one: Disagreement, words: str) -> None:
    assert render_disagreements([one], PLAN) == [f"  tp group 1 (ranks 4-7): {words}"]


def test_many_groups_are_counted() -> None:
    one = about(Kind.COUNT, place(6, number=4), place(4, 5, 7))
    lines = render_disagreements([one] * (LINES + 2), PLAN)
    assert len(lines) == LINES + 1 and lines[-1] == "  ... and 2 more, all of them in events.jsonl"
    assert render_disagreements([], PLAN) == []
