"""Owns: tests of placement rules, of how far groups reach, and of the advice about order.
Must not: start anything.
Called by: pytest."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshrun.errors import InputError
from meshrun.plan.advice import advise
from meshrun.plan.reach import find_reach
from meshrun.plan.text import describe_reach, render_plan
from meshrun.plan.values import Plan
from meshrun.spec.mesh_file import parse_mesh_file
from meshrun.spec.values import MeshSpec
from tests.plan.examples import plan

RACKS = "a slots=2 label=r1\nb slots=2 label=r2\nc slots=2 label=rack:r1\nd slots=2 label=rack:r2,room:x"


def read(text: str) -> MeshSpec:
    return parse_mesh_file(f"mesh:\n  {text}\n".encode(), "m.yaml")


def refusal(hosts: str, text: str) -> str:
    with pytest.raises(InputError) as caught:
        plan(hosts, read(text))
    return str(caught.value)


@pytest.mark.parametrize(
    ("hosts", "rule", "words"),
    [
        (
            "a slots=2\nb slots=6",
            "within_node: [tp]",
            ["m.yaml:3:17: tp must stay within a node", "its group of ranks 0, 1, 2, 3 lies on a, b", "multiple of 4"],
        ),
        (
            "a slots=4\nb slots=4",
            "across_nodes: [dp, tp]",
            ["m.yaml:3:22: tp must have at most one rank of a group on a node", "has ranks 0, 1, 2, 3 on a"],
        ),
        ("a slots=8", "across_nodes: [dp]", ["its group of ranks 0, 4 has ranks 0, 4 on a", "further left"]),
        ("a slots=3\nb slots=5", "across_nodes: [dp]", ["its group of ranks 3, 7 has ranks 3, 7 on b"]),
        (
            RACKS,
            "within_label: {tp: room}",
            ["m.yaml:3:18: tp must stay", "a,b,c have no such label", "label=room:NAME on the host's line (hosts:1:1)"],
        ),
        (
            RACKS,
            "within_label: {tp: rack}",
            ["m.yaml:3:18: tp must stay within one rack", "ranks 0, 1, 2, 3 lies on a, b, in rack r1, r2", ": a,c,b,d"],
        ),
        (RACKS, "within_label: {dp: rack}", ["lies on a, b, c, d, in rack r1, r2", "no order of these hosts"]),
    ],
)
def test_a_broken_rule_names_the_line_the_group_and_the_hosts(hosts: str, rule: str, words: list[str]) -> None:
    dims = "{dp: 2, tp: 4}" if "{dp: rack}" not in rule else "{dp: 8}"
    text = refusal(hosts, f"dims: {dims}\n  {rule}")
    for word in words:
        assert word in text


def test_rules_hold_for_factorings_and_views_too() -> None:
    text = "dims: {{dp: 4, tp: 4}}\n  factorings: {{e: {{edp: 2, ep: 8}}}}\n  views: {{all: [dp, tp]}}\n"
    text += "  within_node: [{}]"
    plan("a slots=8\nb slots=8", read(text.format("ep")))
    assert "edp must stay within a node" in refusal("a slots=8\nb slots=8", text.format("edp"))
    assert "all must stay within a node" in refusal("a slots=8\nb slots=8", text.format("all"))


def test_hosts_in_the_order_of_the_hint_fit() -> None:
    spec = read("dims: {dp: 2, tp: 4}\n  within_label: {tp: rack}")
    lines = RACKS.splitlines()
    placed = plan("\n".join(lines[at] for at in (0, 2, 1, 3)), spec)
    assert [describe_reach(reach) for reach in find_reach(placed)] == [
        "crosses nodes and racks",
        "crosses nodes, within a rack",
    ]


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.sampled_from(["within_node", "across_nodes"]))
def test_a_plan_that_passes_keeps_its_rules(slots: list[int], rule: str) -> None:
    hosts = "\n".join(f"h{at} slots={count}" for at, count in enumerate(slots))
    try:
        placed = plan(hosts, MeshSpec((("a", None), ("b", 2)), **{rule: ("b",)}))
    except InputError:
        return
    for group in dict(placed.groups)["b"]:
        nodes = [placed.workers[rank].node_rank for rank in group]
        assert len(set(nodes)) == (1 if rule == "within_node" else len(nodes))


def test_reach_says_whose_groups_they_are() -> None:
    text = "dims: {pp: 2, dp: 2, tp: 4}\n  factorings: {e: {pp: 2, edp: 2, ep: 4}, f: {x: 4, y: 4}}\n"
    text += "  views: {w: [pp, dp, tp]}"
    found = {reach.name: reach.same_as for reach in find_reach(plan("a slots=8\nb slots=8", read(text)))}
    assert found == {"pp": "", "dp": "", "tp": "", "edp": "dp", "ep": "tp", "x": "", "y": "tp", "w": "world"}
    own = read(text + "\n  backend: {ep: gloo}\n  timeout_s: {edp: 5}\n  options: {y: {max_ctas: 1}}")
    found = {reach.name: reach.same_as for reach in find_reach(plan("a slots=8\nb slots=8", own))}
    assert [found[name] for name in ("edp", "ep", "y")] == ["", "", ""]


@pytest.mark.parametrize(
    ("hosts", "mesh", "words"),
    [
        ("a slots=8\nb slots=8", "tp=8,dp=2", "tp's groups lie on 2 nodes each, and would on 1 with --mesh dp=2,tp=8"),
        ("a slots=4\nb slots=4\nc slots=4\nd slots=4", "tp=8,dp=2", "on 4 nodes each, and would on 2 with --mesh dp="),
        ("a slots=4\nb slots=4", "tp=4,cp=2", "--mesh cp=2,tp=4; cp's then lie on 2"),
        ("a slots=8\nb slots=8", "tp=2,pp=2,dp=4", "--mesh pp=2,dp=4,tp=2"),
    ],
)
def test_a_better_order_is_shown_as_it_would_be_written(hosts: str, mesh: str, words: str) -> None:
    placed = plan(hosts, mesh)
    assert words in "".join(advise(placed))
    assert f"warning: {advise(placed)[0]}" in render_plan(placed)
    better = advise(placed)[0].partition("--mesh ")[2].partition(";")[0]
    assert advise(plan(hosts, better)) == ()


@pytest.mark.parametrize("mesh", ["dp=2,tp=8", "dp=16", "x=2,y=8", "pp=2,dp=8", "tp=16", "pp=4,tp=4"])
def test_no_advice_where_no_order_is_better(mesh: str) -> None:
    assert advise(plan("a slots=8\nb slots=8", mesh)) == ()


def test_advice_for_a_mesh_file_is_written_as_in_the_file() -> None:
    placed: Plan = plan("a slots=8\nb slots=8", read("dims: {tp: 8, dp: 2}\n  views: {all: [tp, dp]}"))
    assert "dims: {dp: 2, tp: 8}" in advise(placed)[0]
