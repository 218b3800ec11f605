"""Owns: what was measured, as values: series, rows, curves; as JSON, as a table, two results side by side.
Must not: measure anything, or know what is measured.
Called by: the parts (make rows and curves), bench.__main__."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import linear_regression, median
from typing import Any

OURS = "meshrun"
_HEAD = ("what", "meshrun", "other", "ratio", "target", "")


@dataclass(frozen=True)
class Row:
    """One thing measured: samples by who was measured (`meshrun` first), and who could not be and why."""

    what: str
    unit: str
    series: dict[str, tuple[float, ...]]
    missing: dict[str, str] = field(default_factory=dict)
    more_is_better: bool = False

    def middle(self, name: str = OURS) -> float:
        """The median of one series."""
        return median(self.series[name])


@dataclass(frozen=True)
class Bound:
    """A limit on the ratio to a peer's median, or on the value itself where no peer is named.

    Of several bounds on a row one is enough, but for those that `must` hold."""

    limit: float
    of: str = ""
    must: bool = False


@dataclass(frozen=True)
class Curve:
    """How something grows: points by series, and whose straight line (least squares) is drawn and told."""

    what: str
    x: str
    y: str
    points: dict[str, tuple[tuple[float, float], ...]]

    def fit(self, name: str) -> tuple[float, float]:
        """Slope and intercept of one series."""
        xs, ys = zip(*self.points[name], strict=True)
        line = linear_regression(xs, ys)
        return line.slope, line.intercept


Targets = Mapping[str, tuple[Bound, ...]]


def measured_against(row: Row, bound: Bound) -> float | None:
    """What a bound limits; None if its peer is missing."""
    if not bound.of:
        return row.middle()
    return row.middle() / row.middle(bound.of) if bound.of in row.series else None


def is_met(row: Row, bounds: Sequence[Bound]) -> bool | None:
    """Whether the bounds hold; None if none can be judged."""
    held = [(bound.must, _holds(row, bound)) for bound in bounds]
    known = [(must, holds) for must, holds in held if holds is not None]
    if not known:
        return None
    either = [holds for must, holds in known if not must]
    return all(holds for must, holds in known if must) and (any(either) or not either)


def _holds(row: Row, bound: Bound) -> bool | None:
    value = measured_against(row, bound) if OURS in row.series else None
    if value is None:
        return None
    return value >= bound.limit if row.more_is_better else value <= bound.limit


# ---- the table -------------------------------------------------------------------------------------------------------


def render_table(rows: Iterable[Row], targets: Targets) -> str:
    """One line for each row and peer, columns aligned: medians with their range, ratios, targets."""
    lines: list[tuple[str, ...]] = [_HEAD]
    for row in rows:
        lines += _render_row(row, targets.get(row.what, ()))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    texts = ("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)
    return "\n".join(text.rstrip() for text in texts)


def _render_row(row: Row, bounds: Sequence[Bound]) -> list[tuple[str, ...]]:
    verdict = {True: "ok", False: "MISSED", None: "not judged" if bounds else ""}[is_met(row, bounds)]
    beside = [_render_peer(row, name, bounds) for name in row.series if name != OURS]
    beside += [(f"{name}: {why}", "-", "") for name, why in row.missing.items()]
    other, ratio, target = beside[0] if beside else ("", "", "")
    own = ", ".join(_render_bound(row, bound) for bound in bounds if not bound.of)
    ours = spread(row.series[OURS], row.unit) if OURS in row.series else "-"
    first = (row.what, ours, other, ratio, ", ".join(filter(None, (own, target))), verdict)
    return [first, *(("", "", *cells, "") for cells in beside[1:])]


def _render_peer(row: Row, name: str, bounds: Sequence[Bound]) -> tuple[str, str, str]:
    target = " or ".join(_render_bound(row, bound) for bound in bounds if bound.of == name)
    ratio = f"{row.middle() / row.middle(name):.3f}" if OURS in row.series and row.middle(name) else "-"
    return f"{spread(row.series[name], row.unit)} {name}", ratio, target


def _render_bound(row: Row, bound: Bound) -> str:
    return f"{'>=' if row.more_is_better else '<='} {bound.limit:g}" + ("" if bound.of else f" {row.unit}")


def spread(samples: Sequence[float], unit: str) -> str:
    """`1.23 s (1.1-1.4)`: the median, and from the least to the most."""
    middle = f"{median(samples):.4g} {unit}"
    return middle if len(samples) == 1 else f"{middle} ({min(samples):.3g}-{max(samples):.3g})"


def render_curve(curve: Curve) -> str:
    """The straight lines of a curve in words."""
    lines = [f"{curve.what} ({curve.y} by {curve.x})"]
    for name, points in curve.points.items():
        shown = ", ".join(f"{x:g}: {y:.4g}" for x, y in points)
        fit = "{:.4g} each + {:.4g}".format(*curve.fit(name)) if len(points) > 1 else ""
        lines.append(f"  {name}: {shown}" + (f"; fit {fit}" if fit else ""))
    return "\n".join(lines)


# ---- kept results ----------------------------------------------------------------------------------------------------


def describe(rows: Iterable[Row], curves: Iterable[Curve]) -> dict[str, Any]:
    """As plain JSON values."""
    return {"rows": [asdict(row) for row in rows], "curves": [asdict(curve) for curve in curves]}


def merge(before: Iterable[dict[str, Any]], after: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Plain rows (or curves) of two runs, the later one's where both have one."""
    return list({**{one["what"]: one for one in before}, **{one["what"]: one for one in after}}.values())


def read_rows(plain: Mapping[str, Any]) -> list[Row]:
    """The rows of a kept result."""
    return [Row(**{**row, "series": {name: tuple(v) for name, v in row["series"].items()}}) for row in plain["rows"]]


def compare(before: Iterable[Row], after: Iterable[Row]) -> str:
    """Each row that both have: medians, change, and whether it is more than the spread of both."""
    known = {row.what: row for row in before if OURS in row.series}
    lines: list[tuple[str, ...]] = [("what", "before", "after", "change", "")]
    for row in after:
        if row.what in known and OURS in row.series:
            lines.append(_compare_row(known[row.what], row))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    texts = ("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)
    return "\n".join(text.rstrip() for text in texts)


def _compare_row(before: Row, after: Row) -> tuple[str, ...]:
    old, new = before.series[OURS], after.series[OURS]
    change = median(new) / median(old) - 1 if median(old) else 0.0
    apart = min(new) > max(old) or max(new) < min(old)
    better = (change > 0) is after.more_is_better
    word = ("better" if better else "WORSE") if apart and change else "within the spread"
    return after.what, spread(old, before.unit), spread(new, after.unit), f"{change:+.1%}", word
