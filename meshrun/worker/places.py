"""Owns: telling the user's own code from libraries, and from meshrun.
Must not: import anything heavy.
Called by: record, ending."""

from __future__ import annotations

import os
import sysconfig
from types import FrameType

_LIBRARY = tuple(
    os.path.join(path, "") for path in {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")} if path
)
_PACKAGES = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


def is_users(filename: str) -> bool:
    """True for a source file that is neither the standard library's, nor an installed package's, nor made up."""
    if not filename or filename.startswith("<"):
        return False
    path = os.path.abspath(filename)
    return not path.startswith(_LIBRARY) and not any(part in path for part in _PACKAGES)


def is_ours(frame: FrameType) -> bool:
    """True for a frame of meshrun. By module name: bytecode from a zip keeps the file name it was compiled with."""
    name = frame.f_globals.get("__name__") or ""
    return name == "meshrun" or str(name).startswith("meshrun.")
