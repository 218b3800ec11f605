"""Owns: how a node's cores are divided among its workers, as a table and as properties of any machine.
Must not: look at this machine.
Called by: pytest."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshrun.agent.binding import NOWHERE, Core, Topology, divide, place
from meshrun.wire.cpus import MAX_CPU, parse_cpus, render_cpus

RING = {(here, there): 10 + 11 * abs(here - there) for here in range(4) for there in range(4)}


def machine(*sizes: int, smt: int = 1) -> Topology:
    """NUMA nodes with so many cores; hyper-threads are numbered after all cores, as on most servers."""
    total = sum(sizes)
    nodes = [node for node, size in enumerate(sizes) for _ in range(size)]
    cores = (Core(tuple(range(at, total * smt, total)), node) for at, node in enumerate(nodes))
    return Topology(tuple(cores), RING)


def shares(topology: Topology, wanted: Sequence[int], how: str) -> list[str]:
    return [render_cpus([cpu for core in cores for cpu in core.cpus]) for cores in divide(topology, wanted, how)]


@pytest.mark.parametrize(
    ("topology", "wanted", "how", "expected"),
    [
        # 2 sockets with 4 cores each and hyper-threads
        (machine(4, 4, smt=2), [0, 0, 1, 1], "cores", ["0-1,8-9", "2-3,10-11", "4-5,12-13", "6-7,14-15"]),
        (machine(4, 4, smt=2), [1, 0], "numa", ["4-7,12-15", "0-3,8-11"]),
        (machine(4, 4), [NOWHERE] * 2, "cores", ["0-3", "4-7"]),
        (machine(4, 4), [NOWHERE] * 3, "numa", ["0-1", "2-3", "4-7"]),
        # what does not divide: left free, or given to some
        (machine(5), [0, 0], "cores", ["0-1", "2-3"]),
        (machine(5), [0, 0], "numa", ["0-1", "2-4"]),
        # all GPUs on one socket: each a part of it, or equally many cores, whose socket's first
        (machine(4, 4), [1, 1], "numa", ["4-5", "6-7"]),
        (machine(4, 4), [1, 1], "cores", ["4-7", "0-3"]),
        # a neighbour takes only what the node's own workers leave, from the nearest node
        (machine(2, 4, 2, 4), [0, 0, 1], "cores", ["0-1,6-7", "8-11", "2-5"]),
        # a socket with fewer cores than GPUs: the last goes next door
        (machine(2, 4), [0, 0, 0], "numa", ["0", "1", "2-5"]),
        # a GPU on a node of which we have no CPU
        (machine(2, 0, 2), [1, 2], "numa", ["0-1", "2-3"]),
        # more workers than cores
        (machine(1), [NOWHERE] * 3, "cores", ["0", "0", "0"]),
        (machine(1, 1), [NOWHERE] * 4, "numa", ["0", "0", "1", "1"]),
        (machine(3, 1), [1, 1, 1, 1, 0], "cores", ["3", "3", "3", "3", "0"]),
        (machine(1), [NOWHERE], "numa", ["0"]),
    ],
)
def test_who_gets_what(topology: Topology, wanted: list[int], how: str, expected: list[str]) -> None:
    assert shares(topology, wanted, how) == expected


@st.composite
def machines(draw: st.DrawFn) -> tuple[Topology, list[int]]:
    """Any cores of any width on any nodes, with any wishes."""
    widths = draw(st.lists(st.integers(1, 4), min_size=1, max_size=24))
    numbers = iter(draw(st.permutations(range(sum(widths)))))
    nodes = st.integers(-1, 4)
    cores = tuple(Core(tuple(sorted(next(numbers) for _ in range(width))), draw(nodes)) for width in widths)
    pairs = st.tuples(nodes, nodes)
    far = draw(st.dictionaries(pairs, st.integers(11, 255), max_size=12))
    return Topology(cores, far), draw(st.lists(nodes, min_size=1, max_size=30))


@given(machines(), st.sampled_from(["numa", "cores"]))
def test_any_machine(drawn: tuple[Topology, list[int]], how: str) -> None:
    topology, wanted = drawn
    given_ = divide(topology, wanted, how)
    known = set(topology.cores)
    assert len(given_) == len(wanted)
    assert all(cores and set(cores) <= known and len(set(cores)) == len(cores) for cores in given_)  # whole cores
    dealt = [core for cores in given_ for core in cores]
    if len(wanted) <= len(known):
        assert len(set(dealt)) == len(dealt)  # nobody else's
    if how == "cores":
        assert {len(cores) for cores in given_} == {max(1, len(known) // len(wanted))}
    else:
        assert_balanced(topology, given_)
    assert given_ == divide(
        Topology(topology.cores[::-1], topology.distances), wanted, how
    )  # order of reading: no matter


def assert_balanced(topology: Topology, given_: Sequence[tuple[Core, ...]]) -> None:
    """numa: on each node that has workers, all of its cores are theirs, within one of each other."""
    assert all(len({core.node for core in mine}) == 1 for mine in given_)
    for node, cores in topology.nodes.items():
        here = [mine for mine in given_ if mine[0].node == node]
        counts = [len(mine) for mine in here]
        assert not here or max(counts) - min(counts) <= 1
        assert not here or {core for mine in here for core in mine} == set(cores)


@given(machines())
def test_an_accelerators_node_is_kept_while_it_has_cores(drawn: tuple[Topology, list[int]]) -> None:
    topology, wanted = drawn
    enough = len(wanted) <= len(topology.cores)
    places = place(topology, wanted)
    for node, cores in topology.nodes.items():
        wishing = [worker for worker, other in enumerate(wanted) if other == node != NOWHERE]
        assert all(places[worker] == node for worker in wishing[: len(cores) if enough else None])
        assert places.count(node) <= len(cores) or not enough


@given(st.sets(st.integers(0, MAX_CPU), max_size=60))
def test_a_set_of_cpus_is_text_and_back(cpus: set[int]) -> None:
    text = render_cpus(cpus)
    assert parse_cpus(text) == tuple(sorted(cpus)) and parse_cpus(f"{text}\n") == tuple(sorted(cpus))


@pytest.mark.parametrize("text", ["a", "3-1", "1-", "-1", "0-70000", "1 2", "٣", "0-3:2/4", "1--2"])
def test_what_is_no_set_of_cpus(text: str) -> None:
    with pytest.raises(ValueError, match="is no range"):
        parse_cpus(text)
