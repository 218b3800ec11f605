"""Owns: the oldest Python and torch, and the versions that were run, are the same wherever they are written.
Must not: run anything.
Called by: pytest."""

from __future__ import annotations

import re
from pathlib import Path

from meshrun.launch.boot import make_prologue
from meshrun.plan.checks import OLDEST_PYTHON

ROOT = Path(__file__).parent.parent


def read(path: str) -> str:
    return (ROOT / path).read_text()


def test_the_oldest_python_is_one() -> None:
    oldest = ".".join(map(str, OLDEST_PYTHON))
    project = read("pyproject.toml")
    assert f'requires-python = ">={oldest}"' in project and f'python_version = "{oldest}"' in project
    assert f'target-version = "py{oldest.replace(".", "")}"' in project
    assert f"sys.version_info < {OLDEST_PYTHON}" in read("tools/setup")
    assert f"sys.version_info < {OLDEST_PYTHON}".encode() in make_prologue(["python3"], "", b"")
    for page in ("README.md", "docs/reference/versions.md"):
        assert f"Python {oldest} or later" in read(page)


def test_the_oldest_torch_is_one() -> None:
    (oldest,) = re.findall(r'"torch>=([\d.]+)"', read("pyproject.toml"))
    (pinned,) = re.findall(r"^torch==(.+)$", read("constraints.txt"), re.MULTILINE)
    for page in ("README.md", "docs/reference/versions.md"):
        assert f"torch {oldest} or later" in read(page) and pinned in read(page)


def test_the_readme_names_what_the_table_says_was_run() -> None:
    table = re.findall(r"^\| ([\d., and]+) \| ([\d.]+|none)\b", read("docs/reference/versions.md"), re.MULTILINE)
    named = {version for pythons, torch in table for version in re.findall(r"[\d.]*\d", f"{pythons} {torch}")}
    assert len(named) >= 4 and all(version in read("README.md") for version in named)
