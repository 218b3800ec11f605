"""Owns: meshrun's dataclasses do what the standard library's do: construction, errors, ==, hash, repr, replace, pickle.
Must not: know who uses them.
Called by: pytest."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshrun import quickclass


def make(module: Any) -> tuple[Any, Any, Any]:
    """The same three classes, made by `module`."""

    @module.dataclass(frozen=True, slots=True)
    class Point:
        """Two numbers."""

        kind: ClassVar[str] = "point"
        x: int
        y: int = 0
        note: str = module.field(default="", compare=False, repr=False)
        tags: tuple[str, ...] = module.field(default_factory=tuple)

        def norm(self) -> int:
            """A method survives."""
            return abs(self.x) + abs(self.y)

    @module.dataclass(frozen=True, slots=True)
    class Pair:
        a: Any
        b: Any = None

    @module.dataclass(slots=True)
    class Loose:
        items: list[int] = module.field(default_factory=list)
        total: int = 0

        def __post_init__(self) -> None:
            self.total += sum(self.items)

    return Point, Pair, Loose


QUICK, STANDARD = make(quickclass), make(dataclasses)


@quickclass.dataclass(frozen=True, slots=True)
class Stored:
    """At the top of a module, so that it can be pickled."""

    name: str
    inner: Any = None


def both(do: Callable[[Any, tuple[Any, Any, Any]], Any]) -> tuple[Any, Any]:
    """What `do` gives with each; the type of the exception where there is one."""
    results = []
    for module, classes in ((quickclass, QUICK), (dataclasses, STANDARD)):
        try:
            results.append(do(module, classes))
        except Exception as error:
            kind = AttributeError if isinstance(error, AttributeError) else type(error)
            results.append(kind)
    return results[0], results[1]


CASES: dict[str, Callable[[Any, tuple[Any, Any, Any]], Any]] = {
    "defaults": lambda m, c: m.asdict(c[0](1)),
    "by position": lambda m, c: m.asdict(c[0](1, 2, "n", ("t",))),
    "by name": lambda m, c: m.asdict(c[0](y=2, x=1)),
    "missing": lambda m, c: c[0](),
    "unknown": lambda m, c: c[0](1, z=3),
    "twice": lambda m, c: c[0](1, x=3),
    "too many": lambda m, c: c[1](1, 2, 3),
    "repr": lambda m, c: repr(c[0](1)).split("Point", 1)[1],
    "repr of one inside": lambda m, c: repr(c[1](c[1](1), [c[1]("q")])).count("Pair"),
    "equal": lambda m, c: c[0](1) == c[0](1, note="other"),
    "not equal": lambda m, c: c[0](1) == c[0](2),
    "another class": lambda m, c: c[1](1, 0) == c[0](1),
    "in a set": lambda m, c: len({c[0](1), c[0](1, note="x"), c[0](2)}),
    "hash of a list": lambda m, c: hash(c[1]([1])),
    "hash of a loose one": lambda m, c: hash(c[2]()),
    "assignment": lambda m, c: setattr(c[0](1), "x", 2),
    "deletion": lambda m, c: delattr(c[0](1), "x"),
    "a new attribute": lambda m, c: setattr(c[2](), "z", 2),
    "loose assignment": lambda m, c: [setattr(one := c[2](), "total", 7), one.total],
    "own lists": lambda m, c: c[2]().items is c[2]().items,
    "after": lambda m, c: c[2]([1, 2]).total,
    "replace": lambda m, c: m.asdict(m.replace(c[0](1, 2, tags=("a",)), x=5)),
    "replace unknown": lambda m, c: m.replace(c[0](1), z=5),
    "standard replace": lambda m, c: dataclasses.replace(c[0](1), x=5).x,
    "asdict inside": lambda m, c: m.asdict(c[1]([c[1](1)], {"k": (c[1](2),)})),
    "fields": lambda m, c: [(field.name, field.type) for field in m.fields(c[0])],
    "match": lambda m, c: c[0].__match_args__,
    "constant": lambda m, c: (c[0].kind, c[0](1).kind),
    "method": lambda m, c: c[0](-1, 2).norm(),
    "words": lambda m, c: c[0].__doc__,
    "no dict": lambda m, c: hasattr(c[0](1), "__dict__"),
}


@pytest.mark.parametrize("name", CASES)
def test_as_the_standard_library(name: str) -> None:
    quick, standard = both(CASES[name])
    assert quick == standard


@given(
    st.lists(st.integers(), max_size=4), st.dictionaries(st.sampled_from(["x", "y", "note", "tags", "z"]), st.text())
)
def test_any_call(args: list[int], named: dict[str, str]) -> None:
    quick, standard = both(lambda module, classes: module.asdict(classes[0](*args, **named)))
    assert quick == standard


def test_what_a_wrong_call_is_told() -> None:
    with pytest.raises(TypeError, match=r"Point\(\): missing x; unexpected or repeated z"):
        QUICK[0](z=1)


def test_copies_and_pickles() -> None:
    value = Stored("a", Stored("b"))
    assert copy.copy(value) == copy.deepcopy(value) == pickle.loads(pickle.dumps(value)) == value


def test_nobody_in_meshrun_imports_the_standard_one() -> None:
    from tests.test_style import SOURCES, imports_of, module_of, tree_of

    users = [module_of(path) for path in SOURCES if "dataclasses" in imports_of(tree_of(path))]
    assert users == ["meshrun.dataclass"]  # for the type checker
