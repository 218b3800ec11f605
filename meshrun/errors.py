"""Owns: everything that can go wrong in meshrun itself, with its message, hint and exit code.
Must not: do any I/O or import anything of meshrun.
Called by: every other part; `cli/main.py` alone turns these into words and an exit code."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from meshrun.dataclass import dataclass

EXIT_OK = 0
EXIT_USAGE = 2
EXIT_TIME_LIMIT = 124
EXIT_CLUSTER = 125
EXIT_PIPE = 141
SHOWN = 160  # characters of a line that a message quotes


@dataclass(frozen=True, slots=True)
class Place:
    """Where a piece of input stands: `source` is a file name or `--mesh`; line and column count from 1 (0: unknown)."""

    source: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        parts = [self.source, *(str(n) for n in (self.line, self.column) if n)]
        return ":".join(parts)


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with the input: what, where, the offending line, and what to do next."""

    message: str
    place: Place | None = None
    line_text: str = ""
    hint: str = ""

    def __str__(self) -> str:
        head = f"{self.place}: {self.message}" if self.place else self.message
        rest = _quote(self.line_text.rstrip(), self.place.column if self.place else 0)
        if self.hint:
            rest.append(f"    hint: {self.hint}")
        return _printable("\n".join([head, *rest]))


def _quote(line: str, column: int) -> list[str]:
    """The line with a caret below the column; of a long line what is around it."""
    if not line.strip():
        return []
    start = max(0, column - SHOWN // 2) if column > SHOWN - 20 else 0
    before, after = "..." * (start > 0), "..." * (len(line) > start + SHOWN)
    caret = [" " * (4 + len(before) + column - 1 - start) + "^"] if column else []
    return [f"    {before}{line[start : start + SHOWN]}{after}", *caret]


def _printable(text: str) -> str:
    """What a message quotes comes from files and command lines: no control character of theirs reaches a terminal."""
    return "".join(char if char.isprintable() or char == "\n" else "?" for char in text)


class MeshrunError(Exception):
    """A failure of meshrun or its input, never of the user's script. `exit_code` is what the command returns."""

    exit_code = EXIT_CLUSTER


class InputError(MeshrunError):
    """Bad usage, hostfile, mesh, job or plan: all problems at once, exit code 2."""

    exit_code = EXIT_USAGE

    def __init__(self, problems: Problem | str | Iterable[Problem]) -> None:
        if isinstance(problems, str):
            problems = Problem(problems)
        self.problems: tuple[Problem, ...] = (problems,) if isinstance(problems, Problem) else tuple(problems)
        super().__init__("\n".join(str(p) for p in self.problems))


class ClusterError(MeshrunError):
    """meshrun or the cluster failed (unreachable, refused, lost, rendezvous): exit code 125."""


class WireError(MeshrunError):
    """A frame that is too large, cut off, or not one of ours."""


class CauseKind(Enum):
    """Why a host cannot take part. The value is the stable name in events.jsonl."""

    NAME_UNKNOWN = "name_unknown"
    REFUSED = "refused"
    TIMED_OUT = "timed_out"
    NO_ROUTE = "no_route"
    DROPPED = "dropped"
    HOST_KEY_UNKNOWN = "host_key_unknown"
    HOST_KEY_CHANGED = "host_key_changed"
    HOST_KEY_REVOKED = "host_key_revoked"
    AUTH = "auth"
    JUMP = "jump"
    PRELUDE = "prelude"
    NO_PYTHON = "no_python"
    PYTHON_TOO_OLD = "python_too_old"
    NO_TORCH = "no_torch"
    TORCH_VERSION = "torch_version"
    NO_WORKDIR = "no_workdir"
    SCRIPT = "script"
    SLOTS = "slots"
    DEVICE = "device"
    AGENT = "agent"
    ADDRESS = "address"
    STORE = "store"
    LOST = "lost"
    MISMATCH = "mismatch"
    MISSING = "missing"
    CONFIG = "config"


HEALING = frozenset(
    {CauseKind.NAME_UNKNOWN, CauseKind.REFUSED, CauseKind.TIMED_OUT, CauseKind.NO_ROUTE, CauseKind.DROPPED}
)


@dataclass(frozen=True, slots=True)
class Cause:
    """One host's reason in plain words, and what to do about it."""

    kind: CauseKind
    message: str
    hint: str = ""

    @property
    def heals(self) -> bool:
        """True if the same attempt may succeed later without anybody doing anything (DESIGN §7)."""
        return self.kind in HEALING
