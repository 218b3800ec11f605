"""Owns: a job file's text → option texts with their line: keys are option names, values stay text until merged.
Must not: read the file; build anything but strings from YAML (no tags, no aliases, no YAML 1.1 surprises like off).
Called by: cli.request, which imports it only when there is a job file, because it imports yaml."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from yaml import CollectionNode, MappingNode, Node, ScalarNode

from meshrun.errors import InputError, Place, Problem
from meshrun.spec.near import find_near
from meshrun.spec.nodes import compose_nodes
from meshrun.spec.options import BY_NAME, Kind
from meshrun.spec.settings import Given, name_here

_HALF = re.compile("[\ud800-\udfff]")
_OCTAL = re.compile(r"0[0-9]+")
_SPECIAL = {
    "<<": "merge keys are not read here; write it out",
    "job": "a job file names no other; put everything into one",
    "x": "the key is env",
    "h": "the key is hosts",
    "m": "the key is module",
    "q": "the key is quiet",
}
_WORDS = ("script", "args", "arguments", "argv", "command")


def parse_job_file(data: bytes, source: str) -> dict[str, Given]:
    """Option name → what the file says. Raises InputError with every problem, each with file:line:column."""
    root, problems, lines = compose_nodes(data, source, "job file")
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
            typed = key.value if isinstance(key, ScalarNode) else ""
            self._add(key, f"unknown key {typed[:80]!r}", _hint(name))
        elif name in found:
            self._add(key, f"{name} is given twice")
        elif (texts := self._texts(name, value)) is not None:
            line = key.start_mark.line + 1
            found[name] = Given(name, texts, f"job file {self.source}:{line}", *self._where(value))

    def _texts(self, name: str, value: Node) -> tuple[str, ...] | None:
        kind = BY_NAME[name].kind
        if isinstance(value, ScalarNode) and not _is_nothing(value):
            if kind in (Kind.COUNT, Kind.SECONDS) and value.style is None and _OCTAL.fullmatch(value.value):
                self._add(value, f"{value.value[:40]} begins with a zero", "YAML may read that in base 8; leave it out")
                return None
            return self._checked(value)
        if kind is Kind.MULTI and isinstance(value, CollectionNode) and value.value:
            return self._items(name, value)
        self._add(value, f"{name} needs {_wanted(name)}")
        return None

    def _items(self, name: str, value: CollectionNode) -> tuple[str, ...] | None:
        """A list of texts, or a mapping NAME: VALUE as NAME=VALUE; None if anything else is among it."""
        before = len(self.problems)
        texts: list[str] = []
        for item in value.value:
            parts = item if isinstance(item, tuple) else (item,)
            wrong = next((part for part in parts if not isinstance(part, ScalarNode) or _is_nothing(part)), None)
            if wrong is not None:
                what = f"a value in quotes, and a list passes names on: {name}: [NAME]" if len(parts) > 1 else "a text"
                self._add(wrong, f"an entry of {name} needs a value", what)
            elif len(parts) > 1 and "=" in parts[0].value:
                self._add(parts[0], "'=' cannot stand in a name", "NAME: VALUE, or a list of NAME=VALUE")
            else:
                texts += self._checked(*parts) or ()
        return tuple(texts) if len(self.problems) == before else None

    def _checked(self, *parts: Node) -> tuple[str, ...] | None:
        """The parts as NAME=VALUE; an escape such as "\\ud800" is half a character, which no system can pass on."""
        half = next((part for part in parts if _HALF.search(part.value)), None)
        if half is None:
            return ("=".join(part.value for part in parts),)
        self._add(
            half, "half a character (a lone surrogate)", "\\U0001F600 is how YAML writes what lies beyond \\uFFFF"
        )
        return None

    def _where(self, node: Node) -> tuple[Place, str]:
        number = node.start_mark.line
        text = self.lines[number] if number < len(self.lines) else ""
        return Place(self.source, number + 1, node.start_mark.column + 1), text

    def _add(self, node: Node, message: str, hint: str = "") -> None:
        self.problems.append(Problem(message, *self._where(node), hint))


def _hint(name: str) -> str:
    if name in _WORDS:
        return "the script and its arguments stand on the command line: meshrun --job FILE SCRIPT ARGS"
    if name in _SPECIAL:
        return _SPECIAL[name]
    name = name.lower().removeprefix("--").removeprefix("meshrun-")  # as a flag or a variable is spelled
    close = find_near(name[:80], [known for known in BY_NAME if known != "job"])
    near = (
        f"did you mean {close[0]}?" if close else "the keys are the names of the options; `meshrun --help` lists them"
    )
    return name_here(name, _spell) or near


def _spell(option: str, value: str) -> str:
    return f"write {option}: {value}" if value else f"the key is {option}"


def _wanted(name: str) -> str:
    if BY_NAME[name].kind is Kind.MULTI:
        return "a value or a list of values"
    return "one value" + (": dp=2,tp=4, or the name of a mesh file" if name == "mesh" else "")


def _is_nothing(node: ScalarNode) -> bool:
    return node.style is None and node.value in ("", "~", "null")
