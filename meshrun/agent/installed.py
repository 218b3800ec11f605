"""Owns: which torch this interpreter would import, and the script: read from files, nothing imported or run.
Must not: import torch or run user code (compiling runs none).
Called by: agent.probe."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping

from meshrun.dataclass import dataclass
from meshrun.wire.digest import hash_content

_DIST = re.compile(r"torch-([^-]+?)(?:-[^/]*)?\.(?:dist|egg)-info", re.IGNORECASE)
_VERSION = re.compile(r"^__version__\s*(?::[^=]+)?=\s*['\"]([^'\"]+)['\"]", re.MULTILINE)
_BUILD = re.compile(r"^(cuda|hip|xpu)\s*(?::[^=\n]+)?=\s*(None|['\"][^'\"\n]*['\"])", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Torch:
    """The torch that would be imported, as far as its files tell."""

    version: str = ""  # "" if there is none
    builds: tuple[str, ...] | None = None  # of "cuda", "hip", "xpu": what it is built with; None: it does not say


def find_torch(env: Mapping[str, str]) -> Torch:
    """The torch that `python` would import under `env`."""
    return next(filter(None, map(_read_torch, list_import_folders(env))), Torch())


def find_package(name: str, env: Mapping[str, str]) -> bool:
    """True if `python` would find this package (`a.b`) under `env`, as far as folders tell."""
    path = name.replace(".", "/")
    return any(os.path.exists(f"{folder}/{path}{end}") for folder in list_import_folders(env) for end in ("", ".py"))


def _read_torch(folder: str) -> Torch | None:
    try:
        with open(f"{folder}/torch/version.py", encoding="utf-8") as file:
            text = file.read(4096)
        match = _VERSION.search(text)
        return Torch(match[1], _read_builds(match[1], text)) if match else None
    except (OSError, ValueError):
        pass
    try:
        names = [match[1] for name in os.listdir(folder) if (match := _DIST.fullmatch(name))]
    except OSError:
        return None
    return Torch(names[0], _read_builds(names[0], "")) if names and os.path.isdir(f"{folder}/torch") else None


def _read_builds(version: str, text: str) -> tuple[str, ...] | None:
    """torch/version.py has a line for each kind, `None` where it was left out; else the suffix may tell."""
    said = dict(_BUILD.findall(text))
    if "cuda" in said:
        return tuple(name for name, value in said.items() if value != "None")
    return () if version.endswith("+cpu") else None


def list_import_folders(env: Mapping[str, str]) -> Iterator[str]:
    """Where the interpreter will look for packages. The agent runs with -I -S, so `site` has to be asked by hand."""
    yield from filter(None, env.get("PYTHONPATH", "").split(os.pathsep))
    for folder in _site_folders(env):
        yield folder
        yield from _read_pth(folder)


def _site_folders(env: Mapping[str, str]) -> list[str]:
    import site

    venv, system = _find_venv()
    user = []
    if system and not env.get("PYTHONNOUSERSITE"):
        home = env.get("PYTHONUSERBASE") or os.path.join(env.get("HOME") or os.path.expanduser("~"), ".local")
        user = [f"{home}/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"]
    folders = site.getsitepackages([venv]) if venv else []
    return folders + user + (site.getsitepackages([sys.prefix, sys.exec_prefix]) if system else [])


def _find_venv() -> tuple[str, bool]:
    """The virtual environment of our executable ("" if none), and whether the system's packages count too."""
    beside = os.path.dirname(os.path.abspath(sys.executable))
    for folder in (os.path.dirname(beside), beside):
        try:
            with open(f"{folder}/pyvenv.cfg", encoding="utf-8") as file:
                text = file.read()
        except (OSError, ValueError):
            continue
        shared = re.search(r"^\s*include-system-site-packages\s*=\s*true\s*$", text, re.MULTILINE | re.IGNORECASE)
        return folder, bool(shared)
    return "", True


def _read_pth(folder: str) -> Iterator[str]:
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(".pth"))
    except OSError:
        return
    for name in names:
        try:
            with open(f"{folder}/{name}", encoding="utf-8", errors="replace") as file:
                lines = [line.strip() for line in file]
        except OSError:
            continue
        yield from (
            os.path.join(folder, line) for line in lines if line and not line.startswith(("#", "import ", "import\t"))
        )


@dataclass(frozen=True, slots=True)
class Script:
    """What is known about the user's script: its hash, or what is wrong with it (`line` of a SyntaxError)."""

    hash: str = ""
    error: str = ""
    file: str = ""
    line: int = 0


def read_script(path: str, check: bool) -> Script:
    """Hash the script and, with `check`, compile it under this interpreter."""
    try:
        with open(path.encode("utf-8", "surrogateescape"), "rb") as file:
            source = file.read()
    except FileNotFoundError:
        return Script(error="missing")
    except OSError as error:
        return Script(error=f"unreadable: {error.strerror}")
    found = Script(hash_content(source))
    return _compile(found, source, path) if check else found


def _compile(found: Script, source: bytes, path: str) -> Script:
    try:
        compile(source, path.encode("utf-8", "surrogateescape"), "exec", dont_inherit=True)
    except SyntaxError as error:
        return Script(found.hash, f"{type(error).__name__}: {error.msg}", path, error.lineno or 0)
    except (ValueError, RecursionError, MemoryError) as error:
        return Script(found.hash, f"{type(error).__name__}: {error}", path, 0)
    return found


def find_program(name: str, folder: str, env: Mapping[str, str]) -> bool:
    """True if a program is there to be run, as `execvp` would look for it."""
    folders = [folder] if "/" in name else env.get("PATH", os.defpath).split(os.pathsep)
    paths = (os.path.join(folder, part or ".", name) for part in folders)
    return any(os.path.isfile(path) and os.access(path, os.X_OK) for path in paths)
