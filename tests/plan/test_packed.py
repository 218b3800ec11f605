"""Owns: tests of the plan's short form: the same plan comes of it, nothing odd passes for one, and how long it is.
Must not: open anything.
Called by: pytest."""

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshrun.errors import WireError
from meshrun.plan.describe import describe_plan
from meshrun.plan.packed import pack_plan, unpack_plan
from meshrun.plan.placement import make_plan, with_shares
from meshrun.spec.values import Host, MeshSpec
from meshrun.wire import Share

SPEC = MeshSpec(
    (("dp", None), ("tp", 2)),
    within_node=("tp",),
    across_nodes=("dp",),
    within_label=(("tp", "rack"),),
    views=(("all", ("dp", "tp")),),
    factorings=(("expert", (("edp", None), ("ep", 2))),),
    backend=(("dp", "gloo"),),
    timeout_s=(("default", 60.0), ("tp", 0.1)),
    device="cuda",
    options=(("tp", (("max_ctas", 4), ("net_name", "IB"))),),
)


def make(slots, spec=None):
    hosts = [Host(f"gpu{rank}", label=f"rack:r{rank},room:b") for rank in range(len(slots))]
    return make_plan(hosts, slots, [tuple(map(str, range(count))) for count in slots], spec)


def over_the_line(plan):
    return unpack_plan(json.loads(json.dumps(pack_plan(plan))))


@given(st.lists(st.integers(1, 5), min_size=1, max_size=5))
def test_the_same_plan_comes_of_it(slots):
    assert over_the_line(make(slots)) == make(slots)


def test_rules_device_factorings_and_options_come_along():
    plan = make([2, 2], SPEC)
    assert over_the_line(plan) == plan


def test_the_workers_cpus_come_along():
    plan = with_shares(make([2, 2]), {1: (Share("0-3,8-11", 4), Share("4-7,12-15", 4))})
    assert over_the_line(plan) == plan


def test_hosts_are_names_and_labels_only():
    plan = make([1])
    secret = replace(plan.nodes[0].host, env=(("PASSWORD", "hunter2"),), user="me")
    packed = json.dumps(pack_plan(replace(plan, nodes=(replace(plan.nodes[0], host=secret),))))
    assert "hunter2" not in packed and "me" not in json.loads(packed)["hosts"]


def paths(value, path=()):
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(deeper for key, item in items for deeper in paths(item, (*path, key)))]


ODD = st.sampled_from([None, -1, 2**40, True, 1.5, "x", [], {}, [[]], {"a": []}, [1], 10**400])


@settings(max_examples=300)
@given(st.data())
def test_an_odd_value_anywhere_is_a_wire_error_or_still_the_plan_that_it_names(data):
    plain = json.loads(json.dumps(pack_plan(make([2, 2], SPEC))))
    path = data.draw(st.sampled_from([path for path in paths(plain) if path]))
    inner = plain
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = data.draw(ODD)
    try:
        plan = unpack_plan(plain)
    except WireError:
        return
    assert plan.fingerprint == plain["fingerprint"] and len(plan.workers) == 4
    describe_plan(plan)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"hosts": [], "kind_of": []}, "cannot be read"),
        ({"fingerprint": "f" * 16}, "and ffffffffffffffff on node 0"),
        ({"kinds": [[2, ["0"], {}, []]]}, "2 workers with 1 devices"),
        ({"hosts": ["gpu0"]}, "cannot be read"),
        ({"kind_of": [0, 7]}, "cannot be read"),
        ({"hosts": ["a"] * 200_000, "kind_of": [0] * 200_000}, "400000 workers are more than"),
    ],
)
def test_what_does_not_give_the_plan_that_it_names_is_a_wire_error(change, words):
    plain = json.loads(json.dumps(pack_plan(make_plan([Host("a")] * 2, [2, 2], [("0", "1")] * 2, None))))
    with pytest.raises(WireError, match=words):
        unpack_plan(plain | change)


def test_it_is_as_long_as_the_names_of_the_hosts():
    hosts = [Host(f"gpu{number:05}") for number in range(1024)]
    plan = make_plan(hosts, [8] * 1024, [tuple(map(str, range(8)))] * 1024, None)
    names = len(json.dumps([host.name for host in hosts], separators=(",", ":")))
    assert len(json.dumps(pack_plan(plan), separators=(",", ":"))) < names + 2 * 1024 + 400
    assert over_the_line(plan) == plan
