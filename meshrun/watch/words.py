"""Owns: reading the end of a failed process's stderr: a crash's Python stack, a traceback, a C++ exception.
Must not: do I/O; or judge what is said there (recognise, blame).
Called by: watch.blame."""

from __future__ import annotations

import re
from itertools import takewhile

from meshrun.dataclass import dataclass
from meshrun.watch.values import RaisedException

LIFTED_LINES = 60
_MESSAGE_LINES = 20
# Python 3.13 and later colour a traceback where FORCE_COLOR or PYTHON_COLORS ask for it, also into a pipe.
_COLOUR = re.compile(r"\x1b\[[\d;]*m")
_RANK = re.compile(r"^\[rank\d+\]: ", re.MULTILINE)  # torch's excepthook sets it before every line
_FATAL = re.compile(r"^Fatal Python error: ", re.MULTILINE)
_TERMINATE = re.compile(r"^terminate called ", re.MULTILINE)
_HEAD = re.compile(r"^(?:  \+ Exception Group )?Traceback \(most recent call last\):$", re.MULTILINE)
# Before a traceback, these say that it did not end the process.
_ASIDE = re.compile(r"^(?:Exception in thread |Process |Exception ignored )")
_RAISED = re.compile(r"(?P<type>[A-Za-z_][\w.]*)(?:: (?P<message>.*))?$")
_FRAME = re.compile(r'^\s*(?:\| )*  File "(?P<file>[^"\n]+)", line (?P<line>\d+)', re.MULTILINE)
_SYNTAX = re.compile(r'\n?  File "[^"\n]+", line \d+\n(?:    .*\n)*(?:Syntax|Indentation|Tab)Error: .*\s*\Z')
_OURS = "/meshrun/worker/"  # our frames stand below the script's
_LIBRARY = re.compile(r"^<|/(?:site|dist)-packages/|/lib/python3[\d.]*/")


@dataclass(frozen=True, slots=True)
class Words:
    """What stands at the end of a stderr: `lifted` lines, and the uncaught exception if they are one's traceback."""

    lifted: str = ""
    exception: RaisedException | None = None


def read_words(text: str) -> Words:
    """The lines of `text` (the end of a stderr) that say why the process ended; empty if none do."""
    text = _RANK.sub("", _COLOUR.sub("", text))
    crash = _read_crash(text)
    if crash:
        return Words(_bound(crash))
    return _read_traceback(text)


def _bound(lines: list[str]) -> str:
    kept = lines[:LIFTED_LINES]
    more = len(lines) - len(kept)
    return "\n".join([*kept, f"... and {more} more lines"] if more else kept)


# ---- crashes ---------------------------------------------------------------------------------------------------------


def _last(pattern: re.Pattern[str], text: str) -> int:
    return max((found.start() for found in pattern.finditer(text)), default=-1)


def _read_crash(text: str) -> list[str]:
    fatal, terminate = _last(_FATAL, text), _last(_TERMINATE, text)
    end = fatal if fatal > terminate else len(text)
    lines = _read_terminate(text[terminate:end]) if terminate >= 0 else []
    return lines + _read_stack(text[fatal:]) if fatal >= 0 else lines


def _read_terminate(text: str) -> list[str]:
    """`terminate called after throwing ...` and its what(); not the C++ frames."""
    lines = text.rstrip().split("\n")
    return [line for line in lines if not line.startswith(("frame #", "Exception raised from"))][:8]


def _read_stack(text: str) -> list[str]:
    """faulthandler's headline and the stack of the thread that crashed (the others, and module lists, are left out)."""
    headline, _, rest = text.partition("\n")
    at = rest.find("Current thread ")
    stack = rest[at:].partition("\n\n")[0].split("\n") if at >= 0 else []
    users = takewhile(lambda line: _OURS not in line, stack)
    return [headline, *(line for line in users if line.startswith(("Current thread", "  ")))]


# ---- tracebacks ------------------------------------------------------------------------------------------------------


def _read_traceback(text: str) -> Words:
    at = _last(_HEAD, text)
    if at < 0:
        syntax = _SYNTAX.search(text)
        return _make_words(syntax[0].strip("\n").split("\n"), "") if syntax else Words()
    before = text[:at].rstrip("\n").rpartition("\n")[2]
    return _make_words(text[at:].rstrip().split("\n"), before)


def _make_words(lines: list[str], before: str) -> Words:
    aside = bool(_ASIDE.match(before))
    message = next((n for n, line in enumerate(lines[1:], 1) if line[:1] not in ("", " ")), len(lines))
    raised = _RAISED.match(lines[message]) if message < len(lines) else None
    lifted = _bound([*([before] if aside else []), *lines[: message + _MESSAGE_LINES]])
    if aside or raised is None or len(lines) - message > _MESSAGE_LINES:
        return Words(lifted)
    rest = [raised["message"] or "", *lines[message + 1 :]]
    file, line = find_place("\n".join(lines[:message]))
    # Python 3.10 names the script's module, later ones do not.
    exception = RaisedException(
        raised["type"].removeprefix("__main__."), "\n".join(rest), file, line, (), "\n".join(lines)
    )
    return Words(lifted, exception)


def find_place(traceback: str) -> tuple[str, int]:
    """The innermost line of the user's own code in a traceback, else the innermost at all; ("", 0) without one."""
    frames = [(found["file"], int(found["line"])) for found in _FRAME.finditer(traceback)]
    users = [frame for frame in frames if not _LIBRARY.search(frame[0])]
    return (users or frames or [("", 0)])[-1]
