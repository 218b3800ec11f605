"""Owns: Python stacks on demand: a signal writes those of all threads to a file in the agent's directory.
Must not: use a signal that users or schedulers use (USR1, USR2), or run Python code in a handler.
Called by: start."""

from __future__ import annotations

import faulthandler
import os
import signal
from typing import IO

from meshrun import wire

_open: list[IO[bytes]] = []  # faulthandler keeps only the number: the file must stay open


def register(tmp: str, rank: int) -> None:
    """Dump to `<tmp>/stacks<rank>` on SIGRTMIN+7, also while the main thread waits inside a collective. Appends."""
    file = open(os.path.join(tmp, f"stacks{rank}"), "ab", buffering=0)  # noqa: SIM115
    _open.append(file)
    faulthandler.register(signal.SIGRTMIN + wire.STACKS_SIGNAL_OFFSET, file=file, all_threads=True, chain=False)


def enable_fatal() -> None:
    """A crash in native code (SIGSEGV, SIGABRT, ...) shows the Python stack on stderr."""
    faulthandler.enable(file=2, all_threads=True)
