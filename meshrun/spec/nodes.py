"""Owns: YAML text → nodes with their places, within limits, without tags, anchors or aliases.
Must not: build Python objects or know what the nodes mean.
Called by: spec.mesh_file."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any

import yaml

from meshrun.dataclass import dataclass
from meshrun.errors import InputError, Place, Problem

MAX_BYTES = 64 * 1024
MAX_DEPTH = 16


@dataclass(frozen=True, slots=True)
class Mark:
    """Where something stands, counted from 0 (as YAML's own marks count)."""

    line: int = 0
    column: int = 0


def mark_of(node: yaml.Node) -> Mark:
    """Where a node begins."""
    return Mark(node.start_mark.line, node.start_mark.column)


class _TooDeep(yaml.MarkedYAMLError):
    pass


class _Loader(yaml.SafeLoader):
    """Composes nodes and notes what this kind of file does not take; recursion is bounded."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.refused: list[tuple[Mark, str]] = []
        self.depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        mark = Mark(event.start_mark.line, event.start_mark.column)
        if isinstance(event, yaml.AliasEvent):
            taken: Any = self.get_event()  # type: ignore[no-untyped-call]
            self.refused.append((mark, f"an alias (*{event.anchor})"))
            return yaml.ScalarNode("tag:yaml.org,2002:null", "", taken.start_mark, taken.end_mark)
        if event.anchor is not None:
            self.refused.append((mark, f"an anchor (&{event.anchor})"))
            event.anchor = None
        if event.tag is not None:
            self.refused.append((mark, f"a tag ({event.tag})"))
            event.tag = None
            event.implicit = (True, True) if isinstance(event, yaml.ScalarEvent) else True
        return self._bounded(parent, index, event.start_mark)

    def _bounded(self, parent: yaml.Node | None, index: int, mark: Any) -> yaml.Node | None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise _TooDeep(problem="nested too deeply", problem_mark=mark)
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


def compose_nodes(
    data: bytes, source: str, what: str = "mesh file"
) -> tuple[yaml.Node | None, list[Problem], list[str]]:
    """The root node (None: empty or broken), the problems found so far, and the text's lines.

    Raises InputError for bytes that are no text, or too many."""
    text = _decode(data, source, what)
    lines = text.split("\n")
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        refused = loader.refused
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = Mark(mark.line, mark.column) if mark else Mark()
        return None, [problem_at(source, lines, where, *_say(error.problem or "not YAML"))], lines
    except yaml.reader.ReaderError as error:
        at = text.rfind("\n", 0, error.position)
        where = Mark(text.count("\n", 0, error.position), error.position - at - 1)
        return None, [problem_at(source, lines, where, "a character that YAML does not allow")], lines
    return (
        root,
        [problem_at(source, lines, mark, f"{what} is not read here", "write it out") for mark, what in refused],
        lines,
    )


def _say(problem: str) -> tuple[str, str]:
    """YAML's own words for a fault, where they would not help."""
    if problem == "but found another document":
        return "a second document", "one file, one document: leave out the `---`"
    return problem, ""


def problem_at(source: str, lines: Sequence[str], mark: Mark, message: str, hint: str = "") -> Problem:
    """A problem with its place and line."""
    text = lines[mark.line] if mark.line < len(lines) else ""
    shown = text if text.isprintable() else "".join(c if c.isprintable() else " " for c in text)
    return Problem(message, Place(source, mark.line + 1, mark.column + 1), shown, hint)


def _decode(data: bytes, source: str, what: str) -> str:
    if len(data) > MAX_BYTES:
        message = f"{len(data)} bytes; a {what} has at most {MAX_BYTES}"
        raise InputError(Problem(message, Place(source), hint="is this the right file?"))
    data = data.removeprefix(codecs.BOM_UTF8)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - data.rfind(b"\n", 0, error.start)
        raise InputError(Problem("this is not UTF-8 text", Place(source, line, column))) from None
