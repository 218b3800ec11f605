"""Owns: the long run of the fault suite (`make chaos`): trial after trial, a line a violation, a table at the end.
Must not: know faults or checks.
Called by: Makefile."""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.chaos.play import Ground, Played, play
from tests.chaos.trials import Layout, Trial, make_trials


def main() -> int:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup the runs would rightly ignore it too
    args = _parse()
    seed, number = (int(word) for word in args.trial.split(":")) if args.trial else (args.seed, -1)
    trials = make_trials(seed, number + 1)[number:] if args.trial else make_trials(seed, args.n)
    print(f"chaos: seed {seed}, up to {len(trials)} trials in {args.time:g} s", flush=True)
    played = _play_all(trials, seed, args)
    print(render(played))
    return 1 if any(one.violations for one in played) else 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description="Trials of the fault suite.")
    parser.add_argument("-n", type=int, default=100, help="how many trials")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="default: another one each time")
    parser.add_argument("--time", type=float, default=3600.0, help="seconds after which no trial is begun")
    parser.add_argument("--trial", default="", help="SEED:NUMBER, that one alone")
    parser.add_argument("-v", "--verbose", action="store_true", help="a line for every trial")
    return parser.parse_args()


def _play_all(trials: list[Trial], seed: int, args: argparse.Namespace) -> list[Played]:
    """What came of those there was time for. The files of a violated trial stay."""
    played: list[Played] = []
    deadline = time.monotonic() + args.time
    ground = Ground(Path(tempfile.mkdtemp(prefix="chaos-", dir="/var/tmp")))
    try:
        for trial in trials:
            if time.monotonic() > deadline:
                break
            played.append(play(trial, ground))
            _say(played[-1], seed, args.verbose)
    finally:
        ground.close()
        with contextlib.suppress(OSError):
            ground.root.rmdir()
        if ground.root.exists():
            print(f"chaos: the files of violated trials are in {ground.root}", flush=True)
    return played


def _say(one: Played, seed: int, verbose: bool) -> None:
    if verbose:
        hit = "hit" if one.hit else "missed"
        print(f"{one.trial.number} {one.trial.name}: {hit}, codes {one.codes}, {one.took_s:.1f} s", flush=True)
    for violation in one.violations:
        print(f"VIOLATION {one.trial.name}: {violation}", flush=True)
    if one.violations:
        print(f"  again: make chaos TRIAL={seed}:{one.trial.number}", flush=True)


def render(played: list[Played]) -> str:
    """Trials by fault and layout; violated ones in brackets."""
    counts = Counter((one.trial.fault.name, one.trial.layout) for one in played)
    bad = Counter((one.trial.fault.name, one.trial.layout) for one in played if one.violations)
    lines = [f"{'fault':<20}" + "".join(f"{layout.value:>10}" for layout in Layout)]
    for fault in sorted({name for name, _ in counts}):
        cells = [_render_cell(counts[fault, layout], bad[fault, layout]) for layout in Layout]
        lines.append(f"{fault:<20}" + "".join(f"{cell:>10}" for cell in cells))
    missed = sum(not one.hit for one in played)
    return "\n".join([*lines, f"{len(played)} trials ({missed} missed their target), {bad.total()} with violations"])


def _render_cell(count: int, bad: int) -> str:
    return f"{count} [{bad}]" if bad else str(count or "-")


if __name__ == "__main__":
    sys.exit(main())
