"""Owns: dataclasses made of closures instead of generated code, as far as meshrun needs them: 0.03 ms a class, not 0.3.
Must not: import `dataclasses` (it imports inspect, ast, tokenize): a quarter of a small run's start was theirs.
Called by: meshrun.dataclass."""

from __future__ import annotations

from _operator import attrgetter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

_NONE: Any = object()


class FrozenInstanceError(AttributeError):
    """An assignment to a field of a frozen value."""


class Field:
    """One field, with what the standard library's `replace` looks at."""

    __slots__ = ("_field_type", "compare", "default", "default_factory", "init", "name", "repr", "type")

    def __init__(self, default: Any = _NONE, factory: Any = _NONE, compare: bool = True, repr: bool = True) -> None:
        self.name, self.type, self.init, self._field_type = "", "", True, None
        self.default, self.default_factory, self.compare, self.repr = default, factory, compare, repr


def field(*, default: Any = _NONE, default_factory: Any = _NONE, compare: bool = True, repr: bool = True) -> Any:
    """A field with a default, or a function that makes one for each instance; whether it counts for ==, is shown."""
    return Field(default, default_factory, compare, repr)


def dataclass(cls: Any = None, *, frozen: bool = False, slots: bool = True) -> Any:
    """A class from the annotations of `cls`: __init__, ==, hash and repr by its fields. It always has slots."""
    if not slots:
        raise TypeError("a dataclass of meshrun has slots")
    return (lambda decorated: _make(decorated, frozen)) if cls is None else _make(cls, frozen)


def fields(of: Any) -> tuple[Field, ...]:
    """The fields of a dataclass or of one of its instances, in order."""
    return tuple(of.__dataclass_fields__.values())


def replace(value: Any, **changes: Any) -> Any:
    """A copy of `value` with other values in the fields that are named. Raises TypeError for an unknown one."""
    of = type(value)
    values, places = list(of.__dataclass_read__(value)), of.__dataclass_places__
    for name, new in changes.items():
        if name not in places:
            raise TypeError(f"{of.__name__} has no field {name}")
        values[places[name]] = new
    return of(*values)


def asdict(value: Any) -> dict[str, Any]:
    """`value` as a dict, and so every dataclass in it, through tuples, lists and dicts."""
    return {name: _plain(getattr(value, name)) for name in value.__match_args__}


def _plain(value: Any) -> Any:
    if hasattr(type(value), "__dataclass_fields__"):
        return asdict(value)
    if type(value) in (tuple, list):
        return type(value)(map(_plain, value))
    return {key: _plain(item) for key, item in value.items()} if type(value) is dict else value


def _make(cls: type, frozen: bool) -> type:
    own = _read_fields(cls)
    known: dict[str, Field] = {}
    for base in reversed(cls.__mro__[1:]):
        known.update(getattr(base, "__dataclass_fields__", {}))
    known.update(own)
    kept = {name: item for name, item in cls.__dict__.items() if name not in (*own, "__dict__", "__weakref__")}
    kept.update(__slots__=tuple(own), __match_args__=tuple(known), __dataclass_fields__=known)
    kept.update(__dataclass_read__=_make_reader(tuple(known)), __dataclass_places__={n: i for i, n in enumerate(known)})
    made: Any = type(cls)(cls.__name__, cls.__bases__, kept)  # slots can only be given to a new class
    made.__init__ = _make_init(made, known)
    made.__repr__, made.__reduce__ = _repr, _reduce
    made.__eq__, made.__hash__ = _make_comparison([name for name in known if known[name].compare], frozen)
    if frozen:
        made.__setattr__ = made.__delattr__ = _refuse
    return made  # type: ignore[no-any-return]


def _read_fields(cls: type) -> dict[str, Field]:
    found = {}
    for name, annotation in cls.__annotations__.items():
        if not str(annotation).startswith("ClassVar"):
            given = cls.__dict__.get(name, _NONE)
            item = given if type(given) is Field else Field(given)
            item.name, item.type = name, annotation
            found[name] = item
    return found


def _make_init(made: type, known: Mapping[str, Field]) -> Callable[..., None]:
    names = tuple(known)
    puts = tuple(getattr(made, name).__set__ for name in names)  # past __setattr__
    after: Any = getattr(made, "__post_init__", None)

    def __init__(self: Any, *args: Any, **given: Any) -> None:
        values = _complete(made, known, names, args, given) if given or len(args) != len(names) else args
        for put, value in zip(puts, values):  # noqa: B905  # as long as each other here; strict= costs a tenth
            put(self, value)
        if after:
            after(self)

    return __init__


def _complete(
    made: type, known: Mapping[str, Field], names: Sequence[str], args: Sequence[Any], given: dict[str, Any]
) -> list[Any]:
    """All fields' values in order: by position, by name, by default. Raises TypeError as calling a function does."""
    values, missing = list(args), []
    for name in names[len(args) :]:
        item = known[name]
        if name in given:
            values.append(given.pop(name))
        elif item.default is not _NONE:
            values.append(item.default)
        elif item.default_factory is not _NONE:
            values.append(item.default_factory())
        else:
            missing.append(name)
    if missing or given or len(args) > len(names):
        wrong = [f"missing {', '.join(missing)}"] if missing else []
        wrong += [f"unexpected or repeated {', '.join(given)}"] if given else []
        wrong += [f"{len(args)} values for {len(names)} fields"] if len(args) > len(names) else []
        raise TypeError(f"{made.__name__}(): {'; '.join(wrong)}")
    return values


def _make_reader(names: tuple[str, ...]) -> Callable[[Any], Any]:
    """All these fields of a value, in one step; the machines of a run copy values all the time."""
    if len(names) > 1:
        return attrgetter(*names)
    return staticmethod(lambda value: tuple(getattr(value, name) for name in names))


def _make_comparison(names: Sequence[str], frozen: bool) -> tuple[Any, Any]:
    read: Callable[[Any], Any] = attrgetter(*names) if names else lambda value: ()

    def __eq__(self: Any, other: Any) -> Any:
        return read(self) == read(other) if type(other) is type(self) else NotImplemented

    def __hash__(self: Any) -> int:
        return hash(read(self))

    return __eq__, __hash__ if frozen else None


def _repr(self: Any) -> str:
    shown = ", ".join(f"{item.name}={getattr(self, item.name)!r}" for item in fields(self) if item.repr)
    return f"{type(self).__qualname__}({shown})"


def _refuse(self: Any, name: str, *value: Any) -> None:
    raise FrozenInstanceError(f"cannot change {name!r} of a {type(self).__name__}")


def _reduce(self: Any) -> tuple[type, tuple[Any, ...]]:
    return type(self), tuple(getattr(self, name) for name in self.__match_args__)
