"""Owns: how long ends take: a failure or an interrupt until nothing is left; a failure until all are back.
Must not: count the start of the first attempt.
Called by: bench.parts."""

from __future__ import annotations

import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from bench.measure import MESHRUN, SCRIPTS, Asked, Broken, Found, environ, seconds, take, wait_until
from bench.peers import TORCHRUN
from bench.result import OURS, Row
from tests.cluster import NamespaceCluster, can_make_namespaces

HOSTS, RANKS = 4, 8
# Without the last, torchrun's second attempt reads the first one's gloo addresses and never comes back (2.13).
TORCHRUN_ENV = {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


def part_failure(asked: Asked) -> Found:
    """One of 8 ranks on 4 hosts (namespaces with an sshd each) fails while the others wait; all obey SIGTERM."""
    what = "a rank fails to all gone, 4 hosts"
    if not can_make_namespaces():
        return Found([Row(what, "s", {}, {OURS: "needs root and namespaces"})])
    with tempfile.TemporaryDirectory(dir="/var/tmp") as cwd:
        cluster = NamespaceCluster(HOSTS)
        try:
            return Found([take(asked.times, what, "s", {OURS: partial(_fail_once, cluster, Path(cwd))})])
        finally:
            cluster.close()


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
            raise Broken(f"code {process.returncode}, left {left}:\n{said.decode(errors='replace')}")
        return ended - float((here / "failed").read_text())


def part_interrupt(asked: Asked) -> Found:
    """Ctrl-C while 8 local ranks wait, all of which obey: until the command has returned."""
    ways = {
        OURS: partial(_interrupt_once, [*MESHRUN, "--no-init", f"--nproc-per-node={RANKS}"]),
        TORCHRUN: partial(_interrupt_once, asked.peers.command(TORCHRUN, RANKS)),
    }
    return Found([take(asked.times, "interrupt to back at the prompt, 8 ranks", "s", ways)])


def _interrupt_once(launcher: Sequence[str]) -> float:
    with tempfile.TemporaryDirectory() as cwd:
        argv = [*launcher, str(SCRIPTS / "hold.py"), cwd]
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        # In a session of its own, as Ctrl-C reaches the launcher's whole process group.
        process = subprocess.Popen(argv, cwd=cwd, env=environ(), start_new_session=True, **quiet)  # type: ignore[call-overload]
        try:
            wait_until(lambda: len(list(Path(cwd).glob("held*"))) == RANKS, "8 ranks")
            began = time.perf_counter()
            process.send_signal(signal.SIGINT)
            process.wait(120)
            return time.perf_counter() - began
        finally:
            process.kill()


def part_restart(asked: Asked) -> Found:
    """One of 8 ranks fails while the others wait; one restart is allowed."""
    ours = [*MESHRUN, "--mesh", "dp=2,tp=4", "--max-restarts", "1"]
    theirs = [*asked.peers.command(TORCHRUN, RANKS), "--max-restarts", "1"]
    ways = {OURS: partial(_restart_once, ours, {}), TORCHRUN: partial(_restart_once, theirs, TORCHRUN_ENV)}
    return Found([take(asked.times, "failure to 8 ranks back in the script", "s", ways)])


def _restart_once(launcher: Sequence[str], env: dict[str, str]) -> float:
    """Seconds from just before the failing rank raises to the last rank's mesh in the second attempt."""
    with tempfile.TemporaryDirectory() as cwd:
        here = Path(cwd)
        seconds([*launcher, str(SCRIPTS / "restart.py"), cwd], cwd, env=env)
        back = [float(path.read_text()) for path in here.glob("1.*")]
        if len(back) != RANKS:
            raise Broken(f"{' '.join(launcher)}: {len(back)} of {RANKS} ranks came back")
        return max(back) - float((here / "failed").read_text())
