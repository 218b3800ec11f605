"""Owns: a plan as one HTML page: its numbers as a table, its picture one dim at a time, chosen without a script.
Must not: do I/O, or refer to anything outside the page.
Called by: cli.plan."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from meshrun.plan.advice import advise
from meshrun.plan.reach import Reach, find_reach
from meshrun.plan.text import describe_reach
from meshrun.plan.values import Plan
from meshrun.report.picture import STYLE, WIDTH, Panel, Sheet, describe_head, make_panels, make_sheet, render_panel

_PAGE = (
    "body{font:15px/1.4 Helvetica,Arial,sans-serif;color:#111;background:#fff;margin:1.5em}"
    "table{border-collapse:collapse;margin:1em 0}td,th{padding:.2em .9em .2em 0;text-align:left}"
    ".panel{display:none;max-width:100%;height:auto}input{margin-left:1em}.w{border-left:4px solid #b04000;"
    "padding-left:.7em}label{padding:.2em}input:focus-visible+label{outline:2px solid #005fcc}"
)


def render_html(plan: Plan) -> str:
    """The page. A radio button a dim chooses what the picture shows; without style sheets all of them are shown."""
    sheet, panels = make_sheet(plan), make_panels(plan)
    head = escape(describe_head(plan))
    shown = "".join(f"#d{at}:checked~#p{at}{{display:block}}" for at in range(len(panels)))
    lines = [
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{head}</title><style>{_PAGE}{STYLE}{shown}</style></head><body>",
        f"<h1>{head}</h1>",
        *(f'<p class="w">Warning: {escape(text)}</p>' for text in advise(plan)),
        *_table(find_reach(plan)),
        "<fieldset><legend>Show the groups of</legend>",
        *_choices(panels),
    ]
    for at, panel in enumerate(panels):
        lines += _picture(plan, sheet, panel, at)
    return "\n".join([*lines, "</fieldset></body></html>"]) + "\n"


def _table(found: list[Reach]) -> Iterator[str]:
    head = "".join(f'<th scope="col">{word}</th>' for word in ("dim", "size", "groups", "where"))
    yield f"<table><thead><tr>{head}</tr></thead><tbody>"
    for reach in found:
        cells = (reach.name, str(reach.size), str(reach.groups), describe_reach(reach))
        yield "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>"
    yield "</tbody></table>"


def _choices(panels: list[Panel]) -> Iterator[str]:
    for at, panel in enumerate(panels):
        checked = " checked" if at == len(panels) - 1 else ""
        yield f'<input type="radio" name="dim" id="d{at}"{checked}>'
        yield f'<label for="d{at}">{escape(panel.reach.name)}</label>'


def _picture(plan: Plan, sheet: Sheet, panel: Panel, at: int) -> Iterator[str]:
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="panel" id="p{at}" width="{WIDTH}" height="{sheet.height}" '
        f'viewBox="0 0 {WIDTH} {sheet.height}" role="img" aria-labelledby="t{at}">'
        f'<title id="t{at}">{escape(panel.title)}</title>'
    )
    yield from render_panel(plan, sheet, panel)
    yield "</svg>"
