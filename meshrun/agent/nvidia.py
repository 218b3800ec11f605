"""Owns: which NVIDIA GPUs and MIG slices this node shows, from files; nvidia-smi, bounded, where files do not say.
Must not: open a device, or wait for a tool that hangs.
Called by: agent.vendors."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from meshrun.agent.look import Look, Seen, explain_closed, split_closed
from meshrun.agent.procs import list_names, read_text
from meshrun.dataclass import dataclass
from meshrun.wire.masks import Have, counted

TOOL_S = 5.0  # the agent says nothing meanwhile, and after 10 s of silence it would be given up


@dataclass(frozen=True, slots=True)
class _Gpu:
    minor: str = ""  # N of /dev/nvidiaN, "" if the driver does not say
    uuid: str = ""


def find(look: Look) -> Seen:
    """/proc lists the machine's GPUs, /dev those that a container was given; a GPU must be in both."""
    folder = f"{look.root}/dev"
    names = [name for name in list_names(folder) if re.fullmatch(r"nvidia[0-9]+", name)]
    opened, closed = split_closed([f"{folder}/{name}" for name in names])
    gpus, notes = _list_gpus(look.root), explain_closed(closed, look.root)
    mine = _given(gpus, {path.rpartition("nvidia")[2] for path in opened})
    if mine and (_has_mig(look.root) or (_by_uuid(look.env) and not _uuids(mine))):
        return _ask(look, _make(mine), notes)
    if not names and (gpus or os.path.exists(f"{folder}/dxg")):  # nodes are made at the first use; or it is WSL
        return _ask(look, Have(()), notes)
    if not names and any(os.path.exists(f"{folder}/{name}") for name in ("nvhost-gpu", "nvgpu")):
        return Seen(counted(1))  # Jetson: the GPU is part of the chip
    return Seen(_make(mine), notes)


def _list_gpus(root: str) -> list[_Gpu]:
    """In the order of their bus addresses, by which their folders are named."""
    folder = f"{root}/proc/driver/nvidia/gpus"
    texts = [read_text(f"{folder}/{name}/information") for name in list_names(folder)]
    return [_Gpu(_field(text, "Device Minor"), _field(text, "GPU UUID")) for text in texts]


def _field(text: str, name: str) -> str:
    match = re.search(rf"^{name}:[ \t]*(\S+)", text, re.MULTILINE)
    return match[1] if match else ""


def _given(gpus: Sequence[_Gpu], minors: set[str]) -> list[_Gpu]:
    if not gpus:
        return [_Gpu(minor) for minor in sorted(minors, key=int)]
    if all(gpu.minor for gpu in gpus):
        return [gpu for gpu in gpus if gpu.minor in minors]
    return [_Gpu() for _ in range(min(len(gpus), len(minors)))]


def _uuids(gpus: Sequence[_Gpu]) -> tuple[str, ...]:
    """Their UUIDs if all are known; a GPU that was never used shows question marks."""
    found = tuple(gpu.uuid for gpu in gpus if gpu.uuid.startswith("GPU-") and "?" not in gpu.uuid)
    return found if len(found) == len(gpus) else ()


def _make(gpus: Sequence[_Gpu]) -> Have:
    ids = counted(len(gpus)).ids
    return Have(ids, ids, _uuids(gpus))


def _by_uuid(env: Mapping[str, str]) -> bool:
    return env.get("CUDA_VISIBLE_DEVICES", "").lstrip().startswith(("GPU-", "MIG-"))


def _has_mig(root: str) -> bool:
    folder = f"{root}/proc/driver/nvidia/capabilities"
    gpus = [name for name in list_names(folder) if re.fullmatch(r"gpu[0-9]+", name)]
    return any(name.startswith("gi") for gpu in gpus for name in list_names(f"{folder}/{gpu}/mig"))


def _ask(look: Look, otherwise: Have, notes: tuple[str, ...]) -> Seen:
    """What nvidia-smi lists; what the files said if it does not answer."""
    text, problem = run_tool(look.env)
    have = parse_list(text)
    if have.ids:
        return Seen(have, notes)
    # No tool and no device node: a machine's driver seen from a container without GPUs. Nothing is wrong.
    silent = not otherwise.ids and problem.startswith("no ")
    return Seen(otherwise, notes if silent or not problem else (*notes, problem))


def parse_list(text: str) -> Have:
    """`nvidia-smi -L`. Where there are MIG slices, CUDA shows no whole GPU beside them."""
    gpus = re.findall(r"^GPU [0-9]+:.*\(UUID: (GPU-[^)\s]+)\)", text, re.MULTILINE)
    slices = re.findall(r"^\s+MIG .*\(UUID: (MIG-[^)\s]+)\)", text, re.MULTILINE)
    numbers = counted(len(gpus)).ids
    return Have(tuple(slices) or numbers, numbers, (*gpus, *slices))


def run_tool(env: Mapping[str, str]) -> tuple[str, str]:
    """The output of `nvidia-smi -L`, or why there is none. A process that the kernel holds is killed, not awaited."""
    import signal
    import subprocess

    null, words = subprocess.DEVNULL, ["nvidia-smi", "-L"]
    try:
        process = subprocess.Popen(
            words, stdin=null, stdout=subprocess.PIPE, stderr=null, env=dict(env), start_new_session=True
        )
    except (OSError, ValueError):
        return "", "no nvidia-smi to ask about this node's GPUs"
    try:
        out, _ = process.communicate(timeout=TOOL_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return "", f"nvidia-smi -L did not answer within {TOOL_S:g} s: the driver may hang"
    if process.returncode:
        return "", f"nvidia-smi -L failed with exit code {process.returncode}"
    return out.decode("utf-8", "replace"), ""
