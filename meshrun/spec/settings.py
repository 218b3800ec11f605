"""Owns: texts of options from four sources → one checked value each, and where it came from.
Must not: read files or the environment itself; both come as arguments.
Called by: cli.request."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from meshrun.dataclass import dataclass, replace
from meshrun.errors import InputError, Place, Problem
from meshrun.spec.near import find_near
from meshrun.spec.options import ALWAYS, BY_FLAG, BY_NAME, FIXED, OPTIONS, Kind, Option

Settings = Mapping[str, Any]
Sources = Mapping[str, str]

INSIDE = "MESHRUN_RUN_ID"
# Variables of ours that are no options: what workers find, and what developers set.
_OURS = ("MESHRUN_DEBUG", "MESHRUN_COORDS", "MESHRUN_MARK", INSIDE)
# Two options for one thing: what a stronger source says in one takes the place of what a weaker one says in the other.
_RIVALS = {"hostfile": "hosts", "hosts": "hostfile"}
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


@dataclass(frozen=True, slots=True)
class Given:
    """An option's text as one source has it; `texts` has several only for options that may repeat."""

    name: str
    texts: tuple[str, ...]
    source: str  # "command line" | "job file FILE:LINE" | "environment MESHRUN_X"
    place: Place
    line_text: str = ""


def from_command_line(pairs: Iterable[tuple[str, str]]) -> dict[str, Given]:
    """What `split_argv` found; of an option given twice the last counts, as with ssh, unless it may repeat."""
    found: dict[str, Given] = {}
    for name, text in pairs:
        several = BY_NAME[name].kind is Kind.MULTI and name in found
        before = found[name].texts if several else ()
        found[name] = Given(name, (*before, text), "command line", Place(f"--{name}"))
    return found


def from_environ(environ: Mapping[str, str]) -> dict[str, Given]:
    """`MESHRUN_<OPTION>` variables; none inside a run, whose workers find variables of that run under such names."""
    if environ.get(INSIDE):
        return {}
    found: dict[str, Given] = {}
    for option in OPTIONS:
        if text := environ.get(option.variable, ""):
            texts = tuple(text.splitlines()) if option.kind is Kind.MULTI else (text,)
            found[option.name] = Given(option.name, texts, f"environment {option.variable}", Place(option.variable))
    return found


def find_misspelled(environ: Mapping[str, str]) -> list[Problem]:
    """What looks like an option's variable and is none; any other MESHRUN_ name may be somebody's own."""
    if environ.get(INSIDE):
        return []
    known = {*_OURS, *(option.variable for option in OPTIONS)}
    strange = [name for name in environ if name.startswith("MESHRUN_") and name not in known]
    return [problem for name in strange for problem in _misspelled(name, known.difference(_OURS))]


def _misspelled(variable: str, known: Iterable[str]) -> list[Problem]:
    name = variable.removeprefix("MESHRUN_").lower().replace("_", "-")
    hint = name_here(name, lambda option, value: _variable(BY_NAME[option], value))
    if not hint:
        close = find_near(variable[:80], list(known), 0.9)
        hint = f"did you mean {close[0]}?" if close else ""
    return [Problem(f"unknown variable {variable[:80]}", hint=hint)] if hint else []


def _variable(option: Option, value: str) -> str:
    return f"{option.variable}={value}" if value else f"the variable is {option.variable}"


def name_here(name: str, spell: Callable[[str, str], str]) -> str:
    """What to say for a name that is a flag but no option's own (`num-nodes`, `no-init`, `rdzv-id`); "" for others."""
    flag = f"--{name}"
    if flag in FIXED:
        return spell(*FIXED[flag])
    if flag in BY_FLAG:
        return spell(BY_FLAG[flag].name, "")
    if flag in ALWAYS:
        return f"{ALWAYS[flag]}; leave it out"
    from meshrun.spec.foreign import REFUSED  # a table that only a mistake needs

    refused = REFUSED.get(flag)
    return refused.way if refused and refused.program in ("meshrun", "torchrun", "deepspeed") else ""


@dataclass(frozen=True, slots=True)
class Merged:
    """Every option's value and its source. Keys are the names of `OPTIONS`; seconds are floats, counts ints, repeatable
    options tuples, `None` is "not said". A bad value, also one that a stronger source hides, is among `problems`; its
    option is `doubtful` and has what is left without it."""

    values: dict[str, Any]
    sources: dict[str, str]
    problems: tuple[Problem, ...] = ()
    doubtful: frozenset[str] = frozenset()


def merge_settings(
    command_line: Mapping[str, Given], job_file: Mapping[str, Given], environ: Mapping[str, str]
) -> Merged:
    """Command line > job file > environment > default (DESIGN §4)."""
    layers = (from_environ(environ), job_file, command_line)
    values: dict[str, Any] = {option.name: option.default for option in OPTIONS}
    sources = dict.fromkeys(values, "default")
    problems, doubtful = find_misspelled(environ), set()
    for layer in layers:
        for name in layer.keys() & _RIVALS.keys():
            values[_RIVALS[name]], sources[_RIVALS[name]] = None, "default"
        for name, given in layer.items():
            try:
                values[name], sources[name] = parse_value(BY_NAME[name], given), given.source
            except InputError as error:
                problems += error.problems
                doubtful.add(name)
    return Merged(values, sources, tuple(problems), frozenset(doubtful))


def parse_value(option: Option, given: Given) -> Any:
    """One option's value. Raises InputError that names the option, its source and what would do."""
    if option.kind is Kind.MULTI:
        return _several(option, given)
    return _PARSERS[option.kind](option, given)


def _wrong(given: Given, wanted: str, hint: str = "") -> InputError:
    message = f"{wanted}, got {given.texts[0][:80]!r}" if given.texts[0] else f"{wanted}, got nothing"
    return InputError(Problem(message, given.place, given.line_text, hint))


def _instead(option: Option, text: str) -> str:
    from meshrun.spec.notes import INSTEAD  # a table that only a mistake needs

    return INSTEAD.get(option.name, {}).get(text, "")


def _several(option: Option, given: Given) -> tuple[str, ...]:
    if not all(text.strip() for text in given.texts):
        raise _wrong(replace(given, texts=("",)), f"a value is needed ({option.metavar})")
    if any("\0" in text for text in given.texts):
        raise InputError(Problem("a zero byte cannot be passed on", given.place))  # and its value is not shown
    return given.texts


def _text(option: Option, given: Given) -> str:
    if not given.texts[0].strip() and option.default != "":
        raise _wrong(given, f"a value is needed ({option.metavar})")
    if "\0" in given.texts[0]:
        raise _wrong(given, "a zero byte cannot be passed on")
    return given.texts[0]


def _count(option: Option, given: Given) -> int | None:
    text = given.texts[0]
    if option.name == "nproc-per-node" and text == "auto":
        return None  # torchrun's word for what is done anyway
    digits = text.isascii() and text.isdigit() and len(text) <= 9
    if not digits or not option.least <= int(text) <= option.most:
        hint = _ELASTIC_HINT if option.name == "nnodes" and ":" in text else _instead(option, text)
        raise _wrong(given, f"a whole number is needed, {option.least:.0f} to {option.most:.0f}", hint)
    return int(text)


_ELASTIC_HINT = "the number of nodes is fixed for a run; say one number"


def _seconds(option: Option, given: Given) -> float:
    text = given.texts[0].strip().removesuffix("s")
    try:
        seconds = float(text) if text.isascii() and "_" not in text else math.nan
    except ValueError:
        seconds = math.nan
    least = 0.0 if option.least == 0 else 0.001
    if not (math.isfinite(seconds) and least <= seconds):
        raise _wrong(given, "seconds are needed, " + ("0 or more" if not least else "more than 0"), _in_seconds(text))
    return seconds


def _in_seconds(text: str) -> str:
    """The hint for other ways to write a duration: 5m, 1h30m, 1:30:00."""
    form = re.compile(r"(?:(\d+)d)? ?(?:(\d+)h)? ?(?:(\d+)m(?:in)?)? ?(?:(\d+)s?)?|(?:(\d+):)?(\d+):(\d+)", re.ASCII)
    match = form.fullmatch(text.lower()[:40])
    if not text or match is None:
        return ""
    days, hours, minutes, seconds, *clock = (int(part or 0) for part in match.groups())
    hours, minutes, seconds = hours + clock[0], minutes + clock[1], seconds + clock[2]
    return f"in seconds: {((days * 24 + hours) * 60 + minutes) * 60 + seconds}"


def _flag(option: Option, given: Given) -> bool:
    word = given.texts[0].strip().lower()
    if word not in _TRUE + _FALSE:
        raise _wrong(given, "true or false is needed")
    return word in _TRUE


def _choice(option: Option, given: Given) -> str:
    word = given.texts[0]
    if word not in option.choices:
        close = find_near(word[:80], option.choices)
        near = f"did you mean {close[0]}?" if close else ""
        hint = _instead(option, word.lower()) or near
        raise _wrong(given, f"one of {', '.join(option.choices)} is needed", hint)
    return word


_PARSERS: dict[Kind, Callable[[Option, Given], Any]] = {
    Kind.TEXT: _text,
    Kind.COUNT: _count,
    Kind.SECONDS: _seconds,
    Kind.FLAG: _flag,
    Kind.CHOICE: _choice,
}
