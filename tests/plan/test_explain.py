"""Owns: golden texts of one rank in words, and of what differs between two plans.
Must not: write the golden files unless MESHRUN_GOLDEN=write is set.
Called by: pytest."""

from __future__ import annotations

import pytest

from meshrun.errors import InputError
from meshrun.plan.compare import compare_plans
from meshrun.plan.explain import explain_rank
from meshrun.spec.values import MeshSpec
from tests.plan.examples import plan
from tests.plan.test_rendering import check_golden

RACKS = "\n".join(f"gpu{node:02} slots=8 label=r{node // 2}" for node in range(4))
SPEC = MeshSpec(
    (("pp", 2), ("dp", 4), ("tp", 4)),
    views=(("dp_tp", ("dp", "tp")),),
    factorings=(("expert", (("pp", 2), ("edp", 2), ("ep", 8))),),
)


def test_a_rank_in_words() -> None:
    check_golden("explain.txt", explain_rank(plan(RACKS, SPEC), 21))


def test_a_rank_of_a_dim_of_one_is_alone() -> None:
    text = explain_rank(plan("a slots=2", "dp=1,tp=2"), 1)
    assert text.splitlines()[5].split() == ["dp", "0", "of", "1", "alone", "nothing"]
    assert text.splitlines()[6].split() == ["tp", "1", "of", "2", "0", "the", "node"]


@pytest.mark.parametrize("rank", [8, 1000])
def test_a_rank_that_is_not_there(rank: int) -> None:
    with pytest.raises(InputError, match="the ranks of this plan are 0 to 7"):
        explain_rank(plan("a slots=8"), rank)


def test_what_differs() -> None:
    before = plan("a slots=4\nb slots=4\nc slots=4", "dp=3,tp=4")
    after = plan("a slots=4\nd devices=4-7\nc slots=4", MeshSpec((("dp", 6), ("tp", 2)), timeout_s=(("tp", 5.0),)))
    check_golden("difference.txt", compare_plans(before, after))


def test_nothing_differs() -> None:
    one = plan("a slots=4\nb slots=4", "dp=2,tp=4")
    assert compare_plans(one, plan("a slots=4\nb slots=4", "dp=auto,tp=4")) == "no rank moves, nothing changes\n"
    other = plan("a slots=4\nb slots=4", MeshSpec((("dp", 2), ("tp", 4)), device="cpu"))
    assert "fingerprints differ" in compare_plans(one, other)


def test_a_big_difference_is_short() -> None:
    before = plan("\n".join(f"a{n} slots=8" for n in range(200)), "dp=200,tp=8")
    after = plan("\n".join(f"b{n} slots=8" for n in range(200)), "dp=200,tp=8")
    text = compare_plans(before, after)
    assert "moved: 1600" in text and "... and 161 more" in text
    assert len(text.splitlines()) < 50


def test_large_groups_are_short() -> None:
    """A view that takes every other rank, and hosts with gaps between them: no line of thousands of numbers."""
    spec = MeshSpec((("pp", 2), ("dp", 64), ("cp", 2), ("tp", 16)), views=(("pp_dp", ("pp", "dp")),))
    text = explain_rank(plan("gpu[001-512] slots=8", spec), 1700)
    assert max(map(len, text.splitlines())) < 160
    assert "4,36,...,4068 (127)" in text and "127 hosts, gpu001 to gpu509" in text


def test_settings_that_differ_are_spelled_as_in_the_plan() -> None:
    settings = MeshSpec((("dp", 2),), timeout_s=(("dp", 60.0),), options=(("dp", (("min_ctas", 1), ("max_ctas", 4))),))
    text = compare_plans(plan("a slots=2", settings), plan("a slots=2", "dp=2"))
    rows = [line.split("  ") for line in text.splitlines()]
    assert ["time-outs", "dp=60 s"] in [row[:2] for row in rows] and "dp(min_ctas=1 max_ctas=4)  -" in text
