"""Owns: where meshrun's own options end and the script begins; unknown and refused flags, all at once.
Must not: look at a value, or touch anything behind the script.
Called by: cli.main, before click sees anything: no prefix matching, no lost `--`, no option of the script eaten."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from meshrun.dataclass import dataclass
from meshrun.errors import Place, Problem
from meshrun.spec.near import find_near
from meshrun.spec.options import ALWAYS, BY_FLAG, BY_NAME, FEW, FIXED, Kind, Option

HELP = ("--help", "-h", "--version", "-V")
_COMMAND_LINE = Place("command line")


@dataclass(frozen=True, slots=True)
class Split:
    """`given`: option name and value as typed, in order. `script` is "" when there is none.

    `problems`: every unknown, refused or cut-off option. They are told together with what is wrong elsewhere; where
    there are any, it is not sure which word is the script."""

    given: tuple[tuple[str, str], ...]
    script: str
    args: tuple[str, ...]
    asked: str = ""  # "--help" or "--version"
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, slots=True)
class _Token:
    flag: str  # long flags with `-` for `_`
    value: str | None  # what stands behind `=`, or in the same word as a short flag
    spelled: str


def split_argv(argv: Sequence[str], verb: str = "run") -> Split:
    """Options, script and the script's arguments of what stands behind `verb`."""
    given: list[tuple[str, str]] = []
    problems: list[Problem] = []
    rest = list(argv)
    while rest and rest[0].startswith("-") and rest[0] != "-":
        word = rest.pop(0)
        if word == "--":
            break
        token = _tokenize(word)
        if token.flag in HELP:
            return Split(tuple(given), "", (), "--version" if token.flag in ("--version", "-V") else "--help")
        for item in _read_few(token, rest, verb) if verb in FEW else _read(token, rest):
            given.append(item) if isinstance(item, tuple) else problems.append(item)
    return Split(tuple(given), rest[0] if rest else "", tuple(rest[1:]), problems=tuple(problems))


def _tokenize(word: str) -> _Token:
    if word.startswith("--"):
        flag, equals, value = word.partition("=")
        return _Token(flag.replace("_", "-"), value if equals else None, flag)
    short = BY_FLAG.get(word[:2])
    if short and short.kind is not Kind.FLAG and len(word) > 2:
        return _Token(word[:2], word[2:].removeprefix("="), word[:2])
    flag, equals, value = word.partition("=")
    return _Token(flag[:1] + flag[1:].replace("_", "-"), value if equals else None, flag)


def _read(token: _Token, rest: list[str]) -> Iterator[tuple[str, str] | Problem]:
    if token.flag in FIXED:
        yield _flag_problem(token) or FIXED[token.flag]
    elif token.flag in ALWAYS:
        yield from filter(None, [_flag_problem(token)])
    elif token.flag in BY_FLAG:
        yield _read_known(token, rest)
    else:
        yield _refuse(token, rest)


def find_option(word: str) -> Option | None:
    """The option that a word would give or begin if it stood before the script; long ones only."""
    return BY_FLAG.get(_tokenize(word).flag) if word.startswith("--") else None


def _read_few(token: _Token, rest: list[str], verb: str) -> Iterator[tuple[str, str] | Problem]:
    """For a verb that takes a few options: what any other word is to another verb does not matter here."""
    option = BY_FLAG.get(token.flag)
    item = _read_known(token, rest) if option else None  # with its value, also where it means nothing
    if option and item and option.name in FEW[verb]:
        yield item
        return
    known = [flag for name in FEW[verb] for flag in BY_NAME[name].spellings]
    near = next(iter(find_near(token.flag, known, 0.7)), "")
    hint = f"`meshrun {verb}` takes " + " and ".join(f"{flag} {BY_FLAG[flag].metavar}" for flag in known) + " only"
    if option or token.flag in FIXED or token.flag in ALWAYS:
        yield Problem(f"{token.spelled} means nothing to `meshrun {verb}`", _COMMAND_LINE, hint=hint)
    else:
        hint = f"did you mean {near}? {hint}" if near else hint
        yield Problem(f"unknown option {token.spelled[:80]}", _COMMAND_LINE, hint=hint)


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
    return Problem(f"{token.spelled} takes no value, got {token.value[:80]!r}", _COMMAND_LINE)


def _refuse(token: _Token, rest: list[str]) -> Problem:
    from meshrun.spec.foreign import find_refused  # a table that only a mistake needs

    refused = find_refused(token.flag)
    if refused is None:
        return _unknown(token, rest)
    del rest[: max(0, refused.values - (token.value is not None))]
    return Problem(f"{token.spelled[:80]} is not an option of meshrun", _COMMAND_LINE, hint=refused.way)


def _unknown(token: _Token, rest: list[str]) -> Problem:
    """An unknown flag; if it is nearly one with a value, that goes too, so that what follows is read as meant."""
    near = _nearest(token.flag)
    option = BY_FLAG.get(near)
    if option and option.kind is not Kind.FLAG and token.value is None and rest:
        rest.pop(0)
    negated = BY_FLAG.get(token.flag.replace("--no-", "--", 1)) if token.flag.startswith("--no-") else None
    if negated:
        near = ""
    hint = f"leave out --{negated.name}. " if negated else f"did you mean {near}? " if near else ""
    hint += "Options of the script go behind the script; `meshrun --help` lists meshrun's"
    if near == "-" + token.flag:
        hint = f"long options have two dashes: {near}"
    return Problem(f"unknown option {token.spelled[:80]}", _COMMAND_LINE, hint=hint)


def _nearest(flag: str) -> str:
    """The flag that was meant, "" if none is near; a long name behind one dash, as mpirun takes it, is that name."""
    known = [*BY_FLAG, *FIXED, *ALWAYS, *HELP]
    flag = flag.lower() if len(flag) > 2 else flag
    if len(flag) > 2 and "-" + flag in known:
        return "-" + flag
    begun = [name for name in known if len(flag) > 4 and name.startswith(flag)]
    return next(iter([*begun, *find_near(flag[:80], known, 0.7)]), "")
