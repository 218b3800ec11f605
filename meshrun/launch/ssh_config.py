"""Owns: OpenSSH's client configuration as values: lines, Host/Match/Include, first value wins, and the Target it gives.
Must not: read files or run commands (both are arguments), or know paramiko.
Called by: launch.ssh_files."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase

from meshrun.dataclass import dataclass, field
from meshrun.errors import InputError, Place, Problem

_MANY = frozenset({"identityfile"})
_MAX_INCLUDES = 16  # as in OpenSSH (readconf.c, READCONF_MAX_DEPTH)
# Ignoring them would make a connection less safe than the user's own `ssh` is.
_REFUSED = ("revokedhostkeys",)


@dataclass(frozen=True, slots=True)
class Line:
    """One setting of one file: the keyword in lower case and its argument text; `at` says where."""

    keyword: str
    text: str
    at: Place


@dataclass(frozen=True, slots=True)
class Target:
    """One host as `ssh` would see it. Files are absolute; the first of `identities` comes from the command line."""

    name: str  # as written
    hostname: str
    port: int
    user: str
    user_said: bool
    port_said: bool
    identities: tuple[str, ...]
    identities_only: bool
    default_keys: tuple[str, ...]  # tried last; empty when any identity was configured, as ssh does
    use_agent: bool
    key_name: str  # what the host is called in known_hosts
    known_hosts: tuple[str, ...]  # the first is where a new key goes
    accept_new: bool
    proxy_jump: tuple[str, ...] = ()
    proxy_command: str = ""
    config: str = ""  # --ssh-config, for the commands that hints show
    algorithms: tuple[tuple[str, str], ...] = ()  # keyword → list, for ciphers, macs, kexalgorithms, hostkeyalgorithms

    @property
    def login(self) -> str:
        """The `ssh` command that reaches this host as this job does."""
        config = ["-F", self.config] if self.config else []
        port = ["-p", str(self.port)] if self.port != 22 else []
        return shlex.join(["ssh", *config, *port, f"{self.user}@{self.name}"])


@dataclass(frozen=True, slots=True)
class Asker:
    """What a Match line may ask about: the world outside the file."""

    local_user: str
    home: str
    run: Callable[[str], bool] = field(default=lambda _: False)  # Match exec: does this command end with 0?


def parse_lines(text: str, source: str) -> tuple[Line, ...]:
    """The settings of one file, comments dropped. Raises nothing: OpenSSH's own errors are left to `ssh`."""
    found = []
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        match = re.match(r'"?([A-Za-z]+)"?\s*(?:=\s*|\s+)(.*)$', line)
        if match and not line.startswith("#"):
            found.append(Line(match[1].lower(), match[2].strip(), Place(source, number)))
    return tuple(found)


ReadInclude = Callable[[str], Sequence[tuple[Line, ...]]]


def resolve(
    files: Sequence[tuple[Line, ...]], name: str, given: dict[str, str], asker: Asker, include: ReadInclude
) -> dict[str, list[str]]:
    """keyword → values for the host `name`; `given` (user, port) is what outranks the files. Raises InputError."""
    found: dict[str, list[str]] = {}
    for lines in files:
        for line in _active(lines, name, given, found, asker, include, 0):
            if line.keyword in _MANY:
                found.setdefault(line.keyword, []).append(line.text)
            else:
                found.setdefault(line.keyword, [line.text])
    refused = [key for key in _REFUSED if key in found and found[key][0].lower() != "none"]
    if refused:
        raise InputError([Problem(f"{name}: the ssh config sets {key}, which is not supported") for key in refused])
    return found


def _active(
    lines: tuple[Line, ...],
    name: str,
    given: dict[str, str],
    found: dict[str, list[str]],
    asker: Asker,
    include: ReadInclude,
    depth: int,
) -> Iterator[Line]:
    """The lines that hold for this host. An Include inside a block counts only where the block does."""
    active = True
    for line in lines:
        if line.keyword == "host":
            active = match_patterns(name, _split(line.text))
        elif line.keyword == "match":
            active = _match(line, name, given, found, asker)
        elif active and line.keyword == "include":
            if depth >= _MAX_INCLUDES:
                raise InputError(Problem("Include is nested too deeply", line.at, line_text=line.text))
            for pattern in _split(line.text):
                for inner in include(pattern):
                    yield from _active(inner, name, given, found, asker, include, depth + 1)
        elif active:
            yield line


def match_patterns(name: str, patterns: Sequence[str]) -> bool:
    """OpenSSH's pattern list: `*`, `?`, and a leading `!` that vetoes."""
    matched = False
    for pattern in patterns:
        plain = pattern.removeprefix("!").lower()
        if _matches(name.lower(), plain):
            if pattern.startswith("!"):
                return False
            matched = True
    return matched


def _matches(name: str, pattern: str) -> bool:
    # fnmatch knows [...], OpenSSH does not.
    return name == pattern or (("*" in pattern or "?" in pattern) and fnmatchcase(name, pattern.replace("[", "[[]")))


def _match(line: Line, name: str, given: dict[str, str], found: dict[str, list[str]], asker: Asker) -> bool:
    words = _split(line.text)
    hostname = found.get("hostname", [name])[0]
    user = given.get("user") or found.get("user", [asker.local_user])[0]
    while words:
        criterion, sep, value = words.pop(0).partition("=")
        negated, criterion = criterion.startswith("!"), criterion.removeprefix("!").lower()
        if criterion in ("all", "canonical", "final"):
            holds = criterion == "all"  # no canonicalisation and no second pass here, so those two never hold
        else:
            value = value if sep else words.pop(0) if words else ""
            holds = _ask(line, criterion, value, {"host": hostname, "originalhost": name, "user": user}, asker)
        if holds == negated:
            return False
    return True


def _ask(line: Line, criterion: str, value: str, facts: dict[str, str], asker: Asker) -> bool:
    if criterion == "exec":
        tokens = {"h": facts["host"], "n": facts["originalhost"], "r": facts["user"], "u": asker.local_user}
        return asker.run(expand(value, tokens, asker.home))
    known = {**facts, "localuser": asker.local_user}
    if criterion not in known:
        raise InputError(Problem(f"Match {criterion} is not supported", line.at, line_text=f"Match {line.text}"))
    return match_patterns(known[criterion], value.split(","))


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text, comments=True)
    except ValueError:
        return text.split()


def expand(text: str, tokens: dict[str, str], home: str) -> str:
    """`%h`-like tokens (`%%` is %), and a leading `~/`."""
    filled = re.sub(r"%(.)", lambda m: "%" if m[1] == "%" else tokens.get(m[1], m[0]), text)
    return home + filled[1:] if filled == "~" or filled.startswith("~/") else filled


def restrict(available: Sequence[str], wish: str) -> tuple[str, ...]:
    """An algorithm list of the config (`a,b`, `-a*`, `+a`, `^a`) applied to what we can do, in the config's order."""
    patterns = wish.lstrip("+-^").split(",")
    if wish.startswith("+"):
        return tuple(available)
    if wish.startswith("-"):
        return tuple(name for name in available if not match_patterns(name, patterns))
    chosen = [name for pattern in patterns for name in available if match_patterns(name, [pattern])]
    rest = list(available) if wish.startswith("^") else []
    return tuple(dict.fromkeys([*chosen, *rest]))
