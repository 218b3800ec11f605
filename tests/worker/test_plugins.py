"""Owns: tests of the devices that torch learns from a package: stand-ins for torch_npu and habana_frameworks.
Must not: stand for real hardware: the stand-ins' back end is gloo.
Called by: pytest."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from tests.worker.player import Player
from tests.worker.probes import script

pytestmark = pytest.mark.torch

# What both write down: their import, the device that was chosen, and each group of their back end.
COMMON = """
import os, types
import torch, torch.distributed as dist

def trace(*words):
    with open(f"{os.environ['TRACE']}/{os.environ['RANK']}", "a") as file:
        print(*words, file=file)

def make_module(name):
    module, current = types.ModuleType("torch." + name), []
    module.is_available = module.is_initialized = lambda: True
    module._is_in_bad_fork = lambda: False
    module.manual_seed_all = lambda seed: None
    module.device_count = lambda: 2
    module.current_device = lambda: (current or [0])[-1] if name == "npu" else 0
    def set_device(index):
        trace("set_device", index)
        current.append(index)
    module.set_device = set_device
    return module

def register_backend(device):
    def make(store, rank, size, timeout):
        trace("group of", size)
        return dist.ProcessGroupGloo(store, rank, size, timeout)
    dist.Backend.register_backend("hccl", make, devices=[device])
"""
STAND_INS = {
    "stand_in_common.py": COMMON,
    "torch_npu/__init__.py": """
        import torch
        from stand_in_common import make_module, register_backend, trace
        trace("import torch_npu")
        torch.utils.rename_privateuse1_backend("npu")
        torch._register_device_module("npu", make_module("npu"))
        register_backend("npu")
    """,
    "habana_frameworks/torch/__init__.py": """
        import torch
        from stand_in_common import make_module, trace
        trace("import habana_frameworks.torch")
        torch._register_device_module("hpu", make_module("hpu"))
    """,
    "habana_frameworks/torch/distributed/hccl/__init__.py": """
        from stand_in_common import register_backend, trace
        trace("import habana_frameworks.torch.distributed.hccl")
        register_backend("hpu")
    """,
}
IMPORTS = {
    "npu": ["import torch_npu"],
    "hpu": ["import habana_frameworks.torch", "import habana_frameworks.torch.distributed.hccl"],
}


@pytest.fixture(scope="module")
def equipped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Player]:
    """A fork server with torch, whose interpreter finds the stand-ins."""
    site = tmp_path_factory.mktemp("site")
    for name, text in STAND_INS.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(dedent(text))
    started = Player(tmp_path_factory.mktemp("node"), "torch", path=str(site))
    started.start()
    yield started
    started.close()


def run_traced(player: Player, folder: Path, text: str, **order: Any) -> tuple[list[list[str]], list[list[str]]]:
    """Two ranks; each one's output and trace, line by line."""
    asked = player.order(script(player, text), mesh={"dims": {"dp": 2}}, **order)
    ends = player.run(asked, 2, TRACE=str(folder))
    for end in ends:
        assert end.code == 0, (end.rank, end.code, end.out, end.err)
    return [end.out.splitlines() for end in ends], [(folder / str(rank)).read_text().splitlines() for rank in (0, 1)]


@pytest.mark.parametrize("init", ["eager", "lazy"])
@pytest.mark.parametrize("device", ["npu", "hpu"])
def test_the_package_comes_first_then_the_device_then_the_groups(
    equipped: Player, tmp_path: Path, device: str, init: str
) -> None:
    outs, traces = run_traced(
        equipped,
        tmp_path,
        """
        dist.init_process_group()
        print(dist.get_backend_config(), meshrun.mesh().device_type, meshrun.device(), total())
        """,
        device=device,
        init=init,
    )
    for rank in (0, 1):
        index = rank if device == "npu" else 0  # a process has one Gaudi, number 0 to itself
        assert outs[rank] == [f"cpu:gloo,{device}:hccl {device} {device}:{index} 1"]
        assert traces[rank] == [*IMPORTS[device], f"set_device {rank}", "group of 2"]


@pytest.mark.parametrize("backend", ["gloo", "cpu:gloo,npu:gloo"])
def test_the_users_backend_wins(equipped: Player, tmp_path: Path, backend: str) -> None:
    outs, traces = run_traced(
        equipped, tmp_path, "print(dist.get_backend(), total())", device="npu", backend=backend, init="eager"
    )
    assert outs == [[f"{backend} 1"]] * 2
    assert traces == [["import torch_npu", f"set_device {rank}"] for rank in (0, 1)]


@pytest.mark.parametrize(("device", "name"), [("npu", "torch_npu"), ("hpu", "habana_frameworks")])
def test_without_the_package_the_worker_says_which(player: Player, device: str, name: str) -> None:
    (player.tmp / "empty.py").write_text("")
    ends = player.run(player.order(player.tmp / "empty.py", init="eager", device=device))
    raised = ends[0].raised
    assert (raised.phase, raised.type) == ("init", "ModuleNotFoundError") and name in raised.message


@pytest.mark.parametrize(
    ("backend", "devices"),
    [
        ("cpu:gloo,cuda:nccl", {"cpu": "gloo", "cuda": "nccl"}),
        ("cpu:gloo,xpu:xccl", {"cpu": "gloo", "xpu": "xccl"}),
        ("gloo", {"cpu": "gloo", "cuda": "gloo"}),
    ],
)
def test_torch_itself_reads_our_default_backends_so(backend: str, devices: dict[str, str]) -> None:
    from torch.distributed.distributed_c10d import Backend, BackendConfig

    from meshrun.worker.devices import default_backend

    ours = {default_backend(device) for device in ("cpu", "cuda", "xpu", "mps")}
    assert backend in ours
    table = BackendConfig(Backend(backend)).get_device_backend_map()
    assert {str(device): str(name) for device, name in table.items()} == devices
    for device in {"cuda", "xpu", "mps", "cpu"} & set(devices):
        if default_backend(device) == backend:
            assert Backend.default_device_backend_map[device] == devices[device], "torch's own choice for it"
