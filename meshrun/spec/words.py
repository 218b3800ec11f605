"""Owns: cutting a hostfile line into words with the column of every character; quotes, comments, `key = value`.
Must not: know keys or hosts.
Called by: spec.hostfile."""

from __future__ import annotations

import re
from collections.abc import Sequence

from meshrun.dataclass import dataclass

_PLAIN = re.compile(r"[^ \t]+")
# What may not stand in a line: it would hide something from the reader, or be the sign of a binary file.
CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


class WordError(ValueError):
    """A line that cannot be cut into words; `column` counts from 1."""

    def __init__(self, message: str, column: int, hint: str = "") -> None:
        super().__init__(message)
        self.message, self.column, self.hint = message, column, hint


@dataclass(frozen=True, slots=True)
class Word:
    """A word without its quotes; `columns[i]` is where its character i stands (from 1)."""

    text: str
    columns: Sequence[int]
    quoted: bool = False

    def column(self, offset: int = 0) -> int:
        """The column of character `offset`, or of the word's end."""
        return self.columns[offset] if offset < len(self.columns) else self.columns[-1] + 1


def split_words(line: str) -> list[Word]:
    """The words of a line up to its comment (`#` at the start of a word). Raises WordError for an open quote."""
    if '"' in line or "'" in line:
        words = _split_quoted(line)
    else:
        words = []
        for match in _PLAIN.finditer(line):
            if match.group()[0] == "#":
                break
            words.append(Word(match.group(), range(match.start() + 1, match.end() + 1)))
    return _join_assignments(words)


def _split_quoted(line: str) -> list[Word]:
    words: list[Word] = []
    at = 0
    while at < len(line):
        if line[at] in " \t":
            at += 1
        elif line[at] == "#":
            break
        else:
            word, at = _take_word(line, at)
            words.append(word)
    return words


def _take_word(line: str, at: int) -> tuple[Word, int]:
    chars: list[str] = []
    columns: list[int] = []
    quoted = False
    start = at
    while at < len(line) and line[at] not in " \t":
        if line[at] in "\"'":
            at = _take_quoted(line, at, chars, columns)
            quoted = True
        else:
            chars.append(line[at])
            columns.append(at + 1)
            at += 1
    return Word("".join(chars), columns or [start + 1], quoted), at


def _take_quoted(line: str, at: int, chars: list[str], columns: list[int]) -> int:
    quote, start = line[at], at
    at += 1
    while at < len(line) and line[at] != quote:
        if quote == '"' and line[at] == "\\" and line[at + 1 : at + 2] in ('"', "\\"):
            at += 1
        chars.append(line[at])
        columns.append(at + 1)
        at += 1
    if at >= len(line):
        raise WordError("a quote that is never closed", start + 1)
    return at + 1


def _join_assignments(words: list[Word]) -> list[Word]:
    """`slots = 4`, `slots= 4` and `slots =4` become `slots=4`; the first word is the host and stays alone."""
    joined = words[:1]
    for word in words[1:]:
        before = joined[-1]
        if len(joined) > 1 and _belong(before, word):
            joined[-1] = Word(before.text + word.text, [*before.columns, *word.columns], word.quoted)
        else:
            joined.append(word)
    return joined


def _belong(before: Word, word: Word) -> bool:
    if before.text.endswith("=") and before.text.count("=") == 1 and not before.quoted:
        return word.quoted or "=" not in word.text
    return "=" not in before.text and word.text.startswith("=")
