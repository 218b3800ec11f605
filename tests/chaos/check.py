"""Owns: what is looked at after a trial, each as one function that returns its violations.
Must not: know what is right for a fault (tests/chaos/expect.py has the tables), or change anything.
Called by: tests/chaos/play.py."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.chaos import worker
from tests.chaos.expect import EARLY, SILENCE_S, Expected, grace_s, unharmed
from tests.chaos.processes import list_groups
from tests.chaos.trials import Layout, Moment, Target
from tests.e2e.command import ROOT

if TYPE_CHECKING:
    from tests.chaos.play import Run

_OURS = re.compile(rf'File "[^"]*(bundle\.zip/meshrun|{re.escape(str(ROOT))}/meshrun)')


def check(run: Run, expected: Expected) -> list[str]:
    """Every violation of an ended trial."""
    return [
        *run.stuck,
        *_check_hit(run),
        *_check_time(run, expected),
        *_check_codes(run, expected),
        *_check_left(run),
        *_check_stderr(run, expected),
        *(bad for i in range(len(run.launchers)) for bad in _check_directory(run, expected, i)),
        *_check_output(run, expected),
    ]


def _check_hit(run: Run) -> list[str]:
    """A fault that finds nobody tests nothing; only where workers are leaving may its target be gone."""
    missed = not run.hit and run.trial.moment is not Moment.EXITING
    return [f"the fault found no {run.trial.fault.target.value}"] if missed else []


def _is_hit(run: Run, i: int) -> bool:
    """Whether launcher `i` was ended by the fault itself."""
    trial = run.trial
    own = trial.fault.target is Target.HOST or trial.fault.name == "launcher-KILL"
    return (
        run.hit
        and own
        and (trial.layout is not Layout.SSH or trial.fault.target is not Target.HOST)
        and (i == trial.node or trial.layout is not Layout.HAND)
    )


def _check_time(run: Run, expected: Expected) -> list[str]:
    if run.took_s <= expected.within_s:
        return []
    return [f"the launcher took {run.took_s:.1f} s, over {expected.within_s:.1f}"]


def _check_codes(run: Run, expected: Expected) -> list[str]:
    bad = []
    for i, code in enumerate(run.codes):
        allowed = expected.codes if run.hit else expected.codes | unharmed(run.trial)
        if _is_hit(run, i):
            if expected.hit_codes is None:
                continue
            # Nothing dies of a signal that comes after its end.
            allowed = expected.hit_codes | unharmed(run.trial)
        if code is None:
            bad.append(f"launcher {i} hung")
        elif code not in allowed:
            bad.append(f"launcher {i} ended with {code}, not one of {sorted(allowed)}")
    return bad


def _check_left(run: Run) -> list[str]:
    """No process, no directory and no control group, after the time in which each agent ends what it has on its own."""
    silent = run.trial.fault.target in (Target.LINK, Target.HOST) or run.trial.fault.how == "STOP"
    deadline = time.monotonic() + 4.0 + 2 * grace_s(run.trial) + (SILENCE_S if silent else 0.0)
    crashed = run.trial.fault.target is Target.HOST and run.hit and run.cluster
    gone = run.cluster.path(run.trial.node, "/tmp") if crashed and run.cluster else None
    while True:
        dirs = [path for path in run.dirs() - run.before_dirs if path.parent != gone]
        left, groups = run.everywhere(), [] if gone else list_groups(run.marks)
        if not (dirs or left or groups) or time.monotonic() > deadline:
            break
        time.sleep(0.03)
    return [f"left: pid {p.pid} {p.state} {p.command[:90]!r}" for p in left] + [
        f"left: {path}" for path in [*dirs, *groups]
    ]


def _check_stderr(run: Run, expected: Expected) -> list[str]:
    texts = [path.read_text(errors="replace") for path in sorted(run.where.glob("err*"))]
    bad = ["a traceback of meshrun on stderr" for text in texts if _OURS.search(text) or "this is a bug" in text]
    if run.hit and expected.names_host and run.cluster:
        node = run.trial.node
        teller = 1 - node if run.trial.layout is Layout.HAND else 0
        words = rf"\b({run.cluster.hosts[node].name}|node {node})\b"
        bad += [] if re.search(words, texts[teller]) else [f"stderr of launcher {teller} does not name node {node}"]
    return bad


def _check_directory(run: Run, expected: Expected, i: int) -> list[str]:
    """summary.json and events.jsonl of one launcher."""
    found = list(run.where.glob(f"runs{i}/*"))
    if len(found) != 1:
        # By hand a node has a directory once it has met the first one.
        alone = run.trial.layout is Layout.HAND and run.trial.moment in EARLY and not found
        return [] if alone else [f"run directories of launcher {i}: {found}"]
    try:
        *lines, _ = (found[0] / "events.jsonl").read_text().split("\n")
        for line in lines:
            json.loads(line)
        if _is_hit(run, i):
            return []
        return _check_summary(run, expected, i, json.loads((found[0] / "summary.json").read_text()))
    except (OSError, ValueError) as error:
        return [f"run directory of launcher {i}: {error!r}"]


def _check_summary(run: Run, expected: Expected, i: int, summary: dict[str, Any]) -> list[str]:
    bad = []
    if summary["exit_code"] != run.codes[i]:
        bad.append(f"summary.json of launcher {i} says {summary['exit_code']}, it returned {run.codes[i]}")
    if summary["left"]:
        bad.append(f"summary.json of launcher {i} names as left: {summary['left']}")
    rank = summary["first_failure"]["rank"] if summary["first_failure"] else None
    allowed = expected.culprits if run.hit else expected.culprits and frozenset({None})
    if allowed and rank not in allowed:
        bad.append(f"launcher {i} names rank {rank} as first failure, not one of {allowed}")
    return bad


def _check_output(run: Run, expected: Expected) -> list[str]:
    """What a worker wrote before it was ready is in its file."""
    if run.hit and not expected.intact:
        return []
    return [f"output of rank {ready.name} is not whole" for ready in run.ready() if not _is_whole(run.where, ready)]


def _is_whole(where: Path, ready: Path) -> bool:
    attempt, _, rank = ready.name.partition(".")
    folder = f"attempt{attempt}/" if attempt != "0" else ""
    lines = "".join(f"rank {rank} line {i}\n" for i in range(worker.LINES))
    return any(lines in path.read_text() for path in where.glob(f"runs*/*/{folder}rank{rank}.out"))
