"""Owns: reading this node's cores and NUMA nodes from /sys, and which NUMA node an accelerator is on.
Must not: decide who gets what, open a device or start a process; what cannot be read is unknown, not an error.
Called by: agent.shares, agent.probe."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence

from meshrun.agent.binding import NOWHERE, Core, Topology
from meshrun.agent.procs import list_names, read_text
from meshrun.wire.cpus import parse_cpus

_MOST_NODES = 1024


def read_topology(usable: Collection[int], root: str = "") -> Topology:
    """The cores that `usable` CPUs belong to, each with those of its hyper-threads that are usable."""
    numbers = _numa_numbers(root)
    node_of = {cpu: node for node in numbers for cpu in _read_cpus(f"{_node(root, node)}/cpulist")}
    cores = tuple(Core(cpus, node_of.get(cpus[0], NOWHERE)) for cpus in read_cores(usable, root))
    return Topology(cores, dict(_read_distances(numbers, root)))


def read_cores(usable: Collection[int], root: str = "") -> Iterator[tuple[int, ...]]:
    """The usable CPUs, hyper-threads of a core together. A CPU of which nothing is known is a core of its own."""
    left = set(usable)
    for cpu in sorted(usable):
        if cpu in left:
            mine = tuple(other for other in _read_siblings(cpu, root) if other in left) or (cpu,)
            mine = mine if cpu in mine else (cpu,)
            left.difference_update(mine)  # so half of the files of a machine with hyper-threads are never read
            yield mine


def read_device_nodes(device: str, ids: Sequence[str], root: str = "") -> tuple[int, ...]:
    """The NUMA node of each accelerator: `device` is torch's name of the kind, `ids` as in its mask. NOWHERE for kinds
    other than NVIDIA's and AMD's: how their numbers stand to PCI addresses is not known here."""
    addresses = _nvidia_addresses(root) or _amd_addresses(root) if device == "cuda" else {}  # torch calls both so
    return tuple(_read_numa_node(addresses.get(one, addresses.get(_short(one), "")), root) for one in ids)


def _read_cpus(path: str) -> tuple[int, ...]:
    try:
        return parse_cpus(read_text(path))
    except ValueError:
        return ()


def _read_siblings(cpu: int, root: str) -> tuple[int, ...]:
    folder = f"{root}/sys/devices/system/cpu/cpu{cpu}/topology"
    return _read_cpus(f"{folder}/thread_siblings_list") or _read_cpus(f"{folder}/core_cpus_list")  # its name since 5.3


def _node(root: str, number: int) -> str:
    return f"{root}/sys/devices/system/node/node{number}"


def _numa_numbers(root: str) -> list[int]:
    names = list_names(f"{root}/sys/devices/system/node")
    return sorted(int(name[4:]) for name in names if re.fullmatch(r"node[0-9]{1,5}", name))[:_MOST_NODES]


def _read_distances(numbers: Sequence[int], root: str) -> Iterator[tuple[tuple[int, int], int]]:
    """Each node's file has a number for every node that is online, in their order."""
    for here in numbers if len(numbers) > 1 else ():
        words = read_text(f"{_node(root, here)}/distance").split()
        yield from (((here, there), int(word)) for there, word in zip(numbers, words, strict=False) if word.isdigit())


# ---- accelerators: id → PCI address ----


def _short(uuid: str) -> str:
    """A MIG slice's older name holds its GPU's: MIG-GPU-<uuid>/1/0."""
    return uuid.removeprefix("MIG-").partition("/")[0]


def _read_numa_node(address: str, root: str) -> int:
    text = read_text(f"{root}/sys/bus/pci/devices/{address}/numa_node").strip() if address else ""
    return int(text) if text.isdecimal() else NOWHERE  # the kernel says -1 where the firmware says nothing


def _nvidia_addresses(root: str) -> dict[str, str]:
    """By number and by UUID. nvidia-smi and CUDA (its GPUs being alike) count in the order of the addresses; a
    container's numbers count only those that it was given."""
    folder = f"{root}/proc/driver/nvidia/gpus"
    found: dict[str, str] = {}
    number = 0
    for address in list_names(folder):
        about = _parse_table(read_text(f"{folder}/{address}/information"))
        if os.path.exists(f"{root}/dev/nvidia{about.get('Device Minor', '')}"):
            found[str(number)] = found[about.get("GPU UUID", "")] = address.lower()
            number += 1
    return found


def _parse_table(text: str) -> dict[str, str]:
    parted = (line.partition(":") for line in text.splitlines())
    return {name.strip(): value.strip() for name, _, value in parted}


def _amd_addresses(root: str) -> dict[str, str]:
    """HIP counts the topology's nodes that can compute, in their order."""
    folder = f"{root}/sys/class/kfd/kfd/topology/nodes"
    names = sorted((name for name in list_names(folder) if name.isdecimal()), key=int)
    tables = [dict(re.findall(r"^(\w+) ([0-9]+)$", read_text(f"{folder}/{name}/properties"), re.M)) for name in names]
    able = (table for table in tables if int(table.get("simd_count", 0)))
    return {str(number): _spell_address(table) for number, table in enumerate(able)}


def _spell_address(table: Mapping[str, str]) -> str:
    domain, place = int(table.get("domain", 0)), int(table.get("location_id", 0))
    return f"{domain:04x}:{place >> 8 & 0xFF:02x}:{place >> 3 & 0x1F:02x}.{place & 7}"
