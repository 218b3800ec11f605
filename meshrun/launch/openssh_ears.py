"""Owns: ssh's stderr, line by line: what it tells of itself kept apart from what people may read.
Must not: do I/O.
Called by: launch.openssh; launch.openssh_causes reads what was heard."""

from __future__ import annotations

import re
from collections import deque

_LIMIT = 200  # lines of each kind
_DEBUG = re.compile(r"debug[123]: ")
# Lines of LogLevel DEBUG1 that stand for nothing but themselves.
_CHATTER = re.compile(r"(Authenticated to|Transferred: sent|Bytes per second: sent|Killed by signal) ")
_LOGGED_IN = re.compile(r"Authenticated to |debug1: (Entering interactive session|.*master session id)")
_ENDED = re.compile(r"debug1: .*channel \d+ rtype exit-(status|signal)")
_REACHED = "debug1: Remote protocol version"
_ADDED = re.compile(r"Warning: Permanently added '(.*)' \((\S+)\) to the list of known hosts")


class Ears:
    """What one ssh has said so far."""

    def __init__(self) -> None:
        self.logged_in = False
        self.reached = False  # the last host's own sshd has answered: what fails from now on is not a jump's fault
        self.ended = False  # the far side's command has; what it left behind may hold the session open for ever
        self.debug: deque[str] = deque(maxlen=_LIMIT)
        self.plain: deque[str] = deque(maxlen=_LIMIT)
        self.added: list[tuple[str, str]] = []  # (name, key type) of host keys that ssh has accepted as new
        self._rest = b""

    def hear(self, data: bytes) -> bytes:
        """Take bytes of stderr; returns those that are no report of ssh's about its own doings."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > 65536:
            lines, self._rest = [*lines, self._rest], b""
        return b"".join(line + b"\n" for line in lines if not self._note(line))

    def end(self) -> bytes:
        """No more will come; returns the last piece that had no newline."""
        rest, self._rest = self._rest, b""
        return b"" if self._note(rest) else rest

    def _note(self, line: bytes) -> bool:
        text = line.decode("utf-8", "replace").rstrip("\r")
        self.logged_in |= bool(_LOGGED_IN.match(text))
        self.ended |= bool(_ENDED.match(text))
        self.reached |= text.startswith(_REACHED)
        if added := _ADDED.match(text):
            self.added.append((added[1], added[2]))
        if _DEBUG.match(text):
            self.debug.append(text)
            return True
        if not text.strip() or _CHATTER.match(text):
            return bool(text)
        self.plain.append(text)
        return bool(added)
