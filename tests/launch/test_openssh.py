"""Owns: tests of what only the system's ssh brings with it: the user's config, its processes, its agent, its end.
Must not: repeat test_ssh.py, which runs with both clients.
Called by: pytest."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from meshrun.errors import CauseKind, InputError
from meshrun.launch.channel import Closed, Opened, Unreachable
from meshrun.launch.openssh import open_openssh
from meshrun.spec.values import Host, SshSettings
from tests.cluster import Cluster
from tests.cluster_parts import list_processes, wait_until
from tests.launch.standin import Line, make_start

MakeCluster = Callable[..., Cluster]


def line_to(config: Path | str, *hosts: str) -> Line:
    start = make_start(sys.executable)
    return Line(*(open_openssh(Host(name), SshSettings(config=str(config)), 30.0, start) for name in hosts))


def config_of(cluster: Cluster, tmp_path: Path, extra: str) -> Path:
    """The cluster's config with settings that come first."""
    path = tmp_path / "ssh_config"
    path.write_text(f"{extra}\nHost *\n" + (cluster.dir / "ssh_config").read_text())
    return path


def ssh_processes(config: Path) -> list[int]:
    """Every ssh on this machine that was started with this config, jumps included."""
    return [p.pid for p in list_processes() if p.command.startswith("ssh ") and str(config) in p.command]


def wait_none(config: Path) -> None:
    wait_until(lambda: not ssh_processes(config), "the end of every ssh")


def test_a_config_that_would_take_the_line_clash_or_outlive_it(make_cluster: MakeCluster, tmp_path: Path) -> None:
    """Each of these is set for people at a terminal; here none may matter, for hosts and jump alike."""
    own = make_cluster(3)
    extra = f"""
    LocalForward 127.0.0.1:{os.getpid() % 20000 + 20000} 127.0.0.1:1
    ExitOnForwardFailure yes
    ControlMaster auto
    ControlPersist 600
    ControlPath {tmp_path}/master-%n
    RequestTTY force
    RemoteCommand echo not this
    SessionType none
    StdinNull yes
    ForkAfterAuthentication yes
    PermitLocalCommand yes
    LocalCommand echo local; cat; touch {tmp_path}/was-run
    ForwardX11 yes
    ForwardAgent yes
    LogLevel QUIET
    VisualHostKey yes
    EscapeChar ~
    """
    jump = own.hosts[2].name
    config = config_of(own, tmp_path, f"Host {own.hosts[0].name} {own.hosts[1].name}\nProxyJump {jump}\nHost *{extra}")
    line = line_to(config, own.hosts[0].name, own.hosts[1].name)
    line.fleet.open(0)
    line.fleet.open(1)
    assert {line.until(Opened).node, line.until(Opened).node} == {0, 1}
    text = "~.~?\n" * 100
    assert (line.ask(text, 0), line.ask(text, 1)) == (text, text)
    line.fleet.close_all()
    assert own.wait_empty(0) == own.wait_empty(1) == []
    wait_none(config)
    assert [path.name for path in tmp_path.iterdir()] == ["ssh_config"]


def test_a_connection_that_the_user_has_opened_is_used(cluster: Cluster, tmp_path: Path) -> None:
    """For logins that need a person (a second factor): `ssh -fN host` first, then every run goes through it."""
    config = config_of(cluster, tmp_path, f"ControlPath {tmp_path}/master")
    name = cluster.hosts[0].name
    subprocess.run(["ssh", "-F", config, "-o", "ControlMaster=yes", "-o", "ControlPersist=yes", "-fN", name],
                   check=True, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
    try:
        keyless = tmp_path / "keyless"
        keyless.write_text(
            f"IdentityFile none\nIdentitiesOnly yes\n{config.read_text()}".replace(str(cluster.dir / "id"), "none")
        )
        line = line_to(keyless, name)
        line.start()
        assert line.ask("through it") == "through it"
        (ours,) = ssh_processes(keyless)
        os.kill(ours, signal.SIGKILL)
        line.until(Closed)
        assert cluster.wait_empty(0) == []
    finally:
        subprocess.run(["ssh", "-F", config, "-O", "exit", name], check=True, stderr=subprocess.DEVNULL)
    assert line_to(keyless, name).fail().kind is CauseKind.AUTH


@contextmanager
def agent(tmp_path: Path) -> Iterator[dict[str, str]]:
    """An ssh-agent of the test's own."""
    socket = str(tmp_path / "agent")
    process = subprocess.Popen(["ssh-agent", "-D", "-a", socket], stdout=subprocess.DEVNULL)
    try:
        wait_until(lambda: os.path.exists(socket), "the agent")
        yield {"SSH_AUTH_SOCK": socket}
    finally:
        process.kill()
        process.wait()


def test_an_encrypted_key_through_the_agent(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Never asked for, also where a window could be opened for it; from the agent it works."""
    key = tmp_path / "locked"
    for name in ("", ".pub"):
        (tmp_path / f"locked{name}").write_bytes((cluster.dir / f"id{name}").read_bytes())
    key.chmod(0o600)
    subprocess.run(["ssh-keygen", "-q", "-p", "-N", "secret", "-f", key], check=True, stdout=subprocess.DEVNULL)
    asker = tmp_path / "asker"
    asker.write_text(f"#!/bin/sh\ntouch {tmp_path}/asked\necho secret\n")
    asker.chmod(0o700)
    config = tmp_path / "config"
    config.write_text((cluster.dir / "ssh_config").read_text().replace(f"{cluster.dir}/id", str(key)))
    for name, value in {"SSH_ASKPASS": str(asker), "SSH_ASKPASS_REQUIRE": "force", "DISPLAY": ":9"}.items():
        monkeypatch.setenv(name, value)
    name = cluster.hosts[0].name
    cause = line_to(config, name).fail()
    assert cause.kind is CauseKind.AUTH and f"{key} (it needs a passphrase" in cause.message
    assert f"`ssh-add {key}`" in cause.hint
    assert not (tmp_path / "asked").exists()
    with agent(tmp_path) as environ:
        monkeypatch.setenv("SSH_AUTH_SOCK", environ["SSH_AUTH_SOCK"])
        subprocess.run(["ssh-add", "-q", key], check=True, env=os.environ, stdin=subprocess.DEVNULL)
        (tmp_path / "asked").unlink()
        line = line_to(config, name)
        line.start()
        assert not (tmp_path / "asked").exists()


def test_a_jump_host_never_asks(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Left to itself, ssh gives its jumps no BatchMode: they would ask whether to trust the key."""
    last, jump = cluster.hosts[0].name, cluster.hosts[1].name
    monkeypatch.setenv("SSH_ASKPASS", "/bin/false")
    extra = f"Host {jump}\nUserKnownHostsFile {tmp_path}/none\nHost {last}\nProxyJump {jump}"
    config = config_of(cluster, tmp_path, extra)
    cause = line_to(config, last).fail()
    assert cause.kind is CauseKind.HOST_KEY_UNKNOWN and cause.message.startswith(f"jump host {jump}: ")
    assert f"{tmp_path}/none" in cause.message and f"ssh -F {config} {jump}" in cause.hint
    assert not (tmp_path / "none").exists()


def test_jumps_in_a_circle(cluster: Cluster, tmp_path: Path) -> None:
    one, two = cluster.hosts[0].name, cluster.hosts[1].name
    config = config_of(cluster, tmp_path, f"Host {one}\nProxyJump {two}\nHost {two}\nProxyJump {one}")
    cause = line_to(config, one).fail()
    assert cause.kind is CauseKind.CONFIG and "circle" in cause.message


def test_a_config_that_is_wrong_is_named_with_its_line(cluster: Cluster, tmp_path: Path) -> None:
    config = config_of(cluster, tmp_path, "Host *\nNoSuchThing yes")
    cause = line_to(config, cluster.hosts[0].name).fail()
    assert cause.kind is CauseKind.CONFIG and f"{config}:2" in cause.message and "nosuchthing" in cause.message


def test_a_killed_ssh_is_a_closed_line(cluster: Cluster, tmp_path: Path) -> None:
    """Also through a jump: neither side keeps anything."""
    last, jump = cluster.hosts[0].name, cluster.hosts[1].name
    config = config_of(cluster, tmp_path, f"Host {last}\nProxyJump {jump}")
    line = line_to(config, last)
    line.start()
    found = ssh_processes(config)
    assert len(found) == 2
    os.kill(min(found), signal.SIGKILL)
    assert line.until(Closed).reason == "its ssh was ended by signal 9"
    assert cluster.wait_empty(0) == []
    wait_none(config)


def test_a_stopped_ssh_does_not_outlive_its_line(cluster: Cluster, tmp_path: Path) -> None:
    config = config_of(cluster, tmp_path, "")
    line = line_to(config, cluster.hosts[0].name)
    line.start()
    (pid,) = ssh_processes(config)
    os.kill(pid, signal.SIGSTOP)
    line.fleet.close_all()
    wait_none(config)
    assert cluster.wait_empty(0) == []
    assert line.quiet()


def test_a_killed_launcher_leaves_no_ssh_and_no_agent(cluster: Cluster, tmp_path: Path) -> None:
    config = config_of(cluster, tmp_path, "")
    code = (
        "import sys, threading; from tests.launch.test_openssh import line_to\n"
        "line_to(*sys.argv[1:]).start(); print('started', flush=True); threading.Event().wait()"
    )
    argv = [sys.executable, "-c", code, str(config), cluster.hosts[0].name]
    launcher = subprocess.Popen(argv, stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": os.getcwd()})
    assert launcher.stdout and launcher.stdout.readline() == b"started\n"
    assert ssh_processes(config) and cluster.processes(0)
    launcher.kill()
    launcher.communicate()
    wait_none(config)
    assert cluster.wait_empty(0) == []


def test_24_hosts_behind_one_bastion_that_drops_logins(make_cluster: MakeCluster, tmp_path: Path) -> None:
    """What was dropped is a cause that heals; all of them get in."""
    own = make_cluster(2, sshd="MaxStartups 2:100:3\n")
    last, jump = own.hosts[0].name, own.hosts[1].name
    config = config_of(own, tmp_path, f"Host {last}\nProxyJump {jump}")
    line = line_to(config, *[last] * 24)
    for node in range(24):
        line.fleet.open(node)
    opened: set[int] = set()
    dropped = 0
    while len(opened) < 24:
        event: Any = line.until((Opened, Unreachable))  # type: ignore[arg-type]
        if isinstance(event, Opened):
            opened.add(event.node)
        else:
            assert event.cause.kind is CauseKind.DROPPED, event.cause
            dropped += 1
            line.fleet.open(event.node, after_s=0.2)
    assert dropped > 0, "the test did not test anything: nothing was dropped"
    line.fleet.close_all()
    assert own.wait_empty(0) == []
    wait_none(config)


def test_no_ssh_on_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="no ssh in PATH"):
        line_to("none", "somewhere")
