"""Owns: reading the installed package's node-side modules, as source and as bytecode, once per process.
Must not: import the modules it reads; it only asks Python's own loader for their code.
Called by: launch.openers, launch.manual, cli."""

from __future__ import annotations

import importlib.util
import marshal
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from importlib.machinery import SourceFileLoader
from types import CodeType

from meshrun.launch.bundle import make_bundle

_ROOT = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
# Of spec only what a worker imports (a mesh and its file, for `meshrun.init`): the rest reads command lines.
_SPEC = (
    "__init__",
    "backends",
    "grid",
    "group_options",
    "mesh",
    "mesh_file",
    "near",
    "nodes",
    "presets",
    "solve",
    "values",
)
_TOP = ("__init__.py", "dataclass.py", "quickclass.py", "errors.py")
_FILES = (*_TOP, *(f"spec/{name}.py" for name in _SPEC))
_PACKAGES = ("agent", "wire", "worker")
# PEP 552: hash-based and unchecked. zipimport then compares neither times nor sources; another magic number makes it
# fall back to the .py beside it (zipimport._get_module_code, the same from 3.8 on).
_UNCHECKED = (1).to_bytes(4, "little")
_HASH = 8  # bytes of `source_hash`: Python's own for bytecode; against a torn or outdated file, not an enemy


@lru_cache(maxsize=1)
def read_sources() -> dict[str, bytes]:
    """Archive name → content: every module that travels, as `.py` and as this Python's `.pyc`. Do not change it."""
    files: dict[str, bytes] = {}
    for place in _find_modules():
        path, name = f"{_ROOT}/{place}", f"meshrun/{place}"
        files[name] = _read(path)
        files[name + "c"] = _compile(path, name, files[name])
    return files


@lru_cache(maxsize=1)
def bundle() -> bytes:
    """The archive itself: made once per process, and kept beside Python's own bytecode until a source changes."""
    kept, key = _find_kept(), _make_key()
    with suppress(OSError):
        head, data = (read := _read(kept))[: 2 * _HASH], read[2 * _HASH :]
        if head == key + importlib.util.source_hash(data):
            return data
    made = make_bundle(read_sources())
    if not sys.dont_write_bytecode:
        with suppress(OSError):
            _keep(kept, key + importlib.util.source_hash(made) + made)
    return made


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _find_kept() -> str:
    return importlib.util.cache_from_source(f"{_ROOT}/bundle.py").removesuffix("pyc") + "bundle"


def _make_key() -> bytes:
    """Changes with any source, as Python's own test does (time and size), with the Python and with this file."""
    parts = [importlib.util.MAGIC_NUMBER.hex(), *map(_stamp, (*_find_modules(), "launch/sources.py"))]
    return importlib.util.source_hash("\n".join(parts).encode("utf-8", "surrogateescape"))


def _stamp(place: str) -> str:
    status = os.stat(f"{_ROOT}/{place}")
    return f"{place} {status.st_mtime_ns} {status.st_size}"


def _keep(path: str, data: bytes) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    fresh = f"{path}.{os.getpid()}"
    with open(fresh, "wb") as file:
        file.write(data)
    os.replace(fresh, path)  # whole or not at all: another launcher may be reading


def _find_modules() -> Iterator[str]:
    """As paths below the package."""
    yield from _FILES
    for package in _PACKAGES:
        yield from (f"{package}/{name}" for name in sorted(os.listdir(f"{_ROOT}/{package}")) if name.endswith(".py"))


def _compile(path: str, name: str, source: bytes) -> bytes:
    module = name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    # The loader reads __pycache__ if that is fresh and writes it if it can, so only the first run ever compiles.
    code = SourceFileLoader(module, path).get_code(module)
    assert isinstance(code, CodeType)
    body = marshal.dumps(_rename(code, f"bundle.zip/{name}"))
    return importlib.util.MAGIC_NUMBER + _UNCHECKED + importlib.util.source_hash(source) + body


def _rename(code: CodeType, filename: str) -> CodeType:
    """No path of the launcher's machine goes to a node; tracebacks there name the file inside the bundle."""
    inner = tuple(_rename(item, filename) if isinstance(item, CodeType) else item for item in code.co_consts)
    return code.replace(co_filename=filename, co_consts=inner)
