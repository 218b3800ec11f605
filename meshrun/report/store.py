"""Owns: the run directory: its layout, its mode, and going on when the disk is full.
Must not: keep many files open (thousands of ranks, 256 descriptors), or let an OSError end the run.
Called by: report.report (one thread at a time)."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from meshrun.errors import InputError, Problem
from meshrun.wire import STDERR, STDOUT

OPEN_FILES = 64
TAIL_BYTES = 1024 * 1024
_SUFFIX = {STDOUT: "out", STDERR: "err"}
_FULL = (errno.ENOSPC, errno.EDQUOT)


def files_of(path: str, attempt: int) -> str:
    """Where in the run directory `path` the files of ranks are: attempt 0's at the top, others' in their folder."""
    return os.path.join(path, f"attempt{attempt}") if attempt else path


def _write_all(fd: int, *pieces: bytes) -> None:
    written = os.writev(fd, pieces)
    if written == sum(map(len, pieces)):
        return
    view = memoryview(b"".join(pieces))[written:]
    while view:
        view = view[os.write(fd, view) :]


class RunDirectory:
    """Files of one run. The first OSError is told once through `warn`; from then on what can be written still is."""

    def __init__(self, path: str, warn: Callable[[str], None]) -> None:
        self.path = path
        self._warn = warn
        self._warned = False
        self._files: OrderedDict[str, int] = OrderedDict()
        self._attempt = 0

    def make(self) -> None:
        """Make the directory, mode 0700. Raises InputError if that is impossible, or if a run is already in it."""
        try:
            os.makedirs(self.path, mode=0o700, exist_ok=True)
            if os.path.exists(os.path.join(self.path, "events.jsonl")):
                raise FileExistsError(errno.EEXIST, "a run is in it already")
            os.chmod(self.path, 0o700)
        except OSError as error:
            if error.errno not in _FULL:
                message = f"cannot make the run directory {self.path}: {error.strerror}"
                raise InputError(Problem(message, hint="choose another place with --log-dir DIR")) from None
            self._tell(error)

    def turn_to(self, attempt: int) -> None:
        """From here on the files of ranks are those of `attempt`, in a folder of their own."""
        self.close()
        self._attempt = attempt
        try:
            os.makedirs(files_of(self.path, attempt), mode=0o700, exist_ok=True)
        except OSError as error:
            self._tell(error)

    def write(self, rank: int, stream: int, *pieces: bytes) -> None:
        """Append what `rank` wrote (at most a thousand pieces at once) to its file, byte for byte."""
        self._append(self._name(rank, stream), *pieces)

    def touch(self, ranks: Iterable[int]) -> None:
        """Make the files of every rank, so that each exists also when its rank writes nothing."""
        for rank in ranks:
            for stream in _SUFFIX:
                self._append(self._name(rank, stream), b"")

    def write_event(self, t: float, kind: str, fields: Mapping[str, Any]) -> None:
        """Append one line to events.jsonl; `t` is wall-clock seconds."""
        entry: dict[str, Any] = {"t": round(t, 6), "kind": kind}
        for name, value in fields.items():
            entry.setdefault(name, value)
        self._append("events.jsonl", (json.dumps(entry, default=str) + "\n").encode("ascii"))

    def write_json(self, name: str, value: Mapping[str, Any]) -> None:
        """Write plan.json or summary.json: whole, or not at all."""
        target = os.path.join(self.path, name)
        fresh = f"{target}.new"
        try:
            fd = self._open(fresh, os.O_TRUNC)
            try:
                _write_all(fd, (json.dumps(value, indent=1, default=str) + "\n").encode("ascii"))
            finally:
                os.close(fd)
            os.replace(fresh, target)
        except OSError as error:
            self._tell(error)
            with contextlib.suppress(OSError):
                os.unlink(fresh)

    def tail(self, rank: int, stream: int, lines: int = 10) -> tuple[str, ...]:
        """The last lines (at most `lines`, within the last MiB) of a rank's file; undecodable bytes as surrogates."""
        try:
            with open(os.path.join(self.path, self._name(rank, stream)), "rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - TAIL_BYTES))
                pieces = file.read(TAIL_BYTES).split(b"\n")
        except OSError:
            return ()
        if size > TAIL_BYTES and len(pieces) > 1:
            del pieces[0]
        while pieces and not pieces[-1].strip():
            del pieces[-1]
        return tuple(piece.decode("utf-8", "surrogateescape") for piece in pieces[-lines:])

    def close(self) -> None:
        """Close every file."""
        while self._files:
            with contextlib.suppress(OSError):
                os.close(self._files.popitem()[1])

    def _name(self, rank: int, stream: int) -> str:
        return os.path.join(files_of("", self._attempt), f"rank{rank}.{_SUFFIX[stream]}")

    def _append(self, name: str, *pieces: bytes) -> None:
        try:
            _write_all(self._file(name), *pieces)
        except OSError as error:
            self._tell(error)

    def _file(self, name: str) -> int:
        """The descriptor of a file, opened if need be; the one that was used longest ago makes room."""
        if name in self._files:
            self._files.move_to_end(name)
            return self._files[name]
        if len(self._files) >= OPEN_FILES:
            os.close(self._files.popitem(last=False)[1])
        self._files[name] = self._open(os.path.join(self.path, name), os.O_APPEND)
        return self._files[name]

    def _open(self, path: str, flags: int) -> int:
        try:
            return os.open(path, os.O_WRONLY | os.O_CREAT | flags, 0o600)
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            self.close()
            return os.open(path, os.O_WRONLY | os.O_CREAT | flags, 0o600)

    def _tell(self, error: OSError) -> None:
        if not self._warned:
            self._warned = True
            self._warn(
                f"cannot write to the run directory {self.path}: {error.strerror or error}. "
                "The run goes on, but its files are incomplete from here on"
            )
