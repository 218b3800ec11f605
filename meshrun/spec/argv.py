"""Owns: where meshrun's own options end and the script begins; unknown and refused flags, all at once.
Must not: look at a value, or touch anything behind the script.
Called by: cli.main, before click sees anything: no prefix matching, no lost `--`, no option of the script eaten."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence

from meshrun.dataclass import dataclass
from meshrun.errors import InputError, Place, Problem
from meshrun.spec.options import BY_FLAG, FIXED, REFUSED, Kind

HELP = ("--help", "-h", "--version")
_COMMAND_LINE = Place("command line")


@dataclass(frozen=True, slots=True)
class Split:
    """`given`: option name and value as typed, in order. `script` is "" when there is none."""

    given: tuple[tuple[str, str], ...]
    script: str
    args: tuple[str, ...]
    asked: str = ""  # "--help" or "--version"


@dataclass(frozen=True, slots=True)
class _Token:
    flag: str  # long flags with `-` for `_`
    value: str | None  # what stands behind `=`, or in the same word as a short flag
    spelled: str


def split_argv(argv: Sequence[str]) -> Split:
    """Options, script and the script's arguments. Raises InputError with every unknown, refused or cut-off option."""
    given: list[tuple[str, str]] = []
    problems: list[Problem] = []
    rest = list(argv)
    while rest and rest[0].startswith("-") and rest[0] != "-":
        word = rest.pop(0)
        if word == "--":
            break
        token = _tokenize(word)
        if token.flag in HELP:
            return Split(tuple(given), "", (), "--version" if token.flag == "--version" else "--help")
        for item in _read(token, rest):
            given.append(item) if isinstance(item, tuple) else problems.append(item)
    if problems:
        raise InputError(problems)
    return Split(tuple(given), rest[0] if rest else "", tuple(rest[1:]))


def _tokenize(word: str) -> _Token:
    if word.startswith("--"):
        flag, equals, value = word.partition("=")
        return _Token(flag.replace("_", "-"), value if equals else None, flag)
    if word in BY_FLAG or word in REFUSED or word in HELP:
        return _Token(word, None, word)
    short = BY_FLAG.get(word[:2])
    if short and short.kind is not Kind.FLAG:
        return _Token(word[:2], word[2:].removeprefix("="), word[:2])
    return _Token(word, None, word)


def _read(token: _Token, rest: list[str]) -> Iterator[tuple[str, str] | Problem]:
    if token.flag in FIXED:
        yield _flag_problem(token) or FIXED[token.flag]
    elif token.flag in REFUSED:
        takes_value, way = REFUSED[token.flag]
        if takes_value and token.value is None and rest:
            rest.pop(0)
        yield Problem(f"{token.spelled} is not an option of meshrun", _COMMAND_LINE, hint=way)
    elif token.flag not in BY_FLAG:
        yield _unknown(token, rest)
    else:
        yield _read_known(token, rest)


def _read_known(token: _Token, rest: list[str]) -> tuple[str, str] | Problem:
    option = BY_FLAG[token.flag]
    if option.kind is Kind.FLAG:
        return _flag_problem(token) or (option.name, "true")
    if token.value is not None:
        return option.name, token.value
    if not rest:
        return Problem(f"{token.spelled} needs a value", _COMMAND_LINE, hint=f"{token.spelled} {option.metavar}")
    return option.name, rest.pop(0)


def _flag_problem(token: _Token) -> Problem | None:
    if token.value is None:
        return None
    return Problem(f"{token.spelled} takes no value, got {token.value!r}", _COMMAND_LINE)


def _unknown(token: _Token, rest: list[str]) -> Problem:
    """An unknown flag; if it is nearly one with a value, that goes too, so that what follows is read as meant."""
    close = difflib.get_close_matches(token.flag, [*BY_FLAG, *FIXED], 1, 0.6)
    near = BY_FLAG.get(close[0]) if close else None
    if near and near.kind is not Kind.FLAG and token.value is None and rest:
        rest.pop(0)
    hint = f"did you mean {close[0]}? " if close else ""
    hint += "Options of the script go behind the script; `meshrun --help` lists meshrun's"
    return Problem(f"unknown option {token.spelled}", _COMMAND_LINE, hint=hint)
