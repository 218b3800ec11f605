"""Owns: tests of what a node's facts say about devices for the job that asks.
Must not: look at this machine's own devices.
Called by: pytest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from meshrun.agent import probe
from meshrun.agent.accelerators import Found, find_accelerators
from meshrun.wire import Facts
from tests.agent import trees
from tests.agent.driver import make_brief


def greet(folder: Path, monkeypatch: pytest.MonkeyPatch, env: dict[str, str] | None = None, **brief: Any) -> Facts:
    """The facts of a node whose devices are those in `folder`."""

    def find(asked: str, env: Any, torch: Any) -> Found:
        return find_accelerators(asked, env, torch, str(folder), "Linux x86_64")

    monkeypatch.setattr(probe, "find_accelerators", find)
    base = {"PATH": "/nowhere", **(env or {})}
    asked = make_brief(folder, "true", **{"device": "auto", "form": "module", "init": "lazy", **brief})
    return probe.make_facts(asked, base, base, "/tmp", 0, probe.look(asked, base))


def make_torch(folder: Path, *packages: str) -> dict[str, str]:
    """An interpreter's folder with a torch that is built for nothing but the processor, and some packages."""
    trees.write(
        folder, "site/torch/version.py", "__version__ = '9.0'\ncuda: str | None = None\nhip = None\nxpu = None\n"
    )
    for package in packages:
        trees.write(folder, f"site/{package}/__init__.py")
    return {"PYTHONPATH": f"{folder}/site"}


@pytest.mark.parametrize(
    ("packages", "brief", "device", "slots", "words"),
    [
        (["torch_npu"], {}, "npu", 4, ""),
        ([], {}, "npu", 4, "has no torch_npu"),
        ([], {"init": "off"}, "npu", 4, ""),
        ([], {"form": "program"}, "npu", 4, ""),
        ([], {"device": "cpu"}, "cpu", 1, ""),
        (["torch_npu"], {"device": "cuda"}, "cuda", 0, ""),
        (["torch_npu"], {"devices": ("3", "1")}, "npu", 2, ""),
        (["torch_npu"], {"devices": ("4",)}, "npu", 0, "device 4 was asked for (devices=4), but that node has npu"),
    ],
)
def test_an_ascend_node(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    packages: list[str],
    brief: dict[str, Any],
    device: str,
    slots: int,
    words: str,
) -> None:
    trees.ascend(tmp_path, range(4))
    facts = greet(tmp_path, monkeypatch, make_torch(tmp_path, *packages), **brief)
    assert (facts.device, facts.slots, words in facts.device_problem) == (device, slots, True)
    assert bool(facts.device_problem) is bool(facts.device_hint) is bool(words)


def test_facts_say_what_else_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trees.nvidia(tmp_path, range(2))
    trees.ascend(tmp_path, range(4))
    facts = greet(tmp_path, monkeypatch, form="program")
    assert (facts.device, facts.devices) == ("cuda", ("0", "1"))
    assert facts.device_notes == ("4 Ascend devices are here too: --device npu chooses them instead",)


@pytest.mark.parametrize(("slots", "init", "refused"), [(0, "lazy", True), (1, "lazy", False), (0, "off", False)])
def test_several_slices_of_a_gpu_need_a_script_that_chooses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slots: int, init: str, refused: bool
) -> None:
    trees.nvidia(tmp_path, [0])
    env = {"CUDA_VISIBLE_DEVICES": "MIG-a,MIG-b", "PYTHONPATH": f"{tmp_path}/site"}
    trees.write(tmp_path, "site/torch/version.py", "__version__ = '9.0+cu1'\ncuda = '1'\n")
    trees.slices(tmp_path)
    env["PATH"] = trees.tool(
        tmp_path / "bin", "printf 'GPU 0: A (UUID: GPU-1)\\n  MIG 1g (UUID: MIG-a)\\n  MIG 1g (UUID: MIG-b)\\n'"
    )
    facts = greet(tmp_path, monkeypatch, env, slots=slots, init=init)
    assert facts.slots == (slots or 2)
    assert facts.device_problem.startswith("2 workers on MIG slices") is refused
