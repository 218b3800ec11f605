"""Owns: the command started by hand on each node, without SSH.
Must not: use ssh; the cluster only gives hosts.
Called by: pytest."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
from pathlib import Path

import pytest

from tests.cluster import NamespaceCluster
from tests.conftest import MakeCluster
from tests.e2e.command import COMMAND, ENVIRON, Command, Ended, assert_nothing_left

SLEEPER = """
import os, pathlib, time
pathlib.Path("ready", os.environ["RANK"]).touch()
time.sleep(600)
"""


def enter(cluster: NamespaceCluster, i: int) -> tuple[str, ...]:
    return tuple(cluster._enter(i))


class Nodes:
    """The same command on each node, started together."""

    def __init__(self, cluster: NamespaceCluster, where: Path, *args: str, ranks: tuple[int, ...] = (0, 1, 2)) -> None:
        self.where = where
        (where / "ready").mkdir(exist_ok=True)
        self.commands = []
        for i, rank in enumerate(ranks):
            here = ("--nnodes", str(len(ranks)), "--node-rank", str(rank), "--master-addr", cluster.hosts[0].address)
            prefix = (*enter(cluster, i), "env", "-C", str(where))
            command = Command(where, *here, "--master-port", "29400", *args, prefix=prefix)
            self.commands.append(command)

    def end(self) -> list[Ended]:
        return [command.end() for command in self.commands]


def test_three_nodes_by_hand(make_cluster: MakeCluster, tmp_path: Path) -> None:
    own = make_cluster(3, needs="namespaces")
    assert isinstance(own, NamespaceCluster)
    text = "import os; print(*(os.environ[n] for n in ('RANK', 'NODE_RANK', 'WORLD_SIZE', 'MASTER_ADDR')))"
    (tmp_path / "script.py").write_text(text)
    ends = Nodes(own, tmp_path, "--nproc-per-node", "2", "--no-init", "script.py").end()
    for node, ended in enumerate(ends):
        assert ended.code == 0, ended
        seen = sorted(line.split("] ")[1] for line in ended.out.splitlines())
        assert seen == [f"{rank} {node} 6 {own.hosts[0].address}" for rank in (2 * node, 2 * node + 1)]
        assert ended.summary["outcome"] == "succeeded"
        assert {p.name for p in ended.run_dir.glob("rank*.out")} == {f"rank{2 * node}.out", f"rank{2 * node + 1}.out"}
    assert_nothing_left(own)


def test_a_failure_on_one_node_stops_all_and_each_names_it(make_cluster: MakeCluster, tmp_path: Path) -> None:
    own = make_cluster(3, needs="namespaces")
    assert isinstance(own, NamespaceCluster)
    text = "import os, time\nif os.environ['RANK'] == '2':\n    raise KeyError('no such shard')\ntime.sleep(600)\n"
    (tmp_path / "script.py").write_text(text)
    for ended in Nodes(own, tmp_path, "--nproc-per-node", "1", "--no-init", "script.py").end():
        assert ended.code == 1, ended
        assert ended.summary["first_failure"]["rank"] == 2
        assert "rank 2" in ended.err and "KeyError" in ended.err, ended
    assert_nothing_left(own)


def test_duplicate_node_ranks_end_all_sides(make_cluster: MakeCluster, tmp_path: Path) -> None:
    own = make_cluster(3, needs="namespaces")
    assert isinstance(own, NamespaceCluster)
    (tmp_path / "script.py").write_text(SLEEPER)
    for ended in Nodes(own, tmp_path, "--no-init", "script.py", ranks=(0, 1, 1)).end():
        assert ended.code in (2, 125), ended
        assert "node rank 1" in ended.err.replace("node_rank", "node rank"), ended
    assert list((tmp_path / "ready").iterdir()) == []
    assert_nothing_left(own)


def test_different_meshes_end_all_sides_with_both_values(make_cluster: MakeCluster, tmp_path: Path) -> None:
    own = make_cluster(2, needs="namespaces")
    assert isinstance(own, NamespaceCluster)
    (tmp_path / "script.py").write_text(SLEEPER)
    (tmp_path / "ready").mkdir()
    commands = []
    for i, mesh in enumerate(("dp=2,tp=1", "dp=1,tp=2")):
        here = ("--nnodes", "2", "--node-rank", str(i), "--master-addr", own.hosts[0].address, "--master-port", "29400")
        argv = (*here, "--nproc-per-node", "1", "--mesh", mesh, "--no-init", "script.py")
        commands.append(Command(tmp_path, *argv, prefix=(*enter(own, i), "env", "-C", str(tmp_path))))
    for command in commands:
        ended = command.end()
        assert ended.code in (2, 125), ended
        assert "dp=2" in ended.err and "tp=2" in ended.err, ended
    assert_nothing_left(own)


def test_a_missing_node_is_named(make_cluster: MakeCluster, tmp_path: Path) -> None:
    own = make_cluster(2, needs="namespaces")
    assert isinstance(own, NamespaceCluster)
    (tmp_path / "script.py").write_text(SLEEPER)
    here = ("--nnodes", "3", "--start-timeout", "6", "--master-addr", own.hosts[0].address, "--master-port", "29400")
    commands = [
        Command(
            tmp_path, *here, "--node-rank", str(i), "script.py", prefix=(*enter(own, i), "env", "-C", str(tmp_path))
        )
        for i in (0, 1)
    ]
    ends = [command.end() for command in commands]
    assert [ended.code for ended in ends] == [125, 125], ends
    assert "node rank 2" in ends[0].err.replace("node_rank", "node rank"), ends
    assert_nothing_left(own)


def test_an_interrupt_on_one_node_stops_all(make_cluster: MakeCluster, tmp_path: Path) -> None:
    own = make_cluster(2, needs="namespaces")
    assert isinstance(own, NamespaceCluster)
    (tmp_path / "script.py").write_text(SLEEPER)
    nodes = Nodes(own, tmp_path, "--nproc-per-node", "1", "--no-init", "script.py", ranks=(0, 1))
    for rank in (0, 1):
        nodes.commands[1].wait_for(tmp_path / "ready" / str(rank))
    nodes.commands[1].signal(signal.SIGINT)
    assert [ended.code for ended in nodes.end()] == [130, 130]
    assert_nothing_left(own)


def test_a_killed_launcher_stops_the_other_nodes(make_cluster: MakeCluster, tmp_path: Path) -> None:
    own = make_cluster(2, needs="namespaces")
    assert isinstance(own, NamespaceCluster)
    (tmp_path / "script.py").write_text(SLEEPER)
    nodes = Nodes(own, tmp_path, "--nproc-per-node", "1", "--no-init", "script.py", ranks=(0, 1))
    for rank in (0, 1):
        nodes.commands[1].wait_for(tmp_path / "ready" / str(rank))
    nodes.commands[0].signal(signal.SIGKILL)
    first, second = nodes.end()
    assert (first.code, second.code) == (-9, 125), second
    assert "node 0" in second.err, second
    assert_nothing_left(own)


def test_the_printed_commands_work_as_printed(make_cluster: MakeCluster, tmp_path: Path) -> None:
    """meshrun plan --format commands: paste each line on its node."""
    own = make_cluster(2, needs="namespaces")
    assert isinstance(own, NamespaceCluster)
    (tmp_path / "a b.py").write_text("import os, sys; print(os.environ['MESHRUN_COORDS'], sys.argv[1:])")
    (tmp_path / "hosts").write_text(own.hostfile(2))
    argv = ["plan", "--format", "commands", "--hostfile", "hosts", "--mesh", "dp=2,tp=2", "--no-init"]
    argv += ["--master-addr", own.hosts[0].address, "a b.py", "x y", "$HOME"]
    printed = subprocess.run([*COMMAND, *argv], cwd=tmp_path, env=ENVIRON, capture_output=True, text=True, timeout=60)
    assert printed.returncode == 0, printed
    lines = [line for line in printed.stdout.splitlines() if line and not line.startswith("#")]
    assert len(lines) == 2 and all(shlex.split(line) for line in lines)
    started = [
        subprocess.Popen([*enter(own, i), "sh", "-c", line], env=ENVIRON, stdout=subprocess.PIPE, text=True)
        for i, line in enumerate(lines)
    ]
    outs = [process.communicate(timeout=60)[0] for process in started]
    assert [process.returncode for process in started] == [0, 0], (lines, outs)
    assert sorted("".join(outs).splitlines()) == [
        f"[n{r // 2}:{r} dp={r // 2},tp={r % 2}] dp={r // 2},tp={r % 2} {json.dumps(['x y', '$HOME'])}".replace(
            '"', "'"
        )
        for r in range(4)
    ]


@pytest.mark.torch
def test_a_mesh_across_nodes_by_hand(make_cluster: MakeCluster, tmp_path: Path) -> None:
    own = make_cluster(2, needs="namespaces")
    assert isinstance(own, NamespaceCluster)
    text = """
import torch, torch.distributed as dist, meshrun
x = torch.tensor([float(dist.get_rank())])
dist.all_reduce(x, group=meshrun.mesh().get_group("dp"))
print(meshrun.coords(), int(x))
"""
    (tmp_path / "script.py").write_text(text)
    nodes = Nodes(own, tmp_path, "--nproc-per-node", "2", "--mesh", "dp=2,tp=2", "script.py", ranks=(0, 1))
    ends = nodes.end()
    assert [ended.code for ended in ends] == [0, 0], ends
    seen = sorted(line.split("] ", 1)[1] for ended in ends for line in ended.out.splitlines())
    assert seen == [f"{{'dp': {dp}, 'tp': {tp}}} {2 * tp + 2}" for dp in (0, 1) for tp in (0, 1)]
    assert_nothing_left(own)


def test_node_0_sees_a_hang_on_all_nodes_and_each_says_where(make_cluster: MakeCluster, tmp_path: Path) -> None:
    own = make_cluster(3, needs="namespaces")
    assert isinstance(own, NamespaceCluster)
    text = "import os, time\ndef load(): time.sleep(600)\ndef wait(): time.sleep(600)\n"
    (tmp_path / "script.py").write_text(text + "load() if os.environ['RANK'] == '1' else wait()\n")
    nodes = Nodes(own, tmp_path, "--nproc-per-node", "1", "--no-init", "--hang-timeout", "2", "script.py")
    for ended in nodes.end():
        assert ended.code == 124, ended
        assert "rank 1 (dp=1) on " in ended.err and " is in load (script.py:2)" in ended.err, ended
        assert "  the other 2 are in wait (script.py:3)\n" in ended.err, ended
    assert_nothing_left(own)


def test_only_node_0_knows_all_stacks_by_hand(make_cluster: MakeCluster, tmp_path: Path) -> None:
    own = make_cluster(2, needs="namespaces")
    assert isinstance(own, NamespaceCluster)
    (tmp_path / "script.py").write_text(SLEEPER)
    nodes = Nodes(own, tmp_path, "--nproc-per-node", "1", "--no-init", "script.py", ranks=(0, 1))
    for rank in range(2):
        nodes.commands[0].wait_for(tmp_path / "ready" / str(rank))
    asked = []
    for command in nodes.commands:
        argv = [*COMMAND, "stacks", "--log-dir", str(command.logs)]
        asked.append(subprocess.run(argv, cwd=tmp_path, env=ENVIRON, capture_output=True, text=True, check=False))
    assert asked[0].returncode == 0 and "ranks 0-1" in asked[0].stdout, asked
    assert asked[1].returncode == 125 and "this is node 1 of a run by hand" in asked[1].stderr, asked
    nodes.commands[0].signal(signal.SIGTERM)
    assert {ended.code for ended in nodes.end()} == {143}
