"""Owns: the example's promise: the same losses on every mesh.
Must not: measure.
Called by: pytest."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from math import prod
from pathlib import Path

import pytest

from tests.worker.player import ROOT, Player

pytestmark = pytest.mark.torch
TRAIN = ROOT / "examples" / "train.py"
OPTIONS = ("--steps", "4", "--batch", "8", "--context", "32", "--width", "32")


@pytest.fixture(scope="module")
def player(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Player]:
    started = Player(tmp_path_factory.mktemp("node"), "torch")
    started.start()
    yield started
    started.close()


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The losses of plain `python examples/train.py`."""
    path = tmp_path_factory.mktemp("alone") / "losses.json"
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(TRAIN), *OPTIONS, "--json", str(path)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    losses: list[float] = json.loads(path.read_text())["losses"]
    return losses


@pytest.mark.parametrize("dims", [{"dp": 2, "tp": 2}, {"tp": 2}, {"dp": 2}])
def test_losses_are_those_of_one_rank(player: Player, alone: list[float], dims: dict[str, int]) -> None:
    path = player.tmp / "losses.json"
    path.unlink(missing_ok=True)
    order = player.order(TRAIN, *OPTIONS, "--json", str(path), init="eager", mesh={"dims": dims})
    ends = player.run(order, prod(dims.values()))
    assert [(end.code, end.err) for end in ends] == [(0, "")] * len(ends)
    losses = json.loads(path.read_text())["losses"]
    assert losses == pytest.approx(alone, rel=1e-4)
    assert losses[-1] < losses[0] - 0.1
    assert "tokens/s" in ends[0].out


def test_ddp_gives_the_same(player: Player, alone: list[float]) -> None:
    path = player.tmp / "ddp.json"
    order = player.order(TRAIN, *OPTIONS, "--ddp", "--json", str(path), init="lazy", mesh={"dims": {"dp": 2}})
    ends = player.run(order, 2)
    assert [end.code for end in ends] == [0, 0], ends[0].err
    assert json.loads(path.read_text())["losses"] == pytest.approx(alone, rel=1e-4)


def test_a_mesh_it_cannot_use_is_said(player: Player) -> None:
    ends = player.run(player.order(TRAIN, *OPTIONS, init="lazy", mesh={"dims": {"pp": 1}}), 1)
    assert ends[0].code == 2
    assert "cannot use the mesh {'pp': 1}" in ends[0].err
