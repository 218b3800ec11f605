"""Owns: the row of nodes: it is a frozen list that counts, and a change leaves the rest of it alone.
Must not: know what the signs are for.
Called by: pytest."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshrun.watch.nodes import BLOCK, Node, Nodes, Sign
from meshrun.watch.phases import Link
from meshrun.wire import Reached

NODES = st.builds(
    Node,
    link=st.sampled_from(Link),
    answered=st.booleans(),
    reached=st.sampled_from([None, Reached({}, {})]),
    unready=st.frozensets(st.integers(0, 3)),
    drained=st.booleans(),
    asked=st.frozensets(st.integers(0, 3)),
)
SHOWS = {
    Sign.ANSWERED: lambda node: node.answered,
    Sign.GREETED: lambda node: node.link is Link.GREETED,
    Sign.GONE: lambda node: node.link is Link.GONE,
    Sign.DONE: lambda node: node.drained or node.link is Link.GONE,
    Sign.UNREADY: lambda node: node.unready != frozenset(),
    Sign.REACHED: lambda node: node.reached is not None,
    Sign.ASKED: lambda node: node.asked != frozenset(),
}


@settings(max_examples=40)
@given(st.integers(1, 2 * BLOCK + 1), st.lists(st.tuples(st.integers(0, 10**6), NODES), min_size=1, max_size=6))
def test_it_is_a_list_that_counts(size, changes):
    row, model = Nodes([Node()] * size), [Node()] * size
    for number, node in changes:
        before = list(row)
        changed = row.put(number % size, node)
        assert list(row) == before
        row = changed
        model[number % size] = node
    assert list(row) == model and row == Nodes(model)
    assert [row[at] for at in range(len(row))] == model
    for sign, shows in SHOWS.items():
        assert row.count(sign) == sum(map(shows, model))
        assert row.all(sign) == all(map(shows, model))


def test_every_sign_is_told_by_another_rule():
    assert set(SHOWS) == set(Sign) and [sign.value for sign in Sign] == list(range(len(Sign)))


def test_places_outside_are_refused():
    row = Nodes([Node()] * 3)
    for at in (-1, 3):
        with pytest.raises(IndexError):
            row[at]
        with pytest.raises(IndexError):
            row.put(at, Node())
