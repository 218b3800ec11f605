"""Owns: tests of SSH against real sshds, one host each; every test runs with both clients.
Must not: use the real agent.
Called by: pytest."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from meshrun import wire
from meshrun.errors import CauseKind
from meshrun.launch.channel import Closed, Opened, Received, Remark, Unreachable
from meshrun.launch.ssh import open_ssh
from meshrun.spec.values import Host, SshSettings
from tests.cluster import Cluster
from tests.cluster_parts import wait_until
from tests.launch import ssh_lines
from tests.launch.ssh_lines import config_with, line_to
from tests.launch.standin import Line, make_start

MakeCluster = Callable[..., Cluster]
pytestmark = pytest.mark.usefixtures("own")

OURS = f"mr{os.getpid() % 10**6}x"  # how a cluster of this process names its interfaces


def test_all_hosts_at_once(cluster: Cluster) -> None:
    line = line_to(cluster)
    for node in range(len(cluster.hosts)):
        line.fleet.open(node)
    opened = {line.until(Opened).node for _ in cluster.hosts}
    assert opened == set(range(len(cluster.hosts)))
    for node in range(len(cluster.hosts)):
        assert line.ask(f"to {node}", node) == f"to {node}"
    line.fleet.close_all()
    for node in range(len(cluster.hosts)):
        assert cluster.wait_empty(node) == []
    assert line.quiet()


def test_the_end_of_an_agent_is_told_apart(cluster: Cluster) -> None:
    line = line_to(cluster)
    line.start()
    line.fleet.send(0, wire.Stacks(0, "exit 3"))
    assert line.until(Closed).reason == "the agent ended (exit code 3)"
    line.start()
    line.fleet.send(0, wire.Stacks(0, "die"))
    assert line.until(Closed).reason == "the agent was ended by a signal"


def test_a_large_message_each_way(cluster: Cluster) -> None:
    line = line_to(cluster)
    line.start()
    text = "x" * 5_000_000
    assert line.ask(text) == text


def test_much_on_stdout_and_stderr_together(cluster: Cluster) -> None:
    line = line_to(cluster)
    line.start()
    line.fleet.send(0, wire.Stacks(0, "flood 300"))
    for n in range(300):
        message = line.until(Received).message
        assert message.rank == n and len(message.data) == 65536
    line.fleet.send(0, wire.Stacks(0, "exit 0"))
    assert "eeee" in line.until(Closed).noise


def test_a_prelude_over_ssh(cluster: Cluster) -> None:
    line = line_to(cluster, prelude="FOO='a b'; echo loaded")
    line.start()
    assert line.ask("env FOO") == "a b"
    cause = line_to(cluster, prelude="echo no such module; exit 9").fail()
    assert cause.kind is CauseKind.PRELUDE and "exit code 9" in cause.message and "no such module" in cause.message


def test_no_python_there(cluster: Cluster) -> None:
    cause = line_to(cluster, python="/opt/nope/bin/python").fail()
    assert cause.kind is CauseKind.NO_PYTHON and "/opt/nope/bin/python" in cause.message


# ---- no way there ----


def test_nothing_listens(cluster: Cluster) -> None:
    cause = line_to(cluster, Host(cluster.hosts[0].name, port=1)).fail()
    assert cause.kind is CauseKind.REFUSED and cause.heals and "port 1" in cause.message


def test_a_name_that_nobody_knows(cluster: Cluster) -> None:
    cause = line_to(cluster, Host("no-such-host.invalid")).fail()
    assert cause.kind is CauseKind.NAME_UNKNOWN and "no-such-host.invalid" in cause.message


def test_something_else_listens_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        line = Line(_opener_to(server.getsockname()[1], 30.0))
        line.fleet.open(0)
        server.accept()[0].close()
        assert line.until(Unreachable).cause.kind is CauseKind.DROPPED


def test_a_server_that_says_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        cause = Line(_opener_to(server.getsockname()[1], 0.5)).fail()
        assert cause.kind is CauseKind.TIMED_OUT


def _opener_to(port: int, timeout_s: float) -> Any:
    return ssh_lines.open_client(
        Host("127.0.0.1", port=port), SshSettings(config="none"), timeout_s, make_start(sys.executable)
    )


def test_an_ssh_config_that_is_not_there(tmp_path: Path) -> None:
    opener = ssh_lines.open_client(
        Host("h"), SshSettings(config=str(tmp_path / "nope")), 5.0, make_start(sys.executable)
    )
    cause = Line(opener).fail()
    assert cause.kind is CauseKind.CONFIG and "nope" in cause.message


def test_closing_while_connecting_is_silent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        line = Line(_opener_to(server.getsockname()[1], 30.0))
        line.fleet.open(0)
        peer = server.accept()[0]
        line.fleet.close_all()
        while peer.recv(1000):  # our banner, then end-of-file: the socket is closed, not left to a time-out
            pass
        assert line.quiet()


# ---- hosts of their own ----


def test_24_hosts_behind_one_sshd_that_drops_logins(make_cluster: MakeCluster) -> None:
    """All of them get in: what was dropped is a cause that heals, and is tried again."""
    cluster = make_cluster(1, sshd="MaxStartups 2:100:3\nLoginGraceTime 20\n")
    line = line_to(cluster, *[Host(cluster.hosts[0].name)] * 24)
    for node in range(24):
        line.fleet.open(node)
    opened, dropped = set(), 0
    while len(opened) < 24:
        event = line.until((Opened, Unreachable))  # type: ignore[arg-type]
        if isinstance(event, Opened):
            opened.add(event.node)
        else:
            assert event.cause.kind is CauseKind.DROPPED, event.cause
            dropped += 1
            line.fleet.open(event.node, after_s=0.2)
    assert dropped > 0, "the test did not test anything: nothing was dropped"


def test_an_rc_file_that_talks_for_a_megabyte(make_cluster: MakeCluster, own: bool) -> None:
    cluster = make_cluster(1, needs="namespaces")
    home = os.path.expanduser("~")
    talk = "head -c 1000000 /dev/zero | tr '\\0' x; echo; head -c 3000000 /dev/zero | tr '\\0' y >&2; echo Welcome\n"
    left = "sleep 1000 & (for n in $(seq 300); do sleep 0.001; echo late >&2; done; echo last >&2) &\n"
    cluster.write(0, f"{home}/.bashrc", talk + left)
    line = line_to(cluster)
    line.start()
    for n in range(300):
        assert line.ask(f"hey {n}") == f"hey {n}"
    wait_until(lambda: sum(process.state != "Z" for process in cluster.processes(0)) == 2, "the last word")
    line.fleet.send(0, wire.Stacks(0, "exit 0"))
    closed = line.until(Closed)  # although the sleeper still holds the session's stdout open
    assert closed.reason == f"the agent ended (exit code {0 if own else 'unknown'})"
    assert "x\nWelcome\n" in closed.noise and closed.noise.endswith("late\nlast")
    assert [process.command for process in cluster.wait_empty(0, 0)] == ["sleep 1000"]


@pytest.mark.parametrize("shell", ["/bin/dash", "/bin/bash", "/usr/bin/fish", "/bin/tcsh"])
def test_login_shells_over_ssh(make_cluster: MakeCluster, shell: str) -> None:
    if not Path(shell).exists():
        pytest.skip(f"needs {shell}")
    cluster = make_cluster(1, needs="namespaces", shell=shell)
    line = line_to(cluster)
    line.start()
    assert line.ask("env SHELL") == shell


def test_an_account_that_may_not_log_in(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(1, needs="namespaces", shell="/usr/sbin/nologin")
    cause = line_to(cluster).fail()
    assert cause.kind is CauseKind.AGENT and "not available" in cause.message


def test_a_crash_and_a_cut(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(2, needs="namespaces")
    line = line_to(cluster)
    line.start(0)
    line.start(1)
    cluster.crash(0)  # type: ignore[attr-defined]
    closed = line.until(Closed)
    assert closed.node == 0 and closed.reason == "the connection broke"
    cluster.cut(1)  # type: ignore[attr-defined]
    line.fleet.send(1, wire.Stacks(7, "still there"))
    assert cluster.processes(1)
    cluster.heal(1)  # type: ignore[attr-defined]
    while line.until(Received).message != wire.Stacks(7, "still there"):
        pass


def test_a_cluster_leaves_nothing(make_cluster: MakeCluster) -> None:
    def interfaces() -> set[str]:  # other tests' clusters come and go
        return {name for name in os.listdir("/sys/class/net") if not name.startswith("mr") or name.startswith(OURS)}

    known = interfaces()
    cluster = make_cluster(2)
    line = line_to(cluster)
    line.start()
    before = [process.pid for process in cluster.processes(0)]
    assert before
    cluster.close()
    assert not cluster.dir.exists()
    wait_until(lambda: not [pid for pid in before if os.path.exists(f"/proc/{pid}")], "the end of its processes")
    assert interfaces() <= known


def test_a_restricted_shell_says_so(make_cluster: MakeCluster) -> None:
    cause = line_to(make_cluster(1, needs="namespaces", shell="/bin/rbash")).fail()
    assert cause.kind is CauseKind.AGENT and "restricted" in cause.message


# ---- what a config asks for beyond the way there ----


def test_the_environment_of_the_config_is_sent(make_cluster: MakeCluster, tmp_path: Path, own: bool) -> None:
    cluster = make_cluster(1, sshd="AcceptEnv SENT_*\n")
    settings = config_with(cluster, tmp_path, 'SetEnv SENT_A="a b" OTHER=x')
    line = line_to(cluster, settings=settings)
    line.start()
    assert [line.ask(f"env {name}") for name in ("SENT_A", "OTHER")] == ["a b", "unset"]


@pytest.mark.parametrize("own", [open_ssh], indirect=True)
def test_what_is_ignored_is_said_once(cluster: Cluster, tmp_path: Path, own: bool) -> None:
    settings = config_with(cluster, tmp_path, "ForwardAgent yes\nControlMaster auto")
    line = line_to(cluster, settings=settings)
    for node in range(len(cluster.hosts)):
        line.fleet.open(node)
    said: list[str] = []
    opened = 0
    while opened < len(cluster.hosts):
        event = line.next()
        said += [event.text] if isinstance(event, Remark) else []
        opened += isinstance(event, Opened)
    assert said == [f"{settings.config}:1: ForwardAgent is ignored: no agent is forwarded to the nodes"]


def test_a_forced_command_that_runs_ours(make_cluster: MakeCluster, tmp_path: Path, own: bool) -> None:
    wrapper = tmp_path / "wrapper"
    wrapper.write_text('#!/bin/sh\necho Recorded.\nexport WRAPPED=yes\nexec sh -c "$SSH_ORIGINAL_COMMAND"\n')
    wrapper.chmod(0o755)
    line = line_to(make_cluster(1, sshd=f"ForceCommand {wrapper}\n"))
    line.start()
    assert line.ask("env WRAPPED") == "yes"


def test_a_forced_command_that_runs_something_else(make_cluster: MakeCluster, tmp_path: Path, own: bool) -> None:
    cause = line_to(make_cluster(1, sshd="ForceCommand /bin/echo This account is for backups only.\n")).fail()
    assert cause.kind is CauseKind.AGENT and "This account is for backups only." in cause.message
