"""Owns: a job file's text → option texts with their line: keys are option names, values stay text until merged.
Must not: read the file; build anything but strings from YAML (no tags, no aliases, no YAML 1.1 surprises like off).
Called by: cli.request, imported only when there is a job file, because it imports yaml."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

import yaml

from meshrun.errors import InputError, Place, Problem
from meshrun.spec.options import BY_NAME, Kind
from meshrun.spec.settings import Given

_DEPTH = 4


def parse_job_file(data: bytes, source: str) -> dict[str, Given]:
    """Option name → what the file says. Raises InputError with every problem, each with file:line:column."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(Problem(f"not UTF-8 text: byte {error.start}", Place(source))) from None
    try:
        _refuse_tricks(text, source)
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        raise InputError(_from_yaml(error, source, text)) from None
    except yaml.YAMLError as error:
        raise InputError(Problem(f"not YAML: {error}", Place(source))) from None
    return _Reader(source, text.splitlines()).read(root)


def _refuse_tricks(text: str, source: str) -> None:
    """Aliases, anchors, tags and deep nesting, found before anything is built from them."""
    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        trick = ""
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            trick = "anchors and aliases are not allowed"
        elif getattr(event, "tag", None):
            trick = "tags are not allowed"
        elif depth > _DEPTH:
            trick = "nested too deeply"
        if trick:
            mark: yaml.Mark = event.start_mark  # type: ignore[assignment]  # the parser always sets it
            raise InputError(Problem(trick, _place(mark, source), _line(text, mark.line)))


def _place(mark: yaml.Mark, source: str) -> Place:
    return Place(source, mark.line + 1, mark.column + 1)


def _line(text: str, number: int) -> str:
    lines = text.splitlines()
    return lines[number] if number < len(lines) else ""


def _from_yaml(error: yaml.MarkedYAMLError, source: str, text: str) -> Problem:
    mark = error.problem_mark or error.context_mark
    if mark is None:
        return Problem(f"not YAML: {error}", Place(source))
    return Problem(f"not YAML: {error.problem or error.context}", _place(mark, source), _line(text, mark.line))


class _Reader:
    """Walks the composed nodes of one file and collects its problems."""

    def __init__(self, source: str, lines: list[str]) -> None:
        self.source = source
        self.lines = lines
        self.problems: list[Problem] = []

    def read(self, root: yaml.Node | None) -> dict[str, Given]:
        if root is None:
            return {}
        found: dict[str, Given] = {}
        if not isinstance(root, yaml.MappingNode):
            self._add(root, "a job file is a list of `option: value` lines", "for example `mesh: dp=2,tp=4`")
        else:
            for key, value in root.value:
                self._read_pair(key, value, found)
        if self.problems:
            raise InputError(self.problems)
        return found

    def _read_pair(self, key: yaml.Node, value: yaml.Node, found: dict[str, Given]) -> None:
        name = key.value.replace("_", "-") if isinstance(key, yaml.ScalarNode) else ""
        if name not in BY_NAME or name == "job":
            close = difflib.get_close_matches(name, BY_NAME, 1, 0.6)
            hint = f"did you mean {close[0]}?" if close else "`meshrun --help` lists the options"
            self._add(key, f"unknown key {name!r}", hint)
        elif name in found:
            self._add(key, f"{name} is given twice")
        elif (texts := self._texts(name, value)) is not None:
            line = key.start_mark.line + 1
            found[name] = Given(name, texts, f"job file {self.source}:{line}", *self._where(value))

    def _texts(self, name: str, value: yaml.Node) -> tuple[str, ...] | None:
        if isinstance(value, yaml.ScalarNode) and not _is_nothing(value):
            return (value.value,)
        if BY_NAME[name].kind is Kind.MULTI:
            texts = tuple(_items(value))
            if texts:
                return texts
        self._add(value, f"{name} needs {_wanted(name)}")
        return None

    def _where(self, node: yaml.Node) -> tuple[Place, str]:
        number = node.start_mark.line
        return _place(node.start_mark, self.source), self.lines[number] if number < len(self.lines) else ""

    def _add(self, node: yaml.Node, message: str, hint: str = "") -> None:
        self.problems.append(Problem(message, *self._where(node), hint))


def _wanted(name: str) -> str:
    if BY_NAME[name].kind is Kind.MULTI:
        return "a value or a list of values"
    return "one value" + (": dp=2,tp=4, or the name of a mesh file" if name == "mesh" else "")


def _is_nothing(node: yaml.ScalarNode) -> bool:
    return node.style is None and node.value in ("", "~", "null")


def _items(node: yaml.Node) -> Iterator[str]:
    """A list of texts, or a mapping NAME: VALUE as NAME=VALUE; nothing at all if anything else is among it."""
    pairs = node.value if isinstance(node, yaml.CollectionNode) else ()
    texts = []
    for item in pairs:
        parts = item if isinstance(item, tuple) else (item,)
        if not all(isinstance(part, yaml.ScalarNode) for part in parts):
            return
        texts.append("=".join(part.value for part in parts))
    yield from texts
