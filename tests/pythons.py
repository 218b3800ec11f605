"""Owns: finding other Pythons on this machine, for tests in which launcher and nodes have different ones.
Must not: install one.
Called by: tests/e2e/test_pythons.py."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

OTHERS = tuple(
    version
    for version in ("3.10", "3.11", "3.12", "3.13", "3.14")
    if version != f"{sys.version_info[0]}.{sys.version_info[1]}"
)
_ASK = "import sys; print('%d.%d' % sys.version_info[:2])"


@cache
def need_python(version: str) -> str:
    """The path of a Python of that version, in PATH or in pyenv's folder; skips, naming the version, where none is."""
    for path in _list_candidates(version):
        # What is in PATH may be pyenv's own wrapper, which runs only where that version is chosen.
        asked = subprocess.run([path, "-I", "-S", "-c", _ASK], capture_output=True, text=True, check=False)
        if asked.stdout.strip() == version:
            return path
    pytest.skip(f"needs another Python: {version}, as python{version} in PATH or in pyenv's folder")


def _list_candidates(version: str) -> Iterator[str]:
    found = shutil.which(f"python{version}")
    if found:
        yield found
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    yield from map(str, sorted(root.glob(f"versions/{version}.*/bin/python{version}")))


def folder_of(python: str) -> Path:
    """All that this Python is made of, for hosts with a home of their own."""
    code = "import sys; print(sys.base_prefix)"
    asked = subprocess.run([python, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    return Path(asked.stdout.strip())
