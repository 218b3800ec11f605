"""Owns: a set of CPUs as the kernel, `taskset` and numactl write it: `0-3,64-67`.
Must not: do I/O; it travels to every node, so standard library only.
Called by: agent.topology (the kernel's lists), agent.binding, worker.child, plan.reread."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator

MAX_CPU = 65_535  # the kernel's own limit is 8,192
_PART = re.compile(r"([0-9]{1,5})(?:-([0-9]{1,5}))?\Z")


def parse_cpus(text: str) -> tuple[int, ...]:
    """The numbers of a list, ascending. Raises ValueError for what is no such list."""
    numbers: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        match = _PART.match(part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not first <= last <= MAX_CPU:
            raise ValueError(f"{part[:40]!r} is no range of CPUs")
        numbers.update(range(first, last + 1))
    return tuple(sorted(numbers))


def render_cpus(cpus: Collection[int]) -> str:
    """The shortest list of these numbers; "" for none."""
    runs = (str(first) if first == last else f"{first}-{last}" for first, last in _runs(sorted(cpus)))
    return ",".join(runs)


def _runs(numbers: Iterable[int]) -> Iterator[tuple[int, int]]:
    first = last = -2
    for number in numbers:
        if number > last + 1:
            if last >= 0:
                yield first, last
            first = number
        last = number
    if last >= 0:
        yield first, last
