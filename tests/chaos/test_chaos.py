"""Owns: a short seeded part of the fault suite for every test run, and that its checks can fail.
Must not: hold faults or checks; `make chaos` plays the long list.
Called by: pytest."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.chaos.check import check
from tests.chaos.expect import expect
from tests.chaos.play import Ground, play, start
from tests.chaos.trials import Fault, Layout, Moment, Target, Trial, make_trials
from tests.cluster import can_make_namespaces

SEED, COUNT = 3, 12
# These end a run only by the ten seconds of silence.
_SLOW = {(Target.AGENT, "STOP"), (Target.SESSION, "STOP"), (Target.LAUNCHER, "STOP")}


def is_quick(trial: Trial) -> bool:
    fault = trial.fault
    return fault.target not in (Target.LINK, Target.HOST) and (fault.target, fault.how) not in _SLOW


def choose() -> list[Trial]:
    """Quick ones of several layouts, and one cut link."""
    trials = make_trials(SEED, 60)
    quick = [trial for trial in trials if is_quick(trial) and trial.moment is not Moment.PAUSE]
    cut = next(t for t in trials if t.fault.target is Target.LINK and t.moment is Moment.RUNNING)
    return [*quick[:COUNT], cut]


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    made = Ground(tmp_path_factory.mktemp("chaos"))
    yield made
    made.close()


def need_hosts(trial: Trial) -> None:
    if trial.layout is not Layout.LOCAL and not can_make_namespaces():
        pytest.skip("needs root and namespaces")


@pytest.mark.parametrize("trial", choose(), ids=lambda trial: f"{SEED}:{trial.number} {trial.name}")
def test_a_fault_leaves_nothing_and_is_named(trial: Trial, ground: Ground) -> None:
    need_hosts(trial)
    assert play(trial, ground).violations == ()


LOCAL = Trial(0, Layout.LOCAL, 1, 3, Fault(Target.WORKER, "KILL"), Moment.RUNNING, 0.0, 0.0, 0, 1, False, False)
# Trials that broke a rule once, as small as they could be made.
FOUND = [replace(LOCAL, fault=Fault(Target.GUARD, "STOP"))]


@pytest.mark.parametrize("trial", FOUND, ids=lambda trial: trial.name)
def test_what_was_found_once(trial: Trial, ground: Ground) -> None:
    need_hosts(trial)
    assert play(trial, ground).violations == ()


def test_what_is_left_and_what_is_missing_is_found(ground: Ground) -> None:
    """A run that ends well under the expectations of another fault: each check speaks."""
    run = start(LOCAL, ground)
    (run.where / "finish").touch()
    run.codes = [launcher.wait(30) for launcher in run.launchers]
    run.hit, run.took_s = True, 99.0
    (run.where / "tmp" / "meshrun-0-left").mkdir()
    for path in run.where.glob("runs0/*/rank2.out"):
        path.write_text(path.read_text()[:100])
    (run.where / "err0").write_text(f'  File "{run.where}/bundle.zip/meshrun/agent/loop.py", line 3')
    with subprocess.Popen(["sleep", "60"], env={"CHAOS_TRIAL": run.tag}) as left:
        said = "\n".join(check(run, expect(LOCAL)))
        left.kill()
    for words in (
        "took 99.0 s",
        "ended with 0, not one of [137]",
        f"left: pid {left.pid}",
        "meshrun-0-left",
        "a traceback of meshrun",
        "names rank None",
        "output of rank 0.2 is not whole",
    ):
        assert words in said, said
