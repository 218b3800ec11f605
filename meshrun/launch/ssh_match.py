"""Owns: whether a Match line holds.
Must not: run commands or look at this machine (`World` answers for it).
Called by: launch.ssh_config."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterator, Mapping

from meshrun.dataclass import dataclass, field
from meshrun.launch.ssh_words import WordsError, expand, match_host, match_patterns


@dataclass(frozen=True, slots=True)
class World:
    """What a configuration may ask about this machine. The functions have effects, and are called only when needed."""

    local_user: str
    home: str
    uid: int = 0
    hostname: str = "localhost"
    environ: Mapping[str, str] = field(default_factory=dict)
    run: Callable[[str], bool] = field(default=lambda _: False)  # Match exec: does this command end with 0?
    home_of: Callable[[str], str | None] = field(default=lambda _: None)  # another user's home
    look_up: Callable[[str], str | None] = field(default=lambda _: None)  # a host's canonical name, None: unknown
    addresses: Callable[[], tuple[str, ...]] = field(default=lambda: ())  # of the interfaces that are up
    version: Callable[[], str] = field(default=lambda: "")  # of the installed ssh


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of the host when a Match line is read."""

    host: str
    original: str
    user: str
    tokens: Mapping[str, str]
    final: bool
    tag: str = ""
    command: str = ""


_BARE = ("all", "canonical", "final")
_MAY_BE_EMPTY = ("tagged", "command")


def parse_match(words: tuple[str, ...]) -> tuple[tuple[str, bool, str], ...]:
    """The criteria of a Match line: name, whether it is negated, argument. Raises WordsError."""
    found = tuple(_pair(iter(words)))
    if not found:
        raise WordsError("Match needs a criterion")
    names = [name for name, _, _ in found]
    if "all" in names and (names.index("all") < len(names) - 1 or len(names) > 2):
        raise WordsError("all stands alone in a Match line")
    return found


def _pair(words: Iterator[str]) -> Iterator[tuple[str, bool, str]]:
    for word in words:
        name, equals, value = word.removeprefix("!").partition("=")
        name = name.lower()
        if name not in _BARE:
            if name not in _CRITERIA:
                raise WordsError(f"Match {name} is not known")
            value = value if equals else next(words, "")
            if not value and name not in _MAY_BE_EMPTY:
                raise WordsError(f"Match {name} needs an argument")
        yield name, word.startswith("!"), value


def holds(criteria: tuple[tuple[str, bool, str], ...], facts: Facts, world: World) -> bool:
    """Do all criteria hold? A command is only run if those before it do. Raises WordsError."""
    return all(_holds(name, value, facts, world) != negated for name, negated, value in criteria)


def _holds(name: str, value: str, facts: Facts, world: World) -> bool:
    if name in _BARE:
        return name == "all" or facts.final
    return _CRITERIA[name](value, facts, world)


def _match_own(text: str, value: str) -> bool:
    return not value if not text else match_patterns(text, value.split(","))


def _match_network(value: str, facts: Facts, world: World) -> bool:
    try:
        networks = [ipaddress.ip_network(part) for part in value.split(",")]
    except ValueError as error:
        raise WordsError(f"Match localnetwork: {error}") from None
    mine = [ipaddress.ip_address(address) for address in world.addresses()]
    return any(address in network for address in mine for network in networks)


def _run(value: str, facts: Facts, world: World) -> bool:
    return world.run(expand(value, facts.tokens))


_CRITERIA: dict[str, Callable[[str, Facts, World], bool]] = {
    "host": lambda value, facts, world: match_host(facts.host, value.split(",")),
    "originalhost": lambda value, facts, world: match_host(facts.original, value.split(",")),
    "user": lambda value, facts, world: match_patterns(facts.user, value.split(",")),
    "localuser": lambda value, facts, world: match_patterns(world.local_user, value.split(",")),
    "localnetwork": _match_network,
    "version": lambda value, facts, world: match_patterns(world.version(), value.split(",")),
    "tagged": lambda value, facts, world: _match_own(facts.tag, value),
    "command": lambda value, facts, world: _match_own(facts.command, value),
    "sessiontype": lambda value, facts, world: match_patterns("exec", value.split(",")),
    "exec": _run,
}
