"""Owns: the status area at the bottom of a terminal: progress bars of ranks, and the board's line below them.
Must not: write by itself (the console's thread does), or exist when stderr is no terminal.
Called by: report.stream, report.report."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from meshrun.plan.values import Plan
from meshrun.report.board import Progress, begin_progress, fit, progress_after, progress_planned, render_board
from meshrun.spec.values import Job
from meshrun.watch.values import Record
from meshrun.wire import STDERR

BARS = 4
_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")

Runs = list[tuple[int, list[bytes]]]


class Terminal:
    """What is drawn now, and the bytes that erase it or draw it anew. The cursor rests at the end of its last line."""

    def __init__(self, fd: int, progress: Progress, shared: bool) -> None:
        """`shared`: stdout is a terminal too, so what goes there would run into the area."""
        self._fd = fd
        self._shared = shared
        self._progress = progress
        self._drawn: list[str] = []

    def plan(self, plan: Plan) -> None:
        """Take in which ranks there will be."""
        self._progress = progress_planned(self._progress, plan)

    def note(self, record: Record, now: float) -> None:
        """Take in what happened; `now` is the clock of `frame` (seconds, steady)."""
        self._progress = progress_after(self._progress, record, now)

    def frame(self, runs: Runs, bars: Sequence[bytes], now: float) -> Runs:
        """`runs` between what erases the area and what draws it, or alone if the area can stay as it is."""
        wanted = self._lines(bars, now)
        disturbed = any(self._shared or stream == STDERR for stream, _ in runs)
        if not disturbed and wanted == self._drawn:
            return runs
        erase = self.erase()
        self._drawn = wanted
        draw = "\n".join(wanted).encode("utf-8", "replace")
        return [(STDERR, [erase]), *runs, (STDERR, [draw])]

    def erase(self) -> bytes:
        """The bytes that take the area away and leave the cursor where it began."""
        up = len(self._drawn) - 1
        self._drawn = []
        if up < 0:
            return b""
        return b"\r" + (b"\x1b[%dA" % up if up else b"") + b"\x1b[J"

    def _lines(self, bars: Sequence[bytes], now: float) -> list[str]:
        width = self._width() - 1
        texts = [_COLOUR.sub("", bar.decode("utf-8", "replace")) for bar in bars[-BARS:]]
        return [*(fit(text, width) for text in texts), render_board(self._progress, width, now)]

    def _width(self) -> int:
        try:
            return os.get_terminal_size(self._fd).columns or 80
        except OSError:
            return 80


def open_terminal(job: Job, out_fd: int, err_fd: int, environ: Mapping[str, str], now: float) -> Terminal | None:
    """A status area for this run, or None where there must be none: stderr no terminal, `TERM=dumb`, `--quiet`."""
    if job.quiet or environ.get("TERM", "dumb") == "dumb" or not os.isatty(err_fd):
        return None
    return Terminal(err_fd, begin_progress(job, now), os.isatty(out_fd))
