"""Owns: a plan as a picture: nodes as boxes, devices as cells, the groups of one dim by colour; SVG, one panel a dim.
Must not: do I/O, or refer to anything outside the picture: no script, font or style sheet.
Called by: cli.plan, report.page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from math import ceil

from meshrun.dataclass import dataclass
from meshrun.plan.advice import advise
from meshrun.plan.reach import Reach, find_reach, named_axes
from meshrun.plan.text import describe_reach
from meshrun.plan.values import NodePlan, Plan, WorkerPlan
from meshrun.spec.grid import Partition

WIDTH = 1410  # eight boxes of the smallest cells
SMALL = 256  # with more ranks than this a cell has no room for its group's number
GAP, PAD, HEAD, TITLE = 10, 6, 18, 78
LEAST, ADVANCE = 8, 0.58  # the smallest text of a cell in pixels; a figure's width, as a part of its size
# Light enough for black text on each (9:1 and more), and told apart without red and green; a group's number and its
# ranks stand in each cell's tooltip too, so that nothing is said by colour alone.
COLOURS = ("#9bd1f0", "#ffd98a", "#b9e3c6", "#f5b5cf", "#c9bdf0", "#ffbd94", "#d8d8d8", "#eef0a0")
STYLE = (
    "text{font-family:Helvetica,Arial,sans-serif;fill:#111}.t{font-size:18px;font-weight:bold}.s{font-size:13px}"
    ".h{font-size:11px;font-weight:bold}.n{fill:#fafafa;stroke:#555}.c{stroke:#555;stroke-width:.7}"
    ".x{stroke:#111;stroke-width:1.5;stroke-dasharray:4 2}.g{stroke:#111;stroke-width:3}"
)


@dataclass(frozen=True, slots=True)
class Sheet:
    """Sizes that fit the number of ranks: cells and boxes in pixels, how many stand in a row."""

    cell: tuple[int, int]
    fonts: tuple[float, float]  # of the rank, of the coordinates
    cells: int
    boxes: int
    box: tuple[int, int]
    height: int  # of a panel

    def origin(self, node: int) -> tuple[int, int]:
        """The upper left corner of a node's box in its panel."""
        row, column = divmod(node, self.boxes)
        return GAP + column * (self.box[0] + GAP), TITLE + row * (self.box[1] + GAP)

    def corner(self, node: int, seat: int) -> tuple[int, int]:
        """The upper left corner of a cell."""
        x, y = self.origin(node)
        row, column = divmod(seat, self.cells)
        return x + PAD + column * self.cell[0], y + HEAD + row * self.cell[1]


@dataclass(frozen=True, slots=True)
class Panel:
    """What one panel shows: a name that stands for groups."""

    reach: Reach
    groups: Partition

    @property
    def title(self) -> str:
        """`tp: 8 groups of 4, within a node`"""
        reach = self.reach
        groups = "1 group" if reach.groups == 1 else f"{reach.groups} groups"
        return f"{reach.name}: {groups} of {reach.size}, {describe_reach(reach)}"


def make_sheet(plan: Plan) -> Sheet:
    """Large cells for few ranks, small ones for many; always the same width, so that it fits a page."""
    most = max(node.slots for node in plan.nodes)
    small, middle = plan.world_size > SMALL, plan.world_size > 64
    cell, fonts = ((38, 28), (11, 8.2)) if small else ((50, 36), (13, 9)) if middle else ((72, 46), (16, 11))
    cell = (max(cell[0], ceil(_longest(plan) * LEAST * ADVANCE) + 8), cell[1])
    cells = most if most <= 4 else ceil(most / 2) if most <= 16 else 8
    box = (max(cells * cell[0], 90) + 2 * PAD, ceil(most / cells) * cell[1] + HEAD + PAD)
    boxes = choose_row(len(plan.nodes), max(1, (WIDTH - GAP) // (box[0] + GAP)))
    return Sheet(cell, fonts, cells, boxes, box, TITLE + ceil(len(plan.nodes) / boxes) * (box[1] + GAP) + GAP)


def _longest(plan: Plan) -> int:
    """Characters of the longest place that a cell shows, and of its group's number where there is room for one."""
    place = "·".join(str(size - 1) for _, size in plan.mesh.dims)
    return len(place) + (len(f" #{plan.world_size - 1}") if plan.world_size <= SMALL else 0)


def choose_row(nodes: int, room: int) -> int:
    """How many boxes stand in a row: as many as there is room for, or fewer where all rows are then equally long.

    What a row holds (a rack, a pipeline stage) then stands below the same of the row before."""
    most = min(nodes, room)
    return next((count for count in range(most, most // 2, -1) if nodes % count == 0), most)


def make_panels(plan: Plan) -> list[Panel]:
    """One for each name whose groups are not those of an earlier one; the mesh's own dims always."""
    groups = {name: axis.groups() for name, axis in named_axes(plan.mesh)}
    wanted = [reach for reach in find_reach(plan) if not reach.same_as or reach.name in plan.mesh.names]
    return [Panel(reach, groups[reach.name]) for reach in wanted]


def render_svg(plan: Plan) -> str:
    """The whole picture, its panels one below the other."""
    sheet, panels = make_sheet(plan), make_panels(plan)
    top = 40 + 18 * len(advise(plan))
    height = top + sheet.height * len(panels)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        'role="img" aria-labelledby="title desc">',
        f'<title id="title">{escape(describe_head(plan))}</title>',
        f'<desc id="desc">{escape(describe_all(panels, plan))}</desc>',
        f"<style>{STYLE}</style>",
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
        _text(GAP, 26, "t", describe_head(plan)),
    ]
    lines += [_text(GAP, 44 + 18 * at, "s", f"Warning: {text}") for at, text in enumerate(advise(plan))]
    for number, panel in enumerate(panels):
        lines.append(f'<g transform="translate(0 {top + number * sheet.height})">')
        lines += render_panel(plan, sheet, panel)
        lines.append("</g>")
    return "\n".join([*lines, "</svg>"]) + "\n"


def render_panel(plan: Plan, sheet: Sheet, panel: Panel) -> Iterator[str]:
    """One dim: a heading, every node's box, every rank's cell; cells of groups that cross nodes are dashed, those of
    the first such group framed."""
    yield _text(GAP, 28, "t", panel.title)
    yield _text(GAP, 47, "s", _say_colours(panel))
    yield _text(GAP, 65, "s", _say_cells(plan))
    crossing = [number for number, group in enumerate(panel.groups) if _crosses(plan, group)]
    kinds = dict.fromkeys(crossing, "x") | dict.fromkeys(crossing[:1], "g")
    cells = {rank: (number, kinds.get(number, "c")) for number, group in enumerate(panel.groups) for rank in group}
    for node in plan.nodes:
        yield from _box(plan, sheet, panel, node, cells)


def describe_head(plan: Plan) -> str:
    """`16 ranks on 2 nodes: pp=2 x dp=2 x tp=4`"""
    shape = " x ".join(f"{name}={size}" for name, size in plan.mesh.dims)
    nodes = "1 node" if len(plan.nodes) == 1 else f"{len(plan.nodes)} nodes"
    return f"{plan.world_size} rank{'s' if plan.world_size > 1 else ''} on {nodes}: {shape}"


def describe_all(panels: Sequence[Panel], plan: Plan) -> str:
    """The picture in words."""
    return "; ".join([*(panel.title for panel in panels), *(f"warning: {text}" for text in advise(plan))])


def _say_colours(panel: Panel) -> str:
    text = f"A colour stands for a group of {panel.reach.name}"
    text += f", {len(COLOURS)} colours in turn." if panel.reach.groups > len(COLOURS) else "."
    return text + (" Dashed: its group crosses nodes; framed: one such group." if panel.reach.crosses else "")


def _say_cells(plan: Plan) -> str:
    numbers = ", #group" if plan.world_size <= SMALL else "; the tooltip has its group"
    return f"In a cell: the rank; its place in {'·'.join(plan.mesh.names)}{numbers}."


def _crosses(plan: Plan, group: Sequence[int]) -> bool:
    return plan.workers[group[0]].node_rank != plan.workers[group[-1]].node_rank


def _box(plan: Plan, sheet: Sheet, panel: Panel, node: NodePlan, cells: dict[int, tuple[int, str]]) -> Iterator[str]:
    x, y = sheet.origin(node.node_rank)
    width, height = sheet.box
    yield f'<rect class="n" x="{x}" y="{y}" width="{width}" height="{height}" rx="4"/>'
    yield _text(x + PAD, y + 13, "h", _fit(f"{node.node_rank}: {node.host.name}", width))
    for rank in range(node.first_rank, node.first_rank + node.slots):
        yield _cell(plan, sheet, panel, plan.workers[rank], *cells[rank])


def _cell(plan: Plan, sheet: Sheet, panel: Panel, worker: WorkerPlan, group: int, kind: str) -> str:
    x, y = sheet.corner(worker.node_rank, worker.local_rank)
    width, height = sheet.cell
    coords = " ".join(f"{name}={at}" for name, at in worker.coords)
    words = f"rank {worker.rank}, {worker.host} device {worker.device}: {coords}; {panel.reach.name} group {group}"
    below = "·".join(str(at) for _, at in worker.coords) + (f" #{group}" if plan.world_size <= SMALL else "")
    middle, inset = x + width / 2, 3 if kind == "g" else 2
    return (
        f'<g><title>{escape(words)}</title><rect class="{kind}" x="{x + inset}" y="{y + inset}" '
        f'width="{width - 2 * inset}" height="{height - 2 * inset}" fill="{COLOURS[group % len(COLOURS)]}"/>'
        + _middle(middle, y + height * 0.47, sheet.fonts[0], str(worker.rank), width)
        + _middle(middle, y + height * 0.8, sheet.fonts[1], below, width)
        + "</g>"
    )


def _text(x: float, y: float, kind: str, text: str) -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}">{escape(text)}</text>'


def _middle(x: float, y: float, size: float, text: str, width: int) -> str:
    """Text centred in a cell; made smaller if it is too long for it."""
    size = min(size, (width - 8) / (ADVANCE * len(text)))
    return f'<text x="{x:g}" y="{y:.4g}" text-anchor="middle" font-size="{size:.3g}">{text}</text>'


def _fit(text: str, width: int) -> str:
    most = int((width - 2 * PAD) / 6.2)
    return text if len(text) <= most else f"{text[: most - 1]}…"
