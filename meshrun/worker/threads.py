"""Owns: this worker's number of compute threads, in libraries that were loaded with one.
Must not: import a library that is not loaded yet; that one reads OMP_NUM_THREADS itself.
Called by: start."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from typing import Any

_OPENBLAS_NAMES = (
    "scipy_openblas_set_num_threads64_",
    "scipy_openblas_set_num_threads",
    "openblas_set_num_threads64_",
    "openblas_set_num_threads",
)


def apply(count: int) -> None:
    """Give torch (OpenMP, MKL) and numpy's OpenBLAS `count` threads. The fork server loaded them with one (§12)."""
    if count < 1:
        return
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.get_num_threads() != count:
        torch.set_num_threads(count)
    if count > 1:
        for path in _loaded("openblas"):
            _set_openblas(path, count)


def _loaded(word: str) -> Iterator[str]:
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
            paths = {line.split(maxsplit=5)[5].strip() for line in maps if word in line and "/" in line}
    except OSError:
        paths = set()
    yield from sorted(path for path in paths if word in path.rpartition("/")[2])


def _set_openblas(path: str, count: int) -> None:
    library = ctypes.CDLL(path)
    for name in _OPENBLAS_NAMES:
        function = getattr(library, name, None)
        if function is not None:
            function(ctypes.c_int(count))
            return
