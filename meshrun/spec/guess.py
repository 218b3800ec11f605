"""Owns: telling a list of hosts from other files by what stands in it.
Must not: parse it.
Called by: cli.script, cli.request."""

from __future__ import annotations

import re

_BARE_HOST = re.compile(r"[A-Za-z0-9_.@:\[\],-]+\Z")


def looks_like_hostfile(path: str, data: bytes) -> bool:
    """Whether a would-be script is a list of hosts: no .py name, a host a line, some with slots= (or all bare)."""
    lines = [line.split(b"#")[0].split() for line in data.splitlines()[:64]]
    lines = [words for words in lines if words]
    if path.endswith(".py") or not lines or not all(_BARE_HOST.match(words[0].decode("latin-1")) for words in lines):
        return False
    slots = any(word.startswith((b"slots", b"max_slots")) for words in lines for word in words[1:])
    return slots or ("host" in path.rpartition("/")[2] and all(len(words) == 1 for words in lines))
