"""Owns: the grids that torchtitan, Megatron and accelerate build from their degrees; Megatron's order string.
Must not: need the frameworks. What they build was read in their sources; tests compare with what their code gives.
Called by: spec.mesh_file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from meshrun.dataclass import dataclass
from meshrun.spec.mesh import Dims, Path
from meshrun.spec.near import find_near

Degrees = Mapping[str, int | None]
Finding = tuple[Path, str, str]
MEGATRON = ("tp", "cp", "ep", "dp", "pp")  # innermost first, as Megatron's own default has it


@dataclass(frozen=True, slots=True)
class Layout:
    """What a preset writes out; every size that follows from the others is `auto`."""

    dims: Dims
    factorings: tuple[tuple[str, Dims], ...] = ()
    views: tuple[tuple[str, tuple[str, ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class Preset:
    """A framework: the degrees it knows, the one that takes what is left over, and how it lays them out."""

    degrees: tuple[str, ...]
    rest: str
    lay_out: Callable[[Degrees, Sequence[str]], Layout]
    check: Callable[[Degrees], Iterator[Finding]]
    ordered: bool = False  # takes `order`


def expand_preset(name: str, said: Dims, order: Sequence[str]) -> tuple[Layout, list[Finding]]:
    """The mesh that the framework `name` builds for the degrees `said`, and what is wrong with them.

    `order` is Megatron's, innermost first; empty: the framework's own. A degree that nobody says is 1, but the one of
    the framework's data parallelism is what is left over."""
    preset = PRESETS[name]
    found = list(_check_said(name, preset, said, order))
    if found:
        return Layout(()), found
    degrees: dict[str, int | None] = dict(said)
    if preset.rest not in degrees and None not in degrees.values():
        degrees[preset.rest] = None
    found = [*preset.check(degrees), *(_check_order(order, degrees) if order else ())]
    return (Layout(()), found) if found else (preset.lay_out(degrees, order or MEGATRON), [])


def _check_said(name: str, preset: Preset, said: Dims, order: Sequence[str]) -> Iterator[Finding]:
    for degree, _ in said:
        if degree not in preset.degrees:
            near = find_near(degree[:40], preset.degrees)
            hint = f"did you mean {near[0]}?" if near else f"its degrees are {' '.join(preset.degrees)}"
            yield ("dims", degree), f"{name} has no degree {degree[:60]}", hint
    if order and not preset.ordered:
        yield ("order",), f"{name} has an order of its own", "leave order out, or write dims without a preset"
    for token in order if preset.ordered else ():
        if token not in MEGATRON:
            yield ("order",), f"{name}'s order does not know {token}", f"it has {'-'.join(MEGATRON)}"


def _check_order(order: Sequence[str], degrees: Degrees) -> Iterator[Finding]:
    missing = [name for name in MEGATRON if name not in order and degrees.get(name, 1) != 1]
    if missing:
        hint = f"innermost first, as in {'-'.join(name for name in MEGATRON if name in (*order, *missing))}"
        yield ("order",), f"order does not name {missing[0]}, which is not 1", hint


# ---- each framework ----


def _torchtitan(degrees: Degrees, order: Sequence[str]) -> Layout:
    outer = _take(degrees, "pp", "dp_replicate")
    pp, cp, tp = _take(degrees, "pp", "cp", "tp")
    factorings: list[tuple[str, Dims]] = [
        ("dataloading", (pp, ("batch", None), cp, tp)),
        ("dense", (*outer, ("fsdp", None), tp)),
    ]
    if "ep" in degrees:
        expert = _take(degrees, "ep", *(["etp"] if "etp" in degrees else []))
        factorings.append(("sparse", (*outer, ("efsdp", None), *expert)))
    replicas, all_data = ("dp_replicate", "dp_shard"), ("dp_replicate", "dp_shard", "cp")
    views = (("dp", replicas), ("loss", all_data), ("dp_shard_cp", ("dp_shard", "cp")), ("dp_cp", all_data))
    return Layout(_take(degrees, "pp", "dp_replicate", "dp_shard", "cp", "tp"), tuple(factorings), views)


def _check_torchtitan(degrees: Degrees) -> Iterator[Finding]:
    yield from _check_numbers("torchtitan", degrees, "ep", "etp")
    if "etp" in degrees and "ep" not in degrees:
        yield ("dims", "etp"), "etp is about experts, but there is no ep", "say ep too"


def _megatron(degrees: Degrees, order: Sequence[str]) -> Layout:
    outermost_first = [*order, *(name for name in MEGATRON if name not in order)][::-1]
    dims = _take(degrees, *(name for name in outermost_first if name != "ep"))
    names = [name for name, _ in dims]
    unions = {"dp_cp": "dp cp", "tp_cp": "tp cp", "tp_pp": "tp pp", "tp_dp": "tp dp", "tp_dp_cp": "tp dp cp"}
    views = [(view, _sorted(parts.split(), names)) for view, parts in unions.items()]
    if "ep" not in degrees and "etp" not in degrees:
        return Layout(dims, (), tuple(views))
    sizes = {"pp": degrees.get("pp", 1), "edp": None, "ep": degrees.get("ep", 1)}
    sizes["etp"] = degrees.get("etp", degrees.get("tp", 1))
    expert = [{"tp": "etp", "dp": "edp"}.get(name, name) for name in outermost_first if name != "cp"]
    views += [("ep_etp", _sorted(["ep", "etp"], expert)), ("ep_etp_pp", _sorted(["ep", "etp", "pp"], expert))]
    return Layout(dims, (("expert", tuple((name, sizes[name]) for name in expert)),), tuple(views))


def _check_megatron(degrees: Degrees) -> Iterator[Finding]:
    yield from _check_numbers("Megatron", degrees, "ep", "etp")
    if "ep" in degrees and "etp" not in degrees and degrees.get("tp", 1) is None:
        yield ("dims", "tp"), "tp cannot be auto where the experts' etp follows from it", "say etp, or tp as a number"


def _accelerate(degrees: Degrees, order: Sequence[str]) -> Layout:
    ordered = _take(degrees, "dp_replicate", "dp_shard", "cp", "sp", "tp")
    dims = tuple((name, size) for name, size in ordered if size != 1)
    names = [name for name, _ in dims]
    unions = {"dp": "dp_replicate dp_shard", "dp_shard_cp": "dp_shard cp", "dp_cp": "dp_replicate dp_shard cp"}
    views = [(view, tuple(part for part in parts.split() if part in names)) for view, parts in unions.items()]
    return Layout(dims, (), tuple((view, parts) for view, parts in views if parts))


def _check_accelerate(degrees: Degrees) -> Iterator[Finding]:
    cp, sp = degrees.get("cp", 1), degrees.get("sp", 1)
    if cp != 1 and sp != 1:
        yield ("dims", "sp"), "accelerate takes cp or sp, not both", "leave one of them out"
    model = [name for name in ("tp", "cp") if degrees.get(name, 1) != 1]
    if model and degrees.get("dp_replicate", 1) != 1 and degrees.get("dp_shard", 1) == 1:
        text = f"accelerate does not combine {model[0]} with dp_replicate alone"
        yield ("dims", "dp_replicate"), text, "say a dp_shard above 1 too"


def _check_numbers(framework: str, degrees: Degrees, *names: str) -> Iterator[Finding]:
    for name in names:
        if degrees.get(name, 1) is None:
            yield ("dims", name), f"{name} cannot be auto with {framework}'s preset", "write a number"


def _take(degrees: Degrees, *names: str) -> Dims:
    return tuple((name, degrees.get(name, 1)) for name in names)


def _sorted(parts: Sequence[str], names: Sequence[str]) -> tuple[str, ...]:
    return tuple(sorted(parts, key=names.index))


PRESETS: dict[str, Preset] = {
    "torchtitan": Preset(
        ("pp", "dp_replicate", "dp_shard", "cp", "tp", "ep", "etp"), "dp_shard", _torchtitan, _check_torchtitan
    ),
    "megatron": Preset(("tp", "cp", "ep", "etp", "dp", "pp"), "dp", _megatron, _check_megatron, ordered=True),
    "accelerate": Preset(("dp_replicate", "dp_shard", "cp", "sp", "tp"), "dp_shard", _accelerate, _check_accelerate),
}


# ---- order without a preset ----


def order_dims(dims: Dims, order: Sequence[str], elsewhere: Sequence[str]) -> tuple[Dims, list[Finding]]:
    """The dims outermost first, as `order` (innermost first) says; the sequence in which they stood says nothing.

    `order` names every dim; it may also name Megatron's dims that are not there (they have size 1) and those that
    stand `elsewhere`, in a factoring."""
    names = [name for name, _ in dims]
    found: list[Finding] = []
    for token in order:
        if token not in (*names, *elsewhere, *MEGATRON):
            near = find_near(token[:40], names, 0.5)
            hint = f"did you mean {near[0]}?" if near else f"the dims are {' '.join(names)}"
            found.append((("order",), f"order names {token[:60]}, which is not a dim", hint))
    missing = [name for name in names if name not in order]
    if missing:
        hint = f"innermost first, as in {'-'.join([*order, *missing])}"
        found.append((("order",), f"order does not name {missing[0]}", hint))
    if found:
        return dims, found
    return tuple(sorted(dims, key=lambda dim: -order.index(dim[0]))), []
