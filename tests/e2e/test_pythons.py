"""Owns: launchers and nodes whose Pythons have different versions: starting, failing, stacks. Without torch.
Must not: need a Python that this machine does not have; a version that is missing is skipped by name.
Called by: pytest."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.conftest import MakeCluster
from tests.e2e.command import Ended, assert_nothing_left, on, run
from tests.pythons import OTHERS, folder_of, need_python

OWN = f"{sys.version_info[0]}.{sys.version_info[1]}"
SAYS = "import sys, meshrun; print(meshrun.coords()['dp'], '%d.%d' % sys.version_info[:2])\n"
FAILS = """
def load(n):
    return {"a": 1}[n]

load("b")
"""
STANDS = """
import os, threading, time
def helper(): time.sleep(600)
def load(): time.sleep(600)
def wait(): time.sleep(600)
threading.Thread(target=helper, daemon=True).start()
load() if os.environ["RANK"] == "1" else wait()
"""


def lines(out: str) -> list[str]:
    return sorted(line.split("] ", 1)[1] for line in out.splitlines())


def check_exception(ended: Ended) -> None:
    assert ended.code == 1, ended
    raised = ended.summary["first_failure"]["exception"]
    assert (raised["type"], raised["message"], raised["line"]) == ("KeyError", "'b'", 3)


@pytest.mark.parametrize("version", OTHERS)
def test_workers_of_another_python(tmp_path: Path, version: str) -> None:
    """The bundle has the launcher's bytecode, which is of no use there: its sources are read."""
    (tmp_path / "script.py").write_text(SAYS)
    options = ["--python", need_python(version), "--nproc-per-node", "2", "--no-init"]
    ended = run(tmp_path, *options, "script.py")
    assert ended.code == 0, ended
    assert lines(ended.out) == [f"0 {version}", f"1 {version}"] and not ended.err


@pytest.mark.parametrize("version", OTHERS)
def test_an_exception_of_another_python(tmp_path: Path, version: str) -> None:
    (tmp_path / "script.py").write_text(FAILS)
    options = ["--python", need_python(version), "--no-init", "--start-method", "spawn", "-x", "FORCE_COLOR=1"]
    ended = run(tmp_path, *options, "script.py")
    check_exception(ended)


@pytest.mark.parametrize("version", OTHERS)
def test_a_program_that_is_another_python(tmp_path: Path, version: str) -> None:
    """Its traceback is read from its stderr: from 3.13 on in colours, if somebody forces them."""
    (tmp_path / "script.py").write_text(FAILS)
    ended = run(tmp_path, "-x", "FORCE_COLOR=1", "--no-python", need_python(version), "script.py")
    check_exception(ended)


@pytest.mark.parametrize("version", OTHERS)
def test_stacks_of_another_python(tmp_path: Path, version: str) -> None:
    (tmp_path / "script.py").write_text(STANDS)
    options = ["--python", need_python(version), "--nproc-per-node", "3", "--no-init", "--hang-timeout", "1"]
    ended = run(tmp_path, *options, "script.py")
    assert ended.code == 124, ended
    groups = {tuple(group["ranks"]): group["where"] for group in ended.summary["stack_groups"]}
    assert groups == {(1,): "load (script.py:4)", (0, 2): "wait (script.py:5)"}


@pytest.mark.parametrize("version", OTHERS)
def test_nodes_with_different_pythons(make_cluster: MakeCluster, tmp_path: Path, version: str) -> None:
    other = need_python(version)
    cluster = make_cluster(2, shared=[folder_of(other)])
    (tmp_path / "script.py").write_text(SAYS)
    hosts = f"n0 slots=1\nn1 slots=1 python={other}\n"
    ended = run(tmp_path, *on(cluster, tmp_path, hostfile=hosts), "--no-init", "script.py")
    assert ended.code == 0, ended
    assert lines(ended.out) == [f"0 {OWN}", f"1 {version}"]
    assert_nothing_left(cluster)
