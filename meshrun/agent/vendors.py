"""Owns: reading from files which accelerators of each vendor this node has and this user may open.
Must not: open a device (that can wake a driver up), import torch, or load a driver's library.
Called by: agent.accelerators."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from meshrun.agent import nvidia
from meshrun.agent.look import Look, Seen, explain_closed, may_open, split_closed
from meshrun.agent.procs import list_names, read_text
from meshrun.dataclass import replace
from meshrun.wire.masks import Have, counted

_ON_PROCESSOR = "0000:00:02.0"  # where Intel's own GPU of a processor always is


def find_nvidia(look: Look) -> Seen:
    """NVIDIA's; what its files do not say is asked of nvidia-smi."""
    seen = nvidia.find(look)
    return seen if seen.have.ids else _explain_hidden(look, seen, "NVIDIA_VISIBLE_DEVICES", "/proc/driver/nvidia")


def _explain_hidden(look: Look, seen: Seen, variable: str, driver: str) -> Seen:
    """The driver is loaded and shows nothing. A container's variable is quoted only, never obeyed: where the devices
    came through CDI it says `void` while they are there."""
    if seen.notes or not list_names(look.root + driver):
        return seen
    quoted = f" ({variable}={look.env[variable][:40]} in this container)" if variable in look.env else ""
    return replace(seen, notes=(f"{driver} is there, but no device of it can be used here{quoted}",))


def find_amd(look: Look) -> Seen:
    """The kernel's topology lists every GPU, also those that a container was not given: those lack a render node."""
    folder = f"{look.root}/sys/class/kfd/kfd/topology/nodes"
    texts = [read_text(f"{folder}/{name}/properties") for name in sorted(list_names(folder), key=_as_number)]
    gpus = [text for text in texts if re.search(r"^(?:gfx_target_version|simd_count) [1-9]", text, re.MULTILINE)]
    if not gpus:
        return Seen()
    kfd = f"{look.root}/dev/kfd"
    if not may_open(kfd):
        return Seen(notes=explain_closed([kfd] if os.path.exists(kfd) else [], look.root))
    nodes = [_render_node(text, look.root) for text in gpus]
    closed = [path for path in nodes if path and os.path.exists(path) and not may_open(path)]
    mine = [text for text, path in zip(gpus, nodes, strict=True) if not path or may_open(path)]
    return Seen(replace(counted(len(mine)), uuids=_amd_uuids(mine)), explain_closed(closed, look.root))


def _render_node(text: str, root: str) -> str:
    match = re.search(r"^drm_render_minor ([1-9][0-9]*)", text, re.MULTILINE)
    return f"{root}/dev/dri/renderD{match[1]}" if match else ""


def _amd_uuids(texts: Sequence[str]) -> tuple[str, ...]:
    found = [re.search(r"^unique_id ([1-9][0-9]{0,19})$", text, re.MULTILINE) for text in texts]
    return tuple(f"GPU-{int(match[1]):016x}" for match in found if match) if all(found) else ()


def _as_number(name: str) -> int:
    return int(name) if name.isdecimal() else -1


def find_ascend(look: Look) -> Seen:
    """A container's devices are numbered from 0 for its programs, whatever their nodes are called."""
    folder = f"{look.root}/dev"
    paths = [f"{folder}/{name}" for name in list_names(folder) if re.fullmatch(r"davinci[0-9]+", name)]
    opened, closed = split_closed(paths)
    return Seen(counted(len(opened)), explain_closed(closed, look.root))


def find_gaudi(look: Look) -> Seen:
    """/dev/accel is shared by several makers: the driver's link says whose it is. Modules have numbers of their own."""
    names = [name for name in list_names(f"{look.root}/dev/accel") if re.fullmatch(r"accel[0-9]+", name)]
    ours = [name for name in names if "habana" in _driver(f"{look.root}/sys/class/accel/{name}/device")]
    opened, closed = split_closed([f"{look.root}/dev/accel/{name}" for name in ours])
    modules = [_module_id(look.root, os.path.basename(path)) for path in opened]
    known = all(text.isdecimal() for text in modules) and len(set(modules)) == len(modules)
    ids = tuple(sorted(modules, key=int)) if known else counted(len(opened)).ids
    return Seen(Have(ids, ids), explain_closed(closed, look.root))


def _module_id(root: str, name: str) -> str:
    return read_text(f"{root}/sys/class/accel/{name}/device/module_id").strip()


def _driver(device: str) -> str:
    return os.path.basename(os.path.realpath(f"{device}/driver"))


def find_intel(look: Look) -> Seen:
    """Discrete GPUs, tile by tile unless COMPOSITE asks for whole cards; the one on the processor only where there is
    no other and torch is built for it: torch itself goes by that order."""
    base = f"{look.root}/sys/class/drm"
    cards = [
        (name, os.path.realpath(f"{base}/{name}/device")) for name in list_names(base) if name.startswith("renderD")
    ]
    intel = [(name, card) for name, card in cards if _is_intel(card)]
    discrete = [(name, card) for name, card in intel if os.path.basename(card) != _ON_PROCESSOR]
    chosen = discrete or (intel if look.integrated else [])
    opened, closed = split_closed([f"{look.root}/dev/dri/{name}" for name, _ in chosen])
    mine = [card for name, card in chosen if f"{look.root}/dev/dri/{name}" in opened]
    whole = look.env.get("ZE_FLAT_DEVICE_HIERARCHY", "").upper() == "COMPOSITE"
    number = sum(1 if whole or not discrete else _count_tiles(card) for card in mine)
    return Seen(counted(number), explain_closed(closed, look.root))


def _is_intel(card: str) -> bool:
    return read_text(f"{card}/vendor").strip() == "0x8086" and _driver(card) in ("i915", "xe")


def _count_tiles(card: str) -> int:
    """The xe driver has a folder for each tile, i915 one for each `gt`; one at least."""
    xe = [name for name in list_names(card) if re.fullmatch(r"tile[0-9]+", name)]
    cards = [name for name in list_names(f"{card}/drm") if re.fullmatch(r"card[0-9]+", name)]
    i915 = [gt for name in cards for gt in list_names(f"{card}/drm/{name}/gt") if re.fullmatch(r"gt[0-9]+", gt)]
    return max(1, len(xe) or len(i915))


def find_apple(look: Look) -> Seen:
    """Metal: one device, which one process uses."""
    return Seen(counted(int(look.system == "Darwin arm64")))
