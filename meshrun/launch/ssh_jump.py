"""Owns: the text of ProxyJump, and a host as it is asked for.
Must not: look a host up.
Called by: launch.ssh_config, ssh_target, ssh_files."""

from __future__ import annotations

from meshrun.dataclass import dataclass
from meshrun.launch.ssh_words import WordsError


@dataclass(frozen=True, slots=True)
class Asked:
    """A host as asked for: the name, and the user and port if the hostfile line or the jump said them.

    `jump`: the hops that another host's ProxyJump puts before this one, "" if this one's own config decides."""

    name: str
    user: str | None = None
    port: int | None = None
    jump: str = ""


def parse_jump(text: str) -> Asked:
    """One hop of ProxyJump: `[user@]host[:port]`, `[v6]:port` or `ssh://...`. Raises WordsError."""
    rest = text.strip().removeprefix("ssh://").removesuffix("/")
    user, at, place = rest.rpartition("@")
    if place.startswith("["):
        name, _, tail = place[1:].partition("]")
        port = tail.removeprefix(":")
    else:
        name, _, port = place.partition(":") if place.count(":") == 1 else (place, "", "")
    if not name or (port and not (port.isdecimal() and port.isascii() and 0 < int(port) < 65536)):
        raise WordsError(f"ProxyJump {text} is not [user@]host[:port]")
    return Asked(name, user if at else None, int(port) if port else None)


def read_chain(text: str) -> tuple[str, ...]:
    """The hops of a ProxyJump, nearest first; () for `none`."""
    plain = text.partition("#")[0].strip()
    return () if plain.lower() in ("", "none") else tuple(plain.split(","))


def split_jump(jumps: tuple[str, ...]) -> Asked:
    """The last hop before the host; those before it are on the way to it. Raises WordsError."""
    last = parse_jump(jumps[-1])
    return Asked(last.name, last.user, last.port, ",".join(jumps[:-1]))
