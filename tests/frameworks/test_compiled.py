"""Owns: what needs a C++ compiler at run time: torch.compile and AOTInductor, under torchrun and meshrun.
Must not: measure.
Called by: pytest."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.frameworks.launchers import SCRIPTS, alike

compiler = shutil.which("g++") or shutil.which("clang++")
pytestmark = [pytest.mark.torch, pytest.mark.skipif(not compiler, reason="needs a C++ compiler")]
QUICK = {"TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0"}  # for one small kernel they cost more than they save


def test_compile_after_a_fork_with_its_pool(tmp_path: Path) -> None:
    outs = alike(tmp_path, 2, "dp=2", SCRIPTS / "compiled.py", env=QUICK | {"TORCHINDUCTOR_COMPILE_THREADS": "2"})
    assert outs[0].startswith("True 3 True\n")


def test_export_on_one_rank_and_load_on_all(tmp_path: Path) -> None:
    outs = alike(tmp_path, 2, "dp=2", SCRIPTS / "packaged.py", str(tmp_path), env=QUICK)
    assert outs[0] == outs[1] and outs[0].endswith(" True\n")
