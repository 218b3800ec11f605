"""Owns: the words for ranks that disagree about the collectives of a group.
Must not: find the disagreements (watch.collectives does), or do I/O.
Called by: report.summary, report.control."""

from __future__ import annotations

from collections.abc import Sequence

from meshrun.plan.values import Plan
from meshrun.report.show import render_ranks
from meshrun.report.stacks import name_ranks
from meshrun.watch.collectives import Disagreement, Kind, Place

LINES = 8  # groups that are shown: one rank that does not come makes many wait


def render_disagreements(found: Sequence[Disagreement], plan: Plan | None) -> list[str]:
    """A line for each group; those that say most first."""
    lines = [f"  {_render(one, plan)}" for one in found[:LINES]]
    more = len(found) - LINES
    return [*lines, *([f"  ... and {more} more, all of them in events.jsonl"] if more > 0 else [])]


def _render(one: Disagreement, plan: Plan | None) -> str:
    head = f"{one.group} ({'rank' if len(one.members) == 1 else 'ranks'} {render_ranks(one.members)}): "
    words = _WORDS[one.kind]
    parts = [words(place, at == 0, _name(one, at, plan)) for at, place in enumerate(one.places)]
    tail = ": these do not match" if one.kind in (Kind.OP, Kind.SIZES) else ""
    return head + ", ".join(parts) + tail


def _name(one: Disagreement, at: int, plan: Plan | None) -> str:
    place, count = one.places[at], len(one.places)
    if count == 2 and at == 1 and len(place.ranks) > 1:
        return f"the other {len(place.ranks)}"
    return name_ranks(place.ranks, plan)


def _call(place: Place) -> str:
    return f"{place.op} {place.sizes}".strip()


def _say_count(place: Place, first: bool, who: str) -> str:
    has = "has" if len(place.ranks) == 1 else "have"
    if first:
        return f"{who} {has} issued {place.number or 'no'} collective{'' if place.number == 1 else 's'}"
    return f"{who} {has} issued {place.number}, the last is {_call(place)} ({place.age_s:.3g} s ago)"


def _say_call(place: Place, first: bool, who: str) -> str:
    start = f"collective {place.number} is " if first else ""
    return f"{start}{_call(place)} in {who}"


def _say_state(place: Place, first: bool, who: str) -> str:
    start = f"collective {place.number}, {_call(place)}, is " if first else ""
    return f"{start}{place.state} in {who}"


_WORDS = {Kind.OP: _say_call, Kind.SIZES: _say_call, Kind.COUNT: _say_count, Kind.STATE: _say_state}
