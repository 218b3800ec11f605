"""Owns: running the real command against a test cluster, and looking at what it left.
Must not: hold tests.
Called by: tests/e2e."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.cluster import Cluster

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-m", "meshrun"]
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(("MESHRUN_", "PYTEST_"))}
ENVIRON = CLEAN | {"PYTHONPATH": str(ROOT)}


class Ended:
    """How a command ended: code, both streams, and its run directory."""

    def __init__(self, code: int, out: bytes, err: bytes, logs: Path) -> None:
        self.code, self.raw_out, self.raw_err, self.logs = code, out, err, logs
        self.out, self.err = out.decode("utf-8", "replace"), err.decode("utf-8", "replace")

    @property
    def run_dir(self) -> Path:
        (only,) = self.logs.iterdir()
        return only

    @property
    def summary(self) -> dict[str, Any]:
        loaded: dict[str, Any] = json.loads((self.run_dir / "summary.json").read_text())
        return loaded

    def __repr__(self) -> str:
        return f"code {self.code}\n--- stdout\n{self.out}\n--- stderr\n{self.err}"


class Command:
    """One meshrun command under way, in its own directory with its own run directory."""

    def __init__(
        self,
        where: Path,
        *args: str,
        env: dict[str, str] | None = None,
        prefix: tuple[str, ...] = (),
        stdout: int = subprocess.PIPE,
    ) -> None:
        self.inside = prefix
        self.logs = where / f"runs{time.monotonic_ns()}"
        argv = [*prefix, *COMMAND, "--log-dir", str(self.logs), *args]
        self.process = subprocess.Popen(
            argv,
            cwd=where,
            env=ENVIRON | (env or {}),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.PIPE,
        )

    def wait_for(self, file: Path, within_s: float = 60.0) -> None:
        """Until a worker has made `file`; fails if the command ends before."""
        deadline = time.monotonic() + within_s
        while not file.exists():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"{file} never came: {self.end(1.0)!r}")
            time.sleep(0.01)

    @property
    def pid(self) -> int:
        """The command itself: `nsenter` into a pid namespace stays outside as its parent and passes no signal on."""
        if "nsenter" not in self.inside:
            return self.process.pid
        (child,) = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return int(child)

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def end(self, within_s: float = 90.0) -> Ended:
        """Wait for the end; a command that hangs is killed and fails the test."""
        try:
            out, err = self.process.communicate(timeout=within_s)
        except subprocess.TimeoutExpired:
            self.signal(signal.SIGKILL)
            out, err = self.process.communicate()
            raise AssertionError(f"still running after {within_s} s:\n{out!r}\n{err!r}") from None
        return Ended(self.process.returncode, out or b"", err, self.logs)


def run(where: Path, *args: str, **kwargs: Any) -> Ended:
    """Run the command to its end."""
    return Command(where, *args, **kwargs).end()


def on(cluster: Cluster, where: Path, slots: int = 1, hostfile: str = "") -> list[str]:
    """The options that make the command use this cluster, with a hostfile of `slots` a host."""
    file = where / "hosts"
    file.write_text(hostfile or cluster.hostfile(slots))
    return [*cluster.options, "--hostfile", str(file)]


def assert_nothing_left(cluster: Cluster) -> None:
    """No process and no file of a run on any host."""
    for i in range(len(cluster.hosts)):
        assert cluster.wait_empty(i) == []
        if cluster.kind == "namespaces":
            left = cluster.run(i, ["sh", "-c", "ls -d /tmp/meshrun* /dev/shm/* 2>/dev/null"])
            assert left.stdout == ""
