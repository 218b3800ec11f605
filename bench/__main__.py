"""Owns: `python -m bench [PART...]`: runs the parts, prints the table, keeps the result; compares two results.
Must not: measure; the parts do.
Called by: `make bench`."""

from __future__ import annotations

import argparse
import json
import sys
from datetime import date
from pathlib import Path
from typing import Any

from bench import peers, picture
from bench.machine import describe_machine, find_commit, render_machine
from bench.measure import ROOT, Asked, Broken, Found
from bench.parts import PARTS
from bench.result import OURS, Curve, Row, compare, describe, is_met, merge, read_rows, render_curve, render_table
from bench.targets import TARGETS

VERSION = 1


def main() -> int:
    """Run the named parts (default: all); 1 if a target was missed or meshrun broke."""
    parser = _make_parser()
    asked = parser.parse_args()
    unknown = [name for name in asked.parts if name not in PARTS]
    if unknown:
        parser.error(f"unknown part {', '.join(unknown)}; parts are {', '.join(PARTS)}")
    if asked.compare:
        print(_compare(*asked.compare))
        return 0
    if asked.install:
        peers.install()
    found = peers.Peers(asked.peers)
    commit, machine = find_commit(), describe_machine(found)
    caption = render_machine(machine, commit)
    print(caption, flush=True)
    kept = {"version": VERSION, "date": date.today().isoformat(), "commit": commit, "times": asked.times}
    rows: list[Row] = []
    curves: list[Curve] = []
    for name in asked.parts or PARTS:
        part = _measure(name, Asked(asked.times, found, asked.most))
        print(render_table(part.rows, TARGETS), *map(render_curve, part.curves), sep="\n", flush=True)
        rows, curves = [*rows, *part.rows], [*curves, *part.curves]
        # After every part: whoever interrupts a long run has what was measured.
        plain = kept | {"machine": machine, **describe(rows, curves)}
        paths = _keep(asked.results, plain, picture.render(rows, curves, caption))
    print(f"bench: kept as {paths[0].name} and {paths[1].name}", file=sys.stderr)
    missed = [row for row in rows if OURS in row.missing or is_met(row, TARGETS.get(row.what, ())) is False]
    return 1 if missed else 0


def _make_parser() -> argparse.ArgumentParser:
    epilog = "\n".join(f"  {name:<10} {(part.__doc__ or '').partition(chr(10))[0]}" for name, part in PARTS.items())
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="meshrun beside what it replaces, in one run: medians, ranges, ratios, targets.",
        epilog=f"parts:\n{epilog}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help="what to measure (all)")
    parser.add_argument("--times", type=int, default=5, help="samples of each, taken in turns; the median counts (5)")
    parser.add_argument(
        "--most", type=int, default=16, help="the most local ranks and hosts, a sixteenth of part scale's (16)"
    )
    parser.add_argument(
        "--install", action="store_true", help="install missing peers (bench/.peers; as root apt packages)"
    )
    parser.add_argument(
        "--peers", type=Path, default=peers.OWN, help="the environment that has accelerate and deepspeed"
    )
    parser.add_argument("--results", type=Path, default=ROOT / "bench" / "results", help="where results are kept")
    parser.add_argument("--compare", nargs=2, type=Path, metavar=("A", "B"), help="two kept results, side by side")
    return parser


def _measure(name: str, asked: Asked) -> Found:
    print(f"bench: {name}", file=sys.stderr, flush=True)
    try:
        return PARTS[name](asked)
    except Broken as error:
        print(f"bench: {name}: {error}", file=sys.stderr)
        return Found([Row(f"part {name}", "", {}, {OURS: "broke (see above)"})])


def _keep(results: Path, kept: dict[str, Any], drawn: str) -> list[Path]:
    """`<date>-<commit>.json` and `.svg`; a later run of that day and commit replaces in it what it measures again."""
    results.mkdir(parents=True, exist_ok=True)
    stem = f"{kept['date']}-{kept['commit'].rstrip('+')}"
    paths = [results / f"{stem}.json", results / f"{stem}.svg"]
    if paths[0].exists():
        before = json.loads(paths[0].read_text())
        kept |= {key: merge(before[key], kept[key]) for key in ("rows", "curves")}
    paths[0].write_text(json.dumps(kept, indent=1) + "\n")
    paths[1].write_text(drawn)
    return paths


def _compare(before: Path, after: Path) -> str:
    old, new = (json.loads(path.read_text()) for path in (before, after))
    heads = [
        f"{name}: {one['date']}, {render_machine(one['machine'], one['commit'])}"
        for name, one in (("A", old), ("B", new))
    ]
    return "\n".join([*heads, compare(read_rows(old), read_rows(new))])


if __name__ == "__main__":
    sys.exit(main())
