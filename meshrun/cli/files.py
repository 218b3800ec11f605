"""Owns: reading the files that the user named, with limits, and writing to stdout and stderr.
Must not: know what is in them.
Called by: cli.request, cli.plan, cli.help."""

from __future__ import annotations

import errno
import os
import select
import stat
import sys
from contextlib import suppress

from meshrun.errors import InputError, MeshrunError, Place, Problem

TEXT_LIMIT = 16 * 1024 * 1024
SCRIPT_LIMIT = 256 * 1024 * 1024


def read_text_file(path: str, what: str, limit: int = TEXT_LIMIT) -> bytes:
    """The bytes of a file that should hold text. Raises InputError that says what is wrong with it."""
    data = read_file(path, what, limit)
    if b"\0" in data and not data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise InputError(Problem(f"the {what} is not a text file", Place(path)))
    return data


def read_file(path: str, what: str, limit: int) -> bytes:
    """The bytes of a regular file of at most `limit` bytes; never waits, as for a pipe. Raises InputError."""
    try:
        fd = os.open(os.path.expanduser(path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            kind = stat.S_IFMT(os.fstat(fd).st_mode)
            data = b"" if kind != stat.S_IFREG else _read_up_to(fd, limit + 1)
        finally:
            os.close(fd)
    except OSError as error:
        raise InputError(_unreadable(path, what, error)) from None
    except ValueError:
        raise InputError(Problem(f"{path!r} cannot be the name of the {what}")) from None
    if kind != stat.S_IFREG:
        raise InputError(_no_file(path, what, kind))
    if len(data) > limit:
        raise InputError(Problem(f"the {what} is larger than {limit // 2**20} MiB", Place(path)))
    return data


def _unreadable(path: str, what: str, error: OSError) -> Problem:
    if path == "-":
        return Problem(f"the {what} is not read from stdin", Place(path), hint="write it to a file and name that")
    if error.errno == errno.ENXIO:  # what opening a socket says
        return _no_file(path, what, stat.S_IFSOCK)
    return Problem(f"cannot read the {what}: {error.strerror}", Place(path))


def _no_file(path: str, what: str, kind: int) -> Problem:
    hint = "" if kind == stat.S_IFDIR else "write it to a file and name that"
    return Problem(f"the {what} is {_KINDS.get(kind, 'a special file')}, not a file", Place(path), hint=hint)


def _read_up_to(fd: int, most: int) -> bytes:
    with open(fd, "rb", closefd=False) as file:
        return file.read(most)


_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def write_stdout(text: str) -> None:
    """All of `text`, bytes as they came. Raises BrokenPipeError when the reader has gone, MeshrunError for the rest."""
    if sys.stdout is None:
        return
    try:
        data = os.fsencode(text)
    except UnicodeEncodeError:  # a locale that cannot spell our own words
        data = text.encode("utf-8", "surrogateescape")
    try:
        _write_all(sys.stdout.fileno(), memoryview(data))
    except BrokenPipeError:
        raise
    except OSError as error:
        raise MeshrunError(f"cannot write to stdout: {error.strerror}") from None


def write_stderr(text: str) -> None:
    """A line for whoever reads stderr, if anybody does."""
    if sys.stderr is not None:
        with suppress(OSError):
            print(text, file=sys.stderr, flush=True)


def _write_all(fd: int, data: memoryview) -> None:
    """Not through Python's buffer, which may report success after the reader has left in the middle of a write."""
    while data:
        try:
            data = data[os.write(fd, data) :]
        except BlockingIOError:  # someone made the terminal we share non-blocking
            select.select([], [fd], [])
