"""Owns: the examples that know nothing of meshrun print the same under torchrun and under meshrun.
Must not: run one that needs a package of its own (tests/frameworks/test_packages.py).
Called by: pytest."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.frameworks.launchers import EXAMPLES, alike, meshrun, torchrun

pytestmark = pytest.mark.torch
TESTS = Path(__file__).parents[1]


def losses(*outs: str) -> list[float]:
    """What follows "loss", in the order of the steps."""
    found = (re.search(r"step (\d+)  loss ([0-9.]+)", line) for out in outs for line in out.splitlines())
    return [float(match[2]) for match in sorted(filter(None, found), key=lambda match: int(match[1]))]


@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_every_example_says_how_to_run_it_and_is_run_by_a_test(example: Path) -> None:
    text = ast.get_docstring(ast.parse(example.read_text())) or ""
    assert any(line.strip().startswith(("meshrun ", "python ")) for line in text.splitlines())
    assert f"examples/{example.name}" in text
    tests = [*TESTS.glob("*/test_*.py")]
    assert any(re.search(rf'"{example.name}"', path.read_text()) for path in tests), "no test runs it"


def test_ddp(tmp_path: Path) -> None:
    first, second = alike(tmp_path, 2, "dp=2", EXAMPLES / "ddp.py")
    assert losses(first)[-1] < losses(first)[0] / 2 and second == ""


def test_fsdp2(tmp_path: Path) -> None:
    first, second = alike(tmp_path, 2, "dp=2", EXAMPLES / "fsdp2.py")
    assert losses(first)[-1] < losses(first)[0] and "rank 1 at (1,)" in second


def test_hybrid_sharding(tmp_path: Path) -> None:
    outs = alike(tmp_path, 4, "replicate=2,shard=2", EXAMPLES / "fsdp2.py", "--replicate", "2", "--steps", "2")
    assert [out.splitlines()[-1].split(" has ")[0] for out in outs] == [
        f"rank {rank} at {divmod(rank, 2)}" for rank in range(4)
    ]


def test_tensor_and_sequence_parallel(tmp_path: Path) -> None:
    outs = alike(tmp_path, 2, "tp=2", EXAMPLES / "tensor_parallel.py", "--sequence")
    alone = meshrun(tmp_path, 1, EXAMPLES / "tensor_parallel.py")
    assert losses(*outs) == pytest.approx(losses(*alone.out), rel=1e-4)
    assert "(32, 16) of (64, 16)" in outs[1]


def test_context_parallel(tmp_path: Path) -> None:
    outs = alike(tmp_path, 2, "cp=2", EXAMPLES / "context_parallel.py")
    alone = meshrun(tmp_path, 1, EXAMPLES / "context_parallel.py")
    assert losses(*outs) == pytest.approx(losses(*alone.out), rel=1e-4)


def test_pipeline_schedules(tmp_path: Path) -> None:
    seen = [
        alike(tmp_path, 2, "pp=2", EXAMPLES / "pipeline.py", "--schedule", schedule)
        for schedule in ("1F1B", "Interleaved1F1B")
    ]
    assert losses(*seen[0]) == pytest.approx(losses(*seen[1]), rel=1e-4)
    assert "has stages [1, 3]" in seen[1][1]


def test_three_dims(tmp_path: Path) -> None:
    outs = alike(tmp_path, 4, "pp=2,dp=1,tp=2", EXAMPLES / "dp_tp_pp.py")
    more = meshrun(tmp_path, 8, EXAMPLES / "dp_tp_pp.py", options="--mesh pp=2,dp=2,tp=2")
    assert more.code == 0, more
    assert losses(more.out[7]) == pytest.approx(losses(outs[3]), rel=1e-4)
    assert "rank 5 is pp=1,dp=0,tp=1" in more.out[5]


def test_a_checkpoint_is_read_on_another_mesh(tmp_path: Path) -> None:
    script, shared = EXAMPLES / "checkpoint.py", str(tmp_path / "shared")
    whole = meshrun(tmp_path, 1, script, "--dir", str(tmp_path / "alone"), "--steps", "6")
    parts = [
        torchrun(tmp_path, 2, script, "--dir", shared, "--tp", "2", "--steps", "2"),
        meshrun(tmp_path, 2, script, "--dir", shared, "--steps", "2", options="--mesh dp=2,tp=1"),
        meshrun(tmp_path, 4, script, "--dir", shared, "--tp", "2", "--steps", "2"),
    ]
    assert [part.code for part in parts] == [0, 0, 0], parts
    assert losses(*(part.out[0] for part in parts)) == pytest.approx(losses(*whole.out), rel=1e-3)


def test_parameter_server(tmp_path: Path) -> None:
    outs = alike(tmp_path, 3, "dp=3", EXAMPLES / "parameter_server.py")
    assert losses(outs[1])[-1] < losses(outs[1])[0] and outs[0].startswith("weights [")
