"""Owns: `--fake`, the whole command: a few ranks of a large world, each alone, on tensors without numbers.
Must not: need root, an accelerator, or more than this machine.
Called by: pytest."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e.command import ROOT, Ended, run

LARGE = ("--fake", "--hosts", "n[001-128]:8", "--mesh", "dp=128,tp=8")
SMALL = ("--fake", "--hosts", "a:2,b:2,c:2,d:2", "--mesh", "dp=4,tp=2")
pytestmark = pytest.mark.torch

SAY = """
import json, os, torch, torch.distributed as dist
import meshrun
mesh = meshrun.mesh()
groups = {dim: dist.get_process_group_ranks(mesh.get_group(dim)) for dim in mesh.mesh_dim_names}
names = ("RANK", "LOCAL_RANK", "NODE_RANK", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "WORLD_SIZE")
x = torch.ones(3, 5)
dist.all_reduce(x)
said = {name: int(os.environ[name]) for name in names} | {"coords": meshrun.coords(), "shape": list(x.shape)}
print(json.dumps(said | {"size": dist.get_world_size(), "rank": dist.get_rank(), "groups": groups}))
"""
# As people write it who have only ever run it on GPUs; the last line says what a rehearsal must not have done.
FOR_GPUS = """
import os, torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
from datetime import timedelta
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

local = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local)
dist.init_process_group("nccl", timeout=timedelta(seconds=30), device_id=torch.device("cuda", local))
mesh = init_device_mesh("cuda", (dist.get_world_size() // 8, 8), mesh_dim_names=("dp", "tp"))

class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 256), nn.Linear(256, 64)
    def forward(self, x):
        return self.down(torch.relu(self.up(x)))

model = nn.Sequential(MLP(), MLP()).cuda()
for block in model:
    parallelize_module(block, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    fully_shard(block, mesh=mesh["dp"], mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
model = torch.compile(fully_shard(model, mesh=mesh["dp"]))
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
even = dist.new_group(list(range(0, dist.get_world_size(), 2)), backend="gloo")
everybody = [None] * dist.get_world_size()
dist.all_gather_object(everybody, {"rank": dist.get_rank()})
data = TensorDataset(torch.randn(8 * dist.get_world_size(), 64))
loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data), num_workers=2, pin_memory=True)
for x, in loader:
    loss = model(x.to(local, non_blocking=True)).float().pow(2).mean()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    mean = loss.detach().clone()
    dist.all_reduce(mean, op=dist.ReduceOp.AVG)
    print("step", tuple(x.numpy().shape), f"{mean.item():.2f} {mean:.1f}")
replica = DistributedDataParallel(nn.Linear(8, 8).to(local), device_ids=[local], find_unused_parameters=True)
with replica.no_sync():
    replica(torch.randn(2, 8, device=f"cuda:{local}")).sum().backward()
side, event = torch.cuda.Stream(), torch.cuda.Event(enable_timing=True)
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    x.record_stream(side)
    event.record(side)
assert event.query() and event.elapsed_time(side.record_event()) == torch.cuda.max_memory_allocated() == 0
torch.cuda.synchronize()
dist.barrier()
torch.save(model.state_dict(), "model.pt")
dcp.save({"model": model.state_dict()}, checkpoint_id="checkpoint")
dist.destroy_process_group()
print("end", os.path.exists("model.pt"), os.path.exists("checkpoint"))
"""


def said(ended: Ended) -> dict[str, str]:
    """The last line of each rank's prefix."""
    return dict(line.split("] ", 1) for line in ended.out.splitlines())


@pytest.mark.parametrize(
    ("options", "prefixes"),
    [
        ((*LARGE, "--ranks", "0,777"), ["[n001:0 dp=0,tp=0", "[n098:777 dp=97,tp=1"]),
        (
            ("--fake", "--hosts", "n[0001-2048]:8", "--mesh", "pp=16,dp=128,tp=8", "--ranks", "16383"),
            ["[n2048:16383 pp=15,dp=127,tp=7"],
        ),
    ],
)
def test_a_rank_sees_the_whole_world(tmp_path: Path, options: tuple[str, ...], prefixes: list[str]) -> None:
    (tmp_path / "say.py").write_text(SAY)
    ended = run(tmp_path, *options, "say.py")
    assert ended.code == 0, ended
    plan = json.loads((ended.run_dir / "plan.json").read_text())
    found = {prefix: json.loads(text) for prefix, text in said(ended).items()}
    assert sorted(found) == sorted(prefixes)
    for one in found.values():
        worker = plan["workers"][one["RANK"]]
        assert (one["NODE_RANK"], one["LOCAL_RANK"]) == (worker["node_rank"], worker["local_rank"])
        assert (one["LOCAL_WORLD_SIZE"], one["GROUP_WORLD_SIZE"]) == (8, len(plan["nodes"]))
        assert one["coords"] == worker["coords"]
        assert (one["rank"], one["size"], one["WORLD_SIZE"]) == (one["RANK"], plan["world_size"], plan["world_size"])
        assert all(ranks in plan["groups"][dim] for dim, ranks in one["groups"].items())
        assert one["shape"] == [3, 5]
    assert plan["rehearsed_ranks"] == sorted(one["RANK"] for one in found.values())
    assert len([*ended.run_dir.glob("rank*.out")]) == len(found)
    assert "alone on this machine; nothing is communicated or saved" in ended.err.splitlines()[0]


def test_a_script_for_gpus_alone_runs_to_its_end(tmp_path: Path) -> None:
    (tmp_path / "gpus.py").write_text(FOR_GPUS.replace("WIDTH", "64"))
    ended = run(tmp_path, *LARGE, "--ranks", "777", "gpus.py")
    assert ended.code == 0, ended
    assert [line.split("] ")[1] for line in ended.out.splitlines()] == ["step (4, 64) 1.00 1.0"] * 2 + [
        "end False False"
    ]
    assert "meshrun: a rehearsal saves no checkpoint" in ended.err


def test_a_wrong_shape_is_found_and_the_rank_named(tmp_path: Path) -> None:
    (tmp_path / "gpus.py").write_text(FOR_GPUS.replace("WIDTH", "63"))
    ended = run(tmp_path, *LARGE, "--ranks", "777", "gpus.py")
    assert ended.code == 1, ended
    block = ended.err[ended.err.index("meshrun: rank 777 failed first") :]
    assert "mesh:      dp=97,tp=1" in block
    assert "where:     n098 (node 97), local rank 1" in block
    assert "must have same reduction dim, but got [4, 64] X [63, 256]" in block
    assert ended.summary["first_failure"]["node_rank"] == 97


def test_wrong_use_of_the_mesh_and_the_first_failure_decides(tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text(
        "import sys, time, meshrun\n"
        "mesh = meshrun.mesh()\n"
        "if meshrun.coords()['dp'] < 3: time.sleep(60)\n"
        "try:\n    mesh['ep']\nexcept Exception as error:\n    print(error, file=sys.stderr)\n    sys.exit(9)\n"
    )
    ended = run(tmp_path, *SMALL, "--ranks", "classes", "wrong.py")
    assert ended.code == 9, ended
    assert "Invalid mesh_dim_name" in ended.err
    assert ended.summary["first_failure"]["coords"]["dp"] == 3
    assert ended.summary["first_failure"]["host"] == "d"


LOOP = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
step = 0
while True:
    step += 1
    model(torch.ones(2, 4)).sum().backward()
    print("step", step, type(next(model.parameters()).data).__name__)
    optimizer.step()
"""


@pytest.mark.parametrize(("tensors", "kind"), [("fake", "FakeTensor"), ("real", "Tensor")])
def test_steps_end_a_script_that_would_not(tmp_path: Path, tensors: str, kind: str) -> None:
    (tmp_path / "loop.py").write_text(LOOP)
    ended = run(tmp_path, *SMALL, "--steps", "3", "--tensors", tensors, "loop.py")
    assert ended.code == 0, ended
    assert [line.split("] ")[1] for line in ended.out.splitlines()] == [f"step {step} {kind}" for step in (1, 2, 3)]


def test_what_depends_on_numbers_is_explained(tmp_path: Path) -> None:
    (tmp_path / "count.py").write_text("import torch, meshrun\nmeshrun.mesh()\nprint(torch.ones(3).nonzero())\n")
    ended = run(tmp_path, *SMALL, "count.py")
    assert ended.code == 1, ended
    assert "depends on numbers, and the tensors of a rehearsal with --fake have none" in ended.err
    assert "--tensors real" in ended.err


def test_what_has_no_stand_in_is_explained(tmp_path: Path) -> None:
    (tmp_path / "asks.py").write_text("import torch\ntorch.cuda.get_device_properties(0)\n")
    ended = run(tmp_path, *SMALL, "asks.py")
    assert ended.code == 1 and "docs/how-to/rehearse.md lists what a rehearsal stands in for" in ended.err, ended


@pytest.mark.parametrize("script", ["ddp.py", "train.py --batch 64 --steps 2"])
def test_examples_run_unchanged(tmp_path: Path, script: str) -> None:
    name, *args = script.split()
    ended = run(tmp_path, "--fake", "--hosts", "n[1-8]:8", "--mesh", "dp=32,tp=2", str(ROOT / "examples" / name), *args)
    assert ended.code == 0, ended
    assert "loss" in ended.out


def test_a_rank_outside_the_world(tmp_path: Path) -> None:
    (tmp_path / "t.py").write_text("")
    ended = run(tmp_path, *SMALL, "--ranks", "0,8", "t.py")
    assert (ended.code, ended.out) == (2, "")
    assert "there is no rank 8" in ended.err
    assert "ranks are 0 to 7" in ended.err
