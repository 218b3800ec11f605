"""Owns: tests of a plan's pictures: golden files, every rank in its node's box, readable, nothing from outside.
Must not: write the golden files unless MESHRUN_GOLDEN=write is set.
Called by: pytest."""

from __future__ import annotations

import os
import re
from html.parser import HTMLParser
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
    "256, six dims": ("\n".join(f"n{at} slots=8" for at in range(32)), "a=2,b=2,c=2,d=2,e=2,f=8"),
    "1024, five dims": ("\n".join(f"gpu{at:03} slots=8" for at in range(128)), "pp=4,rep=2,shard=16,cp=1,tp=8"),
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


LEAST = 8  # pixels: what is read without zooming
ADVANCE = 0.556  # of Helvetica's and Arial's figures, as a part of the size; `·` is narrower
CAPITAL = 0.72  # the height of figures


def test_the_text_of_a_cell_fits_it_and_can_be_read(placed: Plan) -> None:
    """Two lines in each cell, at least LEAST high, within its frame and one above the other."""
    root = ElementTree.fromstring(render_svg(placed))
    cells = [cell for panel in root.findall(f"{SVG}g") for cell in panel.findall(f"{SVG}g")]
    assert len(cells) == placed.world_size * len(placed.mesh.dims)
    for cell in cells:
        left, top, width, height = numbers(cell[1], "x", "y", "width", "height")
        edges = [top]
        for text in cell.findall(f"{SVG}text"):
            middle, base, size = numbers(text, "x", "y", "font-size")
            half = size * ADVANCE * len(text.text or "") / 2
            assert size >= LEAST and left < middle - half and middle + half < left + width
            assert base - CAPITAL * size > edges[-1]
            edges.append(base)
        assert len(edges) == 3 and edges[-1] < top + height


def test_lines_of_text_fit_the_page_and_end_above_the_boxes(placed: Plan) -> None:
    """With 0.52 of the size for a letter, Helvetica's mean; a host's name is cut where its box ends."""
    root = ElementTree.fromstring(render_svg(placed))
    wide = float(root.get("width", "0"))
    for text in root.iter(f"{SVG}text"):
        size = {"t": 18, "s": 13}.get(text.get("class", ""))
        if size:
            assert float(text.get("x", "nan")) + 0.52 * size * len(text.text or "") < wide, text.text
    for panel in root.findall(f"{SVG}g"):
        lines = [float(text.get("y", "nan")) for text in panel.findall(f"{SVG}text") if text.get("class") in ("t", "s")]
        assert max(lines) < min(float(box.get("y", "nan")) for box in panel.findall(f"{SVG}rect"))
        assert all(after - before >= 15 for before, after in pairwise(sorted(lines)))


class Structure(HTMLParser):
    """Open elements, ids, and what refers to ids; an end tag that fits no start tag is an error."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "input"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_well_formed_and_needs_no_script(placed: Plan) -> None:
    page = Structure()
    page.feed(render_html(placed))
    page.close()
    assert page.open == []
    names = {tag for tag, _ in page.tags}
    assert not names & {"script", "link", "img", "iframe", "object", "embed", "base", "form"}
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    referred = [
        attributes[name] for _, attributes in page.tags for name in ("for", "aria-labelledby") if name in attributes
    ]
    assert len(referred) == 2 * len(placed.mesh.dims) and set(referred) <= set(ids)
    assert page.tags[0] == ("html", {"lang": "en"}) and {"title", "h1", "legend", "th"} <= names


def test_every_picture_and_cell_has_words(placed: Plan) -> None:
    """For those who hear the page, or hover: a title for the picture, one for each rank with host, place and group."""
    root = ElementTree.fromstring(render_svg(placed))
    assert root.get("role") == "img" and root.get("aria-labelledby") == "title desc"
    assert (root[0].tag, root[1].tag) == (f"{SVG}title", f"{SVG}desc")
    first = root.findall(f"{SVG}g")[0].findall(f"{SVG}g")
    for cell, worker in zip(first, placed.workers, strict=True):
        words = cell[0].text or ""
        assert cell[0].tag == f"{SVG}title" and f"rank {worker.rank}, {worker.host} device" in words
        assert all(f"{name}={at}" in words for name, at in worker.coords)


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
