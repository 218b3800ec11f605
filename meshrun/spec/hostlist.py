"""Owns: ranges in host names, `gpu[01-16,20]`, and cutting lists at separators outside brackets.
Must not: know hostfile lines, keys or filters.
Called by: spec.hostfile, spec.filters."""

from __future__ import annotations

import re
from itertools import product
from math import prod

MAX_NAMES = 65_536
MAX_NAME_LENGTH = 255
_ITEM = re.compile(r"([0-9]+)(?:-([0-9]+))?")
_MAX_DIGITS = 18


class RangeError(ValueError):
    """A range that cannot be read: what is wrong, where (`offset` counts from 0 in the text), and what to do."""

    def __init__(self, message: str, offset: int, hint: str = "") -> None:
        super().__init__(message)
        self.message, self.offset, self.hint = message, offset, hint


def expand(text: str) -> tuple[str, ...]:
    """All names that `text` stands for, in order (the last bracket varies fastest), with their zeros.

    Raises RangeError; also above MAX_NAMES names or MAX_NAME_LENGTH characters in one of them."""
    if "[" not in text and "]" not in text and len(text) <= MAX_NAME_LENGTH:
        return (text,)
    pieces = [[part] if is_literal else _items(part, at) for part, at, is_literal in _parts(text)]
    if prod(map(len, pieces)) > MAX_NAMES:
        raise RangeError(f"more than {MAX_NAMES} hosts in one range", text.find("["))
    if sum(max(map(len, piece)) for piece in pieces) > MAX_NAME_LENGTH:
        raise RangeError(f"a host name of more than {MAX_NAME_LENGTH} characters", 0)
    return tuple(map("".join, product(*pieces)))


def split_outside(text: str, separator: str) -> list[tuple[str, int]]:
    """The parts of `text` between separators that are not inside brackets, each with its offset. Never fails."""
    parts, depth, start = [], 0, 0
    for at, char in enumerate(text):
        if char == "[":
            depth += 1
        elif char == "]":
            depth = max(0, depth - 1)
        elif char == separator and not depth:
            parts.append((text[start:at], start))
            start = at + 1
    return [*parts, (text[start:], start)]


def _parts(text: str) -> list[tuple[str, int, bool]]:
    parts, at = [], 0
    while at < len(text):
        opening = text.find("[", at)
        end = len(text) if opening < 0 else opening
        stray = text.find("]", at, end)
        if stray >= 0:
            raise RangeError("']' without '['", stray)
        parts.append((text[at:end], at, True))
        if opening < 0:
            break
        at = _closing(text, opening) + 1
        parts.append((text[opening + 1 : at - 1], opening + 1, False))
    return parts


def _closing(text: str, opening: int) -> int:
    closing = text.find("]", opening)
    nested = text.find("[", opening + 1)
    if closing < 0:
        raise RangeError("'[' without ']'", opening)
    if 0 <= nested < closing:
        raise RangeError("a bracket inside a bracket", nested)
    return closing


def _items(inside: str, offset: int) -> list[str]:
    names: list[str] = []
    for item in inside.split(","):
        names += _item(item, offset)
        if len(names) > MAX_NAMES:
            raise RangeError(f"more than {MAX_NAMES} hosts in one range", offset)
        offset += len(item) + 1
    return names


def _item(item: str, offset: int) -> list[str]:
    if not item.strip():
        raise RangeError("an empty range", offset, "write numbers, as in gpu[01-16,20]")
    match = _ITEM.fullmatch(item)
    if match is None:
        raise RangeError(f"'{item[:40]}' is not a number or a range of numbers", offset, "as in gpu[01-16,20]")
    first, last = match.group(1), match.group(2) or match.group(1)
    if max(len(first), len(last)) > _MAX_DIGITS:
        raise RangeError("a number that is too long", offset)
    return _span(first, last, offset)


def _span(first: str, last: str, offset: int) -> list[str]:
    low, high, width = int(first), int(last), len(first)
    if high < low:
        raise RangeError(f"the range {first}-{last} runs backward", offset, f"write {last}-{first}")
    if last[0] == "0" and len(last) > 1 and len(last) != width:
        raise RangeError(f"the ends of {first}-{last} have different numbers of zeros", offset)
    if high - low >= MAX_NAMES:
        raise RangeError(f"more than {MAX_NAMES} hosts in one range", offset)
    return [str(number).zfill(width) for number in range(low, high + 1)]
