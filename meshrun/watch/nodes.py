"""Owns: what the launcher knows of each node, as a frozen row in which a change costs the same for 10 and 10,000 nodes.
Must not: decide or do I/O.
Called by: watch.model (the row is in its State) and the stages, which read it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from itertools import chain
from math import inf
from typing import Any

from meshrun.dataclass import dataclass
from meshrun.errors import Cause
from meshrun.watch.phases import Link
from meshrun.wire import Facts, Reached

# A change copies one block and the list of blocks: 64 + 32 places for 2,048 nodes, not 2,048.
BLOCK = 64


@dataclass(frozen=True, slots=True)
class Node:
    """What the launcher knows of one node. Times are on the launcher's clock, seconds."""

    link: Link = Link.OPENING
    answered: bool = False  # it greeted, or an attempt to reach it failed
    final: bool = False  # `cause` cannot heal
    cause: Cause | None = None
    noise: str = ""
    tries: int = 0  # attempts that failed
    deaths: int = 0  # agents that ended before they greeted
    facts: Facts | None = None
    reached: Reached | None = None
    heard: float = -inf  # when the last message other than output came
    flow: float = -inf  # when output came, to FLOW_STEP_S
    ranks: Sequence[int] = range(0)
    alive: frozenset[int] = frozenset()  # ranks whose end has not been told
    unready: frozenset[int] = frozenset()
    failed: frozenset[int] = frozenset()
    stopped: frozenset[int] = frozenset()  # ended because of our Stop
    drained: bool = False
    blamed: bool = False  # it is among the causes of the run's end
    asked: frozenset[int] = frozenset()  # ranks whose stacks are waited for
    stacks: tuple[tuple[int, str], ...] = ()  # that came
    calls: tuple[tuple[int, dict[str, Any]], ...] = ()  # what torch's recorders told with them


class Sign(Enum):
    """What is counted over all nodes, so that no event has to look at every one. The value is the place in a tally."""

    ANSWERED = 0
    GREETED = 1
    GONE = 2
    DONE = 3  # no worker of ours is left there, or nobody can tell
    UNREADY = 4
    REACHED = 5
    ASKED = 6


def _signs(node: Node) -> tuple[bool, ...]:
    gone = node.link is Link.GONE
    greeted = node.link is Link.GREETED
    reached = node.reached is not None
    return node.answered, greeted, gone, node.drained or gone, bool(node.unready), reached, bool(node.asked)


class Nodes:
    """A frozen row of nodes, in node order, and how many of them show each sign."""

    __slots__ = ("_blocks", "_length", "_tally")

    def __init__(self, nodes: Iterable[Node]) -> None:
        row = tuple(nodes)
        self._length = len(row)
        self._blocks = tuple(row[at : at + BLOCK] for at in range(0, len(row), BLOCK))
        self._tally = tuple(map(sum, zip(*map(_signs, row), strict=True)))

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, at: int) -> Node:
        if not 0 <= at < self._length:
            raise IndexError(at)
        return self._blocks[at // BLOCK][at % BLOCK]

    def __iter__(self) -> Iterator[Node]:
        return chain.from_iterable(self._blocks)

    def __eq__(self, other: object) -> bool:
        return self._blocks == other._blocks if isinstance(other, Nodes) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._blocks)

    def __repr__(self) -> str:
        return f"Nodes({list(self)!r})"

    def put(self, at: int, node: Node) -> Nodes:
        """The row with another node at this place."""
        old, signs = _signs(self[at]), _signs(node)
        block, place = self._blocks[at // BLOCK], at % BLOCK
        new = object.__new__(Nodes)
        new._length = self._length
        block = (*block[:place], node, *block[place + 1 :])
        new._blocks = (*self._blocks[: at // BLOCK], block, *self._blocks[at // BLOCK + 1 :])
        new._tally = self._tally
        if signs != old:
            new._tally = tuple(n + is_so - was for n, is_so, was in zip(self._tally, signs, old, strict=True))
        return new

    def map(self, change: Callable[[Node], Node]) -> Nodes:
        """The row with every node changed."""
        return Nodes(map(change, self))

    def count(self, sign: Sign) -> int:
        """How many nodes show this sign."""
        return self._tally[sign.value]

    def all(self, sign: Sign) -> bool:
        """True if every node shows it."""
        return self._tally[sign.value] == self._length
