"""Owns: tests of `--include`, `--exclude`, `--nodes`.
Must not: read files.
Called by: pytest."""

import pytest

from meshrun.errors import InputError
from meshrun.spec.filters import filter_hosts
from meshrun.spec.hostfile import parse_hostfile
from meshrun.spec.values import Host

HOSTS = parse_hostfile(b"a slots=4\ngpu[01-03] slots=2\nu@b devices=4,5,GPU-x\nc\n[fd00::1] slots=2\n", "hosts")


def chosen(include: str = "", exclude: str = "", nodes: int | None = None) -> list[str]:
    """Each host that is left, with its devices where they were chosen."""
    left = filter_hosts(HOSTS, include, exclude, nodes)
    return [f"{h.name}:{','.join(h.devices)}={h.slots}" if h.devices is not None else h.name for h in left]


ALL = ["a", "gpu01", "gpu02", "gpu03", "b:4,5,GPU-x=3", "c", "fd00::1"]


@pytest.mark.parametrize(
    ("include", "exclude", "nodes", "left"),
    [
        ("", "", None, ALL),
        ("c@a", "", None, ["a", "c"]),
        ("gpu[02-03]@a:0,2", "", None, ["a:0,2=2", "gpu02", "gpu03"]),
        ("a:2,0", "", None, ["a:0,2=2"]),
        ("a:0-2", "", None, ["a:0,1,2=3"]),
        ("a:0@a:3", "", None, ["a:0,3=2"]),
        ("a:0@a", "", None, ["a"]),
        ("b:GPU-x,4", "", None, ["b:4,GPU-x=2"]),
        ("c:3,1", "", None, ["c:3,1=2"]),
        ("[fd00::1]:1", "", None, ["fd00::1:1=1"]),
        ("A", "", None, ["a"]),
        ("", "a@gpu[01-03]@b", None, ["c", "fd00::1"]),
        ("", "a:0@b:5", None, ["a:1,2,3=3", "gpu01", "gpu02", "gpu03", "b:4,GPU-x=2", "c", "fd00::1"]),
        ("a:0,1@c:7,8", "a:1@c:7", None, ["a:0=1", "c:8=1"]),
        ("a@gpu01", "gpu01:0,1", None, ["a"]),
        ("", "", 2, ["a", "gpu01"]),
        ("", "a", 1, ["gpu01"]),
    ],
)
def test_what_is_left(include: str, exclude: str, nodes: int | None, left: list[str]) -> None:
    assert chosen(include, exclude, nodes) == left


def test_a_host_keeps_all_else() -> None:
    (host,) = filter_hosts(HOSTS, "b:5", "", None)
    assert host == Host("b", user="u", slots=1, devices=("5",))
    assert host.place == HOSTS[4].place


@pytest.mark.parametrize(
    ("include", "exclude", "nodes", "words"),
    [
        ("gpu04", "", None, ["--include:1:1: gpu04 is not among the hosts", "did you mean gpu0"]),
        ("a@zebra", "", None, ["--include:1:3: zebra", "the hosts are a gpu01"]),
        ("", "a@nope", None, ["--exclude:1:3: nope"]),
        ("a:9", "", None, ["a has no device 9", "its devices are 0,1,2,3"]),
        ("", "a:9", None, ["--exclude:1:1: a has no device 9"]),
        ("", "c:0", None, ["c does not say which devices it has", "slots="]),
        ("a:0", "a:1", None, ["a has no device 1", "its devices are 0"]),
        ("a,c", "", None, ["joined by '@'"]),
        ("a@", "", None, ["a host name is missing"]),
        ("a:", "", None, ["empty device id"]),
        ("a:x!", "", None, ["not a device id"]),
        ("gpu[3-1]", "", None, ["--include:1:5:", "backward"]),
        ("gpu*", "", None, ["gpu* is not among the hosts"]),
        ("a", "a", None, ["no host is left"]),
        ("", "", 8, ["8 nodes are wanted, but there are 7 hosts"]),
        ("a", "", 2, ["2 nodes are wanted, but there is 1 host"]),
        ("", "", 0, ["0 nodes is too few"]),
        ("x1", "x2", None, ["x1 is not", "x2 is not"]),
    ],
)
def test_what_is_refused(include: str, exclude: str, nodes: int | None, words: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        filter_hosts(HOSTS, include, exclude, nodes)
    for word in words:
        assert word in str(caught.value)
