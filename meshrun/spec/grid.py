"""Owns: the arithmetic of grids: a grid's groups of ranks, and which grid a name belongs to.
Must not: know hosts or torch; it travels to the nodes.
Called by: spec.solve, plan, report, worker.

A grid is a tuple of (dim, size), outermost first; ranks are row-major in it, the last dim varies fastest."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import product
from math import prod

from meshrun.dataclass import dataclass

Grid = tuple[tuple[str, int], ...]
Partition = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Axis:
    """Some dims of one grid, in its order: one dim, or a view of several."""

    grid: Grid
    chosen: tuple[int, ...]  # their numbers in the grid

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes of the whole grid."""
        return tuple(size for _, size in self.grid)

    @property
    def size(self) -> int:
        """Ranks in each group."""
        return prod(self.grid[at][1] for at in self.chosen)

    def groups(self) -> Partition:
        """The groups of ranks along it."""
        return split_ranks(self.sizes, self.chosen)

    def place(self, rank: int) -> int:
        """The position of `rank` in its group, which is its coordinate where the axis is one dim."""
        coords = coordinates(self.grid, rank)
        position = 0
        for at in self.chosen:
            name, size = self.grid[at]
            position = position * size + coords[name]
        return position


def split_ranks(sizes: Sequence[int], chosen: Collection[int]) -> Partition:
    """The groups of ranks along the dims numbered `chosen`: one for each coordinate of the others, by first rank,
    ranks ascending in each."""
    inner = _offsets(sizes, [at for at in range(len(sizes)) if at in chosen])
    outer = _offsets(sizes, [at for at in range(len(sizes)) if at not in chosen])
    return tuple(tuple([first + step for step in inner]) for first in outer)


def _offsets(sizes: Sequence[int], dims: Sequence[int]) -> list[int]:
    """How far from rank 0 each place along `dims` is, in row-major order."""
    steps = [range(0, sizes[at] * stride, stride) for at in dims for stride in [prod(sizes[at + 1 :])]]
    return [sum(place) for place in product(*steps)]


def coordinates(grid: Grid, rank: int) -> dict[str, int]:
    """`rank`'s coordinate in each dim, in grid order."""
    found: dict[str, int] = {}
    for name, size in reversed(grid):
        rank, found[name] = divmod(rank, size)
    return {name: found[name] for name, _ in grid}


def axis_of(grid: Grid, names: Collection[str]) -> Axis | None:
    """The axis of the dims called `names`; None if the grid does not have them all."""
    chosen = tuple(at for at, (name, _) in enumerate(grid) if name in names)
    return Axis(grid, chosen) if len(chosen) == len(set(names)) else None


def axes(dims: Grid, factorings: Mapping[str, Grid], views: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, Axis]]:
    """Every named axis: the mesh's dims, each factoring's own dims, then the views; one fixed order for all.

    A dim that a factoring shares with the mesh (or with an earlier factoring) has the same groups and comes once. A
    view is one of the first grid that has all its dims."""
    grids = [dims, *factorings.values()]
    seen: set[str] = set()
    for grid in grids:
        for at, (name, _) in enumerate(grid):
            if name not in seen:
                seen.add(name)
                yield name, Axis(grid, (at,))
    for name, parts in views.items():
        yield name, next(axis for grid in grids if (axis := axis_of(grid, parts)) is not None)
