"""Owns: the main job: the example training script on four real hosts, on this machine and by hand, with real torch.
Must not: start more than a few torch jobs; cheap workers belong in test_ssh.py.
Called by: pytest."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.conftest import MakeCluster
from tests.e2e.command import ENVIRON, ROOT, assert_nothing_left, on, run

TRAIN = str(ROOT / "examples" / "train.py")
STEPS = ["--steps", "4", "--batch", "8", "--context", "32", "--width", "32", "--layers", "1"]

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The losses of one rank under plain python."""
    file = tmp_path_factory.mktemp("alone") / "losses.json"
    subprocess.run([sys.executable, TRAIN, *STEPS, "--json", str(file)], env=ENVIRON, check=True, timeout=120)
    losses: list[float] = json.loads(file.read_text())["losses"]
    assert len(losses) == 4 and losses[-1] < losses[0]
    return losses


def losses_of(file: Path) -> list[float]:
    losses: list[float] = json.loads(file.read_text())["losses"]
    return losses


@pytest.mark.parametrize("client", ["paramiko", "openssh"])
def test_four_hosts_train_like_one_rank(cluster: Cluster, tmp_path: Path, alone: list[float], client: str) -> None:
    """meshrun --hostfile hosts --mesh dp=2,tp=4 examples/train.py"""
    file = tmp_path / "losses.json"
    where = [*on(cluster, tmp_path, 2), "--ssh-client", client]
    ended = run(tmp_path, *where, "--mesh", "dp=2,tp=4", TRAIN, *STEPS, "--json", str(file))
    assert ended.code == 0, ended
    assert losses_of(file) == pytest.approx(alone, rel=1e-4)
    assert "tokens/s" in ended.out and "loss" in ended.out
    assert_nothing_left(cluster)


def test_this_machine_trains_like_one_rank(tmp_path: Path, alone: list[float]) -> None:
    file = tmp_path / "losses.json"
    ended = run(tmp_path, "--mesh", "dp=2,tp=2", TRAIN, *STEPS, "--json", str(file))
    assert ended.code == 0, ended
    assert losses_of(file) == pytest.approx(alone, rel=1e-4)


def test_a_mesh_over_uneven_hosts(cluster: Cluster, tmp_path: Path) -> None:
    """3 + 1 slots as dp=2,tp=2: the groups cross nodes as the plan says, and every collective has the right members."""
    text = """
import os, torch, torch.distributed as dist, meshrun
mesh, coords, rank = meshrun.mesh(), meshrun.coords(), int(os.environ["RANK"])
for dim in ("dp", "tp"):
    seen = torch.zeros(4)
    seen[rank] = 1
    dist.all_reduce(seen, group=mesh.get_group(dim))
    print(dim, coords, seen.int().tolist(), flush=True)
"""
    (tmp_path / "script.py").write_text(text)
    hosts = "n0 slots=3\nn1 slots=1\n"
    ended = run(tmp_path, *on(cluster, tmp_path, hostfile=hosts), "--mesh", "dp=2,tp=2", "script.py")
    assert ended.code == 0, ended
    lines = sorted(line.split("] ", 1)[1] for line in ended.out.splitlines())
    assert lines == [
        "dp {'dp': 0, 'tp': 0} [1, 0, 1, 0]",
        "dp {'dp': 0, 'tp': 1} [0, 1, 0, 1]",
        "dp {'dp': 1, 'tp': 0} [1, 0, 1, 0]",
        "dp {'dp': 1, 'tp': 1} [0, 1, 0, 1]",
        "tp {'dp': 0, 'tp': 0} [1, 1, 0, 0]",
        "tp {'dp': 0, 'tp': 1} [1, 1, 0, 0]",
        "tp {'dp': 1, 'tp': 0} [0, 0, 1, 1]",
        "tp {'dp': 1, 'tp': 1} [0, 0, 1, 1]",
    ]
    plan = json.loads((ended.run_dir / "plan.json").read_text())
    assert plan["mesh"]["crosses_nodes"] == {"dp": True, "tp": True}


def test_the_address_is_measured_not_guessed(make_cluster: MakeCluster, tmp_path: Path) -> None:
    """Node 0's own name is its loopback (Debian's 127.0.1.1), and its first address is one that nobody reaches."""
    own = make_cluster(2, needs="namespaces")
    own.write(0, "/etc/hosts", "127.0.0.1 localhost\n127.0.1.1 n0\n")
    for argv in (
        "ip link add decoy type veth peer name end",
        "ip link set end up",
        "ip addr add 10.1.2.3/24 dev decoy",
        "ip link set decoy up",
    ):
        own.run(0, argv.split(), check=True)
    text = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
x = torch.ones(1)
dist.all_reduce(x)
print(int(x), os.environ["MASTER_ADDR"], os.environ["GLOO_SOCKET_IFNAME"])
"""
    (tmp_path / "script.py").write_text(text)
    ended = run(tmp_path, *on(own, tmp_path, hostfile="n0 slots=1\nn1 slots=1\n"), "script.py")
    assert ended.code == 0, ended
    assert {line.split("] ", 1)[1] for line in ended.out.splitlines()} == {f"2 {own.hosts[0].address} eth0"}


def test_nodes_that_cannot_reach_each_other_are_named_within_seconds(make_cluster: MakeCluster, tmp_path: Path) -> None:
    """Node 1 has no way to node 0: who cannot reach whom, and why, instead of a hang of minutes."""
    own = make_cluster(2, needs="namespaces")
    own.run(1, ["ip", "route", "add", "unreachable", f"{own.hosts[0].address}/32"], check=True)
    (tmp_path / "script.py").write_text("print('never here')")
    ended = run(tmp_path, *on(own, tmp_path, hostfile="n0 slots=1\nn1 slots=1\n"), "--no-init", "script.py")
    assert ended.code == 125, ended
    assert own.hosts[0].address in ended.err and "n1" in ended.err and "n0" in ended.err, ended
    assert ended.out == ""


def test_a_failure_in_a_collective_names_the_cause_not_the_follower(cluster: Cluster, tmp_path: Path) -> None:
    """Rank 3 dies; the others fail in the barrier a moment later. The report names rank 3 (torchrun names rank 0)."""
    text = """
import os, torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
if os.environ["RANK"] == "3":
    raise RuntimeError("bad batch on rank 3")
dist.barrier()
"""
    (tmp_path / "script.py").write_text(text)
    ended = run(tmp_path, *on(cluster, tmp_path, hostfile="n0 slots=2\nn1 slots=2\n"), "script.py")
    assert ended.code == 1, ended
    first = ended.summary["first_failure"]
    assert (first["rank"], first["exception"]["message"]) == (3, "bad batch on rank 3"), ended
    assert set(ended.summary["followed"]) <= {0, 1, 2}
    assert_nothing_left(cluster)


def test_ranks_that_never_reach_the_mesh_are_named_with_their_stacks(cluster: Cluster, tmp_path: Path) -> None:
    """The start deadline: rank 1 hangs before it joins, rank 0 waits for it; both stacks are shown."""
    (tmp_path / "stuck.py").write_text(
        "import os, time, torch.distributed\n"
        "def wait_for_driver(*args, **options):\n    time.sleep(600)\n"
        "if os.environ.get('STUCK'):\n    torch.distributed.TCPStore = wait_for_driver\n"
    )
    (tmp_path / "script.py").write_text("print('never here')")
    hosts = "n0 slots=1\nn1 slots=1 env.STUCK=1\n"
    argv = [*on(cluster, tmp_path, hostfile=hosts), "--mesh", "dp=2", "--preload", "stuck", "--start-timeout", "12"]
    ended = run(tmp_path, *argv, "script.py")
    assert ended.code == 125, ended
    for words in ("--start-timeout", "dp=0", "dp=1", "wait_for_driver", "init_process_group"):
        assert words in ended.err, ended
    assert ended.out == ""
    assert_nothing_left(cluster)
