"""Owns: `python -m bench [PART...]`: runs the parts, prints one table of medians and ratios.
Must not: measure; the parts do.
Called by: `make bench`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable

from bench.measure import Row
from bench.parts import PARTS

_HEAD = ("what", "meshrun", "other", "ratio", "target", "")


def main() -> int:
    """Run the named parts (default: all); 1 if a target was missed."""
    parser = argparse.ArgumentParser(prog="python -m bench", description="meshrun beside what it replaces, in one run")
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--times", type=int, default=5, help="runs of each, interleaved; the median counts (5)")
    asked = parser.parse_args()
    unknown = [name for name in asked.parts if name not in PARTS]
    if unknown:
        parser.error(f"unknown part {', '.join(unknown)}; parts are {', '.join(PARTS)}")
    rows: list[Row] = []
    for name in asked.parts or PARTS:
        print(f"bench: {name}", file=sys.stderr, flush=True)
        rows += PARTS[name](asked.times)
    print(render(rows))
    return 0 if all(row.met for row in rows) else 1


def render(rows: Iterable[Row]) -> str:
    """The table, columns aligned."""
    cells = [_HEAD, *(row.cells() for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(_HEAD))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells
    )


if __name__ == "__main__":
    sys.exit(main())
