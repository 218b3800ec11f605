"""Owns: tests of which devices a node offers: per vendor, from made trees of files and stand-ins for the vendor's tool.
Must not: look at this machine's own devices.
Called by: pytest."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from meshrun.agent import accelerators, nvidia
from meshrun.agent.accelerators import Found, choose, find_accelerators
from meshrun.agent.installed import Torch
from tests.agent import trees

CUDA, HIP, XPU, PLAIN = (
    Torch("2.13.0+cu130", ("cuda",)),
    Torch("2.13.0+rocm6.4", ("hip",)),
    Torch("2.13.0+xpu", ("xpu",)),
    Torch("2.13.0+cpu", ()),
)
MIG_A, MIG_B = "MIG-11111111-aaaa", "MIG-22222222-bbbb"
U0, U1, U2 = (trees.NVIDIA_UUID.format(number) for number in range(3))
SMI_TWO = f"printf 'GPU 0: NVIDIA H200 (UUID: {U0})\\nGPU 1: NVIDIA H200 (UUID: {U1})\\n'"
SMI_MIG = (
    f"printf 'GPU 0: NVIDIA A100 (UUID: {U0})\\n  MIG 3g.20gb     Device  0: (UUID: {MIG_A})\\n"
    f"  MIG 3g.20gb     Device  1: (UUID: {MIG_B})\\n'"
)
A129 = "GPU-abc0000000000081"  # as trees.amd names the one at renderD129
Make = Callable[[Path], Any]


def two_gpus(root: Path) -> None:
    trees.nvidia(root, range(2))


def four_gpus(root: Path) -> None:
    trees.nvidia(root, range(4))


def eight_amd(root: Path) -> None:
    trees.amd(root, range(128, 136))


def two_of_eight_amd(root: Path) -> None:
    trees.amd(root, range(128, 136), [130, 131])


def gpus_and_npus(root: Path) -> None:
    two_gpus(root)
    trees.ascend(root, range(8))


def both_makers(root: Path) -> None:
    two_gpus(root)
    trees.amd(root, [130])


def mig(root: Path) -> None:
    trees.nvidia(root, [0])
    trees.slices(root)


def two_cards(root: Path) -> None:
    trees.drm(root, 128, "0000:00:02.0", "i915")
    trees.drm(root, 129, "0000:3a:00.0", "i915", tiles=2)
    trees.drm(root, 130, "0000:9a:00.0", "i915", tiles=2)


def gaudis(root: Path) -> None:
    trees.accel(root, range(3), modules=[5, 3, 4])


def on_processor(root: Path) -> None:
    trees.drm(root, 128, "0000:00:02.0", "i915")


def eight_npus(root: Path) -> None:
    trees.ascend(root, range(8))


def nothing(root: Path) -> None:
    pass


# what there is · --device · environment · torch · (device, ids)
FOUND: list[tuple[str, Make, str, str, Torch | None, tuple[str, tuple[str, ...]]]] = [
    ("nothing", nothing, "auto", "", None, ("cpu", ())),
    ("cpu asked", four_gpus, "cpu", "CUDA=1", CUDA, ("cpu", ())),
    ("two", two_gpus, "auto", "", CUDA, ("cuda", ("0", "1"))),
    ("two, a torch that does not say", two_gpus, "auto", "", Torch("2.1.0"), ("cuda", ("0", "1"))),
    ("for a program", two_gpus, "auto", "", None, ("cuda", ("0", "1"))),
    ("a torch for the processor", two_gpus, "auto", "", PLAIN, ("cpu", ())),
    ("as many as /dev has", lambda r: trees.nvidia(r, range(8), [2, 5]), "auto", "", CUDA, ("cuda", ("0", "1"))),
    ("no /proc", lambda r: trees.nvidia(r, [], [0, 3]), "auto", "", CUDA, ("cuda", ("0", "1"))),
    ("driver, no GPU", lambda r: trees.nvidia(r, []), "auto", "", CUDA, ("cpu", ())),
    ("hidden in a container", lambda r: trees.nvidia(r, [0], []), "auto", "NVIDIA=none", CUDA, ("cpu", ())),
    ("void, yet there (CDI)", two_gpus, "auto", "NVIDIA=void", CUDA, ("cuda", ("0", "1"))),
    ("Jetson", lambda r: trees.write(r, "dev/nvhost-gpu"), "auto", "", CUDA, ("cuda", ("0",))),
    ("mask", four_gpus, "auto", "CUDA=3,1", CUDA, ("cuda", ("3", "1"))),
    ("mask, empty", four_gpus, "auto", "CUDA=", CUDA, ("cuda", ())),
    ("mask, -1", four_gpus, "auto", "CUDA=-1", CUDA, ("cuda", ())),
    ("mask, Slurm's none", four_gpus, "auto", "CUDA=NoDevFiles", CUDA, ("cuda", ())),
    ("mask ends at -1", four_gpus, "auto", "CUDA=0,-1,2", CUDA, ("cuda", ("0",))),
    ("mask ends at 9", four_gpus, "auto", "CUDA=2,9,1", CUDA, ("cuda", ("2",))),
    ("mask ends at a word", four_gpus, "auto", "CUDA=2,x,1", CUDA, ("cuda", ("2",))),
    ("mask ends at nothing", four_gpus, "auto", "CUDA=2,,1", CUDA, ("cuda", ("2",))),
    ("mask, blanks", four_gpus, "auto", "CUDA= 2 , 1 ", CUDA, ("cuda", ("2", "1"))),
    ("mask, letters after", four_gpus, "auto", "CUDA=1gpu,+2", CUDA, ("cuda", ("1", "2"))),
    ("mask, twice", four_gpus, "auto", "CUDA=1,2,1", CUDA, ("cuda", ())),
    ("mask, twice in other words", four_gpus, "auto", "CUDA=1,01", CUDA, ("cuda", ())),
    ("mask, all of a huge number", four_gpus, "auto", "CUDA=1," + "9" * 5000, CUDA, ("cuda", ("1",))),
    ("UUIDs", four_gpus, "auto", f"CUDA={U2},{U0}", CUDA, ("cuda", (U2, U0))),
    ("UUIDs, short", four_gpus, "auto", "CUDA=GPU-2,GPU-00", CUDA, ("cuda", ("GPU-2", "GPU-00"))),
    ("UUIDs, one GPU twice", four_gpus, "auto", f"CUDA=GPU-2,{U2}", CUDA, ("cuda", ())),
    ("UUIDs, not unique", four_gpus, "auto", "CUDA=GPU-", CUDA, ("cuda", ())),
    ("UUIDs, another's", four_gpus, "auto", "CUDA=GPU-1,GPU-f", CUDA, ("cuda", ("GPU-1",))),
    ("UUIDs, then a number", four_gpus, "auto", "CUDA=GPU-1,2", CUDA, ("cuda", ("GPU-1",))),
    ("numbers, then a UUID", four_gpus, "auto", "CUDA=1,GPU-2", CUDA, ("cuda", ("1",))),
    ("mask without hardware", nothing, "auto", "CUDA=2,3", CUDA, ("cpu", ("2", "3"))),
    ("mask without hardware, asked", nothing, "cuda", "CUDA=2", CUDA, ("cuda", ("2",))),
    ("AMD's mask is not NVIDIA's", four_gpus, "auto", "HIP=1", CUDA, ("cuda", tuple("0123"))),
    ("AMD", eight_amd, "auto", "", HIP, ("cuda", tuple("01234567"))),
    ("AMD, those with a node", two_of_eight_amd, "auto", "", HIP, ("cuda", ("0", "1"))),
    ("AMD, no kfd", lambda r: trees.amd(r, [128], kfd=False), "auto", "", HIP, ("cpu", ())),
    ("AMD, a torch for CUDA", eight_amd, "auto", "", CUDA, ("cpu", ())),
    ("AMD, ROCR", eight_amd, "auto", "ROCR=6,4", HIP, ("cuda", ("6", "4"))),
    ("AMD, ROCR mixed", eight_amd, "auto", f"ROCR=0,{A129}", HIP, ("cuda", ("0", A129))),
    ("AMD, HIP", eight_amd, "auto", "HIP=6,4", HIP, ("cuda", ("6", "4"))),
    ("AMD, CUDA's name", eight_amd, "auto", "CUDA=5", HIP, ("cuda", ("5",))),
    ("AMD, HIP before CUDA", eight_amd, "auto", "CUDA=5; HIP=4", HIP, ("cuda", ("4",))),
    ("AMD, HIP within ROCR", eight_amd, "auto", "ROCR=6,7; HIP=1", HIP, ("cuda", ("1",))),
    ("AMD, HIP outside ROCR", eight_amd, "auto", "ROCR=6,7; HIP=6,7", HIP, ("cuda", ())),
    ("AMD, CUDA within ROCR", eight_amd, "auto", "ROCR=6,7; CUDA=0", HIP, ("cuda", ("0",))),
    ("two makers, torch for CUDA", both_makers, "auto", "", CUDA, ("cuda", ("0", "1"))),
    ("two makers, torch for ROCm", both_makers, "auto", "", HIP, ("cuda", ("0",))),
    ("two makers, none said", both_makers, "auto", "", None, ("cuda", ("0", "1"))),
    ("Ascend", lambda r: trees.ascend(r, [0, 7]), "auto", "", PLAIN, ("npu", ("0", "1"))),
    ("Ascend, mask", eight_npus, "auto", "RT=5,2", PLAIN, ("npu", ("5", "2"))),
    ("Ascend, a container's word", lambda r: trees.ascend(r, [3]), "auto", "ASCEND=3", PLAIN, ("npu", ("0",))),
    ("Ascend, mask twice", eight_npus, "auto", "RT=5,5", PLAIN, ("npu", ())),
    ("only the manager", lambda r: trees.ascend(r, []), "auto", "", PLAIN, ("cpu", ())),
    ("the first kind", gpus_and_npus, "auto", "", CUDA, ("cuda", ("0", "1"))),
    ("the kind that torch can use", gpus_and_npus, "auto", "", PLAIN, ("npu", tuple("01234567"))),
    ("the kind asked for", gpus_and_npus, "npu", "", CUDA, ("npu", tuple("01234567"))),
    ("Gaudi, no module numbers", lambda r: trees.accel(r, range(2)), "auto", "", PLAIN, ("hpu", ("0", "1"))),
    ("Gaudi, by module", gaudis, "auto", "", PLAIN, ("hpu", ("3", "4", "5"))),
    ("Gaudi, mask", gaudis, "auto", "MODULES=5,3", PLAIN, ("hpu", ("5", "3"))),
    ("Gaudi, mask outside", gaudis, "auto", "MODULES=0,3", PLAIN, ("hpu", ())),
    ("Gaudi, a container's word", gaudis, "auto", "HABANA=0", PLAIN, ("hpu", ("3", "4", "5"))),
    ("another's accel", lambda r: trees.accel(r, [0], "amdxdna"), "auto", "", PLAIN, ("cpu", ())),
    ("Intel, tiles", two_cards, "auto", "", XPU, ("xpu", tuple("0123"))),
    ("Intel, COMBINED", two_cards, "auto", "FLAT=COMBINED", XPU, ("xpu", tuple("0123"))),
    ("Intel, whole cards", two_cards, "auto", "FLAT=COMPOSITE", XPU, ("xpu", ("0", "1"))),
    ("Intel, xe", lambda r: trees.drm(r, 128, "0000:03:00.0", tiles=2), "auto", "", XPU, ("xpu", ("0", "1"))),
    ("Intel, one tile", lambda r: trees.drm(r, 128, "0000:03:00.0"), "auto", "", XPU, ("xpu", ("0",))),
    ("Intel, mask", two_cards, "auto", "ZE=2,1", XPU, ("xpu", ("1", "2"))),
    ("Intel, mask with tiles", two_cards, "auto", "ZE=0.1", XPU, ("xpu", ())),
    ("Intel, tiles of whole cards", two_cards, "auto", "ZE=0.0,0.1,1.1; FLAT=COMPOSITE", XPU, ("xpu", ("0.0", "1.1"))),
    ("Intel, numbers and a tile", two_cards, "auto", "ZE=3,0.1", XPU, ("xpu", ("3",))),
    ("Intel, tiles, not in order", two_cards, "auto", "ZE=1.1,0; FLAT=COMPOSITE", XPU, ("xpu", ("0", "1.1"))),
    ("Intel, mask filters", two_cards, "auto", "ZE=9,3,3", XPU, ("xpu", ("3",))),
    ("Intel, on the processor", on_processor, "auto", "", XPU, ("xpu", ("0",))),
    ("Intel, on the processor, asked", on_processor, "xpu", "", None, ("xpu", ("0",))),
    ("Intel, on the processor, a torch without", on_processor, "auto", "", PLAIN, ("cpu", ())),
    ("Intel, given away", lambda r: trees.drm(r, 128, "0000:03:00.0", "vfio-pci"), "auto", "", XPU, ("cpu", ())),
    ("a node of another", lambda r: trees.drm(r, 128, "0000:03:00.0", "xe", "0x10"), "auto", "", XPU, ("cpu", ())),
    ("asked, not there", four_gpus, "hpu", "", PLAIN, ("hpu", ())),
]  # fmt: skip


SHORT = {
    **{name: f"{name}_VISIBLE_DEVICES" for name in ("CUDA", "HIP", "ROCR", "NVIDIA", "ASCEND", "HABANA")},
    "RT": "ASCEND_RT_VISIBLE_DEVICES",
    "MODULES": "HABANA_VISIBLE_MODULES",
    "ZE": "ZE_AFFINITY_MASK",
    "FLAT": "ZE_FLAT_DEVICE_HIERARCHY",
}


def read_env(text: str) -> dict[str, str]:
    """`CUDA=0,1; HIP=2` with the short names above."""
    pairs = [item.partition("=") for item in text.split("; ")] if text else []
    return {SHORT.get(name, name): value for name, _, value in pairs}


def find(root: Path, make: Make, asked: str, env: dict[str, str], torch: Torch | None, system: str = "") -> Found:
    make(root)
    return find_accelerators(asked, {"PATH": "/nowhere", **env}, torch, str(root), system or "Linux x86_64")


@pytest.mark.parametrize("row", FOUND, ids=[row[0] for row in FOUND])
def test_what_a_node_offers(tmp_path: Path, row: Any) -> None:
    _, make, asked, env, torch, expected = row
    found = find(tmp_path, make, asked, read_env(env), torch)
    assert (found.device, found.devices) == expected


@pytest.mark.parametrize(("system", "number"), [("Darwin arm64", 1), ("Darwin x86_64", 0), ("Linux aarch64", 0)])
def test_mps_is_one_device_of_apples_processors(tmp_path: Path, system: str, number: int) -> None:
    found = find(tmp_path, nothing, "mps", {}, None, system)
    assert (found.device, len(found.devices), "Apple" in found.problem) == ("mps", number, number == 0)
    assert find(tmp_path, nothing, "auto", {}, None, system).device == ("mps" if number else "cpu")


@pytest.mark.parametrize(
    ("make", "env", "torch", "words"),
    [
        (two_gpus, {}, PLAIN, "2 NVIDIA devices are not used: torch 2.13.0+cpu is built without CUDA"),
        (eight_amd, {}, CUDA, "8 AMD devices are not used: torch 2.13.0+cu130 is built without ROCm"),
        (gpus_and_npus, {}, CUDA, "8 Ascend devices are here too: --device npu chooses them instead"),
        (four_gpus, {"CUDA_VISIBLE_DEVICES": "2,9,1"}, CUDA, "CUDA_VISIBLE_DEVICES=2,9,1 ends at '9'"),
        (lambda r: trees.nvidia(r, []), {}, CUDA, "/proc/driver/nvidia is there, but no device"),
        (
            lambda r: trees.nvidia(r, []),
            {"NVIDIA_VISIBLE_DEVICES": "void"},
            CUDA,
            "NVIDIA_VISIBLE_DEVICES=void in",
        ),
    ],
)
def test_what_is_not_used_is_said(tmp_path: Path, make: Make, env: Any, torch: Torch, words: str) -> None:
    (note,) = find(tmp_path, make, "auto", env, torch).notes
    assert words in note


@pytest.mark.parametrize(
    ("make", "env", "words"),
    [
        (four_gpus, {"CUDA_VISIBLE_DEVICES": "1,2,1"}, "names 1 twice"),
        (two_cards, {"ZE_AFFINITY_MASK": "0.1"}, "0.1 is a tile of a card, which counts only with"),
        (two_cards, {"ZE_AFFINITY_MASK": "0,gpu1"}, "'gpu1' is no number"),
    ],
)
def test_a_mask_that_hides_everything_by_mistake_is_a_problem(tmp_path: Path, make: Make, env: Any, words: str) -> None:
    found = find(tmp_path, make, "auto", env, XPU if make is two_cards else CUDA)
    assert words in found.problem and found.hint


def test_a_device_that_is_closed_to_this_user_is_named_with_its_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a user who is nobody's friend: root, who runs many test machines, may open anything."""
    monkeypatch.setattr(os, "access", lambda path, mode: os.path.exists(path) and os.stat(path).st_mode & 6 == 6)
    for make, closed in ((four_gpus, "dev/nvidia1"), (lambda r: trees.amd(r, [128]), "dev/kfd")):
        root = tmp_path / closed
        make(root)
        for node in root.rglob("dev/**/*"):
            node.chmod(0o777)
        (root / closed).chmod(0o660)
        found = find_accelerators("auto", {}, None, str(root), "Linux x86_64")
        assert f"/{closed}: this user may not open it (its group is " in found.notes[0]
        assert found.devices == (("0", "1", "2") if make is four_gpus else ())


# ---- which variable is set, and torch's side ----


@pytest.mark.parametrize(
    ("make", "env", "torch", "name", "text"),
    [
        (four_gpus, {}, CUDA, "CUDA_VISIBLE_DEVICES", ""),
        (eight_amd, {}, HIP, "HIP_VISIBLE_DEVICES", ""),
        (eight_amd, {"ROCR_VISIBLE_DEVICES": "4,5"}, HIP, "ROCR_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES=4,5"),
        (eight_amd, {"CUDA_VISIBLE_DEVICES": "4"}, HIP, "CUDA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES=4"),
        (
            eight_amd,
            {"ROCR_VISIBLE_DEVICES": "4,5", "HIP_VISIBLE_DEVICES": "1"},
            HIP,
            "HIP_VISIBLE_DEVICES",
            "ROCR_VISIBLE_DEVICES=4,5 HIP_VISIBLE_DEVICES=1",
        ),
        (lambda r: trees.ascend(r, [0]), {}, PLAIN, "ASCEND_RT_VISIBLE_DEVICES", ""),
        (gaudis, {}, PLAIN, "HABANA_VISIBLE_MODULES", ""),
        (two_cards, {}, XPU, "ZE_AFFINITY_MASK", ""),
    ],
)
def test_the_innermost_mask_in_force_is_the_one_to_narrow(
    tmp_path: Path, make: Make, env: Any, torch: Torch, name: str, text: str
) -> None:
    found = find(tmp_path, make, "auto", env, torch)
    assert (found.mask_name, found.mask) == (name, text)


@pytest.mark.parametrize(
    ("make", "asked", "torch", "package", "words"),
    [
        (two_gpus, "cuda", PLAIN, "", "its torch 2.13.0+cpu is built without CUDA, which NVIDIA devices need"),
        (two_gpus, "cuda", CUDA, "", ""),
        (two_gpus, "cuda", Torch("2.1"), "", ""),
        (lambda r: trees.ascend(r, [0]), "auto", PLAIN, "", "its python has no torch_npu"),
        (lambda r: trees.ascend(r, [0]), "auto", PLAIN, "torch_npu", ""),
        (gaudis, "auto", PLAIN, "habana_frameworks", "its python has no habana_frameworks.torch"),
        (gaudis, "auto", PLAIN, "habana_frameworks/torch", ""),
        (gaudis, "auto", Torch(), "", ""),  # no torch at all is another check's
        (nothing, "auto", PLAIN, "", ""),
    ],
)
def test_torch_must_know_the_device(
    tmp_path: Path, make: Make, asked: str, torch: Torch, package: str, words: str
) -> None:
    found = find(tmp_path, make, asked, {}, torch)
    if package:
        (tmp_path / "site" / package).mkdir(parents=True)
    problem, hint = accelerators.find_misfit(found, {"PYTHONPATH": str(tmp_path / "site")}, torch)
    assert problem.startswith(words) if words else not problem
    assert bool(hint) is bool(words)


# ---- devices= ----


@pytest.mark.parametrize(
    ("make", "env", "named", "words"),
    [
        (four_gpus, {}, "3,0", ""),
        (four_gpus, {}, "4", "device 4 was asked for (devices=4), but that node has cuda devices 0,1,2,3"),
        (four_gpus, {}, U1, ""),
        (four_gpus, {}, "GPU-1", ""),
        (four_gpus, {}, "GPU-f", "device GPU-f was asked for"),
        (four_gpus, {}, "GPU-", "fits 4 of them"),
        (lambda r: trees.nvidia(r, range(2), uuids=False), {}, "GPU-f", ""),
        (four_gpus, {"CUDA_VISIBLE_DEVICES": "2,3"}, "3", ""),
        (four_gpus, {"CUDA_VISIBLE_DEVICES": "2,3"}, "0", "device 0 was asked for (devices=0), but CUDA_"),
        (four_gpus, {}, f"0,{U1}", "CUDA reads only numbers, only GPU-"),
        (four_gpus, {"CUDA_VISIBLE_DEVICES": ""}, "0", "CUDA_VISIBLE_DEVICES= shows none there"),
        (four_gpus, {"CUDA_VISIBLE_DEVICES": "GPU-1,GPU-2"}, U2, ""),
        (four_gpus, {"CUDA_VISIBLE_DEVICES": U1}, f"GPU-1,{U1}", "are one device"),
        (four_gpus, {"CUDA_VISIBLE_DEVICES": U1}, "1", "device 1 was asked for"),
        (eight_amd, {"ROCR_VISIBLE_DEVICES": "6,7"}, "7", ""),
        (eight_amd, {"ROCR_VISIBLE_DEVICES": "6,7", "HIP_VISIBLE_DEVICES": "1"}, "7", "HIP_VISIBLE_DEVICES=1 is in"),
        (nothing, {}, "0,5", ""),
        (nothing, {"CUDA_VISIBLE_DEVICES": "2,3"}, "0", "CUDA_VISIBLE_DEVICES=2,3 is in force"),
    ],
)  # fmt: skip
def test_devices_of_the_line_lie_within_what_is_visible(
    tmp_path: Path, make: Make, env: Any, named: str, words: str
) -> None:
    found = find(tmp_path, make, "auto", env, HIP if make is eight_amd else CUDA)
    devices, problem = choose(named.split(","), found)
    assert words in problem
    assert devices == (() if words else tuple(named.split(",")))


def test_devices_of_an_accelerator_that_is_not_there_are_none(tmp_path: Path) -> None:
    assert choose(["0"], find(tmp_path, nothing, "cuda", {}, CUDA)) == ((), "")


# ---- nvidia-smi ----


@pytest.mark.parametrize(
    ("make", "env", "output", "devices"),
    [
        (mig, {}, SMI_MIG, (MIG_A, MIG_B)),
        (mig, {"CUDA_VISIBLE_DEVICES": MIG_B}, SMI_MIG, (MIG_B,)),
        (mig, {"CUDA_VISIBLE_DEVICES": "MIG-2"}, SMI_MIG, ("MIG-2",)),
        (mig, {"CUDA_VISIBLE_DEVICES": f"{MIG_A},{U0}"}, SMI_MIG, (MIG_A,)),
        (mig, {"CUDA_VISIBLE_DEVICES": "0"}, SMI_MIG, ("0",)),
        (mig, {"CUDA_VISIBLE_DEVICES": "MIG-9"}, SMI_MIG, ()),
        (lambda r: trees.nvidia(r, range(2), []), {}, SMI_TWO, ("0", "1")),  # nodes are made at the first use
        (lambda r: trees.write(r, "dev/dxg"), {}, SMI_TWO, ("0", "1")),  # WSL
        (lambda r: trees.nvidia(r, range(2), uuids=False), {"CUDA_VISIBLE_DEVICES": "GPU-1"}, SMI_TWO, ("GPU-1",)),
        (lambda r: trees.nvidia(r, range(2), uuids=False), {"CUDA_VISIBLE_DEVICES": "GPU-f"}, SMI_TWO, ()),
    ],
)
def test_the_tool_is_asked_where_files_do_not_say(
    tmp_path: Path, make: Make, env: Any, output: str, devices: tuple[str, ...]
) -> None:
    path = trees.tool(tmp_path / "bin", output)
    found = find(tmp_path / "root", make, "auto", {**env, "PATH": path}, CUDA)
    assert (found.device, found.devices, found.notes[:-1] if devices else ()) == ("cuda", devices, ())


@pytest.mark.parametrize(
    ("make", "env"),
    [
        (two_gpus, {}),
        (four_gpus, {"CUDA_VISIBLE_DEVICES": "GPU-1"}),
        (lambda r: trees.write(r, "proc/driver/nvidia/capabilities/gpu0/mig/config"), {}),
        (nothing, {}),
    ],
)
def test_the_tool_is_not_asked_where_they_do(tmp_path: Path, make: Make, env: Any) -> None:
    path = trees.tool(tmp_path / "bin", f"touch {tmp_path}/asked")
    find(tmp_path / "root", make, "auto", {**env, "PATH": path}, CUDA)
    assert not (tmp_path / "asked").exists()


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("exit 9", "nvidia-smi -L failed with exit code 9"),
        ("sleep 1000 & wait", "nvidia-smi -L did not answer within 0.2 s"),
        ("echo nonsense", ""),
    ],
)
def test_a_tool_that_fails_or_hangs_leaves_what_files_say(
    tmp_path: Path, script: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvidia, "TOOL_S", 0.2)
    path = trees.tool(tmp_path / "bin", script)
    found = find(tmp_path / "root", mig, "auto", {"PATH": path}, CUDA)
    assert (found.device, found.devices) == ("cuda", ("0",))
    assert [note[: len(words)] for note in found.notes] == ([words] if words else [])


def test_a_driver_seen_from_a_container_without_gpus_is_no_fault(tmp_path: Path) -> None:
    found = find(tmp_path, lambda r: trees.nvidia(r, range(8), []), "auto", {}, CUDA)
    assert (found.device, [note.partition(",")[0] for note in found.notes]) == ("cpu", ["/proc/driver/nvidia is there"])


@pytest.mark.parametrize(("devices", "refused"), [([MIG_A], False), ([MIG_A, MIG_B], True), (["0", "1"], False)])
def test_local_rank_cannot_count_slices(devices: list[str], refused: bool) -> None:
    assert bool(accelerators.check_slices(devices)) is refused
