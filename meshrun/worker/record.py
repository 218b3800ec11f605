"""Owns: an uncaught exception as a `Raised` record and as torch elastic's error file; tracebacks without our frames.
Must not: print, end the process, or raise: it runs while something else is already failing.
Called by: ending."""

from __future__ import annotations

import json
import linecache
import os
import sys
import time
import traceback
from collections.abc import Iterator
from types import TracebackType
from typing import Any

from meshrun import wire
from meshrun.worker.places import is_ours, is_users

MESSAGE_LIMIT = 8 * 1024
TRACEBACK_LIMIT = 64 * 1024
_AROUND = 2


def strip(error: BaseException) -> None:
    """Remove meshrun's frames from the traceback of `error` and of all it is chained to."""
    for one in _chain(error):
        one.__traceback__ = _without_ours(one.__traceback__)


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    left: list[BaseException | None] = [error]
    while left:
        one = left.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        left += [one.__cause__, one.__context__, *getattr(one, "exceptions", ())]


def _without_ours(tb: TracebackType | None) -> TracebackType | None:
    kept = []
    while tb is not None:
        if not is_ours(tb.tb_frame):
            kept.append(tb)
        tb = tb.tb_next
    for one, following in zip(kept, [*kept[1:], None], strict=False):
        if one.tb_next is not following:
            one.tb_next = following
    return kept[0] if kept else None


def make_raised(error: BaseException, rank: int, attempt: int, phase: str, exit_code: int) -> wire.Raised:
    """The record of `error`. Text is bounded, the place is the user's innermost line where there is one."""
    file, line = _place(error)
    return wire.Raised(
        rank=rank,
        attempt=attempt,
        age_s=0.0,
        phase=phase,
        type=type_name(type(error)),
        message=_bounded(_message(error), MESSAGE_LIMIT),
        file=file,
        line=line,
        lines=_source(file, line),
        traceback=_bounded(_format(error), TRACEBACK_LIMIT, keep_end=True),
        exit_code=exit_code,
    )


def type_name(cls: type[BaseException]) -> str:
    """As a traceback shows it: builtins and the script's own classes without their module."""
    if cls.__module__ in ("builtins", "__main__") or not isinstance(cls.__module__, str):
        return cls.__qualname__
    return f"{cls.__module__}.{cls.__qualname__}"


def _message(error: BaseException) -> str:
    try:
        return str(error.msg) if isinstance(error, SyntaxError) else str(error)
    except BaseException as second:  # a __str__ may do anything, also exit
        return f"<the message cannot be shown: {type(second).__name__}>"


def _format(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(type(error), error, error.__traceback__))
    except BaseException as second:
        return f"<the traceback cannot be shown: {type(second).__name__}>"


def _bounded(text: str, limit: int, keep_end: bool = False) -> str:
    if len(text) <= limit:
        return text
    half = limit // 2
    cut = f"... ({len(text) - limit} characters left out) ..."
    return f"{text[:half]}{cut}{text[-half:]}" if keep_end else f"{text[:limit]}{cut}"


def _place(error: BaseException) -> tuple[str, int]:
    """The user's innermost line, else the innermost of all. An exception that a signal handler raised after the script
    had failed (DataLoader's for SIGCHLD) has no line of the user's: the one it came on top of has."""
    own = _own_place(error)
    if is_users(own[0]) or error.__context__ is None:
        return own
    under = _own_place(error.__context__)
    return under if is_users(under[0]) else own


def _own_place(error: BaseException) -> tuple[str, int]:
    frames = [(tb.tb_frame.f_code.co_filename, lineno or 0) for tb, lineno in traceback_lines(error.__traceback__)]
    if isinstance(error, SyntaxError) and error.filename and (not frames or is_users(error.filename)):
        return error.filename, error.lineno or 0
    users = [frame for frame in frames if is_users(frame[0])]
    return (users or frames or [("", 0)])[-1]


def traceback_lines(tb: TracebackType | None) -> Iterator[tuple[TracebackType, int | None]]:
    """Each traceback entry with its line, outermost first."""
    while tb is not None:
        yield tb, tb.tb_lineno
        tb = tb.tb_next


def _source(file: str, line: int) -> tuple[str, ...]:
    numbers = range(max(1, line - _AROUND), line + _AROUND + 1) if line else ()
    texts = ((n, linecache.getline(file, n)) for n in numbers)
    return tuple(f"{'>' if n == line else ' '} {n}| {text.rstrip()[:500]}" for n, text in texts if text)


def write_error_file(raised: wire.Raised) -> None:
    """Leave torch elastic's form at TORCHELASTIC_ERROR_FILE, for tools that read it; `@record` may have been first."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not path or (os.path.exists(path) and os.path.getsize(path)):
        return
    extra = {"py_callstack": raised.traceback, "timestamp": str(int(time.time()))}
    body: Any = {"message": {"message": f"{raised.type}: {raised.message}", "extraInfo": extra}}
    try:
        with open(path, "w", encoding="utf-8", errors="backslashreplace") as file:
            json.dump(body, file)
    except OSError:
        pass


def remember(error: BaseException) -> None:
    """What the interpreter leaves in `sys` for a post-mortem debugger."""
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
    sys.last_exc = error  # type: ignore[attr-defined, unused-ignore]
