"""Owns: which ranks' output is shown (`--show`), and rank lists as short text (`0-2,5`).
Must not: do I/O; unknown dims are an error here, an empty selection is the caller's to tell.
Called by: report.report, report.summary, report.board, cli."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from meshrun.dataclass import dataclass
from meshrun.errors import InputError, Place, Problem
from meshrun.plan.values import WorkerPlan
from meshrun.spec.near import find_near

_PLACE = Place("--show")
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", re.ASCII)
_FORMS = "write `all`, ranks like `0,4-7`, or coordinates like `dp=0,tp=1`"

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Show:
    """A selection: spans of ranks, or one span per named dim; both empty means every rank. Ends are included."""

    ranks: tuple[Span, ...] = ()
    dims: tuple[tuple[str, Span], ...] = ()


def _problem(message: str, text: str, hint: str = _FORMS) -> InputError:
    return InputError(Problem(message, _PLACE, text, hint))


def _parse_span(item: str, text: str) -> Span:
    match = _RANGE.fullmatch(item)
    if not match:
        raise _problem(f"{item[:60]!r} is not a number or a range", text)
    first, last = int(match[1]), int(match[2] or match[1])
    if last < first:
        raise _problem(f"the range {item[:60]!r} runs backwards", text)
    return first, last


def _parse_dim(item: str, text: str) -> tuple[str, Span]:
    name, _, value = item.partition("=")
    return name.strip(), _parse_span(value.strip(), text)


def parse_show(text: str) -> Show:
    """`all`, `0,4-7` or `dp=0,tp=0-1` → a selection. Raises InputError for anything else, with the forms allowed."""
    items = [item.strip() for item in text.split(",")]
    if items == ["all"]:
        return Show()
    named = ["=" in item for item in items]
    if any(named) and not all(named):
        raise _problem("ranks and coordinates cannot be mixed", text)
    if not any(named):
        return Show(ranks=tuple(_parse_span(item, text) for item in items))
    dims = tuple(_parse_dim(item, text) for item in items)
    if len({name for name, _ in dims}) < len(dims):
        raise _problem("a dim is named twice", text)
    return Show(dims=dims)


def check_show(show: Show, names: Sequence[str]) -> None:
    """Raise InputError, all at once, for dims that the mesh (dim names `names`) does not have."""
    problems = []
    for name, _ in show.dims:
        if name not in names:
            near = find_near(name[:60], names)
            hint = f"did you mean {near[0]}=?" if near else f"the mesh has {', '.join(names)}"
            problems.append(Problem(f"the mesh has no dim {name[:60]!r}", _PLACE, hint=hint))
    if problems:
        raise InputError(problems)


def _within(value: int | None, span: Span) -> bool:
    return value is not None and span[0] <= value <= span[1]


def selects(show: Show, worker: WorkerPlan) -> bool:
    """True if the output of `worker` is to be shown."""
    if show.ranks:
        return any(_within(worker.rank, span) for span in show.ranks)
    coords = dict(worker.coords)
    return all(_within(coords.get(name), span) for name, span in show.dims)


def render_ranks(ranks: Iterable[int]) -> str:
    """Rank numbers as short text, ascending: `0-2,5`; the form that `--show` takes."""
    spans: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)
