"""Owns: this process's control groups: where they are, and the processor time that they allow.
Must not: change one.
Called by: agent.probe, agent.oom."""

from __future__ import annotations

import os
from collections.abc import Iterator

from meshrun.agent.procs import read_text


def find_cgroup(file: str, root: str = "") -> str:
    """The folder of the nearest cgroup (v2) around us that has this file, "" if there is none. The run's own group has
    no controller, so what counts and limits is around it; inside a container it is the mount itself."""
    for line in read_text(f"{root}/proc/self/cgroup").splitlines():
        if line.startswith("0::"):
            mount = f"{root}/sys/fs/cgroup"
            folder = f"{mount}{line[3:]}".rstrip("/")
            while folder != mount and not os.path.exists(f"{folder}/{file}"):
                folder = folder.rpartition("/")[0]
            return folder
    return ""


def outwards(folder: str, mount: str) -> Iterator[str]:
    """A cgroup's folder and those around it, up to the mount."""
    while folder.startswith(mount):
        yield folder
        folder = folder.rpartition("/")[0]


def read_quota(root: str = "") -> int:
    """Whole CPUs' worth of time that we may use (a fraction counts as one); 0: no limit. The least of all groups that
    we are in counts."""
    mount = f"{root}/sys/fs/cgroup"
    texts = [read_text(f"{folder}/cpu.max") for folder in outwards(find_cgroup("cpu.max", root), mount)]
    for folder in outwards(_find_cpu_group(root), f"{mount}/cpu"):
        texts.append(
            f"{read_text(f'{folder}/cpu.cfs_quota_us').strip()} {read_text(f'{folder}/cpu.cfs_period_us').strip()}"
        )
    return min(filter(None, map(_count_cpus, texts)), default=0)


def _count_cpus(text: str) -> int:
    quota, _, period = text.strip().partition(" ")
    if not (quota.isdecimal() and period.isdecimal() and int(period)):  # "max" and -1: no limit
        return 0
    return max(1, int(quota) // int(period))


def _find_cpu_group(root: str) -> str:
    """The folder of our cgroup v1 for `cpu`; in a container it need not exist, but those around it do."""
    for line in read_text(f"{root}/proc/self/cgroup").splitlines():
        _, controllers, path = ([*line.split(":", 2), "", ""])[:3]
        if "cpu" in controllers.split(","):
            return f"{root}/sys/fs/cgroup/cpu{path}".rstrip("/")
    return ""
