"""Owns: tests of the plan's way over the line: JSON and back, and that nothing odd passes for a plan.
Must not: open anything.
Called by: pytest."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshrun.errors import WireError
from meshrun.plan.describe import describe_plan
from meshrun.plan.placement import make_plan
from meshrun.plan.reread import read_plan
from meshrun.spec.values import Host, MeshSpec
from meshrun.wire import Share

SPEC = MeshSpec(
    (("dp", None), ("tp", 2)),
    views=(("all", ("dp", "tp")),),
    factorings=(("expert", (("edp", None), ("ep", 2))),),
    backend=(("dp", "gloo"),),
    timeout_s=(("default", 60.0),),
    options=(("tp", (("max_ctas", 4), ("net_name", "IB"))),),
)


def _plan(slots: list[int], spec: MeshSpec | None = None) -> dict[str, Any]:
    hosts = tuple(Host(f"gpu{rank}", label=f"rack:r{rank},room:b") for rank in range(len(slots)))
    devices = [tuple(map(str, range(count))) for count in slots]
    return json.loads(json.dumps(describe_plan(make_plan(hosts, slots, devices, spec))))  # type: ignore[no-any-return]


@given(st.lists(st.integers(1, 5), min_size=1, max_size=5))
def test_a_plan_survives_the_line(slots: list[int]) -> None:
    plain = _plan(slots)
    assert describe_plan(read_plan(plain)) == plain


def test_the_workers_cpus_survive_the_line() -> None:
    plain = _plan([2])
    plain["workers"][1] |= {"cpus": "0-3,8-11", "threads": 4}
    assert read_plan(plain).workers[1].share == Share("0-3,8-11", 4)
    assert describe_plan(read_plan(plain)) == plain
    plain["workers"][0]["cpus"] = "4-1"
    with pytest.raises(WireError):
        read_plan(plain)


def test_a_plan_with_everything_survives_the_line() -> None:
    plain = _plan([2, 4], SPEC)
    assert describe_plan(read_plan(plain)) == plain
    assert [node.first_rank for node in read_plan(plain).nodes] == [0, 2]


_odd = st.sampled_from([None, -1, 2**40, True, 1.5, "x", [], {}, [[]], {"a": []}, [1], 10**400])


def _paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(deeper for key, item in items for deeper in _paths(item, (*path, key)))]


@settings(max_examples=300)
@given(st.data())
def test_an_odd_value_anywhere_is_a_wire_error_or_still_a_plan(data: st.DataObject) -> None:
    plain = _plan([2, 2], SPEC)
    path = data.draw(st.sampled_from([path for path in _paths(plain) if path]))
    inner = plain
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = data.draw(_odd)
    try:
        plan = read_plan(plain)
    except WireError:
        return
    assert [worker.rank for worker in plan.workers] == list(range(plan.world_size))


@pytest.mark.parametrize("plain", [{}, {"mesh": 1}, {"mesh": {"dims": {}}, "nodes": []}])
def test_what_is_no_plan_is_a_wire_error(plain: dict[str, Any]) -> None:
    with pytest.raises(WireError, match="a plan"):
        read_plan(plain)
