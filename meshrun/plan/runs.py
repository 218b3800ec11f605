"""Owns: long lists in few words: `0-7`, `gpu[0001-1024]`.
Must not: know what the numbers or names mean.
Called by: plan.text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_TAIL = re.compile(r"^(.*?)([0-9]{1,18})([^0-9]*)$", re.DOTALL)


def compact_ids(ids: Sequence[str]) -> str:
    """`0-3,5` for ids that are numbers; others as they are."""
    parts: list[list[int] | str] = []
    for one in ids:
        number = int(one) if one.isascii() and one.isdigit() and str(int(one)) == one else None
        last = parts[-1] if parts else None
        if number is not None and isinstance(last, list) and number == last[1] + 1:
            last[1] = number
        else:
            parts.append(one if number is None else [number, number])
    return ",".join(part if isinstance(part, str) else compact_range(part[0], part[1]) for part in parts)


def compact_range(first: int, last: int) -> str:
    """`4` or `4-7`"""
    return str(first) if first == last else f"{first}-{last}"


def compact_names(names: Iterable[str]) -> str:
    """`gpu[01-16,20],login` in the order given, in the spelling that a hostfile takes."""
    runs: list[tuple[str, str, list[tuple[str, str]]]] = []  # head, tail, spans
    for name in names:
        match = _TAIL.match(name) if ":" not in name else None
        if match is None:
            runs.append((name, "", []))
            continue
        head, number, tail = match.groups()
        if not (runs and runs[-1][:2] == (head, tail) and runs[-1][2]):
            runs.append((head, tail, []))
        _extend(runs[-1][2], number)
    return ",".join(_spell(*run) for run in runs)


def _extend(spans: list[tuple[str, str]], number: str) -> None:
    if spans:
        first, last = spans[-1]
        if str(int(last) + 1).zfill(len(first)) == number:
            spans[-1] = (first, number)
            return
    spans.append((number, number))


def _spell(head: str, tail: str, spans: list[tuple[str, str]]) -> str:
    if not spans:
        return head
    if len(spans) == 1 and spans[0][0] == spans[0][1]:
        return head + spans[0][0] + tail
    inside = ",".join(first if first == last else f"{first}-{last}" for first, last in spans)
    return f"{head}[{inside}]{tail}"
