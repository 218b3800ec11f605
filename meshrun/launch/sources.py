"""Owns: reading the installed package's node-side modules, as source and as bytecode, once per process.
Must not: import the modules it reads; it only asks Python's own loader for their code.
Called by: launch.openers, launch.manual, cli."""

from __future__ import annotations

import importlib.util
import marshal
from collections.abc import Iterator
from functools import lru_cache
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType

from meshrun.launch.bundle import make_bundle

_ROOT = Path(__file__).resolve().parent.parent
_FILES = ("__init__.py", "errors.py")
_PACKAGES = ("wire", "spec", "agent", "worker")
# They need yaml or click, or speak of the command line: no node needs them.
_STAY = frozenset(
    f"spec/{name}.py" for name in ("mesh_file", "nodes", "job_file", "argv", "settings", "options", "job")
)
# PEP 552: hash-based and unchecked. zipimport then compares neither times nor sources; another magic number makes it
# fall back to the .py beside it (zipimport._get_module_code, the same from 3.8 on).
_UNCHECKED = (1).to_bytes(4, "little")


@lru_cache(maxsize=1)
def read_sources() -> dict[str, bytes]:
    """Archive name → content: every module that travels, as `.py` and as this Python's `.pyc`. Do not change it."""
    files: dict[str, bytes] = {}
    for path in _find_modules():
        name = "meshrun/" + path.relative_to(_ROOT).as_posix()
        files[name] = path.read_bytes()
        files[name + "c"] = _compile(path, name, files[name])
    return files


@lru_cache(maxsize=1)
def bundle() -> bytes:
    """The archive itself, made once per process."""
    return make_bundle(read_sources())


def _find_modules() -> Iterator[Path]:
    yield from (path for name in _FILES if (path := _ROOT / name).is_file())
    for package in _PACKAGES:
        paths = (_ROOT / package).rglob("*.py")
        yield from (path for path in sorted(paths) if path.relative_to(_ROOT).as_posix() not in _STAY)


def _compile(path: Path, name: str, source: bytes) -> bytes:
    module = name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    # The loader reads __pycache__ if that is fresh and writes it if it can, so only the first run ever compiles.
    code = SourceFileLoader(module, str(path)).get_code(module)
    assert isinstance(code, CodeType)
    body = marshal.dumps(_rename(code, f"bundle.zip/{name}"))
    return importlib.util.MAGIC_NUMBER + _UNCHECKED + importlib.util.source_hash(source) + body


def _rename(code: CodeType, filename: str) -> CodeType:
    """No path of the launcher's machine goes to a node; tracebacks there name the file inside the bundle."""
    inner = tuple(_rename(item, filename) if isinstance(item, CodeType) else item for item in code.co_consts)
    return code.replace(co_filename=filename, co_consts=inner)
