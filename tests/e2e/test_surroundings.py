"""Owns: the whole command on hosts that are odd: a clock that is off, no place for temporary files, full disks, few
descriptors, few processes; each has a defined end.
Must not: import torch.
Called by: pytest."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import Cluster, can_make_namespaces
from tests.conftest import MakeCluster
from tests.e2e.command import Command, Ended, assert_nothing_left, on, run

ENVIRONMENT = "/root/.ssh/environment"  # what sshd gives every session of that host, if it is told to


@pytest.fixture(scope="module")
def pair(make_module_cluster: MakeCluster) -> Cluster:
    """Two hosts whose sessions take variables from a file there."""
    made = make_module_cluster(2, needs="namespaces", sshd="PermitUserEnvironment yes\n")
    for i in range(2):
        made.run(i, ["mkdir", "-p", "/root/.ssh"], check=True)
    return made


def set_environment(cluster: Cluster, i: int, *lines: str) -> None:
    cluster.write(i, ENVIRONMENT, "".join(f"{line}\n" for line in lines))


def script(where: Path, text: str) -> str:
    (where / "script.py").write_text(text)
    return "script.py"


# ---- a clock that is hours off ----

LATE = """
import os, pathlib, sys, time
ready = pathlib.Path(os.environ["READY_DIR"])
(ready / os.environ["RANK"]).touch()
print("hour", int(time.time() // 3600), flush=True)
while len(list(ready.iterdir())) < 4:
    time.sleep(0.01)
if os.environ["RANK"] == sys.argv[1]:
    raise ValueError("the first")
if sys.argv[1] != "none":
    time.sleep(600)
"""


# libfaketime would do, but Debian 12's breaks `clock_nanosleep`, and with it Python's `time.sleep`.
AHEAD = """
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t clock, struct timespec *at) {
    int failed = syscall(SYS_clock_gettime, clock, at);
    if (!failed && clock == CLOCK_REALTIME) at->tv_sec += 5 * 3600;
    return failed;
}
int gettimeofday(struct timeval *at, void *zone) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}
time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}
"""


@pytest.fixture
def skewed(pair: Cluster, tmp_path: Path) -> Iterator[Cluster]:
    """The second host's clock is five hours ahead, for whatever is started there over ssh."""
    if not shutil.which("cc"):
        pytest.skip("needs a C compiler (apt-get install gcc libc6-dev)")
    (tmp_path / "ahead.c").write_text(AHEAD)
    library = tmp_path / "ahead.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, tmp_path / "ahead.c"], check=True)
    set_environment(pair, 1, f"LD_PRELOAD={library}")
    yield pair
    set_environment(pair, 1)


@pytest.mark.parametrize("failing", ["none", "1", "3"])
def test_a_clock_that_is_five_hours_off(skewed: Cluster, tmp_path: Path, failing: str) -> None:
    (tmp_path / "ready").mkdir()
    began = time.time()
    env = {"READY_DIR": str(tmp_path / "ready")}
    exports = ["-x", "READY_DIR", "--no-init", script(tmp_path, LATE), failing]
    ended = run(tmp_path, *on(skewed, tmp_path, 2), *exports, env=env)
    assert ended.code == (0 if failing == "none" else 1), ended
    hours = {int(line.split()[-1]) for line in ended.out.splitlines() if " hour " in line}
    assert max(hours) - min(hours) in (4, 5, 6), "the clock was not off"
    first = ended.summary["first_failure"]
    assert (first and str(first["rank"])) == (None if failing == "none" else failing)
    events = list(map(json.loads, (ended.run_dir / "events.jsonl").read_text().splitlines()))
    assert all(began - 1 <= event["t"] <= time.time() + 1 for event in events)
    ages = [event["age_s"] for event in events if "age_s" in event]
    assert ages and all(0 <= age < 60 for age in ages)
    assert_nothing_left(skewed)


# ---- no place for temporary files ----

HERE = "import os; print(os.environ['RANK'], 'here')"


def assert_all_here(ended: Ended, ranks: int = 2) -> None:
    assert ended.code == 0, ended
    assert {line.rpartition("] ")[2] for line in ended.out.splitlines()} == {f"{r} here" for r in range(ranks)}


def make_read_only(cluster: Cluster, i: int, *places: str) -> None:
    """For the directories themselves, not for what is mounted below them."""
    for place in places:
        text = f"mount --rbind {place} {place} && mount -o remount,bind,ro {place}"
        cluster.run(i, ["sh", "-c", text], check=True)


def make_writable(cluster: Cluster, i: int, *places: str) -> None:
    for place in places:
        cluster.run(i, ["umount", "-l", place], check=True)


def make_small(cluster: Cluster, i: int, size: str) -> None:
    """A place of so many bytes, as TMPDIR of that host."""
    cluster.run(i, ["sh", "-c", f"mkdir -p /run/small && mount -t tmpfs -o size={size} tmpfs /run/small"], check=True)
    set_environment(cluster, i, "TMPDIR=/run/small")


def test_tmp_that_is_read_only(pair: Cluster, tmp_path: Path) -> None:
    make_read_only(pair, 1, "/tmp")
    try:
        assert_all_here(run(tmp_path, *on(pair, tmp_path, 1), "--no-init", script(tmp_path, HERE)))
    finally:
        make_writable(pair, 1, "/tmp")
    assert_nothing_left(pair)


@pytest.mark.parametrize("full", [False, True])
def test_tmpdir_that_is_not_there_or_full(pair: Cluster, tmp_path: Path, full: bool) -> None:
    if full:
        make_small(pair, 1, "16k")
    else:
        set_environment(pair, 1, "TMPDIR=/nowhere/at/all")
    try:
        assert_all_here(run(tmp_path, *on(pair, tmp_path, 1), "--no-init", script(tmp_path, HERE)))
    finally:
        set_environment(pair, 1)
        if full:
            make_writable(pair, 1, "/run/small")
    assert_nothing_left(pair)


def test_no_place_at_all_names_the_host_and_what_to_do(pair: Cluster, tmp_path: Path) -> None:
    places = ("/tmp", "/dev/shm", "/var/tmp", "/root")
    pair.run(1, ["mount", "--bind", str(pair.dir), str(pair.dir)], check=True)  # its sshd writes a log there
    make_read_only(pair, 1, *places)
    try:
        ended = run(tmp_path, *on(pair, tmp_path, 1), "--no-init", script(tmp_path, HERE))
    finally:
        make_writable(pair, 1, *places)
    assert ended.code == 125 and ended.out == "", ended
    (cause,) = ended.summary["causes"]
    assert cause["host"] == "n1" and "no place for temporary files: /tmp: Read-only file system" in cause["message"]
    assert "hint: set TMPDIR there" in ended.err


# ---- full disks ----

FLOOD = """
import sys
line = "x" * 99 + "\\n"
for _ in range(1000000):
    sys.stdout.write(line)
print("end")
"""


def free_bytes(cluster: Cluster, i: int, path: str) -> int:
    answer = cluster.run(i, ["stat", "-f", "-c", "%a %S", path], check=True).stdout.split()
    return int(answer[0]) * int(answer[1])


def test_a_node_whose_disk_is_full_loses_no_output(pair: Cluster, tmp_path: Path) -> None:
    """100 MB that nobody reads for a while; room for 4 MB on the node's disk and for 64 MB in its agent's memory."""
    make_small(pair, 1, "4m")
    try:
        (tmp_path / "hosts").write_text("n1 slots=1\n")
        argv = [*pair.options, "--hostfile", "hosts", "--no-init", script(tmp_path, FLOOD)]
        command = Command(tmp_path, *argv)
        assert command.process.stdout
        assert command.process.stdout.read(10) == b"[n1:0 dp=0"
        # Nobody reads on until the node's place is full.
        until = time.monotonic() + 30
        while free_bytes(pair, 1, "/run/small") > 300_000:
            assert time.monotonic() < until
        ended = command.end()
    finally:
        set_environment(pair, 1)
        make_writable(pair, 1, "/run/small")
    assert ended.code == 0, ended.err
    kept = (ended.run_dir / "rank0.out").read_bytes()
    assert kept == (b"x" * 99 + b"\n") * 1000000 + b"end\n"
    assert pair.wait_empty(1) == []


SMALL_DISK = """
mount -t tmpfs -o size=512k tmpfs "$1"
shift
exec "$@"
"""


def test_a_launcher_whose_disk_is_full_says_so_once_and_shows_everything(tmp_path: Path) -> None:
    if not can_make_namespaces():
        pytest.skip("needs root and namespaces (a small disk)")
    (tmp_path / "small").mkdir()
    prefix = ("unshare", "--mount", "sh", "-ec", SMALL_DISK, "sh", str(tmp_path / "small"))
    where = ("--log-dir", str(tmp_path / "small" / "runs"))
    ended = run(tmp_path, *where, "--no-init", script(tmp_path, "for i in range(100000): print(i)"), prefix=prefix)
    assert ended.code == 0, ended.err
    assert [line.rpartition("] ")[2] for line in ended.out.splitlines()] == [str(i) for i in range(100000)]
    (warning,) = ended.err.splitlines()
    assert warning.startswith(f"meshrun: warning: cannot write to the run directory {tmp_path}/small/runs/")
    assert "No space left on device. The run goes on" in warning


# ---- few descriptors ----


def test_sixteen_ranks_with_256_descriptors(tmp_path: Path) -> None:
    limit = ("prlimit", "--nofile=256:256")
    ended = run(tmp_path, "--nproc-per-node", "16", "--no-init", script(tmp_path, HERE), prefix=limit)
    assert_all_here(ended, 16)


def test_sixty_four_ranks_with_256_descriptors(tmp_path: Path) -> None:
    limit = ("prlimit", "--nofile=256:256")
    assert_all_here(run(tmp_path, "--nproc-per-node", "64", "--no-init", script(tmp_path, HERE), prefix=limit), 64)


def test_more_ranks_than_a_node_has_descriptors_for(pair: Cluster, tmp_path: Path) -> None:
    """None starts; the prelude of the message's hint is what helps."""
    (tmp_path / "hosts").write_text("n0 slots=1\nn1 slots=70\n")
    argv = [*pair.options, "--hostfile", "hosts", "--no-init"]
    text = script(tmp_path, HERE)
    ended = run(tmp_path, *argv, "--prelude", "ulimit -S -n 256", text)
    assert ended.code == 125 and ended.out == "", ended
    (cause,) = ended.summary["causes"]
    assert (cause["host"], cause["kind"]) == ("n1", "slots")
    assert cause["message"] == "70 workers need 258 open files in their agent, and the limit there is 256"
    assert "hint: --prelude 'ulimit -n 516' raises it" in ended.err
    assert_all_here(run(tmp_path, *argv, "--prelude", "ulimit -S -n 256; ulimit -S -n 516", text), 71)
    assert_nothing_left(pair)


CLIENTS = """
import os, resource
os.environ["RES_OPTIONS"] = "timeout:1 attempts:1"  # for the look-ups of names on the clients' own side
from torch.distributed import TCPStore
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
clients = [TCPStore(address, port, is_master=False, wait_for_workers=False) for _ in range(300)]
for client in clients:
    client.add("joined", 1)
print("joined", clients[0].add("joined", 0))
"""


def test_a_store_takes_more_clients_than_the_soft_limit_of_descriptors(tmp_path: Path) -> None:
    """The store's process raises its own; all clients are in one worker, which raises that of its own side."""
    limit = ("prlimit", "--nofile=256:1024")
    argv = ("--nproc-per-node", "1", "--no-init", "--master-addr", "127.0.0.1", script(tmp_path, CLIENTS))
    ended = run(tmp_path, *argv, prefix=limit)
    assert ended.code == 0 and "joined 300" in ended.out, ended


def test_more_ranks_than_the_store_has_descriptors_for(tmp_path: Path) -> None:
    """None starts: torch would say "Broken pipe" in the ranks that came too late, after minutes."""
    limit = ("prlimit", "--nofile=256:256")
    argv = ("--local", "--hosts", "n[0-3]:69", script(tmp_path, HERE))
    ended = run(tmp_path, *argv, prefix=limit)
    assert ended.code == 125 and ended.out == "", ended
    (cause,) = ended.summary["causes"]
    assert (cause["host"], cause["kind"]) == ("n0", "slots")
    assert cause["message"] == "the store of 276 ranks needs 308 open files, and the hard limit there is 256"


# ---- no more processes ----

PIDS = Path("/sys/fs/cgroup/pids")  # version 1; in version 2 all limits are in one tree


@pytest.fixture
def few_processes() -> Iterator[Path]:
    """A cgroup that limits processes and threads."""
    folder = (PIDS if PIDS.exists() else PIDS.parent) / f"meshrun-test-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError:
        pytest.skip("needs a pids cgroup of our own")
    try:
        if not (folder / "pids.max").exists():
            pytest.skip("needs a pids cgroup of our own")
        yield folder
    finally:
        until = time.monotonic() + 10
        while (folder / "cgroup.procs").read_text() and time.monotonic() < until:
            time.sleep(0.01)
        folder.rmdir()  # fails while a process of the run is in it


@pytest.mark.parametrize("most", [3, 6, 7, 8, 10, 12])
def test_a_kernel_that_gives_no_more_processes(few_processes: Path, tmp_path: Path, most: int) -> None:
    """From the launcher's first thread to the last of the workers: words, 125, and nothing left."""
    (few_processes / "pids.max").write_text(str(most))
    prefix = ("sh", "-c", f'echo $$ > {few_processes}/cgroup.procs; exec "$@"', "sh")
    (tmp_path / "tmp").mkdir()
    argv = ["--nproc-per-node", "8", "--no-init", script(tmp_path, HERE)]
    ended = run(tmp_path, *argv, prefix=prefix, env={"TMPDIR": str(tmp_path / "tmp")})
    assert ended.code == 125, ended
    assert list((tmp_path / "tmp").iterdir()) == []
    assert "pids limit" in ended.err and "Traceback" not in ended.err and "bug" not in ended.err, ended.err
