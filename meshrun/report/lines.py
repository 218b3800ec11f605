"""Owns: worker bytes in any pieces → whole prefixed lines, never mixed; what a terminal must not see.
Must not: do I/O or read a clock.
Called by: report.stream."""

from __future__ import annotations

import re

from meshrun.plan.values import WorkerPlan

# An unfinished line waits here for its newline. Beyond these bounds it is shown in pieces, each a prefixed line.
LINE_LIMIT = 16 * 1024 * 1024
TOTAL_LIMIT = 64 * 1024 * 1024
SMALL = 64 * 1024

# Group 1 (colours, SGR) stays; every other control sequence and control character but tab goes. C1 controls in UTF-8
# are C2 80..C2 9F; a lone 80..9F is left alone, as it is part of other characters.
_CONTROLS = re.compile(
    rb"(\x1b\[[0-9;:]*m)"
    rb"|\x1b\[[0-?]*[ -/]*[@-~]?"
    rb"|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?"
    rb"|\x1b[ -/]*[0-~]?"
    rb"|[\x00-\x08\x0a-\x1f\x7f]"
    rb"|\xc2[\x80-\x9f]"
)
_NO_BYTE = re.compile("[\ud800-\udc7f\udd00-\udfff]")
_RESET = b"\x1b[0m"


def to_bytes(text: str) -> bytes:
    """Text as it was said: bytes that were no UTF-8 come back; a surrogate that stands for no byte is shown escaped."""
    return _NO_BYTE.sub(lambda found: f"\\u{ord(found[0]):04x}", text).encode("utf-8", "surrogateescape")


def make_prefix(worker: WorkerPlan) -> bytes:
    """`[host:rank dp=0,tp=1] ` for one worker."""
    coords = ",".join(f"{name}={value}" for name, value in worker.coords)
    text = f"[{worker.host}:{worker.rank}{' ' if coords else ''}{coords}] "
    return text.encode("utf-8", "surrogateescape")


def last_segment(line: bytes) -> bytes:
    """What a terminal would show of a line with carriage returns in it: the last segment that is not empty."""
    segments = [segment for segment in line.split(b"\r") if segment]
    return segments[-1] if segments else b""


def clean_line(line: bytes) -> bytes:
    """One line (no newline in it) as it may reach a terminal: colours only, closed at its end."""
    if b"\r" in line:
        line = last_segment(line)
    line = _CONTROLS.sub(rb"\1", line)
    return line + _RESET if b"\x1b" in line and not line.endswith(_RESET) else line


def clean_text(text: bytes) -> bytes:
    """Like `clean_line`, for every line of `text`."""
    return b"\n".join(map(clean_line, text.split(b"\n")))


class Prefixer:
    """Assembles the lines of one stream (stdout or stderr) of every rank. Bytes pass unchanged unless `terminal`."""

    def __init__(self, terminal: bool = False, line_limit: int = LINE_LIMIT, total_limit: int = TOTAL_LIMIT) -> None:
        self.terminal = terminal
        self._line_limit = line_limit
        self._total_limit = total_limit
        self._prefixes: dict[int, bytes] = {}
        self._rest: dict[int, bytearray] = {}  # unfinished lines; the one written to last stands last
        self._held = 0

    def name(self, rank: int, prefix: bytes) -> None:
        """Set what stands before each line of `rank` (`[rank] ` until then)."""
        self._prefixes[rank] = prefix

    def feed(self, rank: int, data: bytes) -> bytes:
        """The whole prefixed lines that `data` completes; the rest waits."""
        cut = data.rfind(b"\n") + 1
        if not cut:
            return self._hold(rank, data) if data else b""
        whole = data[:cut] if cut < len(data) else data
        if rank in self._rest:
            whole = self._take(rank) + whole
        shown = self._prefixed(rank, whole)
        return shown + self._hold(rank, data[cut:]) if cut < len(data) else shown

    def finish(self) -> bytes:
        """The last pieces, those without a newline, each as a line."""
        return b"".join(self._prefixed(rank, self._take(rank) + b"\n") for rank in sorted(self._rest))

    def bars(self) -> list[bytes]:
        """On a terminal: progress bars (unfinished lines with a carriage return), the newest at the end."""
        return [self._prefix(rank) + clean_line(bytes(rest)) for rank, rest in self._rest.items() if rest[:1] == b"\r"]

    def _prefix(self, rank: int) -> bytes:
        return self._prefixes.get(rank) or b"[%d] " % rank

    def _prefixed(self, rank: int, whole: bytes) -> bytes:
        prefix = self._prefix(rank)
        if self.terminal:
            return b"".join(b"%b%b\n" % (prefix, clean_line(line)) for line in whole[:-1].split(b"\n"))
        return prefix + whole.replace(b"\n", b"\n" + prefix, whole.count(b"\n") - 1)

    def _take(self, rank: int) -> bytes:
        rest = self._rest.pop(rank)
        self._held -= len(rest)
        return bytes(rest)

    def _hold(self, rank: int, data: bytes) -> bytes:
        """Keep an unfinished piece; if that is too much, give it as a line of its own."""
        rest = self._rest.pop(rank, None) or bytearray()
        self._held -= len(rest)
        rest += data
        if self.terminal and b"\r" in data:
            end = b"\r" if rest.endswith(b"\r") else b""
            rest = bytearray(b"\r" + last_segment(bytes(rest)) + end)
        self._rest[rank] = rest
        self._held += len(rest)
        crowded = self._held > self._total_limit and len(rest) > SMALL
        if crowded or len(rest) > self._line_limit:
            return self._prefixed(rank, self._take(rank) + b"\n")
        return b""
