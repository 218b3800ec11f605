"""Owns: whole runs with --max-restarts and --signal-workers, on this machine, on two hosts and by hand.
Must not: test the rules of pauses and crash loops (tests/watch/test_restarts.py has them).
Called by: pytest."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest

from tests.cluster import Cluster, NamespaceCluster
from tests.conftest import MakeCluster
from tests.e2e.command import ROOT, Command, assert_nothing_left, on, run
from tests.e2e.test_by_hand import Nodes

RESUME = str(ROOT / "examples" / "resume.py")
# Rank 1 fails in the attempts whose numbers are below the argument, once both ranks have written; its exit code is the
# attempt's number + 3.
CHEAP = """
import os, pathlib, sys, time
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
wrote = [pathlib.Path(f"wrote{attempt}.{rank}") for rank in (0, 1)]
print(f"attempt {attempt} of {os.environ['TORCHELASTIC_MAX_RESTARTS']}", end="", flush=True)
wrote[int(os.environ["RANK"])].touch()
while not all(path.exists() for path in wrote):
    time.sleep(0.01)
if attempt < int(sys.argv[1]):
    if os.environ["RANK"] == "1":
        sys.exit(attempt + 3)
    time.sleep(600)
"""


def said(out: str) -> list[str]:
    return sorted(line.split("] ", 1)[1] for line in out.splitlines())


def test_attempts_until_one_succeeds(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(CHEAP)
    (tmp_path / "counted.py").write_text("open('imports', 'a').write('once ')\n")
    argv = ("--nproc-per-node", "2", "--no-init", "--preload", "counted", "--max_restarts", "3", "script.py", "2")
    ended = run(tmp_path, *argv)
    assert ended.code == 0, ended
    assert said(ended.out) == [f"attempt {n} of 3" for n in (0, 0, 1, 1, 2, 2)], (
        "an unfinished line ends with its attempt"
    )
    for attempt, folder in enumerate(("", "attempt1", "attempt2")):
        for rank in (0, 1):
            assert (ended.run_dir / folder / f"rank{rank}.out").read_text() == f"attempt {attempt} of 3"
    assert (ended.summary["attempt"], ended.summary["outcome"]) == (2, "succeeded")
    assert [item["first_failure"]["exit_code"] for item in ended.summary["earlier"]] == [3, 4]
    assert "restart 1 of 3\n" in ended.err and "restart 2 of 3 in 1 s\n" in ended.err
    assert (tmp_path / "imports").read_text() == "once ", "no import is paid again"


def test_the_last_attempts_code_when_none_is_left(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(CHEAP)
    ended = run(tmp_path, "--nproc-per-node", "2", "--no-init", "--max-restarts", "1", "script.py", "9")
    assert ended.code == 4, ended
    assert ended.summary["first_failure"]["exit_code"] == 4
    assert f"{ended.run_dir}/attempt1 (rank1.out, rank1.err)" in ended.err
    assert "restarts:  the only one was used" in ended.err and "    attempt 1 of 1" in ended.err


def test_an_interrupt_in_the_pause(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(CHEAP)
    command = Command(tmp_path, "--nproc-per-node", "2", "--no-init", "--max-restarts", "9", "script.py", "9")
    while not list(command.logs.glob("*/attempt3")):  # two seconds before that attempt starts
        assert command.process.poll() is None
        time.sleep(0.01)
    command.signal(signal.SIGINT)
    ended = command.end()
    assert ended.code == 130, ended
    assert ended.summary["outcome"] == "stopped"
    assert len(ended.summary["earlier"]) == ended.summary["attempt"] >= 3


def test_workers_are_told_before_the_time_limit(tmp_path: Path) -> None:
    text = """
import os, signal, sys
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(print("saved", flush=True)))
child = os.fork()  # in the worker's process group: the signal is for the worker alone, and would kill this one
if not child:
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    signal.pause()
signal.pause()
"""
    (tmp_path / "script.py").write_text(text)
    argv = ("--no-init", "--nproc-per-node", "2", "--time-limit", "60", "--signal-workers", "USR1@57", "script.py")
    ended = run(tmp_path, *argv)
    assert ended.code == 0, ended
    assert said(ended.out) == ["saved", "saved"]
    assert "SIGUSR1 to every worker" in ended.err


@pytest.mark.torch
def test_training_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    ended = run(tmp_path, "--nproc-per-node", "2", RESUME, "--checkpoint", "whole.pt")
    assert ended.code == 0, ended
    again = tmp_path / "again"
    again.mkdir()
    options = ("--max-restarts", "1", RESUME, "--checkpoint", "broken.pt", "--fail-at", "25")
    resumed = run(again, "--nproc-per-node", "2", *options)
    assert resumed.code == 0, resumed
    assert [line.split("] ")[1] for line in resumed.out.splitlines()][:4] == [
        "from step 0",
        "saved at step 10",
        "saved at step 20",
        "from step 20",
    ]
    assert resumed.out.splitlines()[-1] == ended.out.splitlines()[-1], "the same loss as without the failure"


@pytest.mark.torch
def test_a_mesh_over_two_hosts_is_built_again(cluster: Cluster, tmp_path: Path) -> None:
    text = """
import os, torch, torch.distributed as dist, meshrun
mesh, rank, attempt = meshrun.mesh(), dist.get_rank(), os.environ["TORCHELASTIC_RESTART_COUNT"]
x = torch.ones(1) * rank
dist.all_reduce(x, group=mesh.get_group("dp"))
print(attempt, rank, int(x), flush=True)
if attempt == "0":
    dist.barrier()
    if rank == 3:
        raise ValueError("a fault")
    dist.barrier()
"""
    (tmp_path / "script.py").write_text(text)
    hosts = "".join(cluster.hostfile(2).splitlines(keepends=True)[:2])
    options = ("--mesh", "dp=2,tp=2", "--max-restarts", "1")
    ended = run(tmp_path, *on(cluster, tmp_path, hostfile=hosts), *options, "script.py")
    assert ended.code == 0, ended
    assert said(ended.out) == [f"{attempt} {rank} {rank % 2 * 2 + 2}" for attempt in (0, 1) for rank in range(4)]
    assert [item["first_failure"]["rank"] for item in ended.summary["earlier"]] == [3]
    assert_nothing_left(cluster)


def test_two_hosts_cheap(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(CHEAP)
    hosts = "".join(cluster.hostfile(1).splitlines(keepends=True)[:2])
    argv = ("--no-init", "--max-restarts", "2", "--master-port", "29345", "script.py", "2")
    ended = run(tmp_path, *on(cluster, tmp_path, hostfile=hosts), *argv)
    assert ended.code == 0, ended
    assert said(ended.out) == [f"attempt {n} of 2" for n in (0, 0, 1, 1, 2, 2)]
    assert_nothing_left(cluster)


def test_by_hand_each_node_stores_its_own_attempts(make_cluster: MakeCluster, tmp_path: Path) -> None:
    own = make_cluster(2, needs="namespaces")
    assert isinstance(own, NamespaceCluster)
    (tmp_path / "script.py").write_text(CHEAP)
    argv = ("--nproc-per-node", "1", "--no-init", "--max-restarts", "1", "script.py", "9")
    for node, ended in enumerate(Nodes(own, tmp_path, *argv, ranks=(0, 1)).end()):
        assert ended.code == 4, ended
        assert ended.summary["attempt"] == 1
        assert [item["first_failure"]["exit_code"] for item in ended.summary["earlier"]] == [3]
        files = {str(path.relative_to(ended.run_dir)) for path in ended.run_dir.rglob("rank*.out")}
        assert files == {f"rank{node}.out", f"attempt1/rank{node}.out"}
        assert said(ended.out) == ["attempt 0 of 1", "attempt 1 of 1"]
        assert "rank 1 failed first" in ended.err and "restart 1 of 1\n" in ended.err
        events = [json.loads(line) for line in (ended.run_dir / "events.jsonl").read_text().splitlines()]
        assert [event["attempt"] for event in events if event["kind"] == "restart"] == [1]
    assert_nothing_left(own)
