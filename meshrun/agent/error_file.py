"""Owns: the file at TORCHELASTIC_ERROR_FILE, as torch elastic's `@record` writes it, read as a `Raised`.
Must not: trust it: a script can write anything there.
Called by: agent.loop, for a worker that failed without telling its exception (a program that is no script of ours)."""

from __future__ import annotations

import json
from typing import Any

from meshrun.agent.variables import error_path
from meshrun.wire import Exited, Raised

_MAX_BYTES = 1024 * 1024
_MESSAGE_LIMIT = 8 * 1024
_TRACEBACK_LIMIT = 64 * 1024


def read(tmp: str, exited: Exited) -> Raised | None:
    """The exception that a failed worker left there; None if there is nothing readable."""
    try:
        with open(error_path(tmp, exited.rank, exited.attempt), "rb") as file:
            message = json.loads(file.read(_MAX_BYTES))["message"]
        text, trace = _split(message)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    name, _, words = text.partition(": ")
    return Raised(
        rank=exited.rank,
        attempt=exited.attempt,
        age_s=0.0,
        phase="script",
        type=name[:200],
        message=words[:_MESSAGE_LIMIT],
        file="",
        line=0,
        lines=(),
        traceback=trace[-_TRACEBACK_LIMIT:],
        exit_code=exited.exit_code,
    )


def _split(message: Any) -> tuple[str, str]:
    """Its words and its traceback; some writers leave a bare string."""
    if isinstance(message, str):
        return message, ""
    return str(message["message"]), str(message["extraInfo"]["py_callstack"])
