"""Owns: what a result was measured on: processor, memory, kernel, versions, commit, load before it began.
Must not: name the host, a path or a user.
Called by: bench.__main__."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from pathlib import Path
from typing import Any

from bench.measure import ROOT
from bench.peers import VERSIONS, Peers


def describe_machine(peers: Peers) -> dict[str, Any]:
    """As plain JSON values."""
    return {
        "cpu": _find(r"model name\s*: (.*)", "/proc/cpuinfo") or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(int(_find(r"MemTotal:\s+(\d+)", "/proc/meminfo") or 0) / 2**20, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "versions": {name: peers.version(name) for name in VERSIONS},
        "load_before": [round(value, 2) for value in os.getloadavg()],
    }


def find_commit() -> str:
    """The commit that is checked out, with a `+` if the working tree differs from it; "unknown" without git."""
    try:
        commit = _git("rev-parse", "--short=10", "HEAD")
        changed = _git("status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return commit + ("+" if changed else "")


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def _find(pattern: str, path: str) -> str:
    try:
        found = re.search(pattern, Path(path).read_text())
    except OSError:
        return ""
    return found[1].strip() if found else ""


def render_machine(machine: dict[str, Any], commit: str) -> str:
    """One paragraph that stands above the table."""
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items() if version)
    return (
        f"commit {commit}, {machine['cores']} cores of {machine['cpu']}, {machine['memory_gib']} GiB, "
        f"kernel {machine['kernel']}, Python {machine['python']}, {versions}; "
        f"load before: {' '.join(f'{value:g}' for value in machine['load_before'])}"
    )
