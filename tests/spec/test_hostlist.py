"""Owns: tests of ranges in host names.
Must not: need hostfile lines.
Called by: pytest."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshrun.spec.hostlist import MAX_NAMES, RangeError, expand, split_outside


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("gpu1", ["gpu1"]),
        ("gpu[1-3]", ["gpu1", "gpu2", "gpu3"]),
        ("gpu[08-11,20]", ["gpu08", "gpu09", "gpu10", "gpu11", "gpu20"]),
        ("gpu[3,1,2]", ["gpu3", "gpu1", "gpu2"]),
        ("gpu[098-101]", ["gpu098", "gpu099", "gpu100", "gpu101"]),
        ("r[1-2]n[01-02].x", ["r1n01.x", "r1n02.x", "r2n01.x", "r2n02.x"]),
        ("[1-2]a", ["1a", "2a"]),
        ("a[5]", ["a5"]),
        ("a[0-0]", ["a0"]),
        ("a[1,1]", ["a1", "a1"]),
    ],
)
def test_names_come_in_order_and_with_their_zeros(text: str, names: list[str]) -> None:
    assert list(expand(text)) == names


@pytest.mark.parametrize(
    ("text", "offset", "words"),
    [
        ("gpu[1-3", 3, "without ']'"),
        ("gpu1-3]", 6, "without '['"),
        ("gpu[1-[2]]", 6, "inside a bracket"),
        ("gpu[]", 4, "empty"),
        ("gpu[1,,2]", 6, "empty"),
        ("gpu[4-2]", 4, "backward"),
        ("gpu[1,a-c]", 6, "not a number"),
        ("gpu[1-]", 4, "not a number"),
        ("gpu[\u0661-\u0663]", 4, "not a number"),
        ("gpu[1_0]", 4, "not a number"),
        ("gpu[1-016]", 4, "zeros"),
        ("a[1-65537]", 2, "more than 65536"),
        ("a[1-300]b[1-300]", 1, "more than 65536"),
        ("a[1-999999999999999999]", 2, "more than 65536"),
        ("a[1-9999999999999999999]", 2, "too long"),
        ("a" * 300, 0, "more than 255 characters"),
    ],
)
def test_what_is_no_range_is_refused_with_its_offset(text: str, offset: int, words: str) -> None:
    with pytest.raises(RangeError) as caught:
        expand(text)
    assert caught.value.offset == offset
    assert words in caught.value.message


def test_the_bound_itself_is_allowed() -> None:
    assert len(expand(f"a[1-{MAX_NAMES}]")) == MAX_NAMES


@given(st.text(alphabet="ab[]0123456789-,", max_size=40))
def test_any_text_gives_names_or_a_range_error(text: str) -> None:
    try:
        names = expand(text)
    except RangeError as error:
        assert 0 <= error.offset <= len(text)
    else:
        assert 1 <= len(names) <= MAX_NAMES
        assert not any("[" in name or "]" in name for name in names)


def test_separators_inside_brackets_do_not_cut() -> None:
    assert split_outside("a[1,2],b", ",") == [("a[1,2]", 0), ("b", 7)]
    assert split_outside("", ",") == [("", 0)]
