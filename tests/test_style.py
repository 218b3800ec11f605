"""Owns: the rules of style that a machine can check: sizes, headers, purity, import directions, types, format.
Must not: check behaviour.
Called by: pytest."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from statistics import median

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "meshrun").rglob("*.py"))
IMPURE = frozenset(["os", "sys", "time", "socket", "subprocess", "threading", "signal", "logging", "random", "uuid"])
PURE_PACKAGES = ("meshrun.wire", "meshrun.spec", "meshrun.plan")
PURE_MODULES = (
    "meshrun.quickclass",
    "meshrun.errors",
    "meshrun.launch.bundle",
    "meshrun.launch.channel",
    "meshrun.launch.crossing",
    "meshrun.launch.known_hosts",
    "meshrun.launch.openssh_args",
    "meshrun.launch.openssh_causes",
    "meshrun.launch.openssh_ears",
    "meshrun.launch.ssh_canonical",
    "meshrun.launch.ssh_cert",
    "meshrun.launch.ssh_config",
    "meshrun.launch.ssh_jump",
    "meshrun.launch.ssh_keywords",
    "meshrun.launch.ssh_match",
    "meshrun.launch.ssh_target",
    "meshrun.launch.ssh_words",
    "meshrun.watch.values",
    "meshrun.watch.state",
    "meshrun.watch.blame",
    "meshrun.watch.relay",
    "meshrun.report.summary",
    "meshrun.report.causes",
    "meshrun.report.board",
    "meshrun.report.picture",
    "meshrun.report.page",
    "meshrun.agent.supervisor",
    "meshrun.agent.binding",
    "meshrun.agent.variables",
)


def module_of(path: Path) -> str:
    """`meshrun/spec/job.py` → `meshrun.spec.job`."""
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    return name.removesuffix(".__init__")


@cache
def tree_of(path: Path) -> ast.Module:
    """The parsed file."""
    return ast.parse(path.read_text())


def imports_of(tree: ast.Module) -> Iterator[str]:
    """Every module that a file imports, wherever in it; for `from a import b` both `a` and `a.b`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def ours_in(path: Path) -> Iterator[Path]:
    """The files of this project that a file imports."""
    for name in imports_of(tree_of(path)):
        if name.startswith("meshrun."):
            file = (ROOT / name.replace(".", "/")).with_suffix(".py")
            yield from (place for place in (file, file.with_suffix("") / "__init__.py") if place.exists())


def pure_files() -> list[Path]:
    """The modules without side effects (ARCHITECTURE.md), and all that they import, which must be so too."""
    names = tuple(f"{name}." for name in PURE_PACKAGES)
    todo = [path for path in SOURCES if module_of(path) in PURE_MODULES or module_of(path).startswith(names)]
    found: dict[Path, None] = {}
    while todo:
        path = todo.pop()
        if path not in found:
            found[path] = None
            todo += ours_in(path)
    return sorted(found)


def functions() -> list[tuple[int, str]]:
    """Lines of every function's body without its docstring, and its place."""
    found = []
    for path in SOURCES:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                body = node.body[1:] if ast.get_docstring(node) and len(node.body) > 1 else node.body
                lines = (body[-1].end_lineno or 0) - body[0].lineno + 1
                found.append((lines, f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"))
    return sorted(found)


def test_functions_are_small() -> None:
    sizes = functions()
    assert median(lines for lines, _ in sizes) <= 8
    assert sizes[int(len(sizes) * 0.9)][0] <= 25
    assert [place for lines, place in sizes if lines > 50] == []


def test_files_are_small() -> None:
    sizes = {str(path.relative_to(ROOT)): path.read_text().count("\n") for path in SOURCES}
    assert {name: lines for name, lines in sizes.items() if lines > 350} == {}


def test_every_file_says_what_it_owns() -> None:
    missing = []
    for path in SOURCES:
        lines = (ast.get_docstring(tree_of(path)) or "").splitlines()
        starts = [line.split(":")[0] for line in lines if line.startswith(("Owns:", "Must not:", "Called by:"))]
        if path.stat().st_size and starts != ["Owns", "Must not", "Called by"]:
            missing.append(str(path.relative_to(ROOT)))
    assert missing == []


@pytest.mark.parametrize("path", pure_files(), ids=module_of)
def test_pure_modules_stay_pure(path: Path) -> None:
    assert {name.split(".")[0] for name in imports_of(tree_of(path))} & IMPURE == set()
    calls = (node.func for node in ast.walk(tree_of(path)) if isinstance(node, ast.Call))
    assert {"open", "print", "input", "exec", "eval"} & {
        call.id for call in calls if isinstance(call, ast.Name)
    } == set()


def tool(*words: str) -> None:
    """Run a tool of this environment in the project's root; its output is the message when it complains."""
    done = subprocess.run([sys.executable, "-m", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_imports_run_one_way() -> None:
    code = "import sys; from importlinter.cli import lint_imports_command as go; sys.exit(go(['--no-cache']))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_ruff() -> None:
    tool("ruff", "check", ".")


def test_format() -> None:
    tool("ruff", "format", "--check", ".")


def test_types() -> None:
    tool("mypy")


HEAVY = ("torch", "numpy", "paramiko", "rich", "yaml")


@pytest.mark.parametrize("words", [["--help"], ["plan", "--hosts", "a:4,b:4", "--mesh", "dp=2,tp=4"]])
def test_light_commands_import_nothing_heavy(words: list[str]) -> None:
    code = (
        "import sys; from meshrun.cli.main import main; code = main(sys.argv[1:]); "
        f"sys.exit(code or ' '.join(name for name in {HEAVY!r} if name in sys.modules) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code, *words], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
