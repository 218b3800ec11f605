"""Owns: results as SVG: bars of ratios beside each peer, and how things grow, with their straight lines.
Must not: do I/O; compute anything but places.
Called by: bench.__main__."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from math import log10

from bench.result import OURS, Curve, Row

WIDTH, LABEL, BAR, LINE = 960, 330, 460, 18
PLOT_W, PLOT_H, GAP = 460, 240, 50
COLOURS = ("#2563a8", "#c2571a", "#3c8a4e", "#8a4ea8", "#8a7a2a")


def render(rows: Iterable[Row], curves: Iterable[Curve], caption: str) -> str:
    """One SVG: ratios to peers on top, curves below."""
    bars = list(_bars(rows))
    parts = [_text(10, 20, caption, 11)]
    at = 40
    if bars:
        parts.append(_text(10, at, "meshrun / peer (logarithmic; left of the line: less)", 13))
        for number, (label, ratio) in enumerate(bars):
            parts += _draw_bar(at + LINE * (number + 1), label, ratio)
        at += LINE * (len(bars) + 2)
    for number, curve in enumerate(curves):
        column, row = number % 2, number // 2
        parts += _draw_curve(column * (PLOT_W + 20), at + row * (PLOT_H + GAP), curve)
        height = at + (row + 1) * (PLOT_H + GAP)
    height = max(at, height if curves else 0) + 10
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" font-family="sans-serif">'
    return "\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *parts, "</svg>\n"])


def _bars(rows: Iterable[Row]) -> Iterable[tuple[str, float]]:
    for row in rows:
        for name in row.series:
            if name != OURS and OURS in row.series and row.middle(name) and row.middle():
                yield f"{row.what} / {name}", row.middle() / row.middle(name)


def _draw_bar(y: int, label: str, ratio: float) -> list[str]:
    middle = LABEL + BAR * 0.6
    end = max(LABEL + 5.0, min(LABEL + BAR, middle + log10(ratio) * BAR * 0.3))
    left, width = min(middle, end), max(1.0, abs(end - middle))
    bar = f'<rect x="{left:.1f}" y="{y - 10}" width="{width:.1f}" height="11" fill="{COLOURS[0]}"/>'
    axis = f'<line x1="{middle}" x2="{middle}" y1="{y - 14}" y2="{y + 4}" stroke="#666"/>'
    return [_text(10, y, label, 11), bar, axis, _text(LABEL + BAR + 20, y, f"{ratio:.3f}", 11)]


def _draw_curve(x: int, y: int, curve: Curve) -> list[str]:
    everything = [point for points in curve.points.values() for point in points]
    most_x = max(point[0] for point in everything) or 1
    most_y = max(point[1] for point in everything) or 1

    def place(point: Sequence[float]) -> tuple[float, float]:
        return x + 60 + point[0] / most_x * (PLOT_W - 90), y + PLOT_H - 30 - point[1] / most_y * (PLOT_H - 70)

    parts = [_text(x + 60, y + 14, curve.what, 12), _text(x + 60, y + PLOT_H, f"{curve.x}, to {most_x:g}", 10)]
    parts.append(_text(x + 4, y + 44, f"{most_y:.4g}", 10))
    (left, bottom), (right, top) = place((0, 0)), place((most_x, most_y))
    parts.append(f'<path d="M{left} {top}V{bottom}H{right}" fill="none" stroke="#666"/>')
    for number, (name, points) in enumerate(curve.points.items()):
        colour = COLOURS[number % len(COLOURS)]
        places = map(place, points)
        parts += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3" fill="{colour}"/>' for a, b in places]
        if len(points) > 1:
            slope, intercept = curve.fit(name)
            ends = [place((at, max(0.0, slope * at + intercept))) for at in (0.0, most_x)]
            line = " ".join(f"{a:.1f},{b:.1f}" for a, b in ends)
            parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-dasharray="4 3"/>')
            name = f"{name}: {slope:.3g} each + {intercept:.3g}"
        parts.append(
            f'<text x="{x + 70}" y="{y + 32 + 13 * number}" font-size="10" fill="{colour}">{escape(name)}</text>'
        )
    return parts


def _text(x: float, y: float, text: str, size: int) -> str:
    return f'<text x="{x:g}" y="{y:g}" font-size="{size}">{escape(text)}</text>'
