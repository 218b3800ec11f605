"""Owns: tests of what travels to a node.
Must not: start an agent.
Called by: pytest."""

from __future__ import annotations

import ast
import io
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import meshrun.wire
from meshrun.launch.bundle import make_bundle
from meshrun.launch.sources import read_sources

_IMPORT = "import sys; sys.path.insert(0, sys.argv[1]); import meshrun.wire as w; print(w.__file__, w.MAX_FRAME)"


def _import_from(tmp_path: Path, files: dict[str, bytes]) -> subprocess.CompletedProcess[str]:
    path = tmp_path / "bundle.zip"
    path.write_bytes(make_bundle(files))
    return subprocess.run([sys.executable, "-I", "-S", "-c", _IMPORT, str(path)], capture_output=True, text=True)


def _wire() -> dict[str, bytes]:
    found = {n: d for n, d in read_sources().items() if n.startswith("meshrun/wire/") or n.count("/") == 1}
    return {**found, "meshrun/__init__.py": b""}


def test_same_files_same_bytes_in_any_order() -> None:
    files = {"b.py": b"2", "a.py": b"1" * 5000}
    first = make_bundle(files)
    assert first == make_bundle(dict(reversed(files.items())))
    with zipfile.ZipFile(io.BytesIO(first)) as archive:
        assert {name: archive.read(name) for name in archive.namelist()} == files
        assert archive.namelist() == ["a.py", "b.py"]
        assert len(first) < 1000, "not compressed"


def test_it_holds_what_nodes_need_and_nothing_else() -> None:
    names = read_sources().keys()
    wanted = ("errors", "wire/codec", "agent/__main__", "worker/__main__", "spec/values")
    assert {f"meshrun/{name}.{end}" for name in wanted for end in ("py", "pyc")} <= names
    tops = {name.split("/")[1] for name in names}
    files = {f"{name}.{end}" for name in ("__init__", "dataclass", "quickclass", "errors") for end in ("py", "pyc")}
    assert tops == {*files, "wire", "spec", "agent", "worker"}
    assert not [n for n in names if "__pycache__" in n or not n.endswith((".py", ".pyc"))]


def test_every_module_that_it_imports_is_in_it() -> None:
    sources = {name: data for name, data in read_sources().items() if name.endswith(".py")}
    have = {name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in sources}
    needed = set()
    for data in sources.values():
        for node in ast.walk(ast.parse(data)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("meshrun"):
                needed.add(node.module)
            elif isinstance(node, ast.Import):
                needed |= {alias.name for alias in node.names if alias.name.startswith("meshrun")}
    assert needed and needed <= have


def test_it_is_kept_until_a_source_changes(tmp_path: Path) -> None:
    """A copy of the package, bundled by fresh processes."""
    fresh = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(meshrun.wire.__file__).parents[1], tmp_path / "meshrun", ignore=fresh)
    code = (
        "import hashlib, meshrun.launch.sources as s; b = s.bundle(); b2 = s.bundle(); assert b is b2\n"
        "print(s.read_sources.cache_info().misses, hashlib.sha256(b).hexdigest(), s._find_kept())"
    )

    def make() -> list[str]:
        argv = [sys.executable, "-c", code]
        env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        return subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, check=True).stdout.split()

    made, first, kept = make()
    assert (made, Path(kept).parent) == ("1", tmp_path / "meshrun" / "__pycache__")
    assert make() == ["0", first, kept]
    Path(kept).write_bytes(Path(kept).read_bytes()[:-1])
    assert make()[0] == "1", "a broken one was used"
    with open(tmp_path / "meshrun" / "errors.py", "a") as file:
        file.write("# changed\n")
    again = make()
    assert again[0] == "1" and again[1] != first


def test_bytecode_is_used_when_the_magic_fits(tmp_path: Path) -> None:
    only = {name: data for name, data in _wire().items() if name.endswith(".pyc")}
    done = _import_from(tmp_path, {"meshrun/__init__.py": b"", **only})
    assert done.stdout.split()[0].endswith("wire/__init__.pyc"), done.stderr


def test_another_python_falls_back_to_source(tmp_path: Path) -> None:
    files = {name: b"\x00\x00\r\n" + data[4:] if name.endswith(".pyc") else data for name, data in _wire().items()}
    done = _import_from(tmp_path, files)
    assert done.stdout.split()[0].endswith("wire/__init__.py"), done.stderr


def test_no_path_of_this_machine_travels() -> None:
    root = str(Path(__file__).resolve().parents[2]).encode()
    assert not [name for name, data in read_sources().items() if name.endswith(".pyc") and root in data]
