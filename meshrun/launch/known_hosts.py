"""Owns: known_hosts text as values, and what a host's key is according to it.
Must not: read or write files (ssh_files.py does), or know paramiko.
Called by: launch.ssh_files, launch.ssh."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping, Sequence
from enum import Enum

from meshrun.dataclass import dataclass, field
from meshrun.launch.ssh_words import match_host


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a known_hosts file. `names` is the first field as written; `marker` is "" or "@revoked", ..."""

    source: str
    line: int
    marker: str
    names: str
    type: str
    key: bytes

    def __str__(self) -> str:
        return f"{self.source}:{self.line}"


class Verdict(Enum):
    """What known_hosts says about a key. OTHER_TYPE: the host is known, but by keys of other types only."""

    KNOWN = "known"
    UNKNOWN = "unknown"
    OTHER_TYPE = "other_type"
    AUTHORITY = "authority"
    CHANGED = "changed"
    REVOKED = "revoked"


def parse_known_hosts(text: str, source: str) -> tuple[Entry, ...]:
    """The lines that are entries; others are skipped, as ssh does."""
    entries = []
    for number, line in enumerate(text.splitlines(), 1):
        fields = line.split()
        marker = fields.pop(0) if fields and fields[0].startswith("@") else ""
        if len(fields) < 3 or fields[0].startswith("#"):
            continue
        try:
            key = base64.b64decode(fields[2], validate=True)
        except (binascii.Error, ValueError):
            continue
        entries.append(Entry(source, number, marker, fields[0], fields[1], key))
    return tuple(entries)


def is_about(entry: Entry, name: str) -> bool:
    """Does this line speak of `name` ("host" or "[host]:port")? Plain, patterns, negated patterns, or hashed."""
    if entry.names.startswith("|1|"):
        return _is_hash_of(entry.names, name)
    return match_host(name, entry.names.split(","))


def _is_hash_of(text: str, name: str) -> bool:
    try:
        _, _, salt, digest = text.split("|")
        expected = base64.b64decode(digest)
        actual = hmac.digest(base64.b64decode(salt), name.encode("utf-8", "surrogateescape"), "sha1")
    except (ValueError, binascii.Error):
        return False
    return hmac.compare_digest(actual, expected)


@dataclass(frozen=True, slots=True)
class Known:
    """The entries of one file, and where a name is in it: a cluster's file has a line a host, and all are looked up."""

    entries: tuple[Entry, ...] = ()
    places: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # name, in lower case → entries that spell it
    others: tuple[int, ...] = ()  # entries of patterns and of hashed names


def index_entries(entries: Sequence[Entry]) -> Known:
    """The entries of a file, ready to be looked up."""
    places: dict[str, tuple[int, ...]] = {}
    others = []
    for at, entry in enumerate(entries):
        if any(sign in entry.names for sign in "*?!|"):
            others.append(at)
            continue
        for name in entry.names.lower().split(","):
            places[name] = (*places.get(name, ()), at)
    return Known(tuple(entries), places, tuple(others))


def select_entries(known: Known, names: Sequence[str]) -> tuple[Entry, ...]:
    """The entries about a host. `names`: the name to look up, then (a port that is not 22) the bare name, which ssh
    accepts as a match but never takes as a contradiction (sshconnect.c, "without port identifier")."""
    found = {at for name in names for at in known.places.get(name.lower(), ())}
    found |= {at for at in known.others if any(is_about(known.entries[at], name) for name in names)}
    return tuple(known.entries[at] for at in sorted(found))


def judge_key(entries: Sequence[Entry], name: str, key_type: str, key: bytes) -> tuple[Verdict, tuple[Entry, ...]]:
    """What `entries` (of `select_entries`) say about the key that the host called `name` has shown, and which ones."""
    same = tuple(entry for entry in entries if entry.key == key)
    revoked = tuple(entry for entry in same if entry.marker == "@revoked")
    if revoked:
        return Verdict.REVOKED, revoked
    if any(not entry.marker for entry in same):
        return Verdict.KNOWN, same
    own = tuple(entry for entry in entries if is_about(entry, name))
    plain = tuple(entry for entry in own if not entry.marker)
    changed = tuple(entry for entry in plain if entry.type == key_type)
    if changed:
        return Verdict.CHANGED, changed
    if plain:
        return Verdict.OTHER_TYPE, plain
    authorities = tuple(entry for entry in own if entry.marker == "@cert-authority")
    return (Verdict.AUTHORITY, authorities) if authorities else (Verdict.UNKNOWN, ())


def find_types(entries: Sequence[Entry]) -> frozenset[str]:
    """Key types this host is known by: they are asked for first, so that a server with several shows that one."""
    return frozenset(entry.type for entry in entries if not entry.marker)


def has_authority(entries: Sequence[Entry]) -> bool:
    """Is there a @cert-authority for this host? Only then is a certificate of any use."""
    return any(entry.marker == "@cert-authority" for entry in entries)


def hash_name(name: str, salt: bytes) -> str:
    """As HashKnownHosts writes a name."""
    digest = hmac.new(salt, name.encode("utf-8", "surrogateescape"), hashlib.sha1).digest()
    return "|".join(["", "1", *(base64.b64encode(part).decode("ascii") for part in (salt, digest))])


def make_line(name: str, key_type: str, key: bytes) -> str:
    """A line to add to a known_hosts file."""
    return f"{name} {key_type} {base64.b64encode(key).decode('ascii')}\n"


def make_fingerprint(key: bytes) -> str:
    """As `ssh` shows it: SHA256:..."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(key).digest()).decode("ascii").rstrip("=")
