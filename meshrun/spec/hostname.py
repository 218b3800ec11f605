"""Owns: the first word of a host entry, `[user@]host[:number]`, and numbers written in ASCII digits.
Must not: expand ranges or know what the number after the colon means.
Called by: spec.hostfile, spec.hostkeys, spec.filters."""

from __future__ import annotations

import re

from meshrun.dataclass import dataclass

_DIGITS = re.compile(r"[0-9]+")
_USER = re.compile(r"[^\s@:,\[\]=\"'/\\#-][^\s@:,\[\]=\"'/\\#]*")


class NameProblem(ValueError):
    """What is wrong with a host entry; `offset` counts from 0 in the word."""

    def __init__(self, message: str, offset: int, hint: str = "") -> None:
        super().__init__(message)
        self.message, self.offset, self.hint = message, offset, hint


@dataclass(frozen=True, slots=True)
class Target:
    """A host entry taken apart. `literal`: an address, not to be expanded; `offset`s count from 0 in the word."""

    user: str | None
    name: str
    number: str | None
    offset: int
    number_offset: int
    literal: bool

    @property
    def spelled(self) -> str:
        """The entry without its number."""
        name = f"[{self.name}]" if self.literal and ":" in self.name else self.name
        return f"{self.user}@{name}" if self.user else name


def split_target(text: str) -> Target:
    """Take `[user@]host[:number]` or `[user@][IPv6][:number]` apart. Raises NameProblem."""
    user, at, host = text.rpartition("@")
    offset = len(user) + len(at)
    if at and not _USER.fullmatch(user):
        raise NameProblem(f"'{user[:40]}' is not a user name", 0)
    name, number, number_offset = _split_number(host, offset)
    literal = name.startswith("[") and ":" in name
    name = _ipv6(name, offset) if literal else name
    if not literal:
        check_name(name, offset)
    return Target(user if at else None, name, number, offset, number_offset, literal)


def read_number(text: str, what: str, limit: int, offset: int = 0) -> int:
    """A number of 1 to `limit` in ASCII digits. Raises NameProblem."""
    if not text:
        raise NameProblem(f"the {what} is missing", offset)
    if not _DIGITS.fullmatch(text):
        raise NameProblem(f"'{text[:40]}' is not a {what}", offset, f"a {what} is 1 to {limit}, in digits")
    if len(text) > 9 or not 1 <= int(text) <= limit:
        raise NameProblem(f"{text[:40]} is out of range for a {what}", offset, f"a {what} is 1 to {limit}")
    return int(text)


def check_name(name: str, offset: int = 0) -> None:
    """Refuse what cannot be a host's name (brackets of ranges are allowed). Raises NameProblem."""
    if not name:
        raise NameProblem("the host name is missing", offset)
    if name[0] in "-.":
        raise NameProblem(f"a host name cannot begin with '{name[0]}'", offset)
    in_brackets = False
    for at, char in enumerate(name):
        in_brackets = (in_brackets or char == "[") and char != "]"
        if not in_brackets and not _may_stand(char):
            raise NameProblem(f"{_spell(char)} cannot stand in a host name", offset + at, _hint(char))


def _may_stand(char: str) -> bool:
    return char in "-._[]+~%" or (char.isalnum() and (char.isascii() or char.isalpha()))


def _spell(char: str) -> str:
    return f"'{char}'" if char.isprintable() else f"the character U+{ord(char):04X}"


def _hint(char: str) -> str:
    if char in "*?":
        return "there are no wildcards; write a range, as in gpu[01-16]"
    if char in " ;|":
        return "hosts are separated by one comma, as in a:4,b:4"
    return "the host comes first, then key=value" if char == "=" else ""


def _colons_hint(host: str) -> str:
    """What several colons were probably to say: an address, or a port and slots, or several hosts."""
    address, _, number = host.rpartition(":")
    number = number if _DIGITS.fullmatch(number) else ""
    if _is_ipv6(host):
        both = f", or [{address}]:{number} with a number" if number and _is_ipv6(address) else ""
        return f"write an IPv6 address as [{host}]{both}"
    if sign := next((char for char in host if char in " ;|"), ""):
        return _hint(sign)
    if number and _is_ipv6(address):
        return f"write an IPv6 address as [{address}]:{number}"
    name, _, rest = host.partition(":")
    port, _, slots = rest.partition(":")
    if _DIGITS.fullmatch(port) and _DIGITS.fullmatch(slots):
        return f"a port and slots take a hostfile: `{name}:{port} slots={slots}`"
    return "one colon at most, and an IPv6 address in brackets: [fe80::1]"


def _is_ipv6(text: str) -> bool:
    import ipaddress  # 2 ms that few lists need

    try:
        return bool(ipaddress.IPv6Address(text))
    except ValueError:
        return False


def _split_number(host: str, offset: int) -> tuple[str, str | None, int]:
    body = host.rfind("]") + 1
    name, colon, number = host[:body] + host[body:].partition(":")[0], ":" in host[body:], ""
    if not colon:
        return host, None, 0
    number = host[len(name) + 1 :]
    if ":" in number:
        raise NameProblem(f"'{host[:60]}' has several colons", offset, _colons_hint(host[:60]))
    if not _DIGITS.fullmatch(number):
        what = f"'{number[:40]}' after the colon is not a number" if number else "no number after the colon"
        raise NameProblem(what, offset + len(name) + 1)
    return name, number, offset + len(name) + 1


def _ipv6(name: str, offset: int) -> str:
    inside = name[1:-1] if name.endswith("]") else ""
    if not _is_ipv6(inside):
        raise NameProblem(f"'{name[:60]}' is not an IPv6 address", offset, "as in [fe80::1%eth0]")
    return inside
