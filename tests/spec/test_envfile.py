"""Owns: tests of env files.
Must not: read the environment.
Called by: pytest."""

import shlex

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshrun.errors import InputError, Place
from meshrun.spec.envfile import parse_env_file


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("", {}),
        ("# comment\n\n  \nA=1\n", {"A": "1"}),
        ("export A=1\n  export\tB=2", {"A": "1", "B": "2"}),
        ("A=", {"A": ""}),
        ("A=a=b", {"A": "a=b"}),
        ("A=$HOME ${B} `c`", {"A": "$HOME ${B} `c`"}),
        ("A='$X \"q\" #'", {"A": '$X "q" #'}),
        ('A="it\'s \\"\\$5\\" \\\\ \\n"', {"A": 'it\'s "$5" \\ \\n'}),
        ("A='it'\\''s'", {"A": "it's"}),
        ("A='it'\"'\"'s'", {"A": "it's"}),
        ("A='one\ntwo'\nB=3", {"A": "one\ntwo", "B": "3"}),
        ("A=b # comment", {"A": "b"}),
        ("A='b'  # comment", {"A": "b"}),
        ("A=b#c", {"A": "b#c"}),
        ("A=b   \nB= c", {"A": "b", "B": " c"}),
        ("A=two words", {"A": "two words"}),
        ("A=C:\\data", {"A": "C:\\data"}),
        ("A=1\nA=2", {"A": "2"}),
        ("\ufeffA=1\r\nB='x'\r\n", {"A": "1", "B": "x"}),
        ("A=\udcff", {"A": "\udcff"}),
    ],
)
def test_what_a_file_says(text: str, values: dict[str, str]) -> None:
    assert parse_env_file(text, "env") == values


@pytest.mark.parametrize(
    ("text", "line", "column", "words"),
    [
        ("A=1\n  nonsense", 2, 3, "not KEY=VALUE"),
        ("A = 1", 1, 1, "not KEY=VALUE"),
        ("1A=2", 1, 1, "not KEY=VALUE"),
        ("export A", 1, 1, "not KEY=VALUE"),
        ("A-B=2", 1, 1, "not KEY=VALUE"),
        ("A=1\nB='x\nC=2", 2, 3, "never closed"),
        ("A='x' y", 1, 7, "after a closed quote"),
        ("A=a\0b", 1, 3, "zero byte"),
    ],
)
def test_what_is_refused(text: str, line: int, column: int, words: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_env_file(text, "env")
    (problem,) = caught.value.problems
    assert problem.place == Place("env", line, column)
    assert words in problem.message


def test_all_problems_come_at_once_and_no_value_is_shown() -> None:
    with pytest.raises(InputError) as caught:
        parse_env_file("A='hunter2\nsecret' hunter2\nhunter2\nB='x' hunter2\n", "env")
    assert len(caught.value.problems) == 3
    assert "hunter2" not in str(caught.value)


def test_what_is_too_much_ends_early() -> None:
    for text in ("A=1\n" * 250_000, "A=' \n" * 200_000, 'A="\n' * 200_000):
        with pytest.raises(InputError, match="more than 10000 variables"):
            parse_env_file(text, "env")
    with pytest.raises(InputError, match="more than 1 MiB"):
        parse_env_file("A=" + "v" * 2**20, "env")
    with pytest.raises(InputError) as caught:
        parse_env_file("x\n" * 500_000, "env")
    assert len(caught.value.problems) == 100


@given(st.text(st.characters(exclude_characters="\0\r")))
def test_a_value_quoted_for_a_shell_comes_back(value: str) -> None:
    assert parse_env_file(f"export A={shlex.quote(value)}\nB=1\n", "env") == {"A": value, "B": "1"}


@settings(deadline=None)
@given(st.one_of(st.text(), st.text(alphabet="A=' \"\\\n#x\0", max_size=40)))
def test_any_text_gives_values_or_problems_with_places(text: str) -> None:
    try:
        parse_env_file(text, "env")
    except InputError as error:
        assert all(p.place and p.place.line >= 1 for p in error.problems)
