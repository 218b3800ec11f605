"""Owns: that ARCHITECTURE.md and the explanation show the state tables as the code has them.
Must not: test behaviour.
Called by: pytest."""

from pathlib import Path

import pytest

from meshrun.watch.model import Step
from meshrun.watch.phases import LINKS, PHASE_TIMERS, TURNS, Link, Phase, Timer, Turn
from meshrun.watch.state import _TIMERS, begin
from meshrun.watch.table import render_table
from tests.watch.history import make_job

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "docs/explanation/how-a-run-ends.md"])
def test_the_pages_show_the_code(page):
    assert f"```\n{render_table()}\n```" in (ROOT / page).read_text(), "put `python -m meshrun.watch.table` there"


def test_every_phase_is_reached_and_every_one_but_the_last_is_left():
    assert set(TURNS) == set(Phase) and set(LINKS) == set(Link)
    reached = {new for turns in TURNS.values() for new in turns.values()}
    assert reached == set(Phase) - {Phase.CONNECTING}
    assert [phase for phase, turns in TURNS.items() if not turns] == [Phase.ENDED]


def test_every_timer_has_a_handler():
    assert set(_TIMERS) == set(Timer) and set(Timer) > PHASE_TIMERS


def test_a_step_that_no_table_allows_is_a_bug():
    step = Step(begin(make_job()), 0.0)
    with pytest.raises(KeyError):
        step.turn(Turn.READY)
    with pytest.raises(AssertionError):
        step.set_node(0, link=Link.GREETED)
