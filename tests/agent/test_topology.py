"""Owns: reading cores, NUMA nodes, accelerators' nodes and quotas from made /sys and /proc trees, and from this one.
Must not: start an agent.
Called by: pytest."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from meshrun.agent import cgroup, probe, shares
from meshrun.agent.binding import NOWHERE, Core
from meshrun.agent.topology import read_device_nodes, read_topology
from meshrun.wire import Share

CPU, NODE, PCI = "sys/devices/system/cpu", "sys/devices/system/node", "sys/bus/pci/devices"
NVIDIA, KFD = "proc/driver/nvidia/gpus", "sys/class/kfd/kfd/topology/nodes"


def write(root: Path, files: Mapping[str, str]) -> str:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return str(root)


def siblings(*cores: str, name: str = "thread_siblings_list") -> dict[str, str]:
    """Files for cores that are given as the kernel lists their CPUs: "0,8"."""
    return {f"{CPU}/cpu{cpu}/topology/{name}": f"{core}\n" for core in cores for cpu in core.split(",")}


def numa(*lists: str) -> dict[str, str]:
    files = {f"{NODE}/node{at}/cpulist": f"{cpus}\n" for at, cpus in enumerate(lists)}
    for at in range(len(lists)):
        files[f"{NODE}/node{at}/distance"] = " ".join(str(10 + 11 * abs(at - to)) for to in range(len(lists))) + "\n"
    return files | {f"{NODE}/online": f"0-{len(lists) - 1}\n", f"{NODE}/possible": "0\n"}


# 2 sockets with 2 NUMA nodes each, 2 cores a node, 2 hyper-threads a core
BIG = siblings(*(f"{at},{at + 8}" for at in range(8))) | numa("0-1,8-9", "2-3,10-11", "4-5,12-13", "6-7,14-15")


def cores(root: str, usable: set[int]) -> list[tuple[tuple[int, ...], int]]:
    return [(core.cpus, core.node) for core in read_topology(usable, root).cores]


def test_two_sockets_with_two_nodes_and_hyper_threads(tmp_path: Path) -> None:
    topology = read_topology(set(range(16)), write(tmp_path, BIG))
    assert topology.cores == tuple(Core((at, at + 8), at // 2) for at in range(8))
    assert (topology.distance(0, 3), topology.distance(2, 2), topology.distance(1, 9)) == (43, 10, 255)


@pytest.mark.parametrize(
    ("files", "usable", "expected"),
    [
        # a cpuset that cuts through cores and nodes
        (BIG, {0, 3, 11, 14}, [((0,), 0), ((3, 11), 1), ((14,), 3)]),
        # sparse numbers, CPUs that are off line (no files, not usable), a node of memory only
        (siblings("2", "5", "64") | numa("2,5", "", "64"), {2, 5, 64}, [((2,), 0), ((5,), 0), ((64,), 2)]),
        # big cores with two threads, small ones with one, all of one package
        (siblings("0,1", "2,3", "4", "5"), {0, 1, 2, 3, 4, 5}, [((0, 1), -1), ((2, 3), -1), ((4,), -1), ((5,), -1)]),
        # the newer name only
        (siblings("0,1", name="core_cpus_list"), {0, 1}, [((0, 1), -1)]),
        # nothing is known, or nonsense is: every CPU is a core
        ({}, {0, 3}, [((0,), -1), ((3,), -1)]),
        ({f"{CPU}/cpu0/topology/thread_siblings_list": "7-2,x"} | numa("?"), {0}, [((0,), -1)]),
        (siblings("1,2") | {f"{CPU}/cpu0/topology/thread_siblings_list": "1-2"}, {0, 1}, [((0,), -1), ((1,), -1)]),
        (siblings("0") | numa("0"), {0}, [((0,), 0)]),
    ],
)
def test_the_cores_that_may_be_used(tmp_path: Path, files: dict[str, str], usable: set[int], expected: object) -> None:
    assert cores(write(tmp_path, files), usable) == expected


def test_this_machine_is_read_whole() -> None:
    usable = os.sched_getaffinity(0)
    found = read_topology(usable).cores
    assert sorted(cpu for core in found for cpu in core.cpus) == sorted(usable)


# ---- accelerators ----


def gpu(address: str, minor: int, uuid: str, node: str) -> dict[str, str]:
    about = f"Model: \t\t NVIDIA H100\nGPU UUID: \t {uuid}\nBus Location: \t {address}\nDevice Minor: \t {minor}\n"
    return {f"{NVIDIA}/{address}/information": about, f"{PCI}/{address.lower()}/numa_node": f"{node}\n"}


THREE = {
    **gpu("0000:1B:00.0", 2, "GPU-aa", "0"),
    **gpu("0000:43:00.0", 0, "GPU-bb", "1"),
    **gpu("0000:C3:00.0", 1, "GPU-cc", "-1"),
}
DEV = {f"dev/nvidia{minor}": "" for minor in range(3)}


@pytest.mark.parametrize(
    ("files", "device", "ids", "expected"),
    [
        (THREE | DEV, "cuda", ("0", "1", "2"), (0, 1, NOWHERE)),
        (THREE | DEV, "cuda", ("1", "0"), (1, 0)),  # as a mask orders them
        (THREE | DEV, "cuda", ("GPU-bb", "MIG-GPU-aa/1/0", "MIG-dd", "9"), (1, 0, NOWHERE, NOWHERE)),
        (THREE | {"dev/nvidia0": ""}, "cuda", ("0",), (1,)),  # a container with the second one
        (THREE | DEV, "npu", ("0",), (NOWHERE,)),
        ({}, "cuda", ("0",), (NOWHERE,)),
    ],
)
def test_the_node_of_an_accelerator(
    tmp_path: Path, files: dict[str, str], device: str, ids: tuple[str, ...], expected: tuple[int, ...]
) -> None:
    assert read_device_nodes(device, ids, write(tmp_path, files)) == expected


def test_the_node_of_an_amd_accelerator(tmp_path: Path) -> None:
    files = {f"{KFD}/0/properties": "cpu_cores_count 64\nsimd_count 0\nlocation_id 0\n"}
    for at, (bus, node) in enumerate([(0x26, 0), (0xC6, 1)], 1):
        files[f"{KFD}/{at}/properties"] = f"simd_count 304\nlocation_id {bus << 8 | 1 << 3}\ndomain 1\n"
        files[f"{PCI}/0001:{bus:02x}:01.0/numa_node"] = f"{node}\n"
    assert read_device_nodes("cuda", ("1", "0"), write(tmp_path, files)) == (1, 0)


# ---- shares ----


@pytest.mark.parametrize(
    ("how", "workers", "quota", "expected"),
    [
        ("none", 2, 0, ()),
        ("cores", 2, 0, (Share("0-3,8-11", 4), Share("4-7,12-15", 4))),
        ("cores", 4, 6, (Share("0-1,8-9", 1), Share("2-3,10-11", 1), Share("4-5,12-13", 1), Share("6-7,14-15", 1))),
        ("numa", 3, 0, (Share("0-1,8-9", 2), Share("2-3,10-11", 2), Share("4-5,12-13", 2))),
        ("numa", 1, 1, (Share("0-1,8-9", 1),)),
    ],
)
def test_shares_of_a_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, workers: int, quota: int, expected: tuple[Share, ...]
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)))
    assert shares.make_shares(how, "cpu", (), workers, quota, write(tmp_path, BIG)) == expected


def test_a_share_is_on_the_node_of_the_accelerator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)))
    root = write(tmp_path, BIG | gpu("0000:1B:00.0", 0, "GPU-a", "2") | {"dev/nvidia0": ""})
    assert shares.make_shares("numa", "cuda", ("0",), 1, 0, root) == (Share("4-5,12-13", 2),)


def test_a_system_that_cannot_bind_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shares.cannot_bind() == ""
    monkeypatch.delattr(os, "sched_setaffinity")
    assert shares.cannot_bind() == "Linux cannot bind a process to CPUs"


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ({"OMP_NUM_THREADS": "4"}, ""),
        ({"OMP_PROC_BIND": "FALSE", "KMP_AFFINITY": "disabled", "OMP_PLACES": ""}, ""),
        ({"OMP_PROC_BIND": "close", "OMP_PLACES": "cores"}, "OMP_PLACES, OMP_PROC_BIND"),
        ({"GOMP_CPU_AFFINITY": "0-3"}, "GOMP_CPU_AFFINITY"),
    ],
)
def test_who_places_threads_by_name_is_noticed(env: dict[str, str], said: str) -> None:
    assert shares.find_placing(env) == said


# ---- quotas ----

V2, V1 = "sys/fs/cgroup", "sys/fs/cgroup/cpu"


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({}, 0),
        ({"proc/self/cgroup": "0::/a/b\n", f"{V2}/a/b/cpu.max": "max 100000\n"}, 0),
        ({"proc/self/cgroup": "0::/a/b\n", f"{V2}/a/b/cpu.max": "250000 100000\n"}, 2),
        ({"proc/self/cgroup": "0::/a/b\n", f"{V2}/a/b/cpu.max": "50000 100000\n"}, 1),
        (
            {"proc/self/cgroup": "0::/a/b\n", f"{V2}/a/b/cpu.max": "800000 100000", f"{V2}/a/cpu.max": "400000 100000"},
            4,
        ),
        ({"proc/self/cgroup": "0::/../x\n", f"{V2}/cpu.max": "300000 100000\n"}, 3),
        (
            {
                "proc/self/cgroup": "4:cpu,cpuacct:/docker/x\n0::/\n",
                f"{V1}/cpu.cfs_quota_us": "600000",
                f"{V1}/cpu.cfs_period_us": "100000",
            },
            6,
        ),
        ({"proc/self/cgroup": "4:cpu:/\n", f"{V1}/cpu.cfs_quota_us": "-1", f"{V1}/cpu.cfs_period_us": "100000"}, 0),
    ],
)
def test_the_time_that_a_container_may_use(tmp_path: Path, files: dict[str, str], quota: int) -> None:
    if any("/a/b/" in name for name in files):
        files = files | {f"{V2}/a/b/cgroup.controllers": "cpu\n"}
    assert cgroup.read_quota(write(tmp_path, files)) == quota


def test_cores_are_counted_once_and_bounded_by_the_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "read_cores", lambda usable: iter([(0, 4), (1, 5), (2, 6)]))
    monkeypatch.setattr(probe, "read_quota", lambda: 0)
    assert probe.count_cores() == 3
    monkeypatch.setattr(probe, "read_quota", lambda: 2)
    assert probe.count_cores() == 2
