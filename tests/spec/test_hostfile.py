"""Owns: tests of hostfile text and `--hosts`.
Must not: connect anywhere.
Called by: pytest."""

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshrun.errors import InputError, Place, Problem
from meshrun.spec.hostfile import MAX_BYTES, MAX_PROBLEMS, parse_hostfile, parse_hosts
from meshrun.spec.values import Host

EXAMPLES = Path(__file__).parents[2] / "hostfiles"
UUIDS = ("GPU-8f2e1c1a-5b1d-4d0e-9a55-1f6f0c1e2d3b", "GPU-41b35b60-0b73-5ae7-9f5c-2d0a4ad1a0b1")

# One entry per file of hostfiles/: an example that no test reads would be wrong one day.
FORMS: dict[str, list[Host]] = {
    "simple": [Host("login", slots=4), Host("gpu01", slots=8), Host("gpu02"), Host("gpu03")],
    "ranges": [
        *(Host(f"gpu{n}", slots=8) for n in ("01", "02", "03", "04", "08")),
        *(Host(f"rack{r}node{n}-ib", slots=4) for r in (1, 2) for n in (1, 2, 3)),
    ],
    "login": [
        Host("gpu01", user="ann", port=2222, slots=8),
        Host("gpu02", user="bob", port=2200, slots=8),
        Host("gpu03", slots=8, python="/opt/py311/bin/python", workdir="/scratch/ann", label="r3"),
    ],
    "devices": [
        Host("gpu01", slots=3, devices=("0", "2", "3")),
        Host("gpu02", slots=2, devices=("6", "7")),
        Host("gpu03", slots=2, devices=UUIDS),
    ],
    "environment": [
        Host("gpu01", slots=8, addr="10.0.0.1", env=(("NCCL_SOCKET_IFNAME", "ib0"),)),
        Host("gpu02", slots=8, addr="10.0.0.2", env=(("GREETING", "two words # no comment"), ("QUOTE", 'say "hi"'))),
    ],
    "ipv6": [
        Host("fd00::1", slots=8),
        Host("fd00::2", user="ann", port=2222, slots=8, addr="fd00::2"),
        Host("fe80::3%eth0", slots=8),
    ],
    "deepspeed": [Host("worker-1", slots=4), Host("worker-2", slots=4)],
    "openmpi": [Host("node01", slots=4), Host("node02", slots=2), Host("node03", slots=6)],
    "racks": [
        *(Host(name, slots=8, label="r1") for name in ("gpu01", "gpu02")),
        *(Host(name, slots=8, label="rack:r2,room:b") for name in ("gpu03", "gpu04")),
    ],
    "windows": [Host("gpu01", slots=8), Host("gpu02", slots=8)],
}


def problems_of(text: str | bytes) -> list[Problem]:
    data = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
    with pytest.raises(InputError) as caught:
        parse_hostfile(data, "hosts")
    return list(caught.value.problems)


@pytest.mark.parametrize("name", sorted(FORMS))
def test_every_example_is_read(name: str) -> None:
    assert list(parse_hostfile((EXAMPLES / name).read_bytes(), name)) == FORMS[name]


def test_every_example_has_a_test() -> None:
    assert sorted(path.name for path in EXAMPLES.iterdir()) == sorted(FORMS)


@pytest.mark.parametrize(
    ("line", "column", "words", "hint"),
    [
        ("a slotz=4", 3, "unknown key slotz=", "did you mean slots=?"),
        ("a Slots=4", 3, "unknown key Slots=", "did you mean slots=?"),
        ("a np=4", 3, "unknown key np=", "did you mean slots=?"),
        ("a 4", 3, "not key=value", "did you mean slots=4?"),
        ("a label=rack:", 9, "the label rack has no value", "label=rack:r7,room:b"),
        ("a label=r1,x-y:b", 12, "not a name for a label", "letters, digits"),
        ("a slots=0", 9, "out of range", "1 to 4096"),
        ("a slots=-1", 9, "not a number", ""),
        ("a slots=1_0", 9, "not a number", ""),
        ("a slots=٤", 9, "not a number", ""),
        ("a slots=", 9, "missing", ""),
        ("a slots=4 slots=4", 11, "given twice", ""),
        ("a slots=9 max_slots=8", 3, "above max_slots", ""),
        ("a:4", 3, "slots or a port", "'a slots=4' or 'a port=4'"),
        ("[::1]:4", 7, "slots or a port", "'[::1] slots=4' or '[::1] port=4'"),
        ("a:x slots=1", 3, "not a number", ""),
        ("a: slots=1", 3, "no number", ""),
        ("a:70000 slots=1", 3, "out of range for a port", "65535"),
        ("a port=0", 8, "out of range for a port", ""),
        ("a port=65536", 8, "out of range for a port", ""),
        ("a:22 slots=1 port=23", 3, "port is given twice", ""),
        ("u@a user=v", 1, "user is given twice", ""),
        ("@a", 1, "not a user name", ""),
        ("u@", 3, "host name is missing", ""),
        ("-a", 1, "cannot begin", ""),
        ("fe80::1", 1, "several colons", "[fe80::1]"),
        ("[fe80::zz] slots=1", 1, "not an IPv6 address", ""),
        ("a[3-1]", 3, "backward", "1-3"),
        ("a[1", 2, "without ']'", ""),
        ("a]", 2, "without '['", ""),
        ("u@a[x]", 5, "not a number", ""),
        ("gpu*", 4, "'*' cannot stand", "range"),
        ("slots=4", 6, "'=' cannot stand", "host comes first"),
        ("gpu\uff11", 4, "cannot stand", ""),
        ("gpu\u00a01 slots=2", 4, "U+00A0", ""),
        ("a\x1b[31m", 2, "control character (U+001B)", ""),
        ("a label='x", 9, "never closed", ""),
        ("a addr=head", 8, "not an IP address", ""),
        ("a[1-2] addr=10.0.0.1", 1, "several hosts", ""),
        ("a devices=", 11, "empty device id", ""),
        ("a devices=0,,1", 13, "empty device id", ""),
        ("a devices=0,0-2", 13, "device 0 is given twice", ""),
        ("a devices=3-1", 11, "backward", ""),
        ("a devices=0 slots=2", 13, "devices= names 1", "leave slots= out"),
        ("a python=", 10, "no value", ""),
        ("a env.1X=2", 7, "not the name of a variable", ""),
        ("a slots=4#fast", 9, "not a number", ""),
        ("a[1-2] x=1 slots=2 slots=3", 8, "unknown key", ""),
    ],
)
def test_a_bad_line_is_refused_with_its_place_and_a_hint(line: str, column: int, words: str, hint: str) -> None:
    problem = problems_of(f"# first\n{line}\n")[0]
    assert problem.place == Place("hosts", 2, column), str(problem)
    assert words in problem.message
    assert hint in problem.hint
    assert str(problem).startswith(f"hosts:2:{column}: ")


def test_all_problems_of_all_lines_come_at_once() -> None:
    found = problems_of("a slots=x port=0\nb:3\n\nc[\na\n")
    assert [(p.place.line, p.place.column) for p in found if p.place] == [(1, 9), (1, 16), (2, 3), (4, 2)]


def test_the_caret_points_at_the_column_also_behind_tabs() -> None:
    shown = str(problems_of("a\tslots=x")[0]).splitlines()
    assert shown[1].index("x") == shown[2].index("^")


@pytest.mark.parametrize("again", ["a", "A", "a slots=3", "a user=u port=2\na user=u port=2"])
def test_a_duplicate_is_the_same_user_host_and_port(again: str) -> None:
    lines = f"a\n{again}".splitlines()
    (problem,) = problems_of("\n".join(lines[-2:]) if len(lines) > 2 else "\n".join(lines))
    assert "already stands in line 1" in problem.message


def test_one_machine_under_other_users_or_ports_is_no_duplicate() -> None:
    hosts = parse_hostfile(b"a\nu@a\na port=2\nv@a\n", "hosts")
    assert [(h.user, h.port) for h in hosts] == [(None, None), ("u", None), (None, 2), ("v", None)]


def test_a_duplicate_inside_a_range_names_its_line() -> None:
    (problem,) = problems_of("a[1,1]")
    assert "a1 already stands earlier in this line" in problem.message


@pytest.mark.parametrize("word", ["slots=4", "slots = 4", "slots= 4", "slots =4", "slots='4'"])
def test_blanks_around_the_equals_sign(word: str) -> None:
    assert parse_hostfile(f"a {word} port=7".encode(), "hosts") == (Host("a", slots=4, port=7),)


def test_an_empty_value_does_not_eat_the_next_key() -> None:
    assert parse_hostfile(b"a env.X= slots=2", "hosts") == (Host("a", slots=2, env=(("X", ""),)),)


def test_the_number_after_a_colon_is_the_port_when_the_line_says_its_slots() -> None:
    for rest in ("slots=4", "slots=auto", "devices=0"):
        assert parse_hostfile(f"a:22 {rest}".encode(), "hosts")[0].port == 22


def test_hosts_know_where_they_stand() -> None:
    assert parse_hostfile(b"\n  a\n", "hosts")[0].place == Place("hosts", 2, 3)


def test_what_is_no_text_or_too_much_is_refused() -> None:
    assert "zero byte" in problems_of(b"a\nbc\0d")[0].message
    assert problems_of(b"a\nbc\0d")[0].place == Place("hosts", 2, 3)
    assert "UTF-16" in problems_of("a".encode("utf-16"))[0].message
    assert "at most" in problems_of(b"a" * (MAX_BYTES + 1))[0].message
    assert "a line of more than" in problems_of("a " + "x=1 " * 10_000)[0].message
    assert "no host" in problems_of(b"# nothing\n")[0].message


def test_a_file_of_nonsense_ends_early() -> None:
    found = problems_of("b slots=x\n" * 100_000)
    assert len(found) == MAX_PROBLEMS + 1
    assert "too many problems" in found[-1].message
    found = problems_of("\n".join(f"a{n}x[1-65536]" for n in range(1000)))
    assert "more than 16384 hosts" in found[-1].message


def test_undecodable_bytes_stay_what_they_are() -> None:
    assert parse_hostfile(b"a env.X=\xff", "hosts")[0].env == (("X", "\udcff"),)


PIECES = st.sampled_from(
    [
        *("a", "gpu[1-3]", "u@", ":", "22", "[::1]", " ", "\t", "\n", "slots", "=", "4", "devices=0,2-3", "auto"),
        *("env.X=", "\\", "[", "]", "-", ",", "0", "\u0664", "\r", "\x07", "addr=1.2.3.4", "max_slots=", "\xff"),
        *("'", '"', "#"),
    ]
)


def test_a_control_character_is_never_repeated() -> None:
    with pytest.raises(InputError) as caught:
        parse_hostfile(b":'\t'\n", "hosts")
    assert "'?' after the colon is not a number" in str(caught.value)


@settings(deadline=None)
@given(st.one_of(st.text(), st.lists(PIECES, max_size=30).map("".join)))
def test_any_text_gives_hosts_or_problems_with_places(text: str) -> None:
    check_any(text.encode("utf-8", "surrogatepass"))


@settings(deadline=None)
@given(st.binary())
def test_any_bytes_give_hosts_or_problems_with_places(data: bytes) -> None:
    check_any(data)


def check_any(data: bytes) -> None:
    try:
        assert parse_hostfile(data, "hosts")
    except InputError as error:
        assert error.problems
        for problem in error.problems:
            assert problem.place is not None
            assert problem.place.source == "hosts"
            assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", str(problem))


# ---- --hosts ----


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("a", [Host("a")]),
        ("a:4,b:2", [Host("a", slots=4), Host("b", slots=2)]),
        ("gpu[1-2,5]:8, u@c", [*(Host(f"gpu{n}", slots=8) for n in (1, 2, 5)), Host("c", user="u")]),
        ("[::1]:3,10.0.0.1", [Host("::1", slots=3), Host("10.0.0.1")]),
    ],
)
def test_hosts_on_the_command_line(text: str, hosts: list[Host]) -> None:
    assert list(parse_hosts(text)) == hosts


def test_all_problems_on_the_command_line_come_at_once() -> None:
    with pytest.raises(InputError) as caught:
        parse_hosts("a:0,,b:x, a,a slots=2,c[2-1]")
    found = [(p.place.column, p.message) for p in caught.value.problems if p.place]
    assert [column for column, _ in found] == [3, 5, 8, 14, 25]
    assert "empty entry" in found[1][1]


@pytest.mark.parametrize("text", ["", ",", " ", "a,"])
def test_an_empty_list_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="empty entry"):
        parse_hosts(text)


@settings(deadline=None)
@given(st.one_of(st.text(), st.lists(PIECES, max_size=20).map("".join)))
def test_any_list_gives_hosts_or_problems(text: str) -> None:
    try:
        assert parse_hosts(text)
    except InputError as error:
        assert all(problem.place and problem.place.source == "--hosts" for problem in error.problems)
