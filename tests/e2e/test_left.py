"""Owns: what the user reads about a process that not even SIGKILL ends.
Must not: leave it frozen.
Called by: pytest."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from meshrun.agent import procs
from tests.cluster_parts import wait_until
from tests.e2e.command import Command

FREEZER = Path("/sys/fs/cgroup/freezer")
SCRIPT = """
import pathlib, subprocess, sys, time
group, child = pathlib.Path(sys.argv[1]), subprocess.Popen(["sleep", "1000"])
(group / "cgroup.procs").write_text(str(child.pid))
(group / "freezer.state").write_text("FROZEN")
while (group / "freezer.state").read_text() != "FROZEN\\n":
    time.sleep(0.01)
print("child", child.pid)
sys.exit(3)
"""


@pytest.fixture
def freezer() -> Iterator[Path]:
    """Frozen by cgroup v1 a process is in state D and deaf to SIGKILL until it is thawed."""
    if os.getuid() != 0 or not (FREEZER / "tasks").exists():
        pytest.skip("needs the freezer of cgroup v1")
    group = FREEZER / f"meshrun-test-{os.getpid()}"
    group.mkdir()
    yield group
    (group / "freezer.state").write_text("THAWED")
    wait_until(lambda: not (group / "tasks").read_text(), "the frozen process is still there")
    group.rmdir()


def test_a_process_that_cannot_be_ended_is_named_with_its_host_and_its_state(tmp_path: Path, freezer: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    words = ("--no-init", "--nproc-per-node", "1", "--grace", "0.2", "train.py", str(freezer))
    ended = Command(tmp_path, *words).end(30.0)
    assert ended.code == 3, ended
    found = re.search(r"child (\d+)", ended.out)
    assert found and procs.read_process(int(found[1])), ended
    named = f"{found[1]} sleep D (uninterruptible sleep)"
    host = os.uname().nodename
    assert f"meshrun: {host}: could not be ended within 1 s: {named}\n" in ended.err
    assert f"look for them on their host:\n  {host}: {named}\n" in ended.err
    assert [left["process"] for left in ended.summary["left"]] == [named]
