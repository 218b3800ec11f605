"""Owns: the laws of the generator and of the tables of right endings.
Must not: start anything.
Called by: pytest."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.chaos.expect import expect
from tests.chaos.trials import FAULTS, MOMENTS, Layout, Target, make_trials

seeds = st.integers(0, 2**32)


@given(seeds, st.integers(0, 80), st.integers(0, 80))
def test_a_seed_gives_the_same_trials_however_many(seed: int, few: int, more: int) -> None:
    assert make_trials(seed, few) == make_trials(seed, few + more)[:few]


@given(seeds)
def test_every_fault_is_among_sixty(seed: int) -> None:
    assert {trial.fault for trial in make_trials(seed, 60)} == set(FAULTS)


def test_every_pair_of_fault_and_moment_comes_in_time() -> None:
    pairs = {(fault, moment) for fault in FAULTS for moment in MOMENTS[fault.target]}
    assert {(trial.fault, trial.moment) for trial in make_trials(0, 4000)} == pairs


@given(seeds)
def test_a_fault_has_a_place_and_an_ending(seed: int) -> None:
    for trial in make_trials(seed, 60):
        assert trial.moment in MOMENTS[trial.fault.target]
        assert 0 <= trial.node < trial.nodes and trial.rank // trial.slots == trial.node
        assert trial.layout is Layout.SSH or trial.fault.target is not Target.SESSION
        assert trial.layout is not Layout.LOCAL or trial.fault.target not in (Target.LINK, Target.HOST)
        expected = expect(trial)
        assert expected.codes and 0 < expected.within_s < 40
