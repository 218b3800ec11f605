"""Owns: a mesh in its short form, `dp=2,tp=4`; what makes a mesh sound; solving `auto` for a number of workers.
Must not: need more than the standard library: it travels to the nodes, where `meshrun.init("dp=2,tp=4")` uses it.
Called by: spec.mesh_file, spec.job, plan.placement, worker."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator

from meshrun.errors import InputError, Place, Problem
from meshrun.spec.group_options import takes_options
from meshrun.spec.values import MeshSpec

Dims = tuple[tuple[str, int | None], ...]
Path = tuple[str, ...]
Finding = tuple[int, str, str]  # offset in the text, message, hint

MAX_DIMS = 32
MAX_SIZE = 1_048_576
DEVICES = ("auto", "cpu", "cuda", "xpu", "npu", "hpu", "mps")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_SIZE = re.compile(r"[0-9]{1,7}")
_AUTO = ("auto", "*")
_FORM = "as in dp=2,tp=4 or dp=auto,tp=4"


def parse_mesh(text: str, source: str = "--mesh") -> MeshSpec:
    """The mesh that `dp=2,tp=4` describes, outermost dim first; one size may be `auto` (or `*`).

    Raises InputError with every problem, each with its column."""
    if not text.isprintable():
        raise InputError(Problem("a control character in it", Place(source, 1, 1), hint=_FORM))
    found: list[Finding] = []
    dims: list[tuple[str, int | None]] = []
    at = 0
    for item in text.split(",")[: MAX_DIMS + 1]:
        lead = at + len(item) - len(item.lstrip(" "))
        dim = _read_item(item.strip(" "), lead, found)
        if dim is not None:
            found += _clashes(dim, dims, lead)
            dims.append(dim)
        at += len(item) + 1
    if text.count(",") >= MAX_DIMS:
        found.append((0, f"more than {MAX_DIMS} dims", ""))
    if found:
        raise InputError(Problem(m, Place(source, 1, offset + 1), text, hint) for offset, m, hint in found)
    return MeshSpec(tuple(dims), place=Place(source, 1, 1))


def _read_item(item: str, at: int, found: list[Finding]) -> tuple[str, int | None] | None:
    name, equals, size = item.partition("=")
    if not item:
        found.append((at, "a dim is missing", _FORM))
    elif " " in item:
        hint = "dims are separated by commas, and there is no blank around `=`: dp=2,tp=4"
        found.append((at + item.index(" "), "a blank", hint))
    elif not equals:
        found.append((at, f"'{item[:60]}' has no size", _FORM))
    elif not is_name(name):
        found.append((at, f"'{name[:60]}' is not a name for a dim", "letters, digits and _, as a Python name"))
    elif (problem := size_problem(size)) is not None:
        found.append((at + len(name) + 1, *problem))
    else:
        return name, read_size(size)
    return None


def _clashes(dim: tuple[str, int | None], dims: list[tuple[str, int | None]], at: int) -> Iterator[Finding]:
    if dim[0] in [name for name, _ in dims]:
        yield at, f"the dim {dim[0]} is given twice", ""
    if dim[1] is None and None in [size for _, size in dims]:
        yield at, "only one dim can be auto", ""


def is_name(text: str) -> bool:
    """True if a dim, view or factoring may have this name."""
    return _NAME.fullmatch(text) is not None


def read_size(text: str) -> int | None:
    """The size that a sound text says; None for auto."""
    return None if text in _AUTO else int(text)


def size_problem(text: str) -> tuple[str, str] | None:
    """Message and hint if `text` is neither auto nor a size from 1 to MAX_SIZE."""
    if text in _AUTO:
        return None
    if not text:
        return "the size is missing", _FORM
    if text == "-1":
        return "'-1' is not a size", "write auto for the size that is left over"
    if not _SIZE.fullmatch(text):
        return f"'{text[:60]}' is not a size", f"a number from 1 to {MAX_SIZE}, or auto"
    if len(text) > 1 and text[0] == "0":
        return f"{text} begins with a zero", "YAML may read that in base 8; write the number without"
    if not 1 <= int(text) <= MAX_SIZE:
        return f"{text} is out of range for a size", f"a number from 1 to {MAX_SIZE}, or auto"
    return None


# ---- what makes a mesh sound ----


def check_spec(spec: MeshSpec) -> list[tuple[Path, str, str]]:
    """Everything wrong with a mesh that needs no number of workers: (where in the mesh file, message, hint)."""
    found = [*_check_dims(("dims",), spec.dims)]
    for factoring, dims in spec.factorings:
        found += _check_factoring(factoring, dims, spec)
    for view, parts in spec.views:
        found += _check_view(view, parts, spec)
    everywhere = names_of(spec)
    found += _check_known("within_node", spec.within_node, everywhere)
    found += _check_known("across_nodes", spec.across_nodes, everywhere)
    for key, names in (
        ("within_label", [key for key, _ in spec.within_label]),
        ("backend", [key for key, _ in spec.backend]),
        ("options", [key for key, _ in spec.options]),
    ):
        found += _check_known(key, names, everywhere, key)
    timeouts = [key for key, _ in spec.timeout_s]
    found += _check_known("timeout_s", timeouts, ["default", *everywhere], "timeout_s")
    if spec.device not in DEVICES:
        found.append((("device",), f"'{spec.device[:60]}' is not a device", f"one of {' '.join(DEVICES)}"))
    return [*found, *_check_options(spec)]


def names_of(spec: MeshSpec) -> list[str]:
    """Every name that stands for groups of ranks: the mesh's dims, the factorings' dims, the views."""
    grids = [spec.dims, *(dims for _, dims in spec.factorings)]
    names = [name for dims in grids for name, _ in dims]
    return list(dict.fromkeys([*names, *(view for view, _ in spec.views)]))


def _check_dims(path: Path, dims: Dims, shared: Iterable[str] = ()) -> Iterator[tuple[Path, str, str]]:
    if not dims:
        yield path, "a mesh needs one dim at least", _FORM
    if len(dims) > MAX_DIMS:
        yield path, f"more than {MAX_DIMS} dims", ""
    autos = [name for name, size in dims if size is None and name not in shared]
    for name in autos[1:]:
        yield (*path, name), "only one dim can be auto", f"{autos[0]} is auto already"


def _check_known(key: str, asked: Iterable[str], known: list[str], parent: str = "") -> Iterator[tuple[Path, str, str]]:
    for index, name in enumerate(asked):
        if name not in known:
            where = (parent, name) if parent else (key, str(index))
            yield where, f"{key} names {name}, which is not a dim", f"the dims are {' '.join(known)}"


def _check_view(view: str, parts: tuple[str, ...], spec: MeshSpec) -> Iterator[tuple[Path, str, str]]:
    """A view is of one grid: the mesh, or else the first factoring that has all its dims."""
    path = ("views", view)
    grids = [[name for name, _ in dims] for dims in (spec.dims, *(dims for _, dims in spec.factorings))]
    everywhere = list(dict.fromkeys(name for grid in grids for name in grid))
    if view in everywhere:
        yield path, f"the view {view} has the name of a dim", "give it another name"
    unknown = [part for part in parts if part not in everywhere]
    grid = next((names for names in grids if set(parts) <= set(names)), None)
    if unknown:
        yield path, f"the view {view} names {unknown[0]}, which is not a dim", f"the dims are {' '.join(everywhere)}"
    elif not parts or len(set(parts)) < len(parts):
        yield path, f"the view {view} must name each of its dims once", ""
    elif grid is None:
        yield path, f"the view {view} names dims of several grids", "all of the mesh, or all of one factoring"
    elif sorted(parts, key=grid.index) != list(parts):
        ordered = ", ".join(sorted(parts, key=grid.index))
        yield path, f"the view {view} must name its dims in mesh order", f"write [{ordered}]"


def _check_factoring(name: str, dims: Dims, spec: MeshSpec) -> Iterator[tuple[Path, str, str]]:
    path, sizes = ("factorings", name), dict(spec.dims)
    views = [view for view, _ in spec.views]
    if name in sizes or name in views:
        yield path, f"the factoring {name} has the name of a dim or view", "give it another name"
    yield from _check_dims(path, dims, sizes)
    for dim, size in dims:
        wanted = sizes.get(dim)
        if size and wanted and size != wanted:
            hint = "a shared dim has one size and the same groups; or rename it here"
            yield (*path, dim), f"{dim} is {size} here, but {wanted} in the mesh", hint


def _check_options(spec: MeshSpec) -> Iterator[tuple[Path, str, str]]:
    backends = dict(spec.backend)
    for name, _ in spec.options:
        backend = backends.get(name, "")
        if not takes_options(backend, spec.device):
            whose = f"the backend {backend}" if backend else f"device {spec.device}"
            yield ("options", name), f"{whose} takes no options", "they are NCCL's: leave them out, or backend: nccl"


# ---- sizes for a number of workers ----


def spell_dims(dims: Iterable[tuple[str, int | None]]) -> str:
    """`dp=2,tp=auto`"""
    return ",".join(f"{name}={'auto' if size is None else size}" for name, size in dims)


def solve_dims(
    dims: Dims, world_size: int, place: Place | None = None, what: str = "mesh", kept: Collection[str] = ()
) -> tuple[tuple[str, int], ...]:
    """The dims with `auto` solved, so that their product is `world_size`. `kept`: what would fit has these as they are.

    Raises InputError that says how many workers there are and which sizes would fit."""
    fixed = math.prod(size for _, size in dims if size is not None)
    auto = any(size is None for _, size in dims)
    if world_size >= 1 and (world_size % fixed == 0 if auto else world_size == fixed):
        return tuple((name, world_size // fixed if size is None else size) for name, size in dims)
    slots = "1 slot takes" if world_size == 1 else f"{world_size} slots take"
    shape = spell_dims(dims)
    need = f"needs a multiple of {fixed}" if auto else f"needs {fixed}"
    fits = " or ".join(spell_dims(fit) for fit in _fitting(dims, world_size, kept))
    hint = f"{fits} would fit" if fits else ""
    raise InputError(Problem(f"the {what} {shape} {need} slots, but {slots} part", place, hint=hint))


def _fitting(dims: Dims, world_size: int, kept: Collection[str]) -> list[tuple[tuple[str, int], ...]]:
    """Up to three shapes of `world_size` nearest to the one asked (as ratios, dims that are auto are free)."""
    if not 1 <= world_size <= MAX_SIZE:
        return []
    names = [name for name, _ in dims]
    if len(dims) <= 4:
        shapes: Iterable[tuple[int, ...]] = _shapes(world_size, len(dims))
    else:
        shapes = _one_changed(dims, world_size)

    def distance(shape: tuple[int, ...]) -> float:
        pairs = zip(shape, (size for _, size in dims), strict=True)
        return sum(abs(math.log(size / asked)) for size, asked in pairs if asked is not None)

    wanted = [size if name in kept else None for name, size in dims]
    fit = (shape for shape in shapes if all(size in (None, asked) for size, asked in zip(wanted, shape, strict=True)))
    return [tuple(zip(names, shape, strict=True)) for shape in sorted(fit, key=distance)[:3]]


def _shapes(product: int, length: int) -> Iterator[tuple[int, ...]]:
    if length <= 1:
        if length == 1:
            yield (product,)
        return
    for size in _divisors(product):
        for rest in _shapes(product // size, length - 1):
            yield (size, *rest)


def _divisors(number: int) -> list[int]:
    low = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    return low + [number // n for n in reversed(low) if n * n != number]


def _one_changed(dims: Dims, world_size: int) -> Iterator[tuple[int, ...]]:
    sizes = [size or 1 for _, size in dims]
    for at in range(len(sizes)):
        others = math.prod(sizes[:at] + sizes[at + 1 :])
        if world_size % others == 0:
            yield (*sizes[:at], world_size // others, *sizes[at + 1 :])
