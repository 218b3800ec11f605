"""Owns: OpenSSH's client configuration as values: lines, Host/Match/Include, passes, first value wins.
Must not: read files or run commands (both are arguments), or know paramiko.
Called by: launch.ssh_files, launch.ssh_target."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence

from meshrun.dataclass import dataclass
from meshrun.errors import InputError, Place, Problem
from meshrun.launch.ssh_canonical import DEFAULTS, canonicalize, normalize
from meshrun.launch.ssh_jump import parse_jump, read_chain
from meshrun.launch.ssh_keywords import ALIASES, CORRECT, KEYWORDS, REMEDY, Use, check_value, spell
from meshrun.launch.ssh_match import Facts, World, holds, parse_match
from meshrun.launch.ssh_words import WordsError, expand, match_host, match_pattern, split_line, split_words

_MANY = frozenset({"identityfile", "certificatefile", "sendenv"})
_MAX_INCLUDES = 16  # as in OpenSSH (readconf.c, READCONF_MAX_DEPTH)


@dataclass(frozen=True, slots=True)
class Line:
    """One setting: keyword in lower case, its words and its text as it stands. `problem`: what is wrong with it."""

    keyword: str
    words: tuple[str, ...]
    text: str
    at: Place
    problem: str = ""

    @property
    def word(self) -> str:
        """The first word, "" if there is none."""
        return self.words[0] if self.words else ""


Options = dict[str, list[Line]]


@dataclass(frozen=True, slots=True)
class Source:
    """The lines of a file; `user`: it is the user's, so relative includes are in ~/.ssh and not in /etc/ssh."""

    lines: tuple[Line, ...]
    user: bool = True


ReadInclude = Callable[[str, bool], Sequence[tuple[Line, ...]]]


def parse_lines(text: str, source: str) -> tuple[Line, ...]:
    """The settings of one file, comments dropped. Whatever is wrong stays with its line: only who reads the whole knows
    what IgnoreUnknown says."""
    lines = []
    for number, raw in enumerate(text.split("\n"), 1):
        if found := split_line(raw):
            lines.append(_parse_line(*found, Place(source, number)))
    return tuple(lines)


def _parse_line(keyword: str, text: str, at: Place) -> Line:
    keyword = ALIASES.get(keyword, keyword)
    try:
        words = split_words(text)
        problem = "a value is missing" if not text else check_value(keyword, words) if keyword in KEYWORDS else ""
        if keyword == "match" and not problem:
            parse_match(words)
        if keyword == "proxyjump":
            for hop in read_chain(text):
                parse_jump(hop)
        return Line(keyword, words, text, at, problem)
    except WordsError as error:
        return Line(keyword, (), text, at, str(error))


def resolve(
    files: Sequence[Source], name: str, given: Mapping[str, str], world: World, include: ReadInclude, command: str = ""
) -> Options:
    """keyword → its line or lines for the host `name`. Raises InputError with all that OpenSSH would refuse.

    `given` (user, port, proxyjump) is what outranks the files; `command` is what will run there, for Match."""
    reading = _Reading(name, given, world, include, command)
    reading.read_all(files)
    try:
        final = canonicalize(reading.hostname(), {key: line.words for key, (line, *_) in reading.found.items()}, world)
        if reading.wants_final or final is not None:
            reading.begin_final(normalize(final or reading.hostname()))
            reading.read_all(files)
    except WordsError as error:
        raise InputError(Problem(f"{name}: {error}")) from None
    return reading.found


class _Reading:
    """One host's way through the files."""

    def __init__(
        self, name: str, given: Mapping[str, str], world: World, include: ReadInclude, command: str = ""
    ) -> None:
        self.found: Options = {key: [_given(key, value)] for key, value in given.items() if value}
        self.wants_final = False
        self._name = self._host = name
        self._world, self._include, self._command = world, include, command
        self._final = False
        self._problems: dict[Place | None, Problem] = {}

    def begin_final(self, hostname: str) -> None:
        """The second pass: Host and Match see the name that the first one led to, and `Match final` holds."""
        self._final, self._host = True, hostname
        self.found["hostname"] = [_given("hostname", hostname.replace("%", "%%"))]
        for key, default in DEFAULTS.items():  # too late to be set now
            self.found.setdefault(key, [_given(key, default)])

    def hostname(self) -> str:
        """What HostName has made of the name so far."""
        if self._final or "hostname" not in self.found:
            return self._host
        return expand(self.found["hostname"][0].word, {"h": self._name})

    def read_all(self, files: Sequence[Source]) -> None:
        """Every file, in order. Raises InputError."""
        for source in files:
            self._read(source.lines, source.user, True, 0)
        if self._problems:
            raise InputError(self._problems.values())

    def _read(self, lines: tuple[Line, ...], user: bool, reached: bool, depth: int) -> None:
        """`reached`: the Include that led here stood in a block that holds; if not, lines are only checked."""
        active = reached
        for line in lines:
            try:
                if not self._check(line):
                    continue
                if line.keyword == "host":
                    active = reached and self._is_host(line)
                elif line.keyword == "match":
                    active = self._matches(line, reached)
                elif line.keyword == "include":
                    self._read_included(line, user, active, depth)
                elif active:
                    self._store(line)
            except WordsError as error:
                self._complain(line, str(error))

    def _check(self, line: Line) -> bool:
        known = line.keyword in KEYWORDS
        ignored = self.found.get("ignoreunknown")
        if not known and ignored and not line.problem and match_host(line.keyword, ignored[0].word.split(",")):
            return False
        if line.problem or not known:
            self._complain(line, line.problem or "OpenSSH knows no such keyword")
            return False
        return True

    def _complain(self, line: Line, problem: str, hint: str = "") -> None:
        text = f"{spell(line.keyword)} {line.text}".rstrip()
        self._problems[line.at] = Problem(f"the ssh config says {text}: {problem}", line.at, hint=hint or CORRECT)

    def _is_host(self, line: Line) -> bool:
        active = False
        for pattern in line.words:
            if match_pattern(self._host, pattern.removeprefix("!")):
                if pattern.startswith("!"):
                    return False
                active = True
        return active

    def _matches(self, line: Line, reached: bool) -> bool:
        criteria = parse_match(line.words)
        self.wants_final |= any(name == "final" and not negated for name, negated, _ in criteria)
        return reached and holds(criteria, self._facts(), self._world)

    def _facts(self) -> Facts:
        return Facts(
            host=self.hostname(),
            original=self._name,
            user=self._word("user", self._world.local_user),
            tokens=make_tokens(self._name, self.hostname(), self.found, self._world),
            final=self._final,
            tag=self._word("tag"),
            command=self._command,
        )

    def _word(self, key: str, default: str = "") -> str:
        return self.found[key][0].word if key in self.found else default

    def _read_included(self, line: Line, user: bool, active: bool, depth: int) -> None:
        if depth >= _MAX_INCLUDES:
            raise InputError(Problem("Include is nested too deeply", line.at, line_text=line.text))
        for pattern in line.words:
            path = (
                expand(pattern, self._facts().tokens, self._world.environ)
                if "%" in pattern or "$" in pattern
                else pattern
            )
            if path.startswith("~") and not user:
                raise WordsError("a system-wide file cannot include from a home")
            for inner in self._include(path, user):
                self._read(inner, user, active, depth + 1)

    def _store(self, line: Line) -> None:
        key = line.keyword
        if key == "refuseconnection":
            self._complain(line, "the ssh config refuses this host")
        elif key == "proxyjump" and ("proxycommand" in self.found or "proxyjump" in self.found):
            pass  # whichever of the two comes first counts, also when it is `ProxyCommand none`
        elif key == "proxycommand" and "proxyjump" in self.found and not is_none(self.found["proxyjump"][0]):
            pass
        elif key in _MANY:
            lines = self.found.setdefault(key, [])
            if line.words not in [known.words for known in lines]:
                lines.append(line)
        else:
            self.found.setdefault(key, [line])


def is_none(line: Line) -> bool:
    """Does it say `none`?"""
    return line.text.strip().lower() == "none"


def _given(key: str, value: str) -> Line:
    return Line(key, (value,), value, Place("command line"))


def make_tokens(name: str, hostname: str, found: Options, world: World) -> dict[str, str]:
    """What the tokens of OpenSSH stand for with this host, as far as `found` says."""

    def first(key: str, default: str) -> str:
        return found[key][0].word if key in found else default

    jump = "" if "proxyjump" not in found or is_none(found["proxyjump"][0]) else found["proxyjump"][0].word
    jump_host = jump.rpartition(",")[2].rpartition("@")[2]
    port, user = first("port", "22"), first("user", world.local_user)
    hashed = hashlib.sha1(f"{world.hostname}{hostname}{port}{user}{jump_host}".encode("utf-8", "surrogateescape"))
    return {
        "C": hashed.hexdigest(),
        "L": world.hostname.split(".")[0],
        "d": world.home,
        "h": hostname,
        "i": str(world.uid),
        "j": jump_host,
        "k": first("hostkeyalias", name),
        "l": world.hostname,
        "n": name,
        "p": port,
        "r": user,
        "u": world.local_user,
    }


def find_ignored(found: Options) -> tuple[tuple[str, ...], tuple[Problem, ...]]:
    """Notes on what is ignored, and problems for what may not be."""
    notes, problems = [], []
    for key, (line, *_) in found.items():
        keyword = KEYWORDS[key]
        if keyword.use not in (Use.NOTED, Use.REFUSED) or line.word.lower() in keyword.unless:
            continue
        if keyword.use is Use.NOTED:
            notes.append(f"{line.at}: {spell(key)} is ignored: {keyword.why}")
        elif key != "proxyusefdpass" or ("proxycommand" in found and not is_none(found["proxycommand"][0])):
            problems.append(
                Problem(
                    f"the ssh config sets {spell(key)}, which meshrun cannot honour: {keyword.why}",
                    line.at,
                    hint=REMEDY,
                )
            )
    return tuple(notes), tuple(problems)
