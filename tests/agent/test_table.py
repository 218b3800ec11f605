"""Owns: the agent's state table: drawn from the code as ARCHITECTURE.md shows it, and complete.
Must not: test single steps (test_supervisor does).
Called by: pytest."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshrun.agent.state import TURNS, Phase, State, turn


def draw() -> str:
    """One row per allowed step, as meshrun.watch.table draws the launcher's."""
    lines = ["An agent (agent.state.TURNS)"]
    for old, turns in TURNS.items():
        names = [old.name, *[""] * len(turns)]
        lines += [
            f"  {name:<11} {why:<56} -> {new.name}" for name, (new, why) in zip(names, turns.items(), strict=False)
        ]
    return "\n".join(lines)


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "docs/explanation/how-a-run-ends.md"])
def test_the_pages_show_the_table(page: str) -> None:
    assert draw() in (Path(__file__).parents[2] / page).read_text()


def test_every_phase_can_be_reached_and_ends() -> None:
    reached, todo = set(), [Phase.WAITING]
    while todo:
        phase = todo.pop()
        if phase not in reached:
            reached.add(phase)
            todo += TURNS[phase]
    assert reached == set(Phase) == set(TURNS)
    assert [phase for phase, turns in TURNS.items() if not turns] == [Phase.GONE]


def test_any_other_step_is_refused() -> None:
    with pytest.raises(AssertionError):
        turn(State(heard_at=0.0), Phase.RUNNING)
