"""Owns: tests of ways through other hosts: ProxyJump, shared connections, ProxyCommand.
Must not: use the real agent.
Called by: pytest."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from meshrun.errors import CauseKind
from meshrun.launch.channel import Closed, Opened, Unreachable
from meshrun.launch.ssh import open_ssh
from meshrun.spec.values import Host, SshSettings
from tests.cluster import Cluster
from tests.cluster_parts import wait_until
from tests.conftest import MakeCluster
from tests.launch.ssh_lines import config_with, line_to
from tests.launch.standin import Line, make_start


@pytest.mark.usefixtures("own")
def test_a_jump_host(cluster: Cluster, tmp_path: Path) -> None:
    last, jump = cluster.hosts[0].name, cluster.hosts[1].name
    settings = config_with(cluster, tmp_path, f"Host {last}\nProxyJump {jump}")
    line = line_to(cluster, Host(last), settings=settings)
    line.start()
    text = "x" * 300_000
    assert line.ask(text) == text
    line.fleet.close_all()
    assert cluster.wait_empty(0) == []


@pytest.mark.usefixtures("own")
def test_a_jump_host_that_is_the_cause(cluster: Cluster, tmp_path: Path) -> None:
    last, jump = cluster.hosts[0].name, cluster.hosts[1].name
    settings = config_with(cluster, tmp_path, f"Host {last}\nProxyJump {jump}:1")
    cause = line_to(cluster, Host(last), settings=settings).fail()
    assert cause.kind is CauseKind.REFUSED and f"jump host {jump}" in cause.message
    (tmp_path / "two").mkdir()
    settings = config_with(cluster, tmp_path / "two", f"Host {last}\nProxyJump {jump}\nPort 1")
    cause = line_to(cluster, Host(last), settings=settings).fail()
    assert cause.kind is CauseKind.REFUSED and f"{jump} does not forward" in cause.message


@pytest.mark.usefixtures("own")
def test_a_proxy_command(cluster: Cluster, tmp_path: Path) -> None:
    relay = tmp_path / "relay.py"
    relay.write_text(
        "import socket, sys, threading, os\n"
        "s = socket.create_connection((sys.argv[1], int(sys.argv[2])))\n"
        "def up():\n"
        "    while d := os.read(0, 65536): s.sendall(d)\n"
        "    os._exit(0)\n"
        "threading.Thread(target=up, daemon=True).start()\n"
        "while d := s.recv(65536): os.write(1, d)\n"
    )
    settings = config_with(cluster, tmp_path, f"ProxyCommand {sys.executable} {relay} %h %p")
    line = line_to(cluster, settings=settings)
    line.start()
    assert line.ask("through") == "through"
    line.fleet.close_all()
    assert cluster.wait_empty(0) == []
    cause = line_to(cluster, settings=config_with(cluster, relay.parent.parent, "ProxyCommand false")).fail()
    assert cause.kind is CauseKind.DROPPED


def test_a_proxy_command_that_fails_says_why(cluster: Cluster, tmp_path: Path) -> None:
    text = 'ProxyCommand sh -c "echo no route to %h >&2; exit 3"'
    cause = line_to(cluster, settings=config_with(cluster, tmp_path, text)).fail()
    assert cause.kind is CauseKind.DROPPED
    assert f"exit code 3: no route to {cluster.hosts[0].address}" in cause.message and "try it by hand" in cause.hint


# ---- one connection for many ----


def _through(cluster: Cluster, tmp_path: Path, extra: str = "") -> Any:
    """Every host but the first, by way of the first."""
    gate = cluster.hosts[0]
    others = " ".join(host.name for host in cluster.hosts[1:])
    return config_with(cluster, tmp_path, f"{extra}\nHost {others}\n  ProxyJump {gate.name}")


def _count_logins(cluster: Cluster, host: int) -> int:
    return (cluster.dir / f"host{host}" / "sshd.log").read_text().count("Accepted publickey")


def _is_left_alone(cluster: Cluster, host: int) -> bool:
    """Only the listening sshd is there."""
    return len([p for p in cluster._all(host) if "sshd" in p.command]) == 1


@pytest.fixture
def gated(make_cluster: MakeCluster) -> Cluster:
    """A bastion that lets few in at once, and three hosts behind it."""
    return make_cluster(4, needs="namespaces", sshd="MaxStartups 2:100:3\n")


def test_many_hosts_share_one_connection_to_their_bastion(gated: Cluster, tmp_path: Path) -> None:
    hosts = [Host(host.name) for host in gated.hosts[1:]] * 3
    line = line_to(gated, *hosts, settings=_through(gated, tmp_path))
    for node in range(len(hosts)):
        line.fleet.open(node)
    opened: set[int] = set()
    while len(opened) < len(hosts):
        event = line.until((Opened, Unreachable))  # type: ignore[arg-type]
        if isinstance(event, Opened):
            opened.add(event.node)
        else:
            line.fleet.open(event.node, after_s=0.1)
    assert _count_logins(gated, 0) == 1
    assert [line.ask(f"to {node}", node) for node in opened] == [f"to {node}" for node in opened]
    line.fleet.close(0)
    assert line.ask("still here", 1) == "still here"
    line.fleet.close_all()
    wait_until(lambda: _is_left_alone(gated, 0), "the end of the bastion's connection")
    for host in (1, 2, 3):
        assert gated.wait_empty(host) == []


def test_a_bastion_that_dies_takes_its_nodes_and_each_says_so(gated: Cluster, tmp_path: Path) -> None:
    line = line_to(gated, *[Host(host.name) for host in gated.hosts[1:]], settings=_through(gated, tmp_path))
    for node in range(3):
        line.start(node)
    gated.crash(0)  # type: ignore[attr-defined]
    closed = [line.until(Closed) for _ in range(3)]
    assert sorted(event.node for event in closed) == [0, 1, 2]
    assert {event.reason for event in closed} == {"the connection to the jump host n0 broke"}


def test_a_host_that_dies_behind_a_bastion_is_not_the_bastion(gated: Cluster, tmp_path: Path) -> None:
    line = line_to(gated, *[Host(host.name) for host in gated.hosts[1:]], settings=_through(gated, tmp_path))
    for node in range(3):
        line.start(node)
    victim = next(p for p in gated._all(2) if "sshd:" in p.command and "[listener]" not in p.command)
    os.kill(victim.pid, signal.SIGKILL)
    closed = line.until(Closed)
    assert closed.node == 1 and closed.reason == "the connection broke (it goes through n0)"
    assert line.ask("well", 2) == "well"


def test_a_bastion_that_lets_nobody_in_is_named_for_every_host(gated: Cluster, tmp_path: Path) -> None:
    settings = _through(gated, tmp_path, f"Host {gated.hosts[0].name}\n  IdentityFile none\n  User nobody-there")
    text = Path(str(settings.config)).read_text().replace(f"  IdentityFile {gated.dir}/id\n", "")
    Path(str(settings.config)).write_text(text)
    line = line_to(gated, *[Host(host.name) for host in gated.hosts[1:]], settings=settings)
    causes = [line.fail(node) for node in range(3)]
    assert {cause.kind for cause in causes} == {CauseKind.AUTH}
    assert all(cause.message.startswith("jump host n0: ") for cause in causes)
    assert all("does not let nobody-there in" in cause.message for cause in causes)


def test_an_unknown_key_of_a_bastion_is_its_own(gated: Cluster, tmp_path: Path) -> None:
    known = (gated.dir / "known_hosts").read_text().splitlines(True)[1:]
    (tmp_path / "known").write_text("".join(known))
    line = line_to(gated, Host("n1"), settings=_through(gated, tmp_path, f"UserKnownHostsFile {tmp_path}/known"))
    cause = line.fail()
    assert cause.kind is CauseKind.HOST_KEY_UNKNOWN
    assert cause.message.startswith(f"jump host n0: the host key of {gated.hosts[0].address}")


def test_a_chain_whose_hops_have_settings_of_their_own(gated: Cluster, tmp_path: Path) -> None:
    """n3 by n2 by n1 by n0: the config of each names the next, as ssh -W would find it."""
    extra = "Host n1\n  ProxyJump n0\nHost n2\n  ProxyJump n1\nHost n3\n  ProxyJump n2\nHost *"
    line = line_to(gated, Host("n3"), Host("n3"), Host("n2"), settings=config_with(gated, tmp_path, extra))
    for node in range(3):
        line.start(node)
    assert line.ask("far") == "far"
    assert [_count_logins(gated, host) for host in range(4)] == [1, 1, 2, 2]
    line.fleet.close_all()
    wait_until(lambda: all(_is_left_alone(gated, host) for host in range(4)), "the end of every connection")


def test_a_bastion_that_forbids_it(make_cluster: MakeCluster, tmp_path: Path) -> None:
    cluster = make_cluster(2, sshd="AllowTcpForwarding no\n")
    cause = line_to(cluster, Host(cluster.hosts[1].name), settings=_through(cluster, tmp_path)).fail()
    assert cause.kind is CauseKind.JUMP and "AllowTcpForwarding" in cause.hint


def test_closing_while_the_bastion_is_silent() -> None:
    """Nobody waits for a bastion that no node wants any more."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        start = make_start(sys.executable)
        config = Path(tempfile.mkdtemp()) / "config"
        config.write_text(f"Host far\n ProxyJump 127.0.0.1:{port}\n")
        openers = [open_ssh(Host("far"), SshSettings(config=str(config)), 30.0, start)] * 2
        line = Line(*openers)
        line.fleet.open(0)
        line.fleet.open(1)
        peer = server.accept()[0]
        line.fleet.close_all()
        while peer.recv(1000):
            pass
        assert line.quiet()
        shutil.rmtree(config.parent)
