"""Owns: tests of grids: groups partition the ranks, places are row-major, names belong to grids.
Must not: know hosts.
Called by: pytest."""

from __future__ import annotations

from itertools import product
from math import prod

from hypothesis import given
from hypothesis import strategies as st

from meshrun.spec.grid import Axis, axes, axis_of, coordinates, split_ranks

SIZES = st.lists(st.integers(1, 5), min_size=1, max_size=4)


@given(SIZES, st.data())
def test_groups_partition_the_ranks_in_ascending_order(sizes: list[int], data: st.DataObject) -> None:
    chosen = data.draw(st.sets(st.sampled_from(range(len(sizes)))))
    groups = split_ranks(sizes, chosen)
    assert sorted(rank for group in groups for rank in group) == list(range(prod(sizes)))
    assert all(list(group) == sorted(group) for group in groups)
    assert [group[0] for group in groups] == sorted(group[0] for group in groups)
    assert {len(group) for group in groups} == {prod(sizes[at] for at in chosen)}
    places = list(product(*map(range, sizes)))
    for group in groups:  # ranks of a group differ in the chosen dims only
        assert len({tuple(c for at, c in enumerate(places[rank]) if at not in chosen) for rank in group}) == 1


@given(SIZES, st.data())
def test_a_place_is_the_position_in_the_group(sizes: list[int], data: st.DataObject) -> None:
    grid = tuple((f"d{at}", size) for at, size in enumerate(sizes))
    chosen = data.draw(st.sets(st.sampled_from(range(len(sizes)))))
    axis = Axis(grid, tuple(sorted(chosen)))
    for group in axis.groups():
        assert [axis.place(rank) for rank in group] == list(range(axis.size))


@given(SIZES)
def test_coordinates_are_row_major(sizes: list[int]) -> None:
    grid = tuple((f"d{at}", size) for at, size in enumerate(sizes))
    found = [tuple(coordinates(grid, rank).values()) for rank in range(prod(sizes))]
    assert found == list(product(*map(range, sizes)))


def test_names_and_their_grids() -> None:
    mesh, expert = (("pp", 2), ("dp", 4), ("tp", 2)), (("pp", 2), ("edp", 2), ("ep", 4))
    named = dict(axes(mesh, {"expert": expert}, {"dp_tp": ["dp", "tp"], "moe": ["edp", "ep"]}))
    assert list(named) == ["pp", "dp", "tp", "edp", "ep", "dp_tp", "moe"]
    assert named["ep"] == Axis(expert, (2,))
    assert named["moe"] == Axis(expert, (1, 2))
    assert named["dp_tp"].size == 8
    assert axis_of(mesh, ["dp", "ep"]) is None
