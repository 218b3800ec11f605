"""Owns: which disagreements are found in what the ranks' recorders tell, and the names of groups.
Must not: start processes.
Called by: pytest."""

from __future__ import annotations

import json
from typing import Any

import pytest

from meshrun.plan.placement import make_plan
from meshrun.plan.values import Plan
from meshrun.spec.mesh import parse_mesh
from meshrun.spec.values import Host
from meshrun.watch.collectives import (
    Kind,
    describe_disagreement,
    find_disagreements,
    name_group,
    read_disagreement,
)


def make(mesh: str, count: int) -> Plan:
    return make_plan([Host("gpu01")], [count], [tuple(map(str, range(count)))], parse_mesh(mesh))


PLAN = make("dp=2,tp=4", 8)
TP1 = (4, 5, 6, 7)


def call(number: int, op: str = "all_reduce", sizes: str = "[4]", state: str = "scheduled") -> list[Any]:
    return [number, op, sizes, state, 1.5]


def group(*calls: list[Any], ranks: tuple[int, ...] = TP1, desc: str = "mesh_tp", backend: str = "gloo") -> Any:
    return {"name": "7", "desc": desc, "ranks": list(ranks), "calls": {backend: list(calls)} if calls else {}}


def told(**by_rank: list[list[Any]]) -> list[tuple[int, dict[str, Any]]]:
    return [(int(name[1:]), {"groups": [group(*calls)]}) for name, calls in by_rank.items()]


UP_TO = {n: [call(k) for k in range(1, n + 1)] for n in range(6)}


@pytest.mark.parametrize(
    ("ranks", "kind", "places"),
    [
        (told(r4=UP_TO[2], r5=UP_TO[2]), None, []),
        (told(r4=[], r5=[]), None, []),
        (told(r4=UP_TO[5], r5=UP_TO[5], r6=UP_TO[4], r7=UP_TO[5]), Kind.COUNT, [((6,), 4), ((4, 5, 7), 5)]),
        (told(r4=UP_TO[1], r5=UP_TO[1], r6=[], r7=UP_TO[1]), Kind.COUNT, [((6,), 0), ((4, 5, 7), 1)]),
        (told(r4=UP_TO[1], r5=UP_TO[2], r6=UP_TO[3]), Kind.COUNT, [((4,), 1), ((5,), 2), ((6,), 3)]),
        (
            told(r4=UP_TO[2], r5=[call(1), call(2, "all_gather")], r6=UP_TO[2]),
            Kind.OP,
            [((5,), 2), ((4, 6), 2)],
        ),
        # The first difference counts, whatever comes after it.
        (
            told(r4=[call(1), call(2), call(3)], r5=[call(1), call(2, "barrier"), call(3, "broadcast"), call(4)]),
            Kind.OP,
            [((4,), 2), ((5,), 2)],
        ),
        (told(r4=UP_TO[2], r5=[call(1), call(2, sizes="[8]")]), Kind.SIZES, [((4,), 2), ((5,), 2)]),
        # Uneven gathers are right.
        (told(r4=[call(1, "all_gather")], r5=[call(1, "all_gather", "[8]")]), None, []),
        # A ring that has lost the older entries of one rank: only numbers that both have are compared.
        (told(r4=[call(9, "barrier")], r5=[call(8), call(9, "barrier")]), None, []),
        (
            told(r4=[call(1, state="started")], r5=[call(1, state="scheduled")], r6=[call(1, state="started")]),
            Kind.STATE,
            [((5,), 1), ((4, 6), 1)],
        ),
    ],
)
def test_what_is_found(ranks: Any, kind: Kind | None, places: list[tuple[tuple[int, ...], int]]) -> None:
    found = find_disagreements(ranks, PLAN)
    assert [one.kind for one in found] == ([kind] if kind else [])
    assert [(place.ranks, place.number) for one in found for place in one.places] == places
    assert all(one.group == "tp group 1" and one.members == TP1 for one in found)


def test_backends_of_one_group_count_apart() -> None:
    both = {"name": "0", "desc": "default_pg", "ranks": [], "calls": {"gloo": UP_TO[1], "nccl": UP_TO[5]}}
    late = {"name": "0", "desc": "default_pg", "ranks": [], "calls": {"gloo": UP_TO[1]}}
    (one,) = find_disagreements([(0, {"groups": [both]}), (1, {"groups": [late]})], PLAN)
    assert (one.kind, one.group, [place.number for place in one.places]) == (Kind.COUNT, "world group", [0, 5])


def test_a_mismatch_is_said_before_those_who_wait() -> None:
    behind, other = group(*UP_TO[1]), group(call(1, "barrier"), ranks=tuple(range(8)), desc="default_pg")
    first = [(4, {"groups": [behind, other]})]
    ahead, usual = group(*UP_TO[2]), group(call(1), ranks=tuple(range(8)), desc="default_pg")
    kinds = [one.kind for one in find_disagreements([*first, (5, {"groups": [ahead, usual]})], PLAN)]
    assert kinds == [Kind.OP, Kind.COUNT]


@pytest.mark.parametrize(
    ("mesh", "key", "name"),
    [
        ("dp=2,tp=4", ("3", "mesh_tp", (0, 1, 2, 3)), "tp group 0"),
        ("dp=2,tp=4", ("3", "undefined", (1, 5)), "dp group 1"),
        ("dp=2,tp=4", ("0", "default_pg", tuple(range(8))), "world group"),
        ("dp=8", ("0", "default_pg", tuple(range(8))), "dp group"),
        ("dp=8,tp=1", ("0", "mesh_dp", tuple(range(8))), "dp group"),
        ("dp=2,tp=4", ("9", "undefined", (0, 3)), "group 9"),
        ("dp=2,tp=4", ("9", "embedding", (0, 3)), "group 9 (embedding)"),
    ],
)
def test_groups_are_named_by_the_mesh(mesh: str, key: tuple[str, str, tuple[int, ...]], name: str) -> None:
    assert name_group(key, make(mesh, 8)) == name


@pytest.mark.parametrize(
    "plain",
    [
        {},
        {"groups": 3},
        {"groups": [3]},
        {"groups": [{"name": "1"}]},
        {"groups": [{"name": "1", "desc": "", "ranks": ["x"], "calls": {}}]},
        {"groups": [{"name": "1", "desc": "", "ranks": [0], "calls": {"gloo": [[1]]}}]},
        {"groups": [{"name": "1", "desc": "", "ranks": [0], "calls": {"gloo": [[float("inf"), "", "", "", 1]]}}]},
        {"groups": [{"name": "1", "desc": "", "ranks": [0], "calls": []}]},
    ],
)
def test_an_answer_that_makes_no_sense_is_none(plain: dict[str, Any]) -> None:
    assert find_disagreements([(0, plain), (1, plain)], PLAN) == ()


def test_there_and_back_as_json() -> None:
    (one,) = find_disagreements(told(r4=UP_TO[1], r5=UP_TO[2]), PLAN)
    assert read_disagreement(json.loads(json.dumps(describe_disagreement(one)))) == one
