"""Owns: `--env-file`: literal KEY=VALUE lines with a shell's quotes → a dict.
Must not: expand anything, read files or show a value in a message.
Called by: spec.job, cli."""

from __future__ import annotations

import re

from meshrun.errors import InputError, Place, Problem

MAX_CHARACTERS = 1024 * 1024
MAX_PROBLEMS = 100
MAX_ENTRIES = 10_000
_HEAD = re.compile(r"[ \t]*(?:export[ \t]+)?([A-Za-z_][A-Za-z0-9_]*)=")
_BLANK = re.compile(r"[ \t]*(#.*)?")
_RIGHT = "is this the right file?"
_INSIDE = {"'": re.compile(r"[^']+"), '"': re.compile(r'[^"\\]+')}
_BLANKS = re.compile(r"[ \t]*")
_PLAIN = re.compile(r"[^\"'\\ \t\n]+")
# What a backslash takes the meaning from outside quotes; before anything else it is itself (C:\data).
_ESCAPED = "\"'\\ #$`"


class _ValueError(ValueError):
    def __init__(self, message: str, at: int, hint: str = "") -> None:
        super().__init__(message)
        self.message, self.at, self.hint = message, at, hint


def parse_env_file(text: str, source: str) -> dict[str, str]:
    """The variables of an env file: `KEY=VALUE`, `export KEY='a b'`, `# comment`; a value in quotes may span lines.

    Nothing is expanded; a key given twice keeps its last value. Raises InputError with every problem and its place;
    a message never shows a value."""
    if len(text) > MAX_CHARACTERS:
        raise InputError(Problem(f"more than {MAX_CHARACTERS // 2**20} MiB", Place(source), hint=_RIGHT))
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    values: dict[str, str] = {}
    problems: list[Problem] = []
    at = entries = 0
    while at < len(text) and len(problems) < MAX_PROBLEMS:
        try:
            entries, at = entries + _is_entry(text, at), _read_entry(text, at, values)
            if entries > MAX_ENTRIES:
                raise InputError(Problem(f"more than {MAX_ENTRIES} variables", Place(source), hint=_RIGHT))
        except _ValueError as error:
            problems.append(Problem(error.message, _place(text, error.at, source), hint=error.hint))
            at = _line_end(text, error.at) + 1
    if problems:
        raise InputError(problems)
    return values


def _is_entry(text: str, at: int) -> bool:
    return text[at] not in "#\n"


def _read_entry(text: str, at: int, values: dict[str, str]) -> int:
    end = _line_end(text, at)
    if _BLANK.fullmatch(text, at, end):
        return end + 1
    head = _HEAD.match(text, at, end)
    if head is None:
        raise _ValueError(
            "this is not KEY=VALUE", _after_blanks(text, at), "no blanks around '='; a name has letters, digits and _"
        )
    value, at = _read_value(text, head.end())
    zero = value.find("\0")
    if zero >= 0:
        raise _ValueError(f"a zero byte in the value of {head.group(1)}", head.end())
    values[head.group(1)] = value
    return at


def _read_value(text: str, at: int) -> tuple[str, int]:
    """The value that begins at `at`, and where the next line begins."""
    parts: list[str] = []
    closed = False  # a quoted piece came before
    while at < len(text) and text[at] != "\n":
        char = text[at]
        if char in "\"'":
            piece, at = _read_quoted(text, at)
            closed = True
        elif char in " \t":
            piece, at = _read_blanks(text, at, closed)
        elif char == "\\":
            piece, at = (text[at + 1], at + 2) if text[at + 1 : at + 2] and text[at + 1] in _ESCAPED else (char, at + 1)
        else:
            match = _PLAIN.match(text, at)
            piece, at = (match.group(), match.end()) if match else (char, at + 1)
        parts.append(piece)
    return "".join(parts), at + 1


def _read_blanks(text: str, at: int, closed: bool) -> tuple[str, int]:
    """Blanks at the end or before a comment are not part of the value; others are, unless a quote was closed."""
    after = _after_blanks(text, at)
    if text[after : after + 1] in ("", "\n", "#"):
        return "", _line_end(text, after)
    if closed:
        raise _ValueError("text after a closed quote", after, "put the whole value in one pair of quotes")
    return text[at:after], after


def _read_quoted(text: str, start: int) -> tuple[str, int]:
    quote, at = text[start], start + 1
    parts: list[str] = []
    while at < len(text) and text[at] != quote:
        if quote == '"' and text[at] == "\\" and text[at + 1 : at + 2] in ('"', "\\", "$", "`", "\n"):
            parts.append("" if text[at + 1] == "\n" else text[at + 1])
            at += 2
        else:
            match = _INSIDE[quote].match(text, at)
            parts.append(match.group() if match else text[at])
            at = match.end() if match else at + 1
    if at >= len(text):
        raise _ValueError("a quote that is never closed", start)
    return "".join(parts), at + 1


def _after_blanks(text: str, at: int) -> int:
    match = _BLANKS.match(text, at)
    return match.end() if match else at


def _line_end(text: str, at: int) -> int:
    end = text.find("\n", at)
    return len(text) if end < 0 else end


def _place(text: str, at: int, source: str) -> Place:
    return Place(source, text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at))
