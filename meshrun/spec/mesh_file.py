"""Owns: mesh.yaml: its text → `MeshSpec`, or every problem in it at once, each with file:line:column.
Must not: read files; what makes a mesh sound is `spec.mesh`'s.
Called by: spec.job, cli."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from yaml import MappingNode, Node, ScalarNode, SequenceNode

from meshrun.dataclass import replace
from meshrun.errors import InputError, Place, Problem
from meshrun.spec.backends import check_backend
from meshrun.spec.group_options import KINDS, nearest_option, read_option
from meshrun.spec.mesh import Path, check_spec, is_name, read_size, size_problem
from meshrun.spec.near import find_near
from meshrun.spec.nodes import Mark, compose_nodes, mark_of, problem_at
from meshrun.spec.presets import PRESETS, expand_preset, order_dims
from meshrun.spec.values import MeshSpec, Options

KEYS = (
    *("dims", "order", "preset", "within_node", "across_nodes", "within_label"),
    *("views", "factorings", "backend", "timeout_s", "options", "device"),
)
MAX_PROBLEMS = 100
MAX_TIMEOUT_S = 31_536_000.0
_UNREAD = 0  # a size that could not be read: it fits every other
_SECONDS = re.compile(r"[0-9]+(\.[0-9]+)?")

V = TypeVar("V")


def parse_mesh_file(data: bytes, source: str, registers: bool = False, early: bool = False) -> MeshSpec:
    """The mesh of a mesh.yaml (DESIGN §5). `source` is how the user named the file; `registers` and `early` are what
    `check_backend` must know.

    Raises InputError with every problem: YAML errors, tags, aliases, repeated or unknown keys, wrong types, backends
    that there are not, and meshes that cannot be. What could not be read is not judged further."""
    root, problems, lines = compose_nodes(data, source)
    reader = _Reader(source, lines, problems, lambda text: check_backend(text, registers, early))
    spec = reader.read(root)
    if reader.problems:
        raise InputError(sorted(reader.problems, key=_position)[:MAX_PROBLEMS])
    return spec


def _position(problem: Problem) -> tuple[int, int]:
    return (problem.place.line, problem.place.column) if problem.place else (0, 0)


class _Reader:
    """Walks the nodes, keeps each path's mark, and collects problems."""

    def __init__(
        self,
        source: str,
        lines: Sequence[str],
        problems: Iterable[Problem],
        judge_backend: Callable[[str], tuple[str, str] | None],
    ) -> None:
        self.source, self.lines, self.problems = source, lines, list(problems)
        self.judge_backend = judge_backend
        self.marks: dict[Path, Mark] = {}
        self.unread: set[Path] = set()  # what could not be read: the innermost of it

    def refuse(self, mark: Mark, message: str, hint: str = "") -> None:
        self.problems.append(problem_at(self.source, self.lines, mark, message, hint))

    def read(self, root: Node | None) -> MeshSpec:
        place = Place(self.source, 1, 1)
        top = self.mapping((), root, "the file", "mesh: {dims: {dp: 2, tp: 4}}", ("mesh",))
        if "mesh" not in top:
            if not self.problems:
                self.refuse(Mark(0, 0), "no mesh in it", "mesh: {dims: {dp: 2, tp: 4}}")
            return MeshSpec((), place=place)
        mesh = self.mapping((), top["mesh"], "mesh", "mesh: {dims: {dp: 2, tp: 4}}", KEYS)
        spec = self._judge(self._spec(mesh, place), mesh)
        self._need_dims(top["mesh"], mesh)
        places = ((path, Place(self.source, mark.line + 1, mark.column + 1)) for path, mark in self.marks.items())
        return replace(spec, places=tuple(places))

    def _need_dims(self, node: Node, mesh: dict[str, Node]) -> None:
        """Unless that is said already, or dims may stand under a name that is not known."""
        mark = mark_of(node)
        said = any(
            "unknown key" in problem.message or _position(problem) == (mark.line + 1, mark.column + 1)
            for problem in self.problems
        )
        if not {"dims", "preset"} & {*mesh} and not said:
            self.refuse(mark, "the mesh has no dims", "dims: {dp: 2, tp: 4}")

    def _judge(self, spec: MeshSpec, mesh: dict[str, Node]) -> MeshSpec:
        """The mesh with its preset or order written out; what is wrong with it, as far as its names could be read."""
        order = self.reading(("order",), lambda: self.order(mesh.get("order")))
        known = bool({"dims", "preset"} & {*mesh}) and not self.unread & {("dims",), ("preset",)}
        before = len(self.problems)
        if known:
            spec = self._laid_out(spec, order)
        named = known and len(self.problems) == before
        unsorted = ("views",) if ("order",) in self.unread else ()
        self._refuse_all(
            finding
            for finding in check_spec(spec)
            if (named or finding[0] == ("device",))
            and finding[0][0] not in unsorted
            and not self._is_unread(finding[0])
        )
        return spec

    def _is_unread(self, path: Path) -> bool:
        within = {path[:length] for length in range(1, len(path) + 1)}
        return bool(within & self.unread) or (path[0] == "views" and any(part[:2] == path for part in self.unread))

    def reading(self, path: Path, read: Callable[[], V]) -> V:
        """What `read` returns; notes the path as unread if it found problems, unless something within it is noted."""
        before = len(self.problems)
        value = read()
        if len(self.problems) > before and not any(part[: len(path)] == path for part in self.unread):
            self.unread.add(path)
        return value

    def _spec(self, mesh: dict[str, Node], place: Place) -> MeshSpec:
        def section(key: str, read: Callable[[Path, Node], V]) -> tuple[tuple[str, V], ...]:
            return self.reading((key,), lambda: self.pairs((key,), mesh[key], read)) if key in mesh else ()

        def words(key: str, read: Callable[[Path, Node], V], default: V) -> V:
            return self.reading((key,), lambda: read((key,), mesh[key])) if key in mesh else default

        return MeshSpec(
            dims=section("dims", self.size),
            within_node=words("within_node", self.names, ()),
            views=section("views", self.names),
            factorings=section("factorings", self.sizes),
            backend=section("backend", self.backend),
            timeout_s=section("timeout_s", self.seconds),
            device=words("device", self.text, "auto"),
            across_nodes=words("across_nodes", self.names, ()),
            within_label=section("within_label", self.label),
            options=section("options", self.options),
            preset=words("preset", self.preset, ""),
            place=place,
        )

    def _laid_out(self, spec: MeshSpec, order: tuple[str, ...]) -> MeshSpec:
        """The mesh with its preset written out, or its dims in the order that `order` says."""
        if not (spec.preset or order):
            return spec
        if not spec.preset:
            inner = [name for _, dims in spec.factorings for name, _ in dims]
            dims, found = order_dims(spec.dims, order, inner)
            self._refuse_all(found)
            return replace(spec, dims=dims)
        layout, found = expand_preset(spec.preset, spec.dims, order)
        for key, ours, theirs in (
            ("views", spec.views, layout.views),
            ("factorings", spec.factorings, layout.factorings),
        ):
            clashes = [name for name, _ in ours if name in dict(theirs)]
            text = f"the preset {spec.preset} has {key} of its own, one with this name"
            found += [((key, name), text, "give yours another name") for name in clashes]
        self._refuse_all(found)
        factorings, views = (*layout.factorings, *spec.factorings), (*layout.views, *spec.views)
        return replace(spec, dims=layout.dims, factorings=factorings, views=views)

    def _refuse_all(self, found: Iterable[tuple[Path, str, str]]) -> None:
        for path, message, hint in found:
            known = (self.marks.get(path[:length]) for length in range(len(path), 0, -1))
            mark = next((mark for mark in known if mark), self.marks.get(("preset",), Mark(0, 0)))
            self.refuse(mark, message, hint)

    def mapping(
        self, path: Path, node: Node | None, what: str, hint: str, known: tuple[str, ...] = ()
    ) -> dict[str, Node]:
        """The entries of a mapping; anything else, repeated keys and unknown keys are refused."""
        if not isinstance(node, MappingNode):
            if node is not None:
                self.refuse(mark_of(node), f"{what} must be a mapping", hint)
            return {}
        entries: dict[str, Node] = {}
        for key, value in node.value:
            name = key.value if isinstance(key, ScalarNode) else ""
            if not isinstance(key, ScalarNode) or not name.isprintable():
                self.refuse(mark_of(key), "a key must be a name", hint)
            elif name in entries:
                self.refuse(mark_of(key), f"the key {name[:60]} stands twice in {what}")
            elif known and name not in known:
                self.refuse(mark_of(key), f"unknown key {name[:60]}", _nearest(name, known))
            else:
                entries[name] = value
                self.marks[_under(path, name)] = mark_of(key)
        return entries

    def pairs(self, path: Path, node: Node, read: Callable[[Path, Node], V]) -> tuple[tuple[str, V], ...]:
        """A mapping from names to values that `read` reads."""
        entries = self.mapping(path, node, path[-1], _example(path))
        for name in entries:
            if not is_name(name):
                self.refuse(self.marks[_under(path, name)], f"'{name[:60]}' is not a name", "letters, digits and _")

        def read_one(name: str, value: Node) -> V:
            return self.reading((*path, name), lambda: read((*path, name), value))

        return tuple((name, read_one(name, value)) for name, value in entries.items())

    def sizes(self, path: Path, node: Node) -> tuple[tuple[str, int | None], ...]:
        return self.pairs(path, node, self.size)

    def size(self, path: Path, node: Node) -> int | None:
        text = self.scalar(node, f"the size of {path[-1]}", "a number, or auto")
        problem = size_problem(text) if text is not None else None
        if problem is None and text is not None and text.isdigit() and _quoted(node):
            problem = f"the size of {path[-1]} is text here", "write the number without quotes"
        if problem is not None:
            self.refuse(mark_of(node), *problem)
        return read_size(text) if text is not None and problem is None else _UNREAD

    def names(self, path: Path, node: Node) -> tuple[str, ...]:
        if not isinstance(node, SequenceNode):
            self.refuse(mark_of(node), f"{path[-1]} must be a list of dims", "as in [dp, tp]")
            return ()
        return tuple(self.name((*path, str(index)), item) for index, item in enumerate(node.value))

    def name(self, path: Path, node: Node) -> str:
        self.marks[path] = mark_of(node)
        return self.reading(path, lambda: self.scalar(node, "an entry", "the name of a dim")) or ""

    def backend(self, path: Path, node: Node) -> str:
        text = self.text(path, node)
        wrong = self.judge_backend(text) if text else None
        if wrong:
            self.refuse(mark_of(node), *wrong)
        return "" if wrong else text.lower()

    def order(self, node: Node | None) -> tuple[str, ...]:
        """Megatron's order string as names, innermost first; empty where there is none."""
        text = self.text(("order",), node) if node is not None else ""
        names = tuple(text.split("-")) if text else ()
        wrong = [name for at, name in enumerate(names) if not is_name(name) or name in names[:at]]
        if node is not None and wrong:
            again = f"{wrong[0][:60]} stands twice in it" if is_name(wrong[0]) else "not an order"
            self.refuse(mark_of(node), f"'{text[:60]}': {again}", "dims joined by -, innermost first: tp-cp-ep-dp-pp")
        return () if wrong else names

    def preset(self, path: Path, node: Node) -> str:
        text = self.text(path, node)
        if text and text not in PRESETS:
            near = find_near(text[:40].lower(), PRESETS, 0.5)
            hint = f"did you mean {near[0]}?" if near else f"the presets are {' '.join(PRESETS)}"
            self.refuse(mark_of(node), f"'{text[:60]}' is not a preset", hint)
        return text if text in PRESETS else ""

    def label(self, path: Path, node: Node) -> str:
        text = self.scalar(node, f"the label of {path[-1]}", "the name of a label, as rack") or ""
        if text and not is_name(text):
            self.refuse(mark_of(node), f"'{text[:60]}' is not a name for a label", "as in {pp: rack}")
        return text

    def options(self, path: Path, node: Node) -> Options:
        """Options of NCCL for one dim."""
        entries = self.mapping(path, node, f"the options of {path[-1]}", "as in {tp: {max_ctas: 16}}")
        found = ((name, self.option((*path, name), value)) for name, value in entries.items())
        return tuple((name, value) for name, value in found if value is not None)

    def option(self, path: Path, node: Node) -> int | str | None:
        name = path[-1]
        if name not in KINDS:
            self.refuse(self.marks[path], f"{name[:60]} is not an option of a group", nearest_option(name))
            return None
        text = self.scalar(node, f"the option {name}", KINDS[name])
        value = read_option(name, text) if text is not None else None
        if text is not None and value is None:
            self.refuse(mark_of(node), f"'{text[:60]}' is no value for {name}", KINDS[name])
        return value

    def seconds(self, path: Path, node: Node) -> float:
        text = self.scalar(node, f"the time-out of {path[-1]}", "seconds, as in 60")
        if text is None:
            return 0.0
        value = float(text[:30]) if _SECONDS.fullmatch(text) and not _quoted(node) else math.nan
        if not 0 < value <= MAX_TIMEOUT_S:
            self.refuse(mark_of(node), f"'{text[:60]}' is not a number of seconds", "more than 0, as in 60")
        return value

    def text(self, path: Path, node: Node) -> str:
        return self.scalar(node, path[-1], "one word") or ""

    def scalar(self, node: Node, what: str, hint: str) -> str | None:
        """The text of a scalar; a list, a mapping or nothing is refused."""
        if isinstance(node, ScalarNode) and node.value.isprintable() and node.value:
            return str(node.value)
        self.refuse(mark_of(node), f"{what} is missing or not one value", hint)
        return None


def _under(path: Path, name: str) -> Path:
    return (*path, name)


def _quoted(node: Node) -> bool:
    return isinstance(node, ScalarNode) and node.style is not None


def _nearest(name: str, known: tuple[str, ...]) -> str:
    if known != KEYS and find_near(name[:40].lower(), KEYS, 0.8):
        return f"it belongs below mesh: as in mesh: {{{name[:40]}: ...}}"
    near = find_near(name[:40].lower(), known, 0.5)
    return f"did you mean {near[0]}?" if near else f"the keys are {' '.join(known)}"


def _example(path: Path) -> str:
    examples: dict[str, Any] = {
        "dims": "{dp: 2, tp: 4}",
        "views": "{dp_tp: [dp, tp]}",
        "factorings": "{expert: {edp: auto, ep: 4}}",
        "backend": "{dp: gloo}",
        "timeout_s": "{default: 600, tp: 60}",
        "within_label": "{pp: rack}",
        "options": "{tp: {max_ctas: 16}}",
    }
    return f"as in {path[0]}: {examples.get(path[0], '')}"
