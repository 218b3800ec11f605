"""Owns: the whole command where nothing moves, and the verbs that ask a live run.
Must not: need root.
Called by: pytest."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import time
from pathlib import Path

import pytest

from tests.e2e.command import COMMAND, ENVIRON, Command, run

HANGS = """
import pathlib, time, torch, torch.distributed as dist

def load_batch():
    pathlib.Path("ready").touch()
    time.sleep(600)

x = torch.ones(1)
dist.all_reduce(x)
if dist.get_rank() == 3:
    load_batch()
dist.all_reduce(x)
"""
SLEEPS = "import os, pathlib, time; pathlib.Path('ready' + os.environ['RANK']).touch(); time.sleep(600)\n"


def ask(where: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *words], cwd=where, env=ENVIRON, capture_output=True, text=True, check=False)


@pytest.mark.torch
def test_the_odd_rank_of_a_hang_is_named_by_its_place(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(HANGS)
    ended = run(tmp_path, "--mesh", "dp=2,tp=2", "--hang-timeout", "2", "script.py")
    assert ended.code == 124, ended
    assert "no rank has made progress for 2 s (--hang-timeout)" in ended.err
    (odd,) = [line for line in ended.err.splitlines() if " is in " in line]
    assert odd.startswith("  rank 3 (dp=1,tp=1) on ") and odd.endswith(" is in load_batch (script.py:6)")
    assert "  the other 3 wait in all_reduce (script.py:12 in <module>)" in ended.err.splitlines()
    assert [group["ranks"] for group in ended.summary["stack_groups"]] == [[3], [0, 1, 2]]


BEHIND = """
import pathlib, time, torch, torch.distributed as dist, meshrun

def load_batch():
    pathlib.Path("ready").touch()
    time.sleep(600)

x = torch.ones(1024)
tp = meshrun.mesh().get_group("tp")
dist.all_reduce(x, group=tp)
if dist.get_rank() == 3:
    load_batch()
dist.all_reduce(x, group=tp)
"""
DESYNC = """
import torch, torch.distributed as dist
x = torch.ones(4)
dist.all_reduce(x)
if dist.get_rank() == 3:
    dist.all_gather([torch.zeros(4) for _ in range(4)], x)
else:
    dist.all_reduce(x)
"""


@pytest.mark.torch
def test_the_collective_that_a_rank_did_not_come_to_is_named_by_its_mesh_dim(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(BEHIND)
    ended = run(tmp_path, "--mesh", "dp=2,tp=2", "--hang-timeout", "2", "script.py")
    (line,) = [line for line in ended.err.splitlines() if "issued" in line]
    host = os.uname().nodename
    assert line.startswith(
        f"  tp group 1 (ranks 2-3): rank 3 (dp=1,tp=1) on {host} has issued 1 collective, "
        f"rank 2 (dp=1,tp=0) on {host} has issued 2, the last is all_reduce [1024] ("
    )
    (found,) = ended.summary["collectives"]
    assert (found["group"], found["kind"]) == ("tp group 1", "different numbers of collectives")
    assert [(place["ranks"], place["number"], place["op"]) for place in found["places"]] == [
        ([3], 1, "all_reduce"),
        ([2], 2, "all_reduce"),
    ]
    events = list(map(json.loads, (ended.run_dir / "events.jsonl").read_text().splitlines()))
    assert [event["rank"] for event in events if event["kind"] == "collectives"] == [2, 3]
    assert [event["about"] for event in events if event["kind"] == "disagreement"] == [found]


@pytest.mark.torch
def test_ranks_in_different_collectives_are_told_so(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(DESYNC)
    ended = run(tmp_path, "--mesh", "dp=2,tp=2", "--hang-timeout", "2", "script.py")
    assert ended.code == 124, ended
    assert (
        f"  world group (ranks 0-3): collective 2 is all_gather [4] in rank 3 (dp=1,tp=1) on {os.uname().nodename}, "
        "all_reduce [4] in the other 3: these do not match"
    ) in ended.err.splitlines()


@pytest.mark.torch
def test_a_live_run_says_which_collectives_its_ranks_have_issued(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(BEHIND)
    command = Command(tmp_path, "--mesh", "dp=2,tp=2", "script.py")
    command.wait_for(tmp_path / "ready")
    logs = f"--log-dir={command.logs}"
    deadline = time.monotonic() + 30  # until rank 2 is there too
    while "has issued 2, the last is all_reduce" not in (shown := ask(tmp_path, "stacks", logs).stdout):
        assert time.monotonic() < deadline, shown
    assert "  tp group 1 (ranks 2-3): rank 3 (dp=1,tp=1) on " in shown
    assert command.process.poll() is None
    assert ask(tmp_path, "stop", logs).returncode == 0
    assert command.end(20).code == 143


UNTIL = "import time\nend = time.monotonic() + 4.5\n"
BUSY = UNTIL + "while time.monotonic() < end: pass\n"


@pytest.mark.parametrize(
    "text",
    [
        UNTIL + "while time.monotonic() < end: print(end, flush=True); time.sleep(0.25)",
        BUSY,
        f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {BUSY!r}])",
    ],
    ids=["prints-slowly", "computes", "waits-for-a-busy-child"],
)
def test_what_is_no_hang(tmp_path: Path, text: str) -> None:
    (tmp_path / "script.py").write_text(text)
    ended = run(tmp_path, "--no-init", "--hang-timeout", "3", "script.py")
    assert ended.code == 0, ended


def test_a_live_run_is_listed_looked_into_and_stopped(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SLEEPS)
    command = Command(tmp_path, "--nproc-per-node", "2", "--no-init", "script.py", "a\tb")
    for rank in range(2):
        command.wait_for(tmp_path / f"ready{rank}")
    (directory,) = command.logs.iterdir()
    assert stat.S_IMODE((directory / "control.sock").stat().st_mode) == 0o600
    logs = f"--log-dir={command.logs}"
    listed = ask(tmp_path, "ps", logs)
    assert listed.returncode == 0 and len(listed.stdout.splitlines()) == 2, listed
    assert listed.stdout.splitlines()[1].startswith(directory.name)
    assert "running" in listed.stdout and listed.stdout.endswith("script.py a?b\n")
    for words in ([logs], [logs, directory.name], [str(directory)]):
        shown = ask(tmp_path, "stacks", *words)
        assert (shown.returncode, shown.stderr) == (0, "")
        assert shown.stdout.splitlines()[:2] == [
            f"run {directory.name}",
            f"  ranks 0-1 on {os.uname().nodename} are in <module> (script.py:1)",
        ]
    assert command.process.poll() is None
    told = ask(tmp_path, "stop", logs)
    assert (told.returncode, told.stdout) == (0, f"run {directory.name} was told to stop\n")
    ended = command.end(20)
    assert ended.code == 143, ended
    assert not (directory / "control.sock").exists()
    assert len(ask(tmp_path, "ps", logs).stdout.splitlines()) == 1


def test_a_run_directory_with_a_name_longer_than_an_address(tmp_path: Path) -> None:
    where = tmp_path / ("d" * 120)
    where.mkdir()
    (where / "script.py").write_text(SLEEPS)
    command = Command(where, "--no-init", "script.py")
    command.wait_for(where / "ready0")
    logs = f"--log-dir={command.logs}"
    assert "script.py:1" in ask(where, "stacks", logs).stdout
    assert ask(where, "stop", logs).returncode == 0
    assert command.end(20).code == 143


def test_a_launcher_that_was_killed_is_not_live(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SLEEPS)
    command = Command(tmp_path, "--no-init", "script.py")
    command.wait_for(tmp_path / "ready0")
    command.signal(signal.SIGKILL)
    command.end(20)
    (directory,) = command.logs.iterdir()
    assert (directory / "control.sock").exists()
    assert len(ask(tmp_path, "ps", f"--log-dir={command.logs}").stdout.splitlines()) == 1
    refused = ask(tmp_path, "stacks", str(directory))
    assert refused.returncode == 2 and "has ended, or its launcher is on another host" in refused.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["stacks"], "no live run is in meshrun-runs"),
        (["stop", "nowhere"], "run nowhere is not in meshrun-runs"),
        (["stop", "a", "b"], "`meshrun stop` takes one run, got a b"),
        (["ps", "a"], "`meshrun ps` takes no run, got a"),
        (["ps", "--log-dir", "nowhere"], "there is no directory nowhere"),
        (["ps", "--hosts", "a:1"], "--hosts means nothing to `meshrun ps`"),
        (["--hang-timeout", "0.5", "x.py"], "--hang-timeout"),
    ],
)
def test_refusals(tmp_path: Path, words: list[str], said: str) -> None:
    done = ask(tmp_path, *words)
    assert (done.returncode, done.stdout) == (2, ""), done
    assert said in done.stderr and "Traceback" not in done.stderr
