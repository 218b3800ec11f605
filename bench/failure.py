"""Owns: from a rank's failure on one of four hosts to the launcher's return with every process gone.
Must not: run without root: the hosts are namespaces, each with its own sshd (tests/cluster.py).
Called by: bench.parts."""

from __future__ import annotations

import subprocess
import tempfile
import time
from functools import partial
from pathlib import Path

from bench.measure import MESHRUN, SCRIPTS, Row, environ, medians, wait_until
from tests.cluster import NamespaceCluster, can_make_namespaces

HOSTS, RANKS = 4, 8


def part_failure(times: int) -> list[Row]:
    """One of 8 ranks on 4 hosts fails while the others wait; all obey SIGTERM."""
    if not can_make_namespaces():
        raise SystemExit("part failure needs root and namespaces")
    with tempfile.TemporaryDirectory(dir="/var/tmp") as cwd:
        cluster = NamespaceCluster(HOSTS)
        try:
            (took,) = medians(times, partial(_fail_once, cluster, Path(cwd)))
        finally:
            cluster.close()
    return [Row("failure to all gone, 4 hosts", took, "s", 1.0)]


def _fail_once(cluster: NamespaceCluster, base: Path) -> float:
    """Seconds from just before the failing rank raises to the launcher's return and an empty cluster."""
    with tempfile.TemporaryDirectory(dir=base) as cwd:
        here = Path(cwd)
        (here / "hosts").write_text(cluster.hostfile(RANKS // HOSTS))
        argv = [*MESHRUN, *cluster.options, "--hostfile", "hosts", "--no-init", str(SCRIPTS / "fail.py"), cwd]
        with subprocess.Popen(
            argv, cwd=cwd, env=environ(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        ) as process:
            wait_until(lambda: len(list(here.glob("held*"))) == RANKS or process.poll() is not None, "8 ranks")
            (here / "go").touch()
            _, said = process.communicate(timeout=60)
        left = [line for host in range(HOSTS) for line in cluster.wait_empty(host)]
        ended = time.time()
        if left or process.returncode != 1:
            raise SystemExit(f"code {process.returncode}, left {left}:\n{said.decode(errors='replace')}")
        return ended - float((here / "failed").read_text())
