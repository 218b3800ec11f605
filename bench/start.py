"""Owns: from the command to its end for ranks that do nothing or build a mesh, here and over SSH; what we add to that.
Must not: count anything that a user would not wait for.
Called by: bench.parts."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from bench.measure import MESHRUN, ROOT, SCRIPTS, Asked, Found, seconds, take
from bench.peers import ACCELERATE, DEEPSPEED, LOOP, MPIRUN, TORCHRUN
from bench.result import OURS, Row
from tests.cluster import LoopbackCluster

COUNTS = (1, 2, 4, 8, 16)
HOST_COUNTS = (1, 2, 4, 8)
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
# By kind: the row's name, the script, meshrun's options, and who else can run it without a wrapper.
KINDS = {
    "light": ("{} local ranks without torch", "light.py", ("--no-init",), (TORCHRUN, MPIRUN, LOOP)),
    "torch": (
        "{} local ranks that import torch",
        "torch_only.py",
        (),
        (TORCHRUN, ACCELERATE, MPIRUN, LOOP),
    ),
    "mesh": ("{} local ranks, 2-D gloo mesh", "mesh2d.py", (), (TORCHRUN, ACCELERATE, DEEPSPEED, LOOP)),
}


def shape_of(ranks: int) -> str:
    """The 2-D mesh of so many ranks."""
    return f"dp={1 if ranks < 2 else 2},tp={max(1, ranks // 2)}"


def part_start(asked: Asked) -> Found:
    """1 to 16 local ranks: without torch, with torch, with a 2-D gloo mesh."""
    rows = []
    for ranks in (count for count in COUNTS if count <= asked.most):
        for kind, (what, script, options, peers) in KINDS.items():
            here = (*options, f"--nproc-per-node={ranks}") if kind != "mesh" else ("--mesh", shape_of(ranks))
            rows.append(_row(asked, what.format(ranks), str(SCRIPTS / script), here, peers, ranks))
    return Found(rows)


def _row(asked: Asked, what: str, script: str, options: Sequence[str], peers: Sequence[str], ranks: int) -> Row:
    missing = asked.peers.missing(peers)
    if ranks < 2 and ACCELERATE in peers:
        missing[ACCELERATE] = "takes two ranks"
    with tempfile.TemporaryDirectory() as cwd:
        ways = {OURS: partial(seconds, [*MESHRUN, *options, script], cwd)}
        for name in peers:
            if name not in missing:
                preload = ["--torch"] if name == LOOP and script.endswith(("torch_only.py", "mesh2d.py")) else []
                argv = [*asked.peers.command(name, ranks), *preload, script]
                ways[name] = partial(seconds, argv, cwd, env=ONE_THREAD)
        return take(asked.times, what, "s", ways, missing)


def part_ssh(asked: Asked) -> Found:
    """2 ranks on each of 1 to 8 hosts that are sshd's on loopback addresses; deepspeed with pdsh for 4 hosts."""
    rows = []
    for hosts in (count for count in HOST_COUNTS if count <= asked.most):
        cluster = LoopbackCluster(hosts)
        try:
            with tempfile.TemporaryDirectory(dir="/var/tmp") as cwd:
                rows += [_ssh_row(asked, cluster, hosts, kind, cwd) for kind in ("light", "mesh")]
        finally:
            cluster.close()
    return Found(rows)


def _ssh_row(asked: Asked, cluster: LoopbackCluster, hosts: int, kind: str, cwd: str) -> Row:
    Path(cwd, "hosts").write_text(cluster.hostfile(2))
    what, script, options, _ = KINDS[kind]
    name = what.format(f"{hosts} SSH hosts x 2").replace("local ", "")
    here = ["--hostfile", "hosts", *(options if kind == "light" else ("--mesh", shape_of(2 * hosts)))]
    ways = {OURS: partial(seconds, [*MESHRUN, *cluster.options, *here, str(SCRIPTS / script)], cwd)}
    missing = {}
    if hosts == 4:
        lacking = asked.peers.missing([DEEPSPEED, "pdsh"])
        missing = {"deepspeed + pdsh": f"{', '.join(lacking)} not installed (--install)"} if lacking else {}
        if not missing:
            ways["deepspeed + pdsh"] = partial(_deepspeed, asked, cluster, str(SCRIPTS / script), cwd)
    return take(asked.times, name, "s", ways, missing)


def _deepspeed(asked: Asked, cluster: LoopbackCluster, script: str, cwd: str) -> float:
    launch = [asked.peers.python(DEEPSPEED), "-m", "deepspeed.launcher.runner", "--hostfile", "hosts"]
    argv = [*launch, "--master_addr", cluster.hosts[0].address, "--no_local_rank", "--launcher", "pdsh", script]
    own = Path(cwd, "bin", "ssh")  # neither deepspeed's own test nor pdsh can be told of another config
    own.parent.mkdir(exist_ok=True)
    own.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {cluster.dir / "ssh_config"} "$@"\n')
    own.chmod(0o755)
    return seconds(argv, cwd, env={"PATH": f"{own.parent}:{os.environ['PATH']}", "PDSH_RCMD_TYPE": "ssh", **ONE_THREAD})


def part_added(asked: Asked) -> Found:
    """What launcher and agent take before the fork server begins to import: a preloaded module notes the time."""
    return Found([take(asked.times, "before the fork server imports", "s", {OURS: _added_once})])


def _added_once() -> float:
    with tempfile.TemporaryDirectory() as cwd:
        mark = Path(cwd, "mark")
        Path(cwd, "bench_mark.py").write_text(f"import time\nopen({str(mark)!r}, 'w').write(str(time.time()))\n")
        argv = [*MESHRUN, "--no-init", "--nproc-per-node=1", "--preload", "bench_mark", str(SCRIPTS / "light.py")]
        began = time.time()
        seconds(argv, cwd, env={"PYTHONPATH": f"{cwd}:{ROOT}"})
        return float(mark.read_text()) - began
