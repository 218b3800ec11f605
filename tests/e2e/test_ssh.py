"""Owns: the whole command on four real hosts: starting, failing, ending, and what it leaves (cheap workers).
Must not: import torch; tests/e2e/test_main_job.py does the training.
Called by: pytest."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.cluster_parts import list_processes, wait_until
from tests.conftest import MakeCluster
from tests.e2e.command import ENVIRON, Command, assert_nothing_left, on, run

SLEEPER = """
import os, pathlib, time
pathlib.Path(os.environ["READY_DIR"], os.environ["RANK"]).touch()
time.sleep(600)
"""
FAILING = """
import os, sys, time, pathlib
ready = pathlib.Path(os.environ["READY_DIR"])
(ready / os.environ["RANK"]).touch()
while len(list(ready.iterdir())) < int(os.environ["WORLD_SIZE"]):
    time.sleep(0.01)
if os.environ["RANK"] == "5":
    print("about to fail", file=sys.stderr)
    raise ValueError("the loss is not a number")
time.sleep(600)
"""


def script(where: Path, text: str, name: str = "script.py") -> str:
    (where / name).write_text(text)
    return name


def ready_dir(where: Path) -> dict[str, str]:
    (where / "ready").mkdir()
    return {"READY_DIR": str(where / "ready")}


def wait_ready(command: Command, where: Path, ranks: int) -> None:
    for rank in range(ranks):
        command.wait_for(where / "ready" / str(rank))


def test_every_worker_knows_its_place(cluster: Cluster, tmp_path: Path) -> None:
    names = ["RANK", "LOCAL_RANK", "NODE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK"]
    names += ["MESHRUN_COORDS", "TORCHELASTIC_RUN_ID"]
    text = f"import os, json; print(json.dumps([os.environ[n] for n in {names!r}]))"
    ended = run(tmp_path, *on(cluster, tmp_path, 2), "--mesh", "dp=2,tp=4", "--no-init", script(tmp_path, text))
    assert ended.code == 0, ended
    lines = sorted(ended.out.splitlines(), key=lambda line: json.loads(line.split("] ", 1)[1])[0])
    run_id = ended.run_dir.name
    for rank, line in enumerate(lines):
        dp, tp, node = rank // 4, rank % 4, rank // 2
        prefix, _, rest = line.partition("] ")
        assert prefix == f"[n{node}:{rank} dp={dp},tp={tp}"
        assert json.loads(rest) == [*map(str, (rank, rank % 2, node, 8, 2, node)), f"dp={dp},tp={tp}", run_id]
    assert len(lines) == 8
    assert {p.name for p in ended.run_dir.iterdir()} == {"plan.json", "events.jsonl", "summary.json"} | {
        f"rank{r}.{s}" for r in range(8) for s in ("out", "err")
    }
    assert oct(ended.run_dir.stat().st_mode & 0o777) == "0o700"
    assert_nothing_left(cluster)


def test_arguments_and_values_arrive_byte_for_byte(cluster: Cluster, tmp_path: Path) -> None:
    nasty = [b"a b", b"'\"`$HOME\\", b"line\nline", b"\xff\xfe", "ü→".encode(), b"", b"--mesh", b"!x", b"*", b"-"]
    text = (
        "import os, sys; seen = [os.fsencode(a) for a in sys.argv[1:]] + [os.environb[b'NASTY']]\n"
        "sys.stdout.write(repr(seen))"
    )
    value = os.fsdecode(b"".join(n for n in nasty))
    argv = ["-x", "NASTY", "--no-init", script(tmp_path, text), *map(os.fsdecode, nasty)]
    ended = run(tmp_path, *on(cluster, tmp_path, hostfile="n0 slots=1\n"), *argv, env={"NASTY": value})
    assert ended.code == 0, ended
    assert (ended.run_dir / "rank0.out").read_text() == repr([*nasty, os.fsencode(value)])
    assert "line\\nline" not in (ended.run_dir / "plan.json").read_text()
    assert "HOME" not in (ended.run_dir / "events.jsonl").read_text()


def test_a_failing_rank_ends_all_and_is_named(cluster: Cluster, tmp_path: Path) -> None:
    name = script(tmp_path, FAILING)
    argv = [*on(cluster, tmp_path, 2), "--mesh", "dp=2,tp=4", "--no-init", "-x", "READY_DIR", name]
    ended = run(tmp_path, *argv, env=ready_dir(tmp_path))
    assert ended.code == 1, ended
    first = ended.summary["first_failure"]
    assert (first["rank"], first["host"], first["coords"]) == (5, "n2", {"dp": 1, "tp": 1})
    assert first["exception"]["type"] == "ValueError"
    assert first["exception"]["message"] == "the loss is not a number"
    assert first["exception"]["file"] == str(tmp_path / name)
    assert "raise ValueError" in FAILING.splitlines()[first["exception"]["line"] - 1]
    block = ended.err[ended.err.index("meshrun: ") :]
    for words in ("rank 5", "dp=1,tp=1", "n2", "ValueError: the loss is not a number", "about to fail"):
        assert words in block, ended
    assert_nothing_left(cluster)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_stops_all_in_order(cluster: Cluster, tmp_path: Path, number: int, code: int) -> None:
    argv = [*on(cluster, tmp_path, 1), "--no-init", "-x", "READY_DIR", script(tmp_path, SLEEPER)]
    command = Command(tmp_path, *argv, env=ready_dir(tmp_path))
    wait_ready(command, tmp_path, 4)
    command.signal(number)
    ended = command.end()
    assert ended.code == code, ended
    assert ended.summary["outcome"] == "stopped"
    assert_nothing_left(cluster)


@pytest.mark.parametrize("client", ["paramiko", "openssh"])
def test_a_killed_launcher_leaves_nothing(cluster: Cluster, tmp_path: Path, client: str) -> None:
    argv = [
        *on(cluster, tmp_path, 1),
        "--ssh-client",
        client,
        "--no-init",
        "-x",
        "READY_DIR",
        script(tmp_path, SLEEPER),
    ]
    command = Command(tmp_path, *argv, env=ready_dir(tmp_path))
    wait_ready(command, tmp_path, 4)
    command.signal(signal.SIGKILL)
    command.end()
    assert_nothing_left(cluster)
    wait_until(lambda: not ssh_processes(cluster), "the end of every ssh here")


def ssh_processes(cluster: Cluster) -> list[int]:
    """Every `ssh` of --ssh-client openssh on this machine that leads to this cluster."""
    config = str(cluster.dir / "ssh_config")
    return sorted(p.pid for p in list_processes() if p.command.startswith("ssh ") and config in p.command)


def test_with_the_systems_ssh_a_run_ends_as_with_ours(cluster: Cluster, tmp_path: Path) -> None:
    """By a job file: one ssh a host while it runs; Ctrl-C at the terminal reaches only us, who stop in order."""
    (tmp_path / "job.yaml").write_text("ssh-client: openssh\n")
    argv = [*on(cluster, tmp_path, 1), "--job", "job.yaml", "--no-init", "-x", "READY_DIR", script(tmp_path, SLEEPER)]
    command = Command(tmp_path, *argv, env=ready_dir(tmp_path))
    wait_ready(command, tmp_path, 4)
    found = ssh_processes(cluster)
    assert len(found) == 4 and all(os.getsid(pid) == pid for pid in found)
    command.signal(signal.SIGINT)
    ended = command.end()
    assert ended.code == 130, ended
    assert ended.summary["outcome"] == "stopped"
    assert_nothing_left(cluster)
    wait_until(lambda: not ssh_processes(cluster), "the end of every ssh here")


def test_a_killed_ssh_is_a_lost_node(cluster: Cluster, tmp_path: Path) -> None:
    argv = [*on(cluster, tmp_path, 1), "--no-init", "-x", "READY_DIR", script(tmp_path, SLEEPER)]
    command = Command(tmp_path, *argv, env={**ready_dir(tmp_path), "MESHRUN_SSH_CLIENT": "openssh"})
    wait_ready(command, tmp_path, 4)
    (pid,) = [pid for pid in ssh_processes(cluster) if leads_to(pid, "n2")]
    os.kill(pid, signal.SIGKILL)
    ended = command.end()
    assert ended.code == 125, ended
    assert ended.summary["outcome"] == "lost"
    assert [c["host"] for c in ended.summary["causes"]] == ["n2"]
    assert "signal 9" in ended.err, ended
    assert_nothing_left(cluster)


def leads_to(pid: int, host: str) -> bool:
    return host.encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")


def test_no_ssh_here_is_said_before_anything_starts(tmp_path: Path) -> None:
    argv = ["--hosts", "far:1", "--ssh-client", "openssh", "--no-init", script(tmp_path, SLEEPER)]
    ended = run(tmp_path, *argv, env={"PATH": str(tmp_path)})
    assert ended.code == 2, ended
    assert "--ssh-client openssh: there is no ssh in PATH" in ended.err and not ended.logs.exists()


def test_a_second_signal_does_not_wait_for_the_grace(cluster: Cluster, tmp_path: Path) -> None:
    text = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SLEEPER
    argv = [*on(cluster, tmp_path, 1), "--grace", "300", "--no-init", "-x", "READY_DIR", script(tmp_path, text)]
    command = Command(tmp_path, *argv, env=ready_dir(tmp_path))
    wait_ready(command, tmp_path, 4)
    command.signal(signal.SIGINT)
    (events,) = command.logs.glob("*/events.jsonl")
    command.signal(signal.SIGTERM)
    ended = command.end()
    assert ended.code == 130, ended
    assert events.exists()
    assert_nothing_left(cluster)


def test_nothing_starts_when_one_host_cannot(cluster: Cluster, tmp_path: Path) -> None:
    """Every host is named with its own cause, in one report, and no worker ran anywhere."""
    hosts = "n0 slots=1\nn1 slots=1 python=/no/such/python\nn2 slots=1 workdir=/no/such/place\n"
    hosts += "no-such-host.invalid slots=1\n"
    argv = ["--connect-timeout", "3", "--no-init", "-x", "READY_DIR", script(tmp_path, SLEEPER)]
    ended = run(tmp_path, *on(cluster, tmp_path, hostfile=hosts), *argv, env=ready_dir(tmp_path))
    assert ended.code == 125, ended
    for words in ("n1", "/no/such/python", "n2", "/no/such/place", "no-such-host.invalid"):
        assert words in ended.err, ended
    assert list((tmp_path / "ready").iterdir()) == []
    assert {c["host"]: c["kind"] for c in ended.summary["causes"]} == {
        "n1": "no_python",
        "n2": "no_workdir",
        "no-such-host.invalid": "name_unknown",
    }
    assert_nothing_left(cluster)


def test_a_script_that_differs_on_one_node_is_named(make_cluster: MakeCluster, tmp_path: Path) -> None:
    """The script stands in a directory that only the nodes have."""
    own = make_cluster(2, needs="namespaces")
    for i, text in enumerate(("print(1)", "print(2)")):
        own.run(i, ["mkdir", "/tmp/there"], check=True)
        own.write(i, "/tmp/there/script.py", text)
    argv = ["--no-init", "--workdir", "/tmp/there", "/tmp/there/script.py"]
    ended = run(tmp_path, *on(own, tmp_path, 1), *argv)
    assert ended.code == 125, ended
    assert "n1" in ended.err and "/tmp/there/script.py" in ended.err
    own.write(1, "/tmp/there/script.py", "print(1)")
    ended = run(tmp_path, *on(own, tmp_path, 1), *argv)
    assert (ended.code, len(ended.out.splitlines())) == (0, 2), ended


def test_a_script_that_does_not_compile_is_refused_with_its_place(cluster: Cluster, tmp_path: Path) -> None:
    ended = run(tmp_path, *on(cluster, tmp_path, 1), "--no-init", script(tmp_path, "x = 1\ndef f(:\n"))
    assert ended.code == 2, ended
    assert "script.py:2" in ended.err and "Traceback" not in ended.err
    assert_nothing_left(cluster)


def test_a_crashed_host_is_named_and_the_others_stop(make_cluster: MakeCluster, tmp_path: Path) -> None:
    own = make_cluster(3, needs="namespaces")
    argv = [*on(own, tmp_path, 1), "--no-init", "-x", "READY_DIR", script(tmp_path, SLEEPER)]
    command = Command(tmp_path, *argv, env=ready_dir(tmp_path))
    wait_ready(command, tmp_path, 3)
    own.crash(1)
    ended = command.end()
    assert ended.code == 125, ended
    assert [c["host"] for c in ended.summary["causes"]] == ["n1"]
    assert ended.summary["outcome"] == "lost"
    assert own.wait_empty(0) == [] and own.wait_empty(2) == []


def test_a_cut_link_stops_both_sides(make_cluster: MakeCluster, tmp_path: Path) -> None:
    """Nobody is told of a cut: both ends notice the silence."""
    own = make_cluster(2, needs="namespaces")
    argv = [*on(own, tmp_path, 1), "--no-init", "-x", "READY_DIR", script(tmp_path, SLEEPER)]
    command = Command(tmp_path, *argv, env=ready_dir(tmp_path))
    wait_ready(command, tmp_path, 2)
    own.cut(1)
    ended = command.end()
    assert ended.code == 125, ended
    assert [c["host"] for c in ended.summary["causes"]] == ["n1"]
    assert own.wait_empty(0) == []
    assert [p for p in own.wait_empty(1, 20) if "sshd" not in p.command] == []


def test_login_noise_a_prelude_and_per_host_values(make_cluster: MakeCluster, tmp_path: Path) -> None:
    own = make_cluster(2, needs="namespaces")
    home = os.path.expanduser("~")
    for i in range(2):
        own.write(i, f"{home}/.bashrc", "echo welcome; echo to the cluster >&2; export FROM_RC=rc\n")
        own.write(i, "/tmp/env.sh", f"echo loading; FROM_PRELUDE=here{i}\n")
    hosts = "n0 slots=1 env.WHO=zero\nn1 slots=1 env.WHO=one\n"
    text = "import os; print(*(os.environ.get(n) for n in ('FROM_RC', 'FROM_PRELUDE', 'WHO', 'JOINED')))"
    extra = ["--prelude", "set -a; . /tmp/env.sh", "--env-remote", "JOINED=${FROM_RC}/x", "--no-init"]
    ended = run(tmp_path, *on(own, tmp_path, hostfile=hosts), *extra, script(tmp_path, text))
    assert ended.code == 0, ended
    assert sorted(line.split("] ")[1] for line in ended.out.splitlines()) == [
        "rc here0 zero rc/x",
        "rc here1 one rc/x",
    ]
    assert "welcome" not in ended.out + ended.err and "loading" not in ended.out


def test_a_connection_that_hangs_can_be_interrupted(tmp_path: Path) -> None:
    """A listener that never says a word: Ctrl-C while connecting ends at once."""
    listener = subprocess.Popen(
        [sys.executable, "-c", "import socket,time;s=socket.create_server(('127.0.0.1',0));"
         "print(s.getsockname()[1],flush=True);c=s.accept();print('in',flush=True);time.sleep(60)"],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert listener.stdout
    try:
        port = listener.stdout.readline().strip()
        (tmp_path / "hosts").write_text(f"127.0.0.1:{port} slots=1\n")
        command = Command(tmp_path, "--hostfile", "hosts", "--no-init", script(tmp_path, SLEEPER))
        assert listener.stdout.readline() == "in\n"
        command.signal(signal.SIGINT)
        assert command.end(20).code == 130
    finally:
        listener.kill()
        listener.wait()


def test_head_ends_the_run(cluster: Cluster, tmp_path: Path) -> None:
    text = "import itertools\nfor i in itertools.count(): print(i)"
    argv = [*on(cluster, tmp_path, 1), "--no-init", script(tmp_path, text)]
    command = Command(tmp_path, *argv)
    assert command.process.stdout
    assert command.process.stdout.readline().startswith(b"[n")
    command.process.stdout.close()
    assert command.process.stderr
    err = command.process.stderr.read()
    assert command.process.wait(60) == 141, err
    assert b"Traceback" not in err
    assert_nothing_left(cluster)


def test_no_python_runs_any_program(cluster: Cluster, tmp_path: Path) -> None:
    argv = ["--no-python", "sh", "-c", 'echo "$RANK of $WORLD_SIZE: $0 $1"; exit $((RANK == 2 ? 7 : 0))', "a", "b c"]
    ended = run(tmp_path, *on(cluster, tmp_path, 1), *argv)
    assert ended.code == 7, ended
    assert "[n2:2 dp=2] 2 of 4: a b c\n" in ended.out
    assert ended.summary["first_failure"]["rank"] == 2
    assert_nothing_left(cluster)


def test_environ_is_clean() -> None:
    """The harness itself hands down nothing of a run around it."""
    assert not [name for name in ENVIRON if name.startswith("MESHRUN_")]
