"""Owns: `--fake` with what ranks tell each other: the shapes of pipeline stages, objects from one rank to another.
Must not: need root, an accelerator, or more than this machine.
Called by: pytest."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.command import ROOT, run

FOUR = ("--fake", "--hosts", "a:2,b:2", "--mesh", "pp=4")
pytestmark = pytest.mark.torch

STAGES = """
import sys, torch, meshrun
from torch.distributed.pipelining import PipelineStage, schedules
mesh = meshrun.mesh()
kind, given, width = sys.argv[1], sys.argv[2] == "given", int(sys.argv[3])
rank, ranks = meshrun.coords()["pp"], mesh.size()

class Block(torch.nn.Module):  # stage 0 takes words, the others vectors of 8
    def __init__(self, index):
        super().__init__()
        self.words = torch.nn.Embedding(50, 8) if index == 0 else torch.nn.Identity()
        self.line = torch.nn.Linear(width if index == 2 else 8, 8)
    def forward(self, x):
        return self.line(self.words(x))

count = ranks * (2 if kind == "ScheduleInterleaved1F1B" else 1)
numbers = range(rank, count, ranks)
between = torch.randn(2, 5, 8, requires_grad=True)
shapes = {"input_args": between} if given and rank else {}
stages = [PipelineStage(Block(at), at, count, meshrun.device(), group=mesh.get_group(), **shapes) for at in numbers]
loss = lambda out, target: torch.nn.functional.cross_entropy(out.flatten(0, 1), target.flatten())
schedule = getattr(schedules, kind)(stages if len(stages) > 1 else stages[0], 8, loss_fn=loss)
words, target = torch.randint(0, 50, (16, 5)), torch.randint(0, 8, (16, 5))
ends = ([words] if 0 in numbers else []), ({"target": target, "losses": []} if count - 1 in numbers else {})
schedule.step(*ends[0], **ends[1])
assert all(p.grad.shape == p.shape for stage in stages for p in stage.submod.parameters())
schedule.eval(*ends[0], **ends[1])
print("end", *numbers)
"""


@pytest.fixture
def stages(tmp_path: Path) -> Path:
    (tmp_path / "stages.py").write_text(STAGES)
    return tmp_path


@pytest.mark.parametrize(
    ("ranks", "words", "ends"),
    [
        ("0-3", "ScheduleInterleaved1F1B found 8", ["end 0 4", "end 1 5", "end 2 6", "end 3 7"]),
        ("0-2", "Schedule1F1B found 8", ["end 0", "end 1", "end 2"]),
        ("0", "ScheduleGPipe found 8", ["end 0"]),
        ("2", "Schedule1F1B given 8", ["end 2"]),
    ],
)
def test_stages_get_their_shapes_from_the_stages_before(stages: Path, ranks: str, words: str, ends: list[str]) -> None:
    ended = run(stages, *FOUR, "--ranks", ranks, "stages.py", *words.split())
    assert ended.code == 0, ended
    assert sorted(line.split("] ")[1] for line in ended.out.splitlines()) == ends


def test_a_wrong_shape_between_two_stages_names_the_stages_rank(stages: Path) -> None:
    ended = run(stages, *FOUR, "--ranks", "0-3", "stages.py", "Schedule1F1B", "found", "9")
    assert ended.code == 1, ended
    assert ended.summary["first_failure"]["coords"] == {"pp": 2}
    assert "must have same reduction dim, but got [10, 8] X [9, 8]" in ended.err


def test_a_stage_whose_predecessors_do_not_run_says_which_ranks_it_takes(stages: Path) -> None:
    ended = run(stages, *FOUR, "--ranks", "2", "stages.py", "Schedule1F1B", "found", "8")
    assert ended.code == 1, ended
    said = "pipeline stage 2's inputs come from stage 1, whose rank 1 is not rehearsed: --ranks 0,1,2, or give"
    assert said in ended.err


@pytest.mark.parametrize(
    ("script", "mesh", "ranks"), [("pipeline.py", "pp=4", "0-3"), ("dp_tp_pp.py", "pp=2,dp=2,tp=2", "1,5")]
)
def test_examples_with_stages_run_unchanged(tmp_path: Path, script: str, mesh: str, ranks: str) -> None:
    hosts = "a:2,b:2" if mesh == "pp=4" else "a:4,b:4"
    ended = run(tmp_path, "--fake", "--hosts", hosts, "--mesh", mesh, "--ranks", ranks, str(ROOT / "examples" / script))
    assert ended.code == 0, ended
    assert "step 3  loss" in ended.out


OBJECTS = """
import torch.distributed as dist, meshrun
rank, got = dist.get_rank(meshrun.mesh().get_group()), [None]
if rank == 1:
    for text in ("one", "two", "lost"):
        dist.send_object_list([{"said": text}], dst=2 if text != "lost" else 0)
if rank == 2:
    for _ in range(2):
        source = dist.recv_object_list(got, group_src=1)
        print("from", source, got[0]["said"])
    dist.recv_object_list(got, src=3)
"""


def test_objects_reach_ranks_that_are_rehearsed_and_no_other_is_waited_for(tmp_path: Path) -> None:
    (tmp_path / "objects.py").write_text(OBJECTS)
    ended = run(tmp_path, *FOUR, "--ranks", "1,2", "objects.py")
    assert [line.split("] ")[1] for line in ended.out.splitlines()] == ["from 1 one", "from 1 two"], ended
    assert ended.code == 1 and "an object from rank 3, which is not rehearsed: --ranks 1,2,3" in ended.err
