"""Owns: what an event costs does not depend on how many nodes there are, counted; and bench.core plays its cases.
Must not: measure time.
Called by: pytest."""

import sys

import pytest

from bench import core
from meshrun.watch.nodes import Nodes

SMALL, LARGE = 128, 384
# What a run does once for all nodes is there for each of them once; a copy or a look at all at every event is not.
TOLERANCE = 1.3


def copied(before, after):
    """How many places of tuples, sets and rows were filled anew to come from one frozen value to the next."""
    if before is after:
        return 0
    if isinstance(after, Nodes):
        return copied(getattr(before, "_blocks", ()), after._blocks)
    if hasattr(type(after), "__dataclass_fields__") and type(before) is type(after):
        return sum(copied(getattr(before, name), getattr(after, name)) for name in after.__match_args__)
    if isinstance(after, (tuple, frozenset)):
        inner = zip(before, after, strict=True) if _alike(before, after) else ()
        return len(after) + sum(copied(*pair) for pair in inner)
    return 1


def _alike(before, after):
    return isinstance(after, tuple) and isinstance(before, tuple) and len(before) == len(after)


class Costs:
    """Counts what `advance` and the status line's `progress_after` do."""

    def __init__(self, monkeypatch):
        self.copied = self.calls = 0
        for name in ("advance", "progress_after"):
            monkeypatch.setattr(core, name, self.watched(getattr(core, name)))

    def watched(self, function):
        def call(before, *args):
            sys.setprofile(self.note)
            try:
                result = function(before, *args)
            finally:
                sys.setprofile(None)
            self.copied += copied(before, result[0] if isinstance(result, tuple) else result)
            return result

        return call

    def note(self, frame, event, arg):
        self.calls += event in ("call", "c_call")


def costs(case, nodes):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(core, "SLOTS", 2)
        spent = Costs(patch)
        events = core.measure(case, nodes)["events"]
    return spent.calls / events, spent.copied / events


@pytest.mark.parametrize("case", core.CASES)
def test_an_event_costs_the_same_among_more_nodes(case):
    calls, places = costs(case, SMALL)
    more_calls, more_places = costs(case, LARGE)
    assert more_calls <= TOLERANCE * calls
    assert more_places <= TOLERANCE * places


@pytest.mark.parametrize(("case", "code"), [("good", 0), ("fail", 1), ("crash", 1), ("stacks", 0), ("lost", 125)])
def test_the_cases_end_as_they_should(case, code):
    measured = core.measure(case, 3)
    assert measured["exit_code"] == code and measured["events"] > 3 * core.SLOTS
