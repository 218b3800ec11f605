"""Owns: hosts with a problem of their own, as lines: what a thousand of them have alike is said once.
Must not: do I/O; leave a host out, or a word in which causes differ.
Called by: report.summary."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence

from meshrun.plan.runs import compact_names
from meshrun.watch.values import NodeCause

WIDTH = 110
NOISE_LINES = 10
FEW = 4  # so many hosts are named one by one; more of them as ranges, with their number


def render_causes(causes: Sequence[NodeCause]) -> list[str]:
    """Hosts with the same cause together, in order of the first of each. Causes are the same if they differ in the
    host's own name only; then the first host's words stand for all."""
    groups: dict[tuple[object, ...], list[NodeCause]] = {}
    for item in causes:
        groups.setdefault(_mask(item), []).append(item)
    return [line for group in groups.values() for line in _render_group(group)]


def _words(item: NodeCause) -> tuple[str, ...]:
    return item.cause.message, item.cause.hint, item.noise.strip()


def _mask(item: NodeCause) -> tuple[object, ...]:
    """What is said of a host, without its name: a zero byte stands for it."""
    if not item.host:
        return item.cause.kind, *_words(item)
    own = re.compile(rf"(?<![A-Za-z0-9_-]){re.escape(item.host)}(?![A-Za-z0-9_-])")
    return item.cause.kind, *(own.sub("\0", text) for text in _words(item))


def _render_group(group: Sequence[NodeCause]) -> list[str]:
    message, hint, noise = _words(group[0])
    lines = indent(_wrap(_name_hosts(group)), 2)
    lines += indent([message], 6)
    lines += indent([f"hint: {hint}"], 6) if hint else []
    lines += ["      it said:", *indent(noise.split("\n")[-NOISE_LINES:], 8)] if noise else []
    return lines


def _name_hosts(group: Sequence[NodeCause]) -> str:
    names = [item.host or f"node {item.node}" for item in group]
    alike = any(_words(item) != _words(group[0]) for item in group)
    said = f"said of {names[0]}, the same of the others" if alike else ""
    if len(names) <= FEW:
        return ", ".join(names) + (f" ({said})" if said else "")
    count = f"{len(names)} hosts" + (f"; {said}" if said else "")
    return f"{compact_names(names).replace(',', ', ')} ({count})"


def _wrap(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, break_long_words=False, break_on_hyphens=False)


def indent(texts: Iterable[str], by: int) -> list[str]:
    """The lines of `texts`, each `by` spaces further in."""
    return [f"{' ' * by}{line}" for text in texts for line in text.split("\n")]
