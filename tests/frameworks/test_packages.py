"""Owns: frameworks that are packages of their own, each with an unchanged script under torchrun and meshrun.
Must not: be part of the quick tests: what is not installed is skipped (tools/test --frameworks installs all).
Called by: pytest."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.frameworks.launchers import EXAMPLES, SCRIPTS, alike, meshrun, torchrun

pytestmark = pytest.mark.torch
ON_CPU = {"DS_ACCELERATOR": "cpu"}


def need(*packages: str) -> None:
    for package in packages:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"needs the package {package}: tools/test --frameworks")


def test_accelerate(tmp_path: Path) -> None:
    need("accelerate")
    first, second = alike(tmp_path, 2, "dp=2", EXAMPLES / "accelerate_train.py")
    assert "epoch 2" in first and "rank 1 of 2, MULTI_CPU" in second


def test_transformers_trainer(tmp_path: Path) -> None:
    need("transformers", "accelerate")
    first, second = alike(tmp_path, 2, "dp=2", SCRIPTS / "hf_trainer.py", str(tmp_path))
    assert "distributed 2 0" in first and "distributed 2 1" in second


@pytest.mark.parametrize("args", [[], ["--fabric"]])
def test_lightning(tmp_path: Path, args: list[str]) -> None:
    need("lightning")
    outs = alike(tmp_path, 2, "dp=2", EXAMPLES / "lightning_train.py", *args)
    assert [out.split(":")[0] for out in outs] == ["rank 0 of 2", "rank 1 of 2"]


@pytest.mark.parametrize("stage", ["0", "1", "2", "3"])
def test_deepspeed_stages(tmp_path: Path, stage: str) -> None:
    need("deepspeed")
    outs = alike(tmp_path, 2, "dp=2", EXAMPLES / "deepspeed_train.py", "--stage", stage, env=ON_CPU)
    assert outs[1].splitlines()[-1].startswith("rank 1 of 2  step 3  loss ")


ARGUMENTS = (
    "none", "dist_backend", "auto_mpi_discovery", "distributed_port", "timeout", "init_method", "dist_init_required",
    "config", "rank", "world_size", "all",
)  # fmt: skip


def test_deepspeed_init_distributed_with_each_argument(tmp_path: Path) -> None:
    need("deepspeed")
    theirs = torchrun(tmp_path, 2, SCRIPTS / "ds_init.py", "all", env=ON_CPU)
    assert (theirs.code, theirs.out[1].splitlines()[-1]) == (0, "all 3 1 2 77.0"), theirs
    for number, argument in enumerate(ARGUMENTS):
        options = ("", "--mesh dp=2 --init lazy")[number % 2]
        ours = meshrun(tmp_path, 2, SCRIPTS / "ds_init.py", argument, options=options, env=ON_CPU)
        seconds = " 77.0" if argument in ("timeout", "all") else ""
        last = [out.splitlines()[-1] for out in ours.out if out]
        assert (ours.code, last) == (0, [f"{argument} 3 {rank} 2{seconds}" for rank in range(2)]), ours


def test_deepspeed_takes_groups_that_it_finds_as_they_are(tmp_path: Path) -> None:
    """Its time-out never reaches torch then: the one way in which an eager start differs for it."""
    need("deepspeed")
    ours = meshrun(tmp_path, 2, SCRIPTS / "ds_init.py", "all", options="--mesh dp=2", env=ON_CPU)
    assert (ours.code, ours.out[1].splitlines()[-1]) == (0, "all 3 1 2 600.0"), ours


def test_deepspeed_with_local_rank(tmp_path: Path) -> None:
    need("deepspeed")
    script = EXAMPLES / "deepspeed_train.py"
    ours = meshrun(tmp_path, 2, script, "--steps", "1", options="--pass-local-rank", env=ON_CPU)
    assert ours.code == 0, ours
    assert "rank 1 of 2  step 0" in ours.out[1]


def test_megatron_core_groups_up_to_its_first_gpu(tmp_path: Path) -> None:
    need("megatron.core") if importlib.util.find_spec("megatron") else need("megatron")
    outs = alike(tmp_path, 4, "dp=2,tp=2", SCRIPTS / "megatron_groups.py")
    assert "'tp': [2, 3]" in outs[3] and "needs a GPU" in outs[3]


def test_torchtitan_meshes(tmp_path: Path) -> None:
    need("torchtitan")
    outs = alike(tmp_path, 4, "dp=2,tp=2", SCRIPTS / "titan_dims.py")
    assert "tp [2, 3] 2 1" in outs[3] and "dp_shard [1, 3] 2 1" in outs[3]
