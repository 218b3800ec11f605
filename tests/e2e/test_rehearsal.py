"""Owns: `--local`, the whole command: a hostfile's plan as agents on this machine.
Must not: need root, or more than this machine.
Called by: pytest."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e.command import ROOT, run

HOSTFILE = """
you@gpu[01-03]:2222 slots=2 python=/nowhere/python workdir=/nowhere env.SITE=blue
login slots=2 addr=192.0.2.7 devices=4,5 env.GLOO_SOCKET_IFNAME=ib0
"""
OPTIONS = ("--local", "--hostfile", "hosts", "--mesh", "dp=4,tp=2")
# Each rank says where it is and, by gathering numbers, who shares each of its groups.
SAY = """
import json, os, torch, torch.distributed as dist
import meshrun
mesh, groups = meshrun.mesh(), {}
for dim in mesh.mesh_dim_names:
    found = [torch.zeros(1, dtype=torch.int64) for _ in range(mesh[dim].size())]
    dist.all_gather(found, torch.tensor([dist.get_rank()]), group=mesh.get_group(dim))
    groups[dim] = [int(rank) for rank in found]
names = ("RANK", "LOCAL_RANK", "NODE_RANK", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "WORLD_SIZE")
said = {name: int(os.environ[name]) for name in names} | {"SITE": os.environ.get("SITE"), "cwd": os.getcwd()}
print(json.dumps(said | {"groups": groups, "coords": meshrun.coords(), "device": str(meshrun.device())}))
"""


@pytest.mark.torch
def test_names_numbers_and_groups_are_those_of_the_plan(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text(HOSTFILE)
    (tmp_path / "say.py").write_text(SAY)
    ended = run(tmp_path, *OPTIONS, "say.py")
    assert ended.code == 0, ended
    assert "meshrun: rehearsal: 4 nodes of the plan on this machine" in ended.err.splitlines()[0]
    plan = json.loads((ended.run_dir / "plan.json").read_text())
    lines = dict(line.split("] ", 1) for line in ended.out.splitlines())
    for worker in plan["workers"]:
        coords = worker["coords"]
        said = json.loads(lines[f"[{worker['host']}:{worker['rank']} dp={coords['dp']},tp={coords['tp']}"])
        assert (said["RANK"], said["NODE_RANK"], said["LOCAL_RANK"]) == (
            worker["rank"],
            worker["node_rank"],
            worker["local_rank"],
        )
        assert (said["LOCAL_WORLD_SIZE"], said["GROUP_WORLD_SIZE"], said["WORLD_SIZE"]) == (2, 4, 8)
        assert (said["coords"], said["device"], said["cwd"]) == (coords, "cpu", str(tmp_path))
        assert said["SITE"] == (None if worker["host"] == "login" else "blue")
        assert all(said["groups"][dim] in plan["groups"][dim] for dim in ("dp", "tp"))
        assert (ended.run_dir / f"rank{worker['rank']}.out").read_text() == json.dumps(said) + "\n"
    assert [node["host"] for node in plan["nodes"]] == ["gpu01", "gpu02", "gpu03", "login"]
    assert plan["nodes"][3]["devices"] == ["4", "5"]


FAIL_ONCE = """
import os
if os.environ["RANK"] == "5" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    raise ValueError("not yet")
print("done", os.environ["TORCHELASTIC_RESTART_COUNT"])
"""


@pytest.mark.parametrize("restarts", [0, 1])
def test_a_failure_names_the_host_of_the_hostfile(tmp_path: Path, restarts: int) -> None:
    (tmp_path / "hosts").write_text(HOSTFILE)
    (tmp_path / "fail.py").write_text(FAIL_ONCE)
    ended = run(
        tmp_path, *OPTIONS, "--no-init", "--max-restarts", str(restarts), "--show", "dp=2", "fail.py"
    )  # fmt: skip
    assert "where:     gpu03 (node 2), local rank 1" in ended.err, ended
    assert "ValueError: not yet" in ended.err
    assert ended.code == (0 if restarts else 1)
    if restarts:
        assert {"[gpu03:4 dp=2,tp=0] done 1", "[gpu03:5 dp=2,tp=1] done 1"} <= set(ended.out.splitlines())
        assert "login" not in ended.out
        assert (ended.run_dir / "attempt1" / "rank7.out").read_text() == "done 1\n"
    else:
        assert ended.summary["first_failure"]["host"] == "gpu03"


def test_rules_of_placement_hold(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("a slots=2\nb slots=2\n")
    (tmp_path / "mesh.yaml").write_text("mesh:\n  dims: {tp: 4}\n  within_node: [tp]\n")
    (tmp_path / "t.py").write_text("")
    ended = run(tmp_path, "--local", "--hostfile", "hosts", "--mesh", "mesh.yaml", "t.py")
    assert ended.code == 2
    assert "tp must stay within a node" in ended.err
    ended = run(tmp_path, "--local", "--hosts", "a,b", "t.py")
    assert (ended.code, ended.out) == (2, "")
    assert "how many workers on a, b? A rehearsal asks no node" in ended.err


@pytest.mark.torch
@pytest.mark.parametrize("name", ["ddp.py", "train.py"])
def test_examples_run_unchanged(tmp_path: Path, name: str) -> None:
    ended = run(
        tmp_path, "--local", "--hosts", "a:2,b:2", "--mesh", "dp=2,tp=2", str(ROOT / "examples" / name),
        *(["--steps", "2"] if name == "train.py" else []),
    )  # fmt: skip
    assert ended.code == 0, ended
    assert "loss" in ended.out
