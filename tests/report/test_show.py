"""Owns: `--show` as text, as a selection, and its refusals; ranks as text.
Must not: touch a file or a screen.
Called by: pytest."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshrun.errors import InputError
from meshrun.report.show import check_show, parse_show, render_ranks, selects
from tests.report.make import make_plan

PLAN = make_plan({"a": 4, "b": 4}, dp=2, tp=4)


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        ("all", [0, 1, 2, 3, 4, 5, 6, 7]),
        ("0,4-6", [0, 4, 5, 6]),
        ("tp=0", [0, 4]),
        ("dp=1,tp=3", [7]),
        (" dp = 1 , tp=1-2", [5, 6]),
        ("9", []),
        ("dp=7", []),
    ],
)
def test_selections(text: str, ranks: list[int]) -> None:
    show = parse_show(text)
    check_show(show, ["dp", "tp"])
    assert [w.rank for w in PLAN.workers if selects(show, w)] == ranks


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not a number or a range"),
        ("some", "not a number or a range"),
        ("1,", "not a number or a range"),
        ("-1", "not a number or a range"),
        ("٣", "not a number or a range"),
        ("1_0", "not a number or a range"),
        ("tp=", "not a number or a range"),
        ("7-4", "runs backwards"),
        ("dp=0,3", "cannot be mixed"),
        ("tp=0,tp=1", "named twice"),
    ],
)
def test_refusals(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        parse_show(text)
    assert "--show" in str(caught.value) and "hint" in str(caught.value)


def test_every_unknown_dim_is_named_with_the_nearest_known_one() -> None:
    with pytest.raises(InputError) as caught:
        check_show(parse_show("dpp=0,ep=1,tp=0"), ["dp", "tp"])
    text = str(caught.value)
    assert "'dpp'" in text and "did you mean dp=?" in text and "'ep'" in text and "'tp'" not in text


@given(st.sets(st.integers(0, 30)))
def test_ranks_as_text_and_back(ranks: set[int]) -> None:
    text = render_ranks(ranks)
    spans = parse_show(text).ranks if ranks else ()
    assert {rank for first, last in spans for rank in range(first, last + 1)} == ranks
    assert all(a[1] + 1 < b[0] for a, b in pairwise(spans))
