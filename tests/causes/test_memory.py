"""Owns: SIGKILL by the kernel's OOM killer in a real memory cgroup, told apart from a kill by hand.
Must not: use up the machine's memory; without root and a cgroup of our own, the counters' files are made (test_parts).
Called by: pytest."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.causes.fault import Fault, last_block

LIMIT_MIB = 160
V1, V2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")


@contextlib.contextmanager
def memory_cgroup() -> Iterator[Path]:
    """A cgroup with a limit, ended with its processes; OSError where there can be none."""
    v1 = (V1 / "memory.limit_in_bytes").exists()
    folder = (V1 if v1 else V2) / f"meshrun-test-{os.getpid()}"
    folder.mkdir()
    try:
        (folder / ("memory.limit_in_bytes" if v1 else "memory.max")).write_text(str(LIMIT_MIB << 20))
        yield folder
    finally:
        remove(folder)


def remove(folder: Path) -> None:
    """A process that has just ended keeps its cgroup busy for a moment."""
    deadline = time.monotonic() + 10
    while folder.exists():
        try:
            folder.rmdir()
        except OSError:
            assert time.monotonic() < deadline, (folder / "cgroup.procs").read_text()


def can_make_cgroups() -> bool:
    """True if this machine lets us limit the memory of a process."""
    try:
        with memory_cgroup():
            return True
    except OSError:
        return False


def inside(folder: Path) -> tuple[str, ...]:
    """A command prefix that enters the cgroup."""
    return ("sh", "-c", f'echo $$ > {folder}/cgroup.procs; exec "$@"', "sh")


@pytest.fixture
def cgroup() -> Iterator[Path]:
    if not can_make_cgroups():
        pytest.skip("needs a memory cgroup of our own")
    with memory_cgroup() as folder:
        yield folder


def test_a_cgroup_limit_is_named_with_its_size(cgroup: Path, tmp_path: Path) -> None:
    text = f"import os, signal\nif os.environ['RANK'] == '1': bytearray({LIMIT_MIB * 2} << 20)\nsignal.pause()\n"
    fault = Fault("", text, 137, "signal", signal=9, oom="yes", rank=1, ranks=2, cause="out of memory")
    ended = fault.start(tmp_path, prefix=inside(cgroup))
    fault.check(tmp_path, ended)
    where = f"the limit of {LIMIT_MIB} MiB of the cgroup /{cgroup.name}"
    assert ended.summary["first_failure"]["oom_where"] == where
    assert where in last_block(ended) and "OOM killer: yes" in last_block(ended)


def test_a_kill_by_hand_in_a_limited_cgroup_is_none(cgroup: Path, tmp_path: Path) -> None:
    text = "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n"
    fault = Fault("", text, 137, "signal", signal=9, oom="no", cause="SIGKILL came from outside the run")
    fault.check(tmp_path, fault.start(tmp_path, prefix=inside(cgroup)))
