"""Owns: a mesh for a number of workers: every `auto` solved, also in factorings; what is the same in two grids.
Must not: know hosts.
Called by: plan.placement, worker.api."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod

from meshrun.dataclass import replace
from meshrun.errors import InputError, Place, Problem
from meshrun.spec.grid import Grid
from meshrun.spec.mesh import Dims, check_spec, solve_dims
from meshrun.spec.values import MeshSpec


def solve_mesh(spec: MeshSpec, world_size: int) -> MeshSpec:
    """The same mesh with every size known.

    Raises InputError if the mesh is unsound, if the product of its dims (or of a factoring's) is not `world_size`, or
    if grids disagree about a dim that they share."""
    wrong = check_spec(spec)
    if wrong:
        raise InputError(Problem(message, spec.place_of(*path), hint=hint) for path, message, hint in wrong)
    problems: list[Problem] = []

    def solve(dims: Dims, what: str, *path: str) -> Grid:
        try:
            return solve_dims(dims, world_size, spec.place_of(*path), what, shared)
        except InputError as error:
            problems.extend(error.problems)
            return ()

    shared: dict[str, int] = {}
    dims = solve(spec.dims, "mesh", "dims")
    shared |= dims
    factorings = tuple(
        (name, solve(_fill(inner, shared), f"factoring {name}", "factorings", name)) for name, inner in spec.factorings
    )
    problems += [] if problems else _check_shared({"mesh": dims, **dict(factorings)}, spec)
    if problems:
        raise InputError(problems)
    return replace(spec, dims=dims, factorings=factorings)


def _fill(dims: Dims, shared: Mapping[str, int]) -> Dims:
    """A dim that is auto here and shared with the mesh has the mesh's size, if that leaves none or one other auto."""
    return tuple((name, shared.get(name) if size is None else size) for name, size in dims)


def _check_shared(grids: Mapping[str, Grid], spec: MeshSpec) -> Iterator[Problem]:
    """A dim of one name has the same groups wherever it stands: the same size, and the same ranks further right."""
    first: dict[str, tuple[str, int, int]] = {}
    for grid, dims in grids.items():
        for at, (name, size) in enumerate(dims):
            stride = prod(size for _, size in dims[at + 1 :])
            known, known_size, known_stride = first.setdefault(name, (grid, size, stride))
            place = spec.place_of("factorings", grid, name)
            if known_size != size:
                yield _differs(name, f"is {size} in the factoring {grid}, but {known_size} in", known, place)
            elif known_stride != stride and size > 1:
                text = f"has {stride} ranks further right in the factoring {grid}, but {known_stride} in"
                yield _differs(name, text, known, place)


def _differs(name: str, text: str, known: str, place: Place | None) -> Problem:
    whose = "the mesh" if known == "mesh" else f"the factoring {known}"
    return Problem(f"{name} {text} {whose}", place, hint="a shared dim has one size and the same groups; or rename it")
