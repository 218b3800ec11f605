"""Owns: the run directory: bytes, modes, few descriptors, full disks.
Must not: need root but where a test says so.
Called by: pytest."""

from __future__ import annotations

import json
import os
import resource
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshrun.errors import InputError
from meshrun.report.store import OPEN_FILES, RunDirectory
from meshrun.wire import STDERR, STDOUT


def make_directory(path: Path, warnings: list[str] | None = None) -> RunDirectory:
    directory = RunDirectory(str(path), [].append if warnings is None else warnings.append)
    directory.make()
    return directory


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_modes_do_not_depend_on_the_umask(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        directory = make_directory(tmp_path / "runs" / "one")
        directory.touch([0])
        directory.write_json("plan.json", {"plan_version": 1})
    finally:
        os.umask(old)
    assert mode(tmp_path / "runs" / "one") == 0o700
    assert {mode(path) for path in (tmp_path / "runs" / "one").iterdir()} == {0o600}


WRITES = st.lists(st.tuples(st.integers(0, 99), st.sampled_from([STDOUT, STDERR]), st.binary(max_size=50)))


@given(writes=WRITES)
def test_bytes_are_kept_however_they_come(
    tmp_path_factory: pytest.TempPathFactory, writes: list[tuple[int, int, bytes]]
) -> None:
    root = tmp_path_factory.mktemp("store") / "run"
    directory = make_directory(root)
    wanted: dict[str, bytes] = {}
    for rank, stream, data in writes:
        directory.write(rank, stream, data)
        name = f"rank{rank}.{'out' if stream == STDOUT else 'err'}"
        wanted[name] = wanted.get(name, b"") + data
    directory.close()
    assert {path.name: path.read_bytes() for path in root.iterdir()} == wanted


def test_few_descriptors_for_many_ranks(tmp_path: Path) -> None:
    directory = make_directory(tmp_path / "run")
    before = len(os.listdir("/proc/self/fd"))
    directory.touch(range(500))
    assert len(os.listdir("/proc/self/fd")) - before <= OPEN_FILES
    assert len(list((tmp_path / "run").iterdir())) == 1000
    directory.close()
    assert len(os.listdir("/proc/self/fd")) == before


HUNGRY = """
import os, resource, sys
from meshrun.report.store import RunDirectory
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
taken = [os.open("/dev/null", os.O_RDONLY) for _ in range(220)]  # as many sockets as a large run has
directory = RunDirectory(sys.argv[1], lambda text: sys.exit(text))
directory.make()
for turn in range(2):
    for rank in range(300):
        directory.write(rank, 1, b"line of %d\\n" % rank)
"""


def test_a_limit_of_256_descriptors_mostly_taken(tmp_path: Path) -> None:
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[1] >= 256
    subprocess.run([sys.executable, "-c", HUNGRY, str(tmp_path / "run")], check=True)
    assert all((tmp_path / "run" / f"rank{r}.out").read_text() == f"line of {r}\n" * 2 for r in range(300))


def test_events_are_one_json_object_a_line(tmp_path: Path) -> None:
    directory = make_directory(tmp_path / "run")
    directory.write_event(1.25, "opened", {"node": 0, "host": "b\udcfc\n"})
    directory.write_event(2.0, "exited", {"rank": 3, "kind": "signal"})
    lines = (tmp_path / "run" / "events.jsonl").read_text().splitlines()
    assert json.loads(lines[0]) == {"t": 1.25, "kind": "opened", "node": 0, "host": "b\udcfc\n"}
    assert json.loads(lines[1]) == {"t": 2.0, "kind": "exited", "rank": 3}


def test_a_second_run_in_the_same_directory_is_refused(tmp_path: Path) -> None:
    make_directory(tmp_path / "run").write_event(1.0, "began", {})
    with pytest.raises(InputError, match="a run is in it already"):
        make_directory(tmp_path / "run")


def test_a_place_that_cannot_be_is_refused_with_a_hint(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"(?s)cannot make the run directory .*file/run.*--log-dir"):
        make_directory(tmp_path / "file" / "run")


def test_tails(tmp_path: Path) -> None:
    directory = make_directory(tmp_path / "run")
    directory.write(0, STDERR, b"".join(b"line %d\n" % n for n in range(30)) + b" last \xff\r\n\n")
    directory.write(1, STDERR, b"x" * (3 << 20) + b"\nend")
    assert directory.tail(0, STDERR, 3) == ("line 28", "line 29", " last \udcff\r")
    assert directory.tail(1, STDERR) == ("end",)
    assert directory.tail(1, STDOUT) == () and directory.tail(2, STDOUT) == ()


def test_one_warning_for_a_full_disk_and_the_rest_goes_on(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "rank0.out").symlink_to("/dev/full")
    warnings: list[str] = []
    directory = make_directory(tmp_path / "run", warnings)
    for _ in range(3):
        directory.write(0, STDOUT, b"lost\n")
        directory.write(1, STDOUT, b"kept\n")
    assert len(warnings) == 1
    assert str(tmp_path / "run") in warnings[0] and "No space left" in warnings[0]
    assert (tmp_path / "run" / "rank1.out").read_bytes() == b"kept\n" * 3


@pytest.mark.root
def test_a_disk_that_fills_up(tmp_path: Path) -> None:
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "meshrun-test", tmp_path], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"cannot mount a tmpfs here: {mounted.stderr.decode().strip()}")
    try:
        warnings: list[str] = []
        directory = make_directory(tmp_path / "run", warnings)
        for rank in range(50):
            directory.write(rank, STDOUT, b"x" * 4000)
        directory.write_json("summary.json", {"big": "x" * 100_000})
        directory.close()
        assert len(warnings) == 1 and "No space left" in warnings[0]
        assert (tmp_path / "run" / "rank0.out").read_bytes() == b"x" * 4000
        assert not list((tmp_path / "run").glob("summary.json*"))
    finally:
        subprocess.run(["umount", tmp_path], check=True)
