"""Owns: which accelerators of this node a run may use: what there is, what torch can use, what the masks leave.
Must not: open a device or import torch.
Called by: agent.loop, once, before the facts; agent.probe."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

from meshrun.agent import vendors
from meshrun.agent.installed import Torch, find_package
from meshrun.agent.look import Look, Seen
from meshrun.dataclass import dataclass, replace
from meshrun.wire.masks import Have, Pool, check_chosen, mask_name, read_pool

_ON_CPU = "--device cpu runs on the processor"


@dataclass(frozen=True, slots=True)
class Found:
    """The accelerators of a node: `device` is torch's name of the kind ("cpu": none)."""

    device: str
    devices: tuple[str, ...] = ()  # in visible order; masks respected
    mask_name: str = ""  # the variable that masks this kind here
    mask: str = ""  # NAME=VALUE in force, "" if none
    problem: str = ""  # why it cannot be used after all
    hint: str = ""
    notes: tuple[str, ...] = ()  # what the user should know, in words
    have: Have | None = None  # all that is there, if anything is
    vendor: str = ""


@dataclass(frozen=True, slots=True)
class _Kind:
    vendor: str
    device: str  # torch's name
    name: str
    find: Callable[[Look], Seen]
    build: str = ""  # what torch must be built with
    plugin: str = ""  # the package without which torch does not know the device


# The first that is there and that torch can use is taken, unless `--device` says which.
_KINDS = (
    _Kind("nvidia", "cuda", "NVIDIA", vendors.find_nvidia, build="cuda"),
    _Kind("amd", "cuda", "AMD", vendors.find_amd, build="hip"),
    _Kind("ascend", "npu", "Ascend", vendors.find_ascend, plugin="torch_npu"),
    _Kind("gaudi", "hpu", "Gaudi", vendors.find_gaudi, plugin="habana_frameworks.torch"),
    _Kind("intel", "xpu", "Intel", vendors.find_intel, build="xpu"),
    _Kind("apple", "mps", "Apple", vendors.find_apple),
)
_BUILT = {"cuda": "CUDA", "hip": "ROCm", "xpu": "XPU support"}
_Sight = tuple[_Kind, Seen]


def find_accelerators(
    asked: str, env: Mapping[str, str], torch: Torch | None = None, root: str = "", system: str = ""
) -> Found:
    """What this node offers for `asked` ("auto": any kind). `torch`: which one must be able to use it, if any must."""
    if asked == "cpu":
        return Found("cpu")
    builds = torch.builds if torch else None
    look = Look(env, root, system or _system(), asked == "xpu" or bool(builds and "xpu" in builds))
    kinds = [kind for kind in _KINDS if asked in ("auto", kind.device)]
    seen = [(kind, kind.find(look)) for kind in kinds]
    there = [(kind, found) for kind, found in seen if found.have.ids]
    usable = [(kind, found) for kind, found in there if _is_built_for(kind, torch)]
    if usable:
        return _offer(*usable[0], env, _also(usable))
    if there and asked != "auto":
        return _offer(*there[0], env, ())
    return _offer_none(asked, kinds, seen, env, torch)


def _system() -> str:
    here = os.uname()
    return f"{here.sysname} {here.machine}"


def _is_built_for(kind: _Kind, torch: Torch | None) -> bool:
    return not kind.build or torch is None or torch.builds is None or kind.build in torch.builds


def _also(usable: Sequence[_Sight]) -> tuple[str, ...]:
    device = usable[0][0].device
    others = [(kind, seen) for kind, seen in usable[1:] if kind.device != device]
    return tuple(
        f"{len(seen.have.ids)} {kind.name} devices are here too: --device {kind.device} chooses them instead"
        for kind, seen in others
    )


def _offer(kind: _Kind, seen: Seen, env: Mapping[str, str], notes: tuple[str, ...]) -> Found:
    pool = read_pool(kind.vendor, env, seen.have) or Pool(seen.have.ids, mask_name(kind.vendor), "")
    return Found(
        device=kind.device,
        devices=pool.ids,
        mask_name=pool.name,
        mask=pool.text,
        problem=pool.problem,
        hint=f"set another mask, or none; {_ON_CPU}",
        notes=(*seen.notes, *filter(None, [pool.note]), *notes),
        have=seen.have,
        vendor=kind.vendor,
    )


def find_misfit(found: Found, env: Mapping[str, str], torch: Torch) -> tuple[str, str]:
    """Why this torch cannot use the devices that were found, and a hint; empty if it can, as far as files tell."""
    kind = next((kind for kind in _KINDS if kind.vendor == found.vendor), None)
    if kind is None or not torch.version:
        return "", ""
    if not _is_built_for(kind, torch):
        message = f"its torch {torch.version} is built without {_BUILT[kind.build]}, which {kind.name} devices need"
        return message, f"install the build of torch for them there, or name another python; {_ON_CPU}"
    if kind.plugin and not find_package(kind.plugin, env):
        message = f"its python has no {kind.plugin}, without which torch cannot use {kind.name} devices"
        return message, f"install it there, or name another python with --python; {_ON_CPU}"
    return "", ""


def _offer_none(
    asked: str, kinds: Sequence[_Kind], seen: Sequence[_Sight], env: Mapping[str, str], torch: Torch | None
) -> Found:
    """No kind can be used. A mask is a pool of ids all the same: so a plan is the same here as where they are."""
    device = "cpu" if asked == "auto" else asked
    notes = tuple(note for _, found in seen for note in found.notes)
    if asked == "auto" and torch is not None:
        notes += tuple(_unusable(kind, found, torch) for kind, found in seen if found.have.ids)
    for kind in kinds:
        pool = read_pool(kind.vendor, env)
        if pool is not None:
            return Found(device, pool.ids, pool.name, pool.text, notes=notes)
    name = mask_name(kinds[0].vendor) if kinds else ""
    return replace(Found(device, (), name, notes=notes), problem=_not_apple(asked), hint=_ON_CPU)


def _unusable(kind: _Kind, seen: Seen, torch: Torch) -> str:
    without = f"torch {torch.version} is built without {_BUILT[kind.build]}"
    return f"{len(seen.have.ids)} {kind.name} devices are not used: {without}, so the workers run on the processor"


def _not_apple(asked: str) -> str:
    return f"mps is the GPU of Apple's own processors, and this is {_system()}" if asked == "mps" else ""


def choose(named: Sequence[str], found: Found) -> tuple[tuple[str, ...], str]:
    """The devices that the host's line names (`devices=`), within what is visible, and why they cannot be had."""
    if not named:
        return found.devices, ""
    if found.mask:
        where = f"{found.mask} is in force on that node" if found.devices else f"{found.mask} shows none there"
        problem = check_chosen(named, found.devices, None, where)
    elif found.have is not None:
        shown = ",".join(found.have.ids[:16]) + ("" if len(found.have.ids) <= 16 else ",...")
        known = tuple(dict.fromkeys((*found.have.ids, *found.have.uuids, *found.have.numbers)))
        problem = check_chosen(named, known, found.have, f"that node has {found.device} devices {shown}")
    else:  # on a processor they are numbers only; of an accelerator that is not there, none
        return (tuple(named) if found.device == "cpu" else ()), ""
    if not problem and found.vendor == "nvidia" and len({name[:4] if "-" in name else "" for name in named}) > 1:
        problem = f"devices={','.join(named)[:120]}: CUDA reads only numbers, only GPU-..., or only MIG-... in one mask"
    return ((), problem) if problem else (tuple(named), "")


def check_slices(devices: Sequence[str]) -> str:
    """CUDA shows a process one MIG slice, whatever its mask says, so that LOCAL_RANK cannot count them."""
    if len(devices) > 1 and devices[0].startswith("MIG-"):
        return f"{len(devices)} workers on MIG slices: CUDA shows each process only the first slice of its mask"
    return ""
