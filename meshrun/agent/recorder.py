"""Owns: asking one worker for the collectives that it has issued, and reading its answer.
Must not: wait, or ask where nobody listens.
Called by: agent.stacks."""

from __future__ import annotations

import contextlib
import json
import os
from typing import Any

from meshrun.wire import CALLS_ASKED, CALLS_TOLD

_MAX_BYTES = 256 * 1024


class Question:
    """Put to a worker's thread by opening the pipe that it waits to open. `waiting`: an answer may come."""

    def __init__(self, tmp: str, rank: int) -> None:
        self._told = f"{tmp}/{CALLS_TOLD}{rank}"
        self.waiting = False
        self.answer: dict[str, Any] = {}
        with contextlib.suppress(OSError):  # an answer that came too late for the question before
            os.unlink(self._told)
        with contextlib.suppress(OSError):  # ENXIO: nobody listens (there is no group yet); ENOENT: nobody ever did
            os.close(os.open(f"{tmp}/{CALLS_ASKED}{rank}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC))
            self.waiting = True

    def look(self) -> None:
        """Take the answer if it is there; it appears whole."""
        try:
            with open(self._told, "rb") as file:
                read = json.loads(file.read(_MAX_BYTES))
        except OSError:
            return
        except ValueError:
            read = {}
        self.waiting = False
        self.answer = read if isinstance(read, dict) else {}
