"""Owns: the proof that a needless skip fails the run, and that an allowed one does not.
Must not: depend on what this machine can do.
Called by: pytest."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CAN = "import tests.skips\ntests.skips.can_make_namespaces = lambda: {can}\n"


@pytest.mark.parametrize(
    ("reason", "can", "code"),
    [
        ("no mood", True, 1),
        ("no mood", False, 0),
        ("needs an accelerator", True, 0),
        ("needs another Python: 3.13, as python3.13 in PATH", True, 0),
        ("needs the package accelerate", True, 0),
    ],
)
@pytest.mark.parametrize("workers", [[], ["-n", "1"]])
def test_needless_skips_fail(reason: str, can: bool, code: int, workers: list[str], tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CAN.format(can=can))
    (tmp_path / "test_it.py").write_text(f"import pytest\n\ndef test_a():\n    pytest.skip({reason!r})\n")
    words = [sys.executable, "-m", "pytest", "-p", "tests.skips", "-q", *workers, str(tmp_path)]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "MESHRUN_TEST_FRAMEWORKS": ""}
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout
    assert ("although this machine can run it" in done.stdout) is bool(code)


def test_a_package_that_was_to_be_installed_may_not_be_missing(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CAN.format(can=True))
    (tmp_path / "test_it.py").write_text("import pytest\n\ndef test_a():\n    pytest.skip('needs the package x')\n")
    words = [sys.executable, "-m", "pytest", "-p", "tests.skips", "-q", str(tmp_path)]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "MESHRUN_TEST_FRAMEWORKS": "1"}
    assert subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, check=False).returncode == 1
