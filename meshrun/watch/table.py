"""Owns: the launcher's state tables drawn as text, as ARCHITECTURE.md shows them.
Must not: hold any rule of its own: everything comes from watch.phases.
Called by: `python -m meshrun.watch.table`; a test compares it with ARCHITECTURE.md."""

from __future__ import annotations

from collections.abc import Iterable

from meshrun.watch.phases import LINKS, TURNS


def render_table() -> str:
    """Both tables: a run's phases, and the line to one node. One row per allowed step."""
    phases = [(old.name, turn.value, new.name) for old, turns in TURNS.items() for turn, new in turns.items()]
    links = [(old.name, why, new.name) for old, whys in LINKS.items() for why, new in whys.items()]
    return "\n".join(["A run (watch.phases.TURNS)", *_rows(phases), "", "A line (watch.phases.LINKS)", *_rows(links)])


def _rows(steps: Iterable[tuple[str, str, str]]) -> list[str]:
    lines = []
    last = ""
    for old, why, new in steps:
        lines.append(f"  {old if old != last else '':<11} {why:<46} -> {new}")
        last = old
    return lines


if __name__ == "__main__":
    print(render_table())
