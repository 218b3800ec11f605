"""Owns: the facts of this node, found in milliseconds and without importing torch.
Must not: change anything, or start a process where a file says the same.
Called by: agent.loop, once, when the Brief has come."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Mapping

from meshrun.agent import netlink
from meshrun.agent.accelerators import Found, check_slices, choose, find_accelerators, find_misfit
from meshrun.agent.cgroup import find_cgroup, read_quota
from meshrun.agent.installed import Script, Torch, find_program, find_torch, read_script
from meshrun.agent.procs import read_text
from meshrun.agent.shares import make_shares
from meshrun.agent.spawn import to_text
from meshrun.agent.topology import read_cores
from meshrun.dataclass import dataclass, replace
from meshrun.wire import PROTOCOL, Brief, Facts


@dataclass(frozen=True, slots=True)
class Parts:
    """What was looked up first: the torch that would be imported, and the devices that it could use."""

    torch: Torch
    found: Found


def look(brief: Brief, base: Mapping[str, str]) -> Parts:
    """Look for torch and devices. `base`: this node's environment with what was exported."""
    torch = find_torch(base)
    return Parts(torch, _find_devices(brief, base, torch))


def make_facts(
    brief: Brief, login: Mapping[str, str], base: Mapping[str, str], tmp: str, offer_port: int, parts: Parts
) -> Facts:
    """What this node is. `login`: its own environment; `base`: with what was exported."""
    found = parts.found
    script = _check_script(brief, base)
    disk = os.statvfs(tmp)
    slots = brief.slots or _count_slots(found)
    files, files_most = _count_files()
    return Facts(
        protocol=PROTOCOL,
        hostname=os.uname().nodename,
        user=_find_user(login),
        pid=os.getpid(),
        python=".".join(map(str, sys.version_info[:3])),
        executable=to_text(os.fsencode(sys.executable)),
        torch=parts.torch.version,
        cores=count_cores(),
        memory_bytes=read_memory(),
        device=found.device,
        devices=found.devices,
        mask=found.mask,
        slots=slots,
        addresses=netlink.order_addresses(netlink.read_addresses(), netlink.login_address()),
        offer_port=offer_port,
        workdir_error=_check_folder(brief.workdir),
        script_hash=script.hash,
        script_error=script.error,
        script_file=script.file,
        script_line=script.line,
        tmp=tmp,
        free_bytes=disk.f_bavail * disk.f_frsize,
        omp_threads=login.get("OMP_NUM_THREADS", ""),
        files=files,
        files_most=files_most,
        device_problem=found.problem,
        device_hint=found.hint if found.problem else "",
        device_notes=found.notes,
        shares=make_shares(brief.bind, found.device, found.devices, slots, read_quota()),
    )


def _count_files() -> tuple[int, int]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(0, soft), max(0, hard)  # without a limit it is -1


def _find_devices(brief: Brief, base: Mapping[str, str], torch: Torch) -> Found:
    """What the workers here get: of what is there, within the masks, what the host's line names."""
    found = find_accelerators(brief.device, base, None if brief.form == "program" else torch)
    devices, problem = choose(brief.devices, found)
    hint = "name devices of that node, as its mask does, or leave devices= out"
    if not found.problem and not problem and brief.form != "program" and brief.init != "off":
        # Else it is the affair of the program, or of a script that sets up its own groups.
        problem, hint = _check_use(brief, base, torch, found, devices)
    if not found.problem and problem:
        found = replace(found, problem=problem, hint=hint)
    return replace(found, devices=devices)


def _check_use(
    brief: Brief, base: Mapping[str, str], torch: Torch, found: Found, devices: tuple[str, ...]
) -> tuple[str, str]:
    """Why a worker could not use its device as LOCAL_RANK counts them, and a hint."""
    slices = check_slices(devices[: brief.slots or len(devices)])
    if slices:
        return slices, "slots=1 (--nproc-per-node 1), or --init off and a script that sets CUDA_VISIBLE_DEVICES itself"
    return find_misfit(found, base, torch)


def _count_slots(found: Found) -> int:
    """Without accelerators one worker; if one was asked for or masked away, as many as there are: none."""
    return len(found.devices) if found.devices or found.device != "cpu" else 1


def _find_user(login: Mapping[str, str]) -> str:
    name = login.get("LOGNAME") or login.get("USER")
    if name:
        return name
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def _check_folder(path: str) -> str:
    try:
        os.close(os.open(path.encode("utf-8", "surrogateescape"), os.O_RDONLY | os.O_DIRECTORY))
    except OSError as error:
        return f"{path}: {error.strerror}"
    return ""


def _check_script(brief: Brief, base: Mapping[str, str]) -> Script:
    if brief.form == "script" and brief.argv:
        return read_script(brief.argv[0], brief.check_script)
    if brief.form == "program" and brief.argv and not find_program(brief.argv[0], brief.workdir, base):
        return Script(error="missing")
    return Script()


def count_cores() -> int:
    """Physical cores that this process may use: those of its affinity, and a container's quota if that is less.

    Hyper-threads of one core count once: the arithmetic units, which a compute thread keeps busy, are there once."""
    cores = sum(1 for _ in read_cores(os.sched_getaffinity(0)))
    return min(cores, read_quota() or cores)


def read_memory() -> int:
    """Bytes of memory: the machine's, or the container's limit if that is less."""
    words = read_text("/proc/meminfo").split()
    total = int(words[1]) * 1024 if len(words) > 1 else 0
    limit = read_text(f"{find_cgroup('memory.max')}/memory.max").strip()
    return min(total, int(limit)) if limit.isdecimal() else total
