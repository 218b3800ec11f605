"""Owns: the pieces of tests/cluster.py: values, processes of this machine, keys, waiting.
Must not: know what a cluster is.
Called by: tests/cluster.py, tests/conftest.py."""

from __future__ import annotations

import contextlib
import ctypes
import os
import pwd
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ME = pwd.getpwuid(os.getuid())


@dataclass(frozen=True)
class ClusterHost:
    """One host: `name` is in the ssh config and in every host's /etc/hosts."""

    name: str
    address: str
    port: int


@dataclass(frozen=True)
class Process:
    """A process on a host, by its pid on this machine."""

    pid: int
    ppid: int
    state: str
    command: str


def can_make_namespaces() -> bool:
    """Root, and the kernel lets us."""
    if os.getuid() != 0 or not all(map(shutil.which, ("unshare", "nsenter", "ip"))):
        return False
    probe = ["unshare", "--fork", "--pid", "--mount-proc", "--net", "--uts", "--mount", "--ipc"]
    bridge = "ip link add name s type bridge && ip link add name a type veth peer name b"
    return subprocess.run([*probe, "/bin/sh", "-c", bridge], capture_output=True).returncode == 0


def make_key(path: Path) -> None:
    """An ed25519 key pair without passphrase."""
    path.parent.mkdir(parents=True, exist_ok=True)
    do("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", path.name, "-f", str(path))


def list_processes() -> Iterable[Process]:
    """Every process of this machine."""
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError, ValueError):
                yield _read_process(int(entry))


def _read_process(pid: int) -> Process:
    stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    name, rest = stat[stat.index("(") + 1 : stat.rindex(")")], stat[stat.rindex(")") + 2 :].split()
    command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    return Process(pid, int(rest[1]), rest[0], command or f"[{name}]")


def change_shell(line: str, shell: str) -> str:
    fields = line.rstrip("\n").split(":")
    return ":".join([*fields[:-1], shell]) + "\n" if fields[0] == ME.pw_name else line


def die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def do(*argv: str) -> None:
    done = subprocess.run(argv, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(argv)}: {done.stderr.strip()}")


def end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    if process.stdin:
        process.stdin.close()


def wait_until(check: Any, what: str, within_s: float = 20.0) -> Any:
    deadline = time.monotonic() + within_s
    while not (found := check()):
        if time.monotonic() > deadline:
            raise RuntimeError(f"waited in vain for {what}")
        time.sleep(0.01)
    return found


def wait_for_namespace(pid: int, kind: str) -> None:
    mine = os.readlink(f"/proc/self/ns/{kind}")
    wait_until(lambda: os.readlink(f"/proc/{pid}/ns/{kind}") != mine, "a network namespace")


def wait_for_child(pid: int) -> int:
    children = Path(f"/proc/{pid}/task/{pid}/children")
    return int(wait_until(lambda: children.read_text().split(), "a host's pid 1")[0])


def wait_for_sshd(host: ClusterHost) -> None:
    def check() -> bool:
        with contextlib.suppress(OSError), socket.create_connection((host.address, host.port), 1) as probe:
            return probe.recv(4) == b"SSH-"
        return False

    wait_until(check, f"sshd of {host.name} at {host.address}:{host.port}")


def find_port(address: str) -> int:
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])
