"""Owns: tests of placement: ranks, coordinates, groups, sizes, within_node, fingerprint.
Must not: start anything.
Called by: pytest."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshrun.errors import InputError
from meshrun.plan.placement import MAX_WORKERS, devices_of, known_slots, make_mesh, make_plan
from meshrun.plan.values import Plan
from meshrun.spec.mesh import parse_mesh
from meshrun.spec.values import Host, MeshSpec
from tests.plan.examples import plan


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    sizes = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    slots: list[int] = []
    while (left := math.prod(sizes) - sum(slots)) > 0:
        slots.append(draw(st.integers(1, left)))
    hosts = [Host(f"h{number}") for number in range(len(slots))]
    dims = tuple((f"d{number}", size) for number, size in enumerate(sizes))
    return make_plan(hosts, slots, [devices_of(Host("h"), n, ()) for n in slots], MeshSpec(dims))


@given(plans())
def test_ranks_are_row_major_and_in_host_order(placed: Plan) -> None:
    shape = placed.mesh.shape
    assert [worker.rank for worker in placed.workers] == list(range(math.prod(shape)))
    for worker in placed.workers:
        rank = 0
        for (name, at), (dim, size) in zip(worker.coords, placed.mesh.dims, strict=True):
            assert name == dim
            assert 0 <= at < size
            rank = rank * size + at
        assert rank == worker.rank
    assert [w.node_rank for w in placed.workers] == [n.node_rank for n in placed.nodes for _ in range(n.slots)]
    for node in placed.nodes:
        mine = placed.workers[node.first_rank : node.first_rank + node.slots]
        assert [w.local_rank for w in mine] == list(range(node.slots))
        assert [w.device for w in mine] == list(node.devices)
        assert {w.host for w in mine} == {node.host.name}


@given(plans())
def test_every_rank_is_in_one_group_of_each_dim(placed: Plan) -> None:
    coords = [dict(worker.coords) for worker in placed.workers]
    for dim, groups in placed.groups:
        assert sorted(rank for group in groups for rank in group) == list(range(placed.world_size))
        assert list(groups) == sorted(groups)
        for group in groups:
            assert list(group) == sorted(group)
            assert [coords[rank][dim] for rank in group] == list(range(dict(placed.mesh.dims)[dim]))
            rest = [{k: v for k, v in coords[rank].items() if k != dim} for rank in group]
            assert all(one == rest[0] for one in rest)


@given(plans())
def test_a_dim_crosses_nodes_if_one_of_its_groups_does(placed: Plan) -> None:
    crosses = dict(placed.crosses_nodes)
    for dim, groups in placed.groups:
        nodes = [{placed.workers[rank].node_rank for rank in group} for group in groups]
        assert crosses[dim] == any(len(one) > 1 for one in nodes)


def test_the_example_of_the_plan() -> None:
    placed = plan("a slots=4\nb slots=4", "dp=2,tp=4")
    assert placed.crosses_nodes == (("dp", True), ("tp", False))
    assert dict(placed.groups) == {
        "dp": ((0, 4), (1, 5), (2, 6), (3, 7)),
        "tp": ((0, 1, 2, 3), (4, 5, 6, 7)),
    }
    assert placed.workers[6].coords == (("dp", 1), ("tp", 2))


def test_without_a_mesh_there_is_one_dim_over_all() -> None:
    assert make_mesh(None, 6).dims == (("dp", 6),)
    assert plan("a slots=2\nb slots=3").mesh.dims == (("dp", 5),)


def test_factorings_and_views_are_resolved() -> None:
    spec = MeshSpec(
        (("pp", 2), ("dp", None), ("tp", 4)),
        views=(("dp_tp", ("dp", "tp")),),
        factorings=(("expert", (("pp", 2), ("edp", None), ("ep", 4))),),
    )
    mesh = make_mesh(spec, 16)
    assert mesh.dims == (("pp", 2), ("dp", 2), ("tp", 4))
    assert mesh.factorings == (("expert", (("pp", 2), ("edp", 2), ("ep", 4))),)
    assert mesh.views == spec.views


@pytest.mark.parametrize(
    ("spec", "world", "words"),
    [
        (MeshSpec((("dp", 2), ("tp", 4))), 6, "the mesh dp=2,tp=4 needs 8 slots, but 6 slots take part"),
        (
            MeshSpec((("dp", None),), factorings=(("e", (("ep", 4),)),)),
            6,
            "the factoring e ep=4 needs 4 slots, but 6",
        ),
        (MeshSpec((("dp", None), ("tp", 2)), factorings=(("e", (("dp", 2), ("x", None))),)), 8, "a shared dim has one"),
        (MeshSpec((("dp", 2),), views=(("v", ("x",)),)), 2, "not a dim"),
        (MeshSpec((("a", 2), ("b", 1)), views=(("v", ("b", "a")),)), 2, "in mesh order"),
        (MeshSpec((("a", 2),), within_node=("b",)), 2, "not a dim"),
    ],
)
def test_a_mesh_that_cannot_be_is_refused(spec: MeshSpec, world: int, words: str) -> None:
    with pytest.raises(InputError) as caught:
        make_mesh(spec, world)
    assert words in str(caught.value)


def test_the_message_says_where_the_mesh_stands() -> None:
    with pytest.raises(InputError, match=r"^--mesh:1:1: the mesh dp=2,tp=4 needs 8"):
        make_mesh(parse_mesh("dp=2,tp=4"), 6)


def test_within_node_names_the_dim_the_group_and_the_hosts() -> None:
    spec = MeshSpec((("dp", 2), ("tp", 4)), within_node=("tp", "dp"))
    with pytest.raises(InputError) as caught:
        plan("a slots=2\nb slots=6", spec)
    text = str(caught.value)
    assert "tp must stay within a node, but its group of ranks 0, 1, 2, 3 lies on a, b" in text
    assert "multiple of 4 slots" in text
    assert "dp must stay within a node, but its group of ranks 0, 4 lies on a, b" in text
    assert plan("a slots=4\nb slots=4", replace(spec, within_node=("tp",))).mesh.within_node == ("tp",)


def test_too_many_workers_are_refused_before_they_are_made() -> None:
    with pytest.raises(InputError, match=f"more than the {MAX_WORKERS}"):
        make_plan([Host("a")], [MAX_WORKERS + 1], [()], None)


def test_the_fingerprint_follows_what_must_agree_and_nothing_else() -> None:
    first = plan("a slots=4\nb slots=4", "dp=2,tp=4").fingerprint
    assert first == plan("c slots=4\nd devices=4-7", "dp=auto,tp=4").fingerprint
    assert len(first) == 16
    assert int(first, 16) >= 0
    others = [
        plan("a slots=4\nb slots=4", "dp=4,tp=2"),
        plan("a slots=4\nb slots=4", "xp=2,tp=4"),
        plan("a slots=5\nb slots=3", "dp=2,tp=4"),
        plan("a slots=4\nb slots=4", MeshSpec((("dp", 2), ("tp", 4)), timeout_s=(("tp", 3.0),))),
        plan("a slots=4\nb slots=4", MeshSpec((("dp", 2), ("tp", 4)), backend=(("tp", "gloo"),))),
    ]
    assert len({first, *(other.fingerprint for other in others)}) == 6


@pytest.mark.parametrize(
    ("host", "nproc", "slots"),
    [
        (Host("a", slots=3), 8, 3),
        (Host("a", devices=("1", "2")), 8, 2),
        (Host("a"), 8, 8),
        (Host("a"), None, None),
    ],
)
def test_slots_come_from_the_line_then_the_devices_then_the_command_line(
    host: Host, nproc: int | None, slots: int | None
) -> None:
    assert known_slots(host, nproc) == slots


def test_devices_come_from_the_line_then_from_the_node() -> None:
    assert devices_of(Host("a", devices=("5", "7")), 2, ("0", "1")) == ("5", "7")
    assert devices_of(Host("a"), 2, ("3", "4", "5")) == ("3", "4")
    assert devices_of(Host("a"), 3, ()) == ("0", "1", "2")


def test_too_few_accelerators_are_an_error_with_both_numbers() -> None:
    with pytest.raises(InputError, match="a is to run 3 workers, but has 2 visible accelerators"):
        devices_of(Host("a"), 3, ("0", "1"))
