"""Owns: what device masks say, read as each vendor's runtime and torch read them: a pool of ids, never more.
Must not: look at a device or read the environment (both are arguments).
Called by: plan.masks on the launcher, agent.accelerators on a node: both must read a mask alike."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from meshrun.dataclass import dataclass, replace

# By vendor: layers, the outer one first (each counts within what the one before leaves); in a layer the first name that
# is set counts. The last layer's first name is the one to set.
LAYERS: dict[str, tuple[tuple[str, ...], ...]] = {
    "nvidia": (("CUDA_VISIBLE_DEVICES",),),
    "amd": (("ROCR_VISIBLE_DEVICES",), ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")),
    "ascend": (("ASCEND_RT_VISIBLE_DEVICES",),),
    "gaudi": (("HABANA_VISIBLE_MODULES",),),
    "intel": (("ZE_AFFINITY_MASK",),),
    "apple": (),
}
_NUMBER = re.compile(r"\+?([0-9]{1,9})(?![0-9])")
_TILE = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})*")
_UUID = ("GPU-", "MIG-")
_ENDS = ("", "-1", "NoDevFiles")  # what is written to show nothing: by hand, and by Slurm
_SHOWN = 120


@dataclass(frozen=True, slots=True)
class Have:
    """The devices of a node as masks may name them."""

    ids: tuple[str, ...]  # what is visible without a mask, in order
    numbers: tuple[str, ...] = ()
    uuids: tuple[str, ...] = ()  # none: not known, so that any may be right


@dataclass(frozen=True, slots=True)
class Pool:
    """What the masks in force leave, in their order."""

    ids: tuple[str, ...]
    name: str  # the innermost variable in force
    text: str  # NAME=VALUE of each in force
    problem: str = ""
    note: str = ""  # where a mask does not mean what it seems to


def counted(number: int) -> Have:
    """Devices that are numbered from 0 and have no other names."""
    ids = tuple(map(str, range(number)))
    return Have(ids, ids)


def mask_name(vendor: str) -> str:
    """The variable to set where none is in force, "" if there is none."""
    return LAYERS[vendor][-1][0] if LAYERS[vendor] else ""


def read_pool(vendor: str, env: Mapping[str, str], have: Have | None = None) -> Pool | None:
    """The pool of this vendor's devices; None without a mask. Without `have` ids are taken as they are."""
    pool: Pool | None = None
    for names in LAYERS[vendor]:
        name = next((name for name in names if name in env), "")
        if name:
            inner = _read_one(vendor, name, env, have)
            pool = inner if pool is None else _within(pool, inner)
            have = counted(len(pool.ids))
    return pool


def _within(outer: Pool, inner: Pool) -> Pool:
    return replace(
        inner,
        text=f"{outer.text} {inner.text}",
        problem=outer.problem or inner.problem,
        note="; ".join(filter(None, [outer.note, inner.note])),
    )


def _read_one(vendor: str, name: str, env: Mapping[str, str], have: Have | None) -> Pool:
    words = [word.strip() for word in env[name].split(",")]
    shown = Pool((), name, f"{name}={env[name][:_SHOWN]}")
    if vendor == "intel":
        return _read_tiles(words, env.get("ZE_FLAT_DEVICE_HIERARCHY", "").upper() == "COMPOSITE", shown, have)
    # CUDA's first word says how all are named; AMD's may be mixed.
    form = _form(words[0]) if vendor == "nvidia" else None
    return _read_list(words, form, shown, have)


def _read_list(words: Sequence[str], form: str | None, shown: Pool, have: Have | None) -> Pool:
    """Up to the first word that is no device here. A device named twice leaves nothing: so CUDA has it."""
    found: dict[str, str] = {}  # device → id as the mask spells it
    most = (
        len(words) if have is None else max(len(have.ids), len(have.numbers))
    )  # UUIDs may be unknown, not their number
    for word in words:
        device = _find(word, have) if form in (None, _form(word)) else ""
        device = device if len(found) < most or device in found else ""
        if not device:
            note = "" if word in _ENDS else f"{shown.text} ends at {word[:40]!r}, which is no device here"
            return replace(shown, ids=tuple(found.values()), note=note)
        if device in found:
            return replace(shown, problem=f"{shown.text} names {word[:40]} twice, and so shows no device at all")
        found[device] = word if _form(word) else device
    return replace(shown, ids=tuple(found.values()))


def _form(word: str) -> str:
    return next((prefix for prefix in _UUID if word.startswith(prefix)), "")


def _find(word: str, have: Have | None) -> str:
    """The one device that a word of a mask names, "" if there is none. A UUID may be cut short where it is unique."""
    if _form(word):
        if have is None or not have.uuids:
            return word
        fitting = [uuid for uuid in have.uuids if uuid.lower().startswith(word.lower())]
        return fitting[0] if len(fitting) == 1 else ""
    match = _NUMBER.match(word)  # the driver, too, stops reading a number at its first letter
    number = str(int(match[1])) if match else ""
    return number if have is None or number in have.numbers else ""


def _read_tiles(words: Sequence[str], composite: bool, shown: Pool, have: Have | None) -> Pool:
    """Level Zero: `0,1`; with whole cards as devices (COMPOSITE) also tiles, `0.1`. Not a list that ends: a filter,
    which leaves the devices in the driver's order. A card of which tiles are named is one device."""
    ids: dict[int, str] = {}
    ignored: list[str] = []
    for word in words:
        match = _TILE.fullmatch(word)
        if match is None and word not in _ENDS:
            return replace(shown, problem=f"{shown.text}: {word[:40]!r} is no number")
        if match is None or (match[1] and not composite):
            ignored += [word] if match else []
            continue
        root = int(word.partition(".")[0])
        if have is None or str(root) in have.numbers:
            ids.setdefault(root, word if match[1] else str(root))
    left_out = f"{shown.text}: {ignored[0][:40]} is a tile of a card, which counts only with " if ignored else ""
    said = f"{left_out}ZE_FLAT_DEVICE_HIERARCHY=COMPOSITE" if ignored else ""
    left = tuple(ids[root] for root in sorted(ids))
    return replace(shown, ids=left, note=said if left else "", problem="" if left else said)


def check_chosen(chosen: Sequence[str], ids: Sequence[str], have: Have | None, where: str) -> str:
    """Why the devices that were named (`devices=`) cannot all be used, or "". `where` says in words what `ids` are."""
    taken: dict[str, str] = {}
    for name in chosen:
        fitting = [known for known in ids if known == name] or [known for known in ids if _same(name, known)]
        if not fitting and _form(name) and have is not None and not have.uuids:
            fitting = [name]
        if len(fitting) != 1:
            several = f"; {name} fits {len(fitting)} of them" if fitting else ""
            return f"device {name} was asked for (devices={','.join(chosen)[:_SHOWN]}), but {where}{several}"
        if fitting[0] in taken:
            return f"devices={','.join(chosen)[:_SHOWN]}: {taken[fitting[0]]} and {name} are one device"
        taken[fitting[0]] = name
    return ""


def _same(name: str, known: str) -> bool:
    """Two spellings of one UUID: either may be cut short."""
    return bool(_form(name)) and bool(_form(known)) and (known.startswith(name) or name.startswith(known))
