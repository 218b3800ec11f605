"""Owns: a job file's text → option texts with their line: keys are option names, values stay text until merged.
Must not: read the file; build anything but strings from YAML (no tags, no aliases, no YAML 1.1 surprises like off).
Called by: cli.request, which imports it only when there is a job file, because it imports yaml."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence

from yaml import CollectionNode, MappingNode, Node, ScalarNode

from meshrun.errors import InputError, Place, Problem
from meshrun.spec.nodes import compose_nodes
from meshrun.spec.options import BY_NAME, Kind
from meshrun.spec.settings import Given

_WORDS = ("script", "args", "arguments", "argv", "command")


def parse_job_file(data: bytes, source: str) -> dict[str, Given]:
    """Option name → what the file says. Raises InputError with every problem, each with file:line:column."""
    root, problems, lines = compose_nodes(data, source)
    reader = _Reader(source, lines, problems)
    found = reader.read(root)
    if reader.problems:
        raise InputError(reader.problems)
    return found


class _Reader:
    """Walks the composed nodes of one file and collects its problems."""

    def __init__(self, source: str, lines: Sequence[str], problems: Iterable[Problem]) -> None:
        self.source, self.lines, self.problems = source, lines, list(problems)

    def read(self, root: Node | None) -> dict[str, Given]:
        if root is None:
            return {}
        found: dict[str, Given] = {}
        if not isinstance(root, MappingNode):
            self._add(root, "a job file is a list of `option: value` lines", "for example `mesh: dp=2,tp=4`")
        else:
            for key, value in root.value:
                self._read_pair(key, value, found)
        return found

    def _read_pair(self, key: Node, value: Node, found: dict[str, Given]) -> None:
        name = key.value.replace("_", "-") if isinstance(key, ScalarNode) else ""
        if name not in BY_NAME or name == "job":
            close = difflib.get_close_matches(name, BY_NAME, 1, 0.6)
            hint = f"did you mean {close[0]}?" if close else "`meshrun --help` lists the options"
            if name in _WORDS:
                hint = "the script and its arguments stand on the command line: meshrun --job FILE SCRIPT ARGS"
            self._add(key, f"unknown key {name!r}", hint)
        elif name in found:
            self._add(key, f"{name} is given twice")
        elif (texts := self._texts(name, value)) is not None:
            line = key.start_mark.line + 1
            found[name] = Given(name, texts, f"job file {self.source}:{line}", *self._where(value))

    def _texts(self, name: str, value: Node) -> tuple[str, ...] | None:
        if isinstance(value, ScalarNode) and not _is_nothing(value):
            return (value.value,)
        if BY_NAME[name].kind is Kind.MULTI:
            texts = tuple(_items(value))
            if texts:
                return texts
        self._add(value, f"{name} needs {_wanted(name)}")
        return None

    def _where(self, node: Node) -> tuple[Place, str]:
        number = node.start_mark.line
        text = self.lines[number] if number < len(self.lines) else ""
        return Place(self.source, number + 1, node.start_mark.column + 1), text

    def _add(self, node: Node, message: str, hint: str = "") -> None:
        self.problems.append(Problem(message, *self._where(node), hint))


def _wanted(name: str) -> str:
    if BY_NAME[name].kind is Kind.MULTI:
        return "a value or a list of values"
    return "one value" + (": dp=2,tp=4, or the name of a mesh file" if name == "mesh" else "")


def _is_nothing(node: ScalarNode) -> bool:
    return node.style is None and node.value in ("", "~", "null")


def _items(node: Node) -> Iterator[str]:
    """A list of texts, or a mapping NAME: VALUE as NAME=VALUE; nothing at all if anything else is among it."""
    pairs = node.value if isinstance(node, CollectionNode) else ()
    texts = []
    for item in pairs:
        parts = item if isinstance(item, tuple) else (item,)
        if not all(isinstance(part, ScalarNode) for part in parts):
            return
        texts.append("=".join(part.value for part in parts))
    yield from texts
