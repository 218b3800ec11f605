"""Owns: tests of a plan's pictures: golden files, every rank in its node's box, readable, nothing from outside.
Must not: write the golden files unless MESHRUN_GOLDEN=write is set.
Called by: pytest."""

from __future__ import annotations

import os
import re
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest

from meshrun.plan.placement import make_plan
from meshrun.plan.values import Plan
from meshrun.report.page import render_html
from meshrun.report.picture import COLOURS, choose_row, make_sheet, render_svg
from meshrun.spec.values import Host, MeshSpec
from tests.plan.examples import plan

GOLDEN = Path(__file__).parent / "pictures"
SVG = "{http://www.w3.org/2000/svg}"
PLANS = {
    "8": ("a slots=4\nb slots=4", "dp=2,tp=4"),
    "64": ("\n".join(f"n{at} slots=8" for at in range(8)), "pp=2,dp=8,tp=4"),
    "1024": ("\n".join(f"gpu{at:03} slots=8" for at in range(128)), "pp=4,dp=32,tp=8"),
    "uneven": ("a slots=1\nb slots=5\nc slots=2", "tp=4,dp=2"),
    "one": ("a slots=16", "dp=16"),
}


def check_golden(name: str, text: str) -> None:
    path = GOLDEN / name
    if os.environ.get("MESHRUN_GOLDEN") == "write":
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()


@pytest.fixture(params=PLANS.values(), ids=PLANS.keys())
def placed(request: pytest.FixtureRequest) -> Plan:
    return plan(*request.param)


def test_golden() -> None:
    check_golden("small.svg", render_svg(plan(*PLANS["8"])))
    check_golden("uneven.html", render_html(plan(*PLANS["uneven"])))


@pytest.mark.parametrize(
    ("nodes", "room", "row"),
    [(1, 8, 1), (8, 8, 8), (128, 8, 8), (16, 6, 4), (24, 6, 6), (10, 8, 5), (13, 6, 6), (3, 1, 1)],
)
def test_rows_are_equally_long_where_they_can_be(nodes: int, room: int, row: int) -> None:
    assert choose_row(nodes, room) == row


def numbers(element: ElementTree.Element, *names: str) -> list[float]:
    return [float(element.get(name, "nan")) for name in names]


def test_every_rank_is_a_cell_in_its_nodes_box(placed: Plan) -> None:
    root = ElementTree.fromstring(render_svg(placed))
    panels = root.findall(f"{SVG}g")
    assert len(panels) == len(placed.mesh.dims)
    for panel in panels:
        boxes = [numbers(box, "x", "y", "width", "height") for box in panel.findall(f"{SVG}rect")]
        assert len(boxes) == len(placed.nodes)
        cells = panel.findall(f"{SVG}g")
        assert [cell.findall(f"{SVG}text")[0].text for cell in cells] == [str(w.rank) for w in placed.workers]
        for cell, worker in zip(cells, placed.workers, strict=True):
            x, y, width, height = numbers(cell.find(f"{SVG}rect") or cell[1], "x", "y", "width", "height")
            left, top, wide, high = boxes[worker.node_rank]
            assert left <= x and x + width <= left + wide and top + 14 <= y and y + height <= top + high


def test_cells_and_boxes_do_not_overlap_and_fit_the_page(placed: Plan) -> None:
    root = ElementTree.fromstring(render_svg(placed))
    page, sheet = numbers(root, "width", "height"), make_sheet(placed)
    rights = [sheet.origin(node.node_rank)[0] + sheet.box[0] for node in placed.nodes]
    assert max(rights) <= page[0]
    for node, after in pairwise(placed.nodes):
        (x, y), (next_x, next_y) = sheet.origin(node.node_rank), sheet.origin(after.node_rank)
        assert next_x >= x + sheet.box[0] or next_y >= y + sheet.box[1]
    for node in placed.nodes:
        corners = {sheet.corner(node.node_rank, seat) for seat in range(node.slots)}
        assert len(corners) == node.slots


def test_the_text_of_a_cell_fits_it_and_can_be_read(placed: Plan) -> None:
    sheet = make_sheet(placed)
    for text in ElementTree.fromstring(render_svg(placed)).iter(f"{SVG}text"):
        if text.get("font-size"):
            size = float(text.get("font-size", "0"))
            assert size >= 5.5
            assert size * 0.56 * len(text.text or "") <= sheet.cell[0] - 6


def test_one_group_has_one_colour_and_crossing_is_seen_without_colour(placed: Plan) -> None:
    root = ElementTree.fromstring(render_svg(placed))
    for panel, (_, groups) in zip(root.findall(f"{SVG}g"), placed.groups, strict=True):
        rects = [cell[1] for cell in panel.findall(f"{SVG}g")]
        for group in groups:
            assert len({rects[rank].get("fill") for rank in group}) == 1
            crosses = len({placed.workers[rank].node_rank for rank in group}) > 1
            assert all((rects[rank].get("class") in ("x", "g")) is crosses for rank in group)


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_text_on_every_colour_has_contrast() -> None:
    assert all((luminance(colour) + 0.05) / (luminance("#111111") + 0.05) > 7 for colour in COLOURS)


@pytest.mark.parametrize("render", [render_svg, render_html])
def test_nothing_comes_from_outside(render: object, placed: Plan) -> None:
    text = render(placed)  # type: ignore[operator]
    assert not re.search(r"<script|href=|src=|url\(|@import", text)
    assert set(re.findall(r"https?://[^\"]+", text)) == {"http://www.w3.org/2000/svg"}
    assert "<title" in text


@pytest.mark.parametrize("render", [render_svg, render_html])
def test_a_hosts_name_is_escaped(render: object) -> None:
    placed = make_plan([Host('a<&>"')], [2], [("0", "<1>")], None)
    text = render(placed)  # type: ignore[operator]
    assert "<&>" not in text and "<1>" not in text and "a&lt;&amp;&gt;" in text


def test_the_page_shows_one_dim_at_a_time() -> None:
    text = render_html(plan(*PLANS["64"]))
    assert text.count('type="radio"') == 3 == text.count('class="panel"')
    assert text.count(" checked>") == 1
    assert all(f"#d{at}:checked~#p{at}" in text for at in range(3))


def test_views_and_factorings_have_panels_unless_their_groups_are_shown_already() -> None:
    spec = MeshSpec(
        (("dp", 4), ("tp", 2)),
        views=(("all", ("dp", "tp")),),
        factorings=(("e", (("edp", 2), ("ep", 4))), ("f", (("x", 4), ("y", 2)))),
    )
    titles = re.findall(r'class="t"[^>]*>(\w+): \d+ group', render_svg(plan("a slots=8", spec)))
    assert titles == ["dp", "tp", "edp", "ep"]


def test_a_warning_is_in_the_picture() -> None:
    for text in (render_svg(plan(*PLANS["uneven"])), render_html(plan(*PLANS["uneven"]))):
        assert "Warning: tp&#x27;s groups" in text
