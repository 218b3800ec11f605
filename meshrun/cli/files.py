"""Owns: reading the files that the user named, with limits, and writing what the user asked for to stdout.
Must not: know what is in them.
Called by: cli.request, cli.plan, cli.help."""

from __future__ import annotations

import os
import stat
import sys

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
        with open(fd, "rb") as file:
            kind = os.fstat(fd)
            if not stat.S_ISREG(kind.st_mode):
                name = _KINDS.get(stat.S_IFMT(kind.st_mode), "a special file")
                raise InputError(Problem(f"the {what} is {name}, not a file", Place(path)))
            data = file.read(limit + 1)
    except OSError as error:
        raise InputError(Problem(f"cannot read the {what}: {error.strerror}", Place(path))) from None
    except ValueError:
        raise InputError(Problem(f"{path!r} cannot be the name of the {what}")) from None
    if len(data) > limit:
        raise InputError(Problem(f"the {what} is larger than {limit // 2**20} MiB", Place(path)))
    return data


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
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise MeshrunError(f"cannot write to stdout: {error.strerror}") from None
