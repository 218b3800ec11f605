"""Owns: tests of the mesh's short form and of solving its sizes.
Must not: need yaml.
Called by: pytest."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshrun.errors import InputError, Place
from meshrun.spec.mesh import check_spec, parse_mesh, solve_dims
from meshrun.spec.values import MeshSpec


@pytest.mark.parametrize(
    ("text", "dims"),
    [
        ("dp=2,tp=4", [("dp", 2), ("tp", 4)]),
        ("dp=auto, tp=4", [("dp", None), ("tp", 4)]),
        ("dp=*", [("dp", None)]),
        ("_a1=1", [("_a1", 1)]),
    ],
)
def test_dims_in_order(text: str, dims: list[tuple[str, int | None]]) -> None:
    assert parse_mesh(text) == MeshSpec(tuple(dims))
    assert parse_mesh(text).place == Place("--mesh", 1, 1)


@pytest.mark.parametrize(
    ("text", "column", "words"),
    [
        ("", 1, "a dim is missing"),
        ("dp=2,", 6, "a dim is missing"),
        ("dp", 1, "no size"),
        ("dp=", 4, "size is missing"),
        ("dp=0", 4, "out of range"),
        ("dp=-1", 4, "write auto"),
        ("dp=1_0", 4, "not a size"),
        ("dp=\u0664", 4, "not a size"),
        ("dp=2.0", 4, "not a size"),
        ("dp=9999999", 4, "out of range"),
        ("1p=2", 1, "not a name"),
        ("d-p=2", 1, "not a name"),
        ("dp=2,dp=3", 6, "given twice"),
        ("dp=auto,tp=*", 9, "only one dim"),
        ("dp=\x1b[31m", 1, "control character"),
        (",".join(f"d{n}=1" for n in range(40)), 1, "more than 32 dims"),
    ],
)
def test_what_is_no_mesh_is_refused(text: str, column: int, words: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_mesh(text)
    assert caught.value.problems[0].place == Place("--mesh", 1, column)
    assert words in str(caught.value)


def test_all_problems_come_at_once() -> None:
    with pytest.raises(InputError) as caught:
        parse_mesh("dp=x,tp,,pp=2,pp=0")
    assert [p.place.column for p in caught.value.problems if p.place] == [4, 6, 9, 18]


@given(st.one_of(st.text(max_size=60), st.text(alphabet="dp=,tauo*12 0", max_size=40)))
def test_any_text_gives_a_mesh_or_problems_with_places(text: str) -> None:
    try:
        spec = parse_mesh(text)
    except InputError as error:
        assert all(p.place and p.place.column >= 1 for p in error.problems)
    else:
        assert spec.dims
        assert check_spec(spec) == []


@pytest.mark.parametrize(
    ("text", "world", "shape"),
    [("dp=2,tp=4", 8, (2, 4)), ("dp=auto,tp=4", 8, (2, 4)), ("dp=2,tp=auto", 2, (2, 1)), ("dp=auto", 7, (7,))],
)
def test_sizes_for_a_number_of_workers(text: str, world: int, shape: tuple[int, ...]) -> None:
    assert tuple(size for _, size in solve_dims(parse_mesh(text).dims, world)) == shape


@pytest.mark.parametrize(
    ("text", "world", "words"),
    [
        ("dp=2,tp=4", 6, ["needs 8 slots, but 6 slots take part", "dp=2,tp=3", "would fit"]),
        ("dp=3", 1, ["needs 3 slots, but 1 slot takes part", "dp=1 would fit"]),
        ("dp=auto,tp=4", 6, ["needs a multiple of 4 slots, but 6", "dp=2,tp=3"]),
        ("a=2,b=2,c=2,d=2,e=2", 64, ["a=4,b=2,c=2,d=2,e=2"]),
        ("dp=2", 0, ["but 0 slots take part"]),
    ],
)
def test_a_mesh_that_does_not_fit_says_what_would(text: str, world: int, words: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        solve_dims(parse_mesh(text).dims, world)
    for word in words:
        assert word in str(caught.value)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.integers(1, 5000))
def test_what_is_said_to_fit_fits(sizes: list[int], world: int) -> None:
    dims = tuple((f"d{n}", size) for n, size in enumerate(sizes))
    try:
        assert math.prod(size for _, size in solve_dims(dims, world)) == world
    except InputError as error:
        hint = error.problems[0].hint.removesuffix(" would fit")
        for shape in hint.split(" or ") if hint else []:
            assert math.prod(int(part.split("=")[1]) for part in shape.split(",")) == world
