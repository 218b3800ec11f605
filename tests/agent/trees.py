"""Owns: made trees of device files, one function per vendor, as the kernels' drivers lay them out.
Must not: hold tests, or make a real device.
Called by: tests/agent, tests/e2e."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

NVIDIA_UUID = "GPU-{0}{0}{0}{0}{0}{0}{0}{0}-1111-2222-3333-44444444444{0}"


def write(root: Path, name: str, text: str = "") -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def link(root: Path, name: str, target: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    (root / target).mkdir(parents=True, exist_ok=True)
    path.symlink_to(root / target)


def nvidia(root: Path, minors: Iterable[int], nodes: Iterable[int] | None = None, uuids: bool = True) -> None:
    """`minors`: what the driver lists; `nodes`: what /dev has (the same where not said)."""
    listed = list(minors)
    write(root, "proc/driver/nvidia/version", "NVRM version\n")
    for minor in listed:
        uuid = NVIDIA_UUID.format(minor) if uuids else "GPU-????????-????-????-????-????????????"
        text = f"Model: \t\t H200\nIRQ:   \t\t 1\nGPU UUID: \t {uuid}\nDevice Minor: \t {minor}\n"
        write(root, f"proc/driver/nvidia/gpus/0000:{minor:02x}:00.0/information", text)
    for minor in listed if nodes is None else nodes:
        write(root, f"dev/nvidia{minor}")
    write(root, "dev/nvidiactl")
    write(root, "dev/nvidia-uvm")


def slices(root: Path, gpu: int = 0) -> None:
    write(root, f"proc/driver/nvidia/capabilities/gpu{gpu}/mig/gi3/ci0/access")


def amd(root: Path, minors: Iterable[int], nodes: Iterable[int] | None = None, kfd: bool = True) -> None:
    listed = list(minors)
    folder = "sys/class/kfd/kfd/topology/nodes"
    write(root, f"{folder}/0/properties", "cpu_cores_count 64\nsimd_count 0\ngfx_target_version 0\n")
    for at, minor in enumerate(listed, 1):
        text = f"cpu_cores_count 0\nsimd_count 304\ngfx_target_version 90402\ndrm_render_minor {minor}\n"
        write(root, f"{folder}/{at}/properties", text + f"unique_id {0xABC0000000000000 + minor}\n")
    for minor in listed if nodes is None else nodes:
        write(root, f"dev/dri/renderD{minor}")
    if kfd:
        write(root, "dev/kfd")


def ascend(root: Path, numbers: Iterable[int]) -> None:
    for number in numbers:
        write(root, f"dev/davinci{number}")
    write(root, "dev/davinci_manager")


def accel(root: Path, numbers: Iterable[int], driver: str = "habanalabs", modules: Iterable[int] = ()) -> None:
    for number in numbers:
        write(root, f"dev/accel/accel{number}")
        link(root, f"sys/class/accel/accel{number}/device/driver", f"sys/bus/pci/drivers/{driver}")
    for number, module in enumerate(modules):
        write(root, f"sys/class/accel/accel{number}/device/module_id", f"{module}\n")


def drm(root: Path, minor: int, bus: str, driver: str = "xe", vendor: str = "0x8086", tiles: int = 0) -> None:
    """One render node; `tiles`: folders of that many tiles, as this driver has them."""
    card = f"sys/devices/{bus}"
    write(root, f"{card}/vendor", f"{vendor}\n")
    link(root, f"{card}/driver", f"sys/bus/pci/drivers/{driver}")
    link(root, f"sys/class/drm/renderD{minor}/device", card)
    write(root, f"dev/dri/renderD{minor}")
    for tile in range(tiles):
        place = f"{card}/tile{tile}" if driver == "xe" else f"{card}/drm/card0/gt/gt{tile}"
        write(root, f"{place}/x")


def tool(folder: Path, text: str) -> str:
    """A stand-in for nvidia-smi; returns the PATH that finds it."""
    folder.mkdir(exist_ok=True)
    path = folder / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return f"{folder}:/usr/bin:/bin"
