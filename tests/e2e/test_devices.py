"""Owns: the whole command on a host with made device nodes: the masks that workers find, and what is refused.
Must not: need an accelerator: the nodes are copies of /dev/null in the host's own /dev.
Called by: pytest."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.agent.trees import tool
from tests.cluster import Cluster
from tests.conftest import MakeCluster
from tests.e2e.command import Ended, assert_nothing_left, on, run

SCRIPT = """
import os
names = ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "CUDA_VISIBLE_DEVICES")
print(*(os.environ.get(name, "-") for name in names), flush=True)
"""
# A /dev of its own for the host, with four GPUs that only look so.
MAKE_GPUS = """
set -e
mkdir -p /run/dev && mount -t tmpfs -o mode=755 tmpfs /run/dev
for name in null zero full random urandom tty ptmx; do cp -a /dev/$name /run/dev/; done
mkdir /run/dev/pts /run/dev/shm
mount --bind /dev/pts /run/dev/pts
mount --bind /dev/shm /run/dev/shm
ln -s /proc/self/fd /run/dev/fd
for number in 0 1 2 3; do mknod -m 666 /run/dev/nvidia$number c 1 3; done
mount --rbind /run/dev /dev
"""


@pytest.fixture(scope="module")
def gpus(make_module_cluster: MakeCluster) -> Cluster:
    """One host with four GPUs, of which its logins are given two."""
    cluster = make_module_cluster(1, needs="namespaces", sshd="SetEnv CUDA_VISIBLE_DEVICES=2,3\n")
    made = cluster.run(0, ["/bin/sh", "-c", MAKE_GPUS])
    assert made.returncode == 0, made.stderr
    return cluster


def start(cluster: Cluster, where: Path, line: str, *options: str) -> Ended:
    (where / "script.py").write_text(SCRIPT)
    return run(where, *on(cluster, where, hostfile=f"n0 {line}\n"), *options, "script.py")


def lines(ended: Ended) -> list[str]:
    assert ended.code == 0, ended
    return sorted(line.split("] ", 1)[1] for line in ended.out.splitlines())


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", ["0 2 2,3", "1 2 2,3"]),  # the slots are the devices that the mask shows, and the mask stays as it is
        ("slots=1", ["0 1 2,3"]),
        ("devices=3", ["0 1 3"]),
        ("devices=3,2", ["0 2 3,2", "1 2 3,2"]),
        ("env.CUDA_VISIBLE_DEVICES=1,0,3", ["0 3 1,0,3", "1 3 1,0,3", "2 3 1,0,3"]),
    ],
)
def test_workers_share_the_nodes_mask(gpus: Cluster, tmp_path: Path, line: str, expected: list[str]) -> None:
    ended = start(gpus, tmp_path, line, "--device", "cuda", "--no-init")
    assert lines(ended) == expected
    if "devices" not in line and "env" not in line:
        assert '"device": "2"' in (ended.run_dir / "plan.json").read_text()


FEW = "3 workers are wanted, but 2 accelerators are visible (CUDA_VISIBLE_DEVICES=2,3 is in force)"
OUTSIDE = "device 0 was asked for (devices=0), but CUDA_VISIBLE_DEVICES=2,3 is in force"


@pytest.mark.parametrize(
    ("line", "options", "words"),
    [
        ("slots=3", "--device cuda --no-init", [FEW]),
        ("devices=0", "--device cuda --no-init", [OUTSIDE]),
        ("env.CUDA_VISIBLE_DEVICES=2,2", "--no-init --device cuda", ["CUDA_VISIBLE_DEVICES=2,2 names 2 twice"]),
        ("slots=1", "--device npu", ["1 workers are wanted", "0 accelerators are visible"]),
        ("", "--device cuda", ["torch 2.", "is built without CUDA, which NVIDIA devices need", "--device cpu"]),
    ],
)
def test_what_cannot_be_is_refused_with_the_host_and_what_is_there(
    gpus: Cluster, tmp_path: Path, line: str, options: str, words: list[str]
) -> None:
    ended = start(gpus, tmp_path, line, *options.split())
    assert (ended.code, ended.out) == (125, ""), ended
    assert all(word in ended.err for word in ["n0", *words]), ended.err


def test_a_torch_for_the_processor_says_that_it_leaves_the_gpus(gpus: Cluster, tmp_path: Path) -> None:
    ended = start(gpus, tmp_path, "slots=1", "--no-init")
    assert lines(ended) == ["0 1 2,3"]
    assert "n0: 4 NVIDIA devices are not used: torch" in ended.err and "the workers run on the processor" in ended.err


def test_a_program_gets_the_devices_whatever_torch_there_is(gpus: Cluster, tmp_path: Path) -> None:
    words = ["--no-python", "--show", "all", "/bin/sh", "-c", "echo $LOCAL_RANK $CUDA_VISIBLE_DEVICES"]
    ended = run(tmp_path, *on(gpus, tmp_path, hostfile="n0\n"), *words)
    assert lines(ended) == ["0 2,3", "1 2,3"]


def test_a_driver_that_hangs_costs_seconds_and_leaves_nothing(gpus: Cluster, tmp_path: Path) -> None:
    path = tool(tmp_path / "bin", "sleep 1000 & wait")
    line = f"env.CUDA_VISIBLE_DEVICES=GPU-1,GPU-2 env.PATH={path}"
    ended = start(gpus, tmp_path, line, "--device", "cuda", "--no-init")
    assert lines(ended) == ["0 2 GPU-1,GPU-2", "1 2 GPU-1,GPU-2"]
    assert "n0: nvidia-smi -L did not answer within 5 s" in ended.err
    assert_nothing_left(gpus)
