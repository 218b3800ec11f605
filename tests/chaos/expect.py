"""Owns: the tables of right endings: exit codes, time, the culprit, and what ends a run that its fault does not end.
Must not: look at a run; all of it follows from the trial alone.
Called by: tests/chaos/play.py (what to do after the fault), tests/chaos/check.py."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tests.chaos.trials import Layout, Moment, Target, Trial

_GRACE_S = 1.0
_LONG_GRACE_S = 4.0  # where the fault comes in it: it must not be over before that, on a busy machine either
START_S = 8.0
CONNECT_S = 6.0
SILENCE_S = 10.0
FAILING_CODE = 7  # of the attempts before Moment.PAUSE
SIGNALS = {"INT": 2, "TERM": 15, "HUP": 1, "KILL": 9, "STOP": 19}


class After(Enum):
    """What the runner does once the fault is in."""

    NOTHING = "nothing"
    FINISH = "finish"  # the run lives on: workers are told to end with 0
    INTERRUPT = "interrupt"  # nothing can end it but the user
    RESUME = "resume"  # a stopped launcher goes on after the silence


# (target, how) -> the code of a run hit while its workers run, and what ends it. `launcher` with a signal: see below.
_LOST = frozenset({125})
_ANY = frozenset({0, 125})  # "125, or the run goes on to its end; never a hang"
_EFFECTS: dict[Target, dict[str, tuple[frozenset[int], After]]] = {
    Target.WORKER: {
        "KILL": (frozenset({137}), After.NOTHING),
        "STOP": (frozenset({130}), After.INTERRUPT),
        "TERM": (frozenset({143}), After.NOTHING),
    },
    Target.CHILD: dict.fromkeys(("KILL", "STOP", "TERM"), (frozenset({0}), After.FINISH)),
    Target.SERVER: dict.fromkeys(("KILL", "STOP", "TERM"), (_ANY, After.FINISH)),
    Target.STORE: dict.fromkeys(("KILL", "STOP", "TERM"), (_ANY, After.FINISH)),
    Target.AGENT: dict.fromkeys(("KILL", "STOP", "TERM"), (_LOST, After.NOTHING)),
    Target.GUARD: {
        "KILL": (_LOST, After.NOTHING),
        "STOP": (frozenset({0}), After.FINISH),
        "TERM": (_LOST, After.NOTHING),
    },
    Target.SESSION: dict.fromkeys(("KILL", "STOP", "TERM"), (_LOST, After.NOTHING)),
    Target.LINK: dict.fromkeys(("both", "out", "in"), (_LOST, After.NOTHING)),
    Target.HOST: {"crash": (_LOST, After.NOTHING)},
}
# An agent that dies before its greeting may be opened again.
EARLY = (Moment.CONNECTING, Moment.GREETING)
_UNDER_WAY = (Moment.STARTING, Moment.SPAWNED, Moment.RUNNING)


@dataclass(frozen=True, slots=True)
class Expected:
    """`codes`: allowed for every launcher that was not hit itself; `hit_codes`: for one that was (None: any).

    `culprits`: allowed ranks of the first failure, None among them for no failing rank; an empty set: any.
    `names_host`: the last block of a launcher on another node has to name the lost one."""

    codes: frozenset[int]
    hit_codes: frozenset[int] | None
    culprits: frozenset[int | None]
    after: After
    within_s: float
    names_host: bool
    intact: bool  # every byte that a worker wrote before it was ready is in the run directory


def expect(trial: Trial) -> Expected:
    """What may come of a trial whose fault hit its target."""
    codes, after = _choose_effect(trial)
    return Expected(
        codes=_choose_codes(trial, codes),
        hit_codes=_choose_hit_codes(trial),
        culprits=_choose_culprits(trial),
        after=after,
        within_s=_choose_bound(trial),
        names_host=codes == _LOST and trial.moment in _UNDER_WAY and not _is_own(trial),
        intact=trial.fault.target in (Target.WORKER, Target.CHILD, Target.STORE, Target.SERVER)
        or (trial.fault.target is Target.LAUNCHER and trial.fault.how not in ("KILL", "STOP")),
    )


def _is_own(trial: Trial) -> bool:
    """No other node is lost: there is none, or it is the only launcher itself that is hit."""
    alone = trial.fault.target is Target.LAUNCHER and trial.layout is not Layout.HAND
    return trial.layout is Layout.LOCAL or alone


def grace_s(trial: Trial) -> float:
    """What the run is given as `--grace`."""
    return _LONG_GRACE_S if trial.moment is Moment.GRACE else _GRACE_S


def unharmed(trial: Trial) -> frozenset[int]:
    """The codes of a run that its fault missed."""
    return frozenset({143}) if trial.moment is Moment.GRACE else frozenset({0})


def _choose_effect(trial: Trial) -> tuple[frozenset[int], After]:
    if trial.fault.target is not Target.LAUNCHER:
        return _EFFECTS[trial.fault.target][trial.fault.how]
    if trial.fault.how == "STOP":
        return _LOST, After.RESUME
    if trial.fault.how == "KILL":
        return _LOST, After.NOTHING  # the code of the other node's launcher, by hand
    return frozenset({128 + SIGNALS[trial.fault.how.split("+")[0]]}), After.NOTHING


def _choose_codes(trial: Trial, codes: frozenset[int]) -> frozenset[int]:
    """What the moment changes: a stop's first cause decides, a late fault may miss, an early one may heal."""
    if trial.moment is Moment.GRACE:
        # By hand a node that loses node 0 while all stop never hears how the run ended.
        silent = trial.fault.target in (Target.LINK, Target.HOST) or trial.fault.name in (
            "launcher-STOP",
            "launcher-KILL",
        )
        return unharmed(trial) | (_LOST if silent and trial.layout is Layout.HAND else frozenset())
    if trial.moment is Moment.EXITING:
        return codes | {0}
    if trial.moment is Moment.PAUSE:
        return codes | {FAILING_CODE} if codes & _LOST else codes
    if trial.moment in EARLY:
        retried = frozenset({0} if trial.fault.target is not Target.LAUNCHER or trial.fault.how == "STOP" else ())
        # By hand the other node may not have met this one yet: all it knows is that nobody came.
        alone = _LOST if trial.layout is Layout.HAND else frozenset()
        return codes | retried | alone
    return codes


def _choose_hit_codes(trial: Trial) -> frozenset[int] | None:
    """A launcher that was killed itself; one whose host crashed has no code to speak of."""
    if trial.fault.target is Target.HOST:
        return None
    return frozenset({-9}) if trial.fault.name == "launcher-KILL" else frozenset()


def _choose_culprits(trial: Trial) -> frozenset[int | None]:
    if trial.moment is Moment.PAUSE:
        return frozenset()
    if trial.fault.target is Target.WORKER and trial.fault.how != "STOP" and trial.moment is not Moment.GRACE:
        late: set[int | None] = {None} if trial.moment is Moment.EXITING else set()
        return frozenset({trial.rank, *late})
    return frozenset({None})


def _choose_bound(trial: Trial) -> float:
    """Seconds from the fault (or what the runner did after it) to the end of every launcher."""
    silent = trial.fault.target in (Target.LINK, Target.HOST) or (
        trial.fault.how == "STOP" and trial.fault.target in (Target.AGENT, Target.SESSION, Target.SERVER, Target.STORE)
    )
    early = trial.moment in (*EARLY, Moment.STARTING, Moment.SPAWNED, Moment.PAUSE)
    waits = SILENCE_S if silent else 0.0
    waits += CONNECT_S + START_S if early and trial.fault.target is not Target.WORKER else 0.0
    return 5.0 + 2 * grace_s(trial) + waits
