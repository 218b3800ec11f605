"""Owns: finding this node's accelerators without torch or a driver library: files, and masks in the environment.
Must not: open a device (that can wake a driver up) or import torch.
Called by: agent.probe."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping

from meshrun.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Found:
    """The accelerators of a node: `device` is torch's name of the kind ("cpu": none)."""

    device: str
    devices: tuple[str, ...] = ()  # in visible order; masks respected
    mask_name: str = ""  # the variable that masks this kind
    mask: str = ""  # NAME=VALUE in force, "" if none


@dataclass(frozen=True, slots=True)
class _Kind:
    device: str
    masks: tuple[str, ...]  # the first is the one to set
    find: Callable[[str], tuple[str, ...]]


def find_accelerators(asked: str, env: Mapping[str, str], root: str = "") -> Found:
    """What this node offers for `asked` ("auto": any kind). A mask gives the ids as they are, without probing."""
    if asked == "cpu":
        return Found("cpu")
    kinds = [kind for kind in _KINDS if asked in ("auto", kind.device)]
    for kind in kinds:
        devices = kind.find(root)
        if devices:
            return _with_mask(kind, kind.device, devices, env)
    for kind in kinds:  # a mask without the hardware: a pool of ids all the same
        if any(name in env for name in kind.masks):
            return _with_mask(kind, "cpu" if asked == "auto" else kind.device, (), env)
    return Found("cpu" if asked == "auto" else asked, (), kinds[0].masks[0] if kinds else "")


def _with_mask(kind: _Kind, device: str, devices: tuple[str, ...], env: Mapping[str, str]) -> Found:
    for name in kind.masks:
        if name in env:
            return Found(device, parse_mask(env[name]), name, f"{name}={env[name]}")
    return Found(device, devices, kind.masks[0])


def parse_mask(value: str) -> tuple[str, ...]:
    """The ids of a mask in its own order. As the drivers do it: `-1` (or Slurm's NoDevFiles) ends the list."""
    ids: list[str] = []
    for part in value.split(","):
        if part.strip() in ("", "-1", "NoDevFiles"):
            break
        ids.append(part.strip())
    return tuple(ids)


def find_mask_name(device: str, root: str = "") -> str:
    """The variable that sets which devices a worker sees, for a kind of device; "" if there is none."""
    kinds = [kind for kind in _KINDS if kind.device == device]
    present = [kind for kind in kinds if kind.find(root)]
    return (present or kinds)[0].masks[0] if kinds else ""


def _list(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except OSError:
        return []


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def _numbers(folder: str, pattern: str) -> tuple[str, ...]:
    found = [match[1] for name in _list(folder) if (match := re.fullmatch(pattern, name))]
    return tuple(sorted(found, key=int))


def _count(number: int) -> tuple[str, ...]:
    return tuple(str(index) for index in range(number))


def _find_nvidia(root: str) -> tuple[str, ...]:
    """/proc lists the machine's GPUs, /dev those that a container was given; MIG slices have names of their own."""
    nodes = _numbers(f"{root}/dev", r"nvidia([0-9]+)")
    known = _list(f"{root}/proc/driver/nvidia/gpus")
    number = min(len(nodes), len(known)) if known else len(nodes)
    if number and _has_mig(root) and not root:
        return _list_with_tool(number)
    return _count(number)


def _has_mig(root: str) -> bool:
    folder = f"{root}/proc/driver/nvidia/capabilities"
    return any(_list(f"{folder}/{gpu}/mig") for gpu in _list(folder) if re.fullmatch(r"gpu[0-9]+", gpu))


def _list_with_tool(number: int) -> tuple[str, ...]:
    """nvidia-smi -L, the only list with MIG slices; slow, so asked only where /proc shows some."""
    import subprocess

    try:
        text = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=8, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return _count(number)
    slices = re.findall(r"\(UUID: (MIG-[^)]+)\)", text)
    return tuple(slices) or _count(number)


def _find_amd(root: str) -> tuple[str, ...]:
    nodes = f"{root}/sys/class/kfd/kfd/topology/nodes"
    texts = [_read(f"{nodes}/{name}/properties") for name in _list(nodes)]
    return _count(sum(bool(re.search(r"^simd_count [1-9]", text, re.MULTILINE)) for text in texts))


def _find_ascend(root: str) -> tuple[str, ...]:
    return _count(len(_numbers(f"{root}/dev", r"davinci([0-9]+)")))


def _find_gaudi(root: str) -> tuple[str, ...]:
    """/dev/accel is shared by several makers: the driver's link says whose it is."""
    names = _numbers(f"{root}/dev/accel", r"accel([0-9]+)")
    links = [f"{root}/sys/class/accel/accel{name}/device/driver" for name in names]
    return _count(sum("habana" in os.path.basename(os.path.realpath(link)) for link in links))


def _find_xpu(root: str) -> tuple[str, ...]:
    """Intel GPUs but the one on the processor (always at 00:02.0), which torch does not train on."""
    base = f"{root}/sys/class/drm"
    cards = [os.path.realpath(f"{base}/{name}/device") for name in _list(base) if name.startswith("renderD")]
    intel = [card for card in cards if _read(f"{card}/vendor").strip() == "0x8086"]
    return _count(sum(not card.endswith("0000:00:02.0") for card in intel))


_KINDS = (
    _Kind("cuda", ("CUDA_VISIBLE_DEVICES",), _find_nvidia),
    _Kind("cuda", ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"), _find_amd),
    _Kind("npu", ("ASCEND_RT_VISIBLE_DEVICES",), _find_ascend),
    _Kind("hpu", ("HABANA_VISIBLE_MODULES",), _find_gaudi),
    _Kind("xpu", ("ZE_AFFINITY_MASK",), _find_xpu),
)
