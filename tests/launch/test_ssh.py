"""Owns: tests of SSH against real sshds, one host each; every test runs with both clients.
Must not: use the real agent.
Called by: pytest."""

from __future__ import annotations

import os
import shutil
import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from meshrun import wire
from meshrun.errors import CauseKind
from meshrun.launch.channel import Closed, Opened, Received, Remark, Unreachable
from meshrun.launch.openssh import open_openssh
from meshrun.launch.ssh import open_ssh
from meshrun.spec.values import Host, SshSettings
from tests.cluster import Cluster
from tests.cluster_parts import make_key, wait_until
from tests.launch.standin import Line, make_start

MakeCluster = Callable[..., Cluster]
open_client = open_ssh


@pytest.fixture(params=[open_ssh, open_openssh], ids=["paramiko", "openssh"], autouse=True)
def own(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Runs the test with each client; True where it is paramiko: what only meshrun's own reading of keys can say."""
    monkeypatch.setitem(globals(), "open_client", request.param)
    return request.param is open_ssh


def _settings(cluster: Cluster, **kwargs: Any) -> SshSettings:
    return SshSettings(config=str(cluster.dir / "ssh_config"), **kwargs)


def _line(cluster: Cluster, *hosts: Host, settings: SshSettings | None = None, **kwargs: Any) -> Line:
    start = make_start(kwargs.pop("python", sys.executable), **kwargs)
    hosts = hosts or tuple(Host(host.name) for host in cluster.hosts)
    return Line(*(open_client(host, settings or _settings(cluster), 30.0, start) for host in hosts))


def _config(cluster: Cluster, tmp_path: Path, extra: str) -> SshSettings:
    """The cluster's config with settings that come first."""
    path = tmp_path / "ssh_config"
    path.write_text(f"{extra}\nHost *\n" + (cluster.dir / "ssh_config").read_text())
    return SshSettings(config=str(path))


def test_all_hosts_at_once(cluster: Cluster) -> None:
    line = _line(cluster)
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
    line = _line(cluster)
    line.start()
    line.fleet.send(0, wire.Stacks(0, "exit 3"))
    assert line.until(Closed).reason == "the agent ended (exit code 3)"
    line.start()
    line.fleet.send(0, wire.Stacks(0, "die"))
    assert line.until(Closed).reason == "the agent was ended by a signal"


def test_a_large_message_each_way(cluster: Cluster) -> None:
    line = _line(cluster)
    line.start()
    text = "x" * 5_000_000
    assert line.ask(text) == text


def test_much_on_stdout_and_stderr_together(cluster: Cluster) -> None:
    line = _line(cluster)
    line.start()
    line.fleet.send(0, wire.Stacks(0, "flood 300"))
    for n in range(300):
        message = line.until(Received).message
        assert message.rank == n and len(message.data) == 65536
    line.fleet.send(0, wire.Stacks(0, "exit 0"))
    assert "eeee" in line.until(Closed).noise


def test_a_prelude_over_ssh(cluster: Cluster) -> None:
    line = _line(cluster, prelude="FOO='a b'; echo loaded")
    line.start()
    assert line.ask("env FOO") == "a b"
    cause = _line(cluster, prelude="echo no such module; exit 9").fail()
    assert cause.kind is CauseKind.PRELUDE and "exit code 9" in cause.message and "no such module" in cause.message


def test_no_python_there(cluster: Cluster) -> None:
    cause = _line(cluster, python="/opt/nope/bin/python").fail()
    assert cause.kind is CauseKind.NO_PYTHON and "/opt/nope/bin/python" in cause.message


# ---- logging in ----


def test_a_key_that_nobody_there_knows(cluster: Cluster, tmp_path: Path) -> None:
    make_key(tmp_path / "wrong")
    shutil.copy(cluster.dir / "ssh_config", tmp_path / "plain")
    text = (tmp_path / "plain").read_text().replace(f"IdentityFile {cluster.dir}/id", f"IdentityFile {tmp_path}/nope")
    (tmp_path / "plain").write_text(text)
    settings = SshSettings(config=str(tmp_path / "plain"), identity=str(tmp_path / "wrong"))
    cause = _line(cluster, settings=settings).fail()
    assert cause.kind is CauseKind.AUTH and not cause.heals
    assert f"tried in order: {tmp_path}/wrong, {tmp_path}/nope (no such file)" in cause.message


def test_the_configured_key_comes_first(cluster: Cluster, tmp_path: Path) -> None:
    make_key(tmp_path / "wrong")
    settings = _config(cluster, tmp_path, f"IdentityFile {tmp_path}/wrong")
    _line(cluster, settings=replace(settings, identity=str(cluster.dir / "id"))).start()
    _line(cluster, settings=settings).start()


def test_a_key_with_a_passphrase_is_never_asked_for(cluster: Cluster, tmp_path: Path) -> None:
    text = (cluster.dir / "ssh_config").read_text().replace(f"{cluster.dir}/id", f"{tmp_path}/locked")
    (tmp_path / "config").write_text(text)
    shutil.copy(cluster.dir / "id", tmp_path / "locked")
    assert os.system(f"ssh-keygen -q -p -N secret -f {tmp_path}/locked >/dev/null") == 0
    cause = _line(cluster, settings=SshSettings(config=str(tmp_path / "config"))).fail()
    assert cause.kind is CauseKind.AUTH and "needs a passphrase" in cause.message


def test_more_wrong_keys_than_the_server_allows(cluster: Cluster, tmp_path: Path) -> None:
    for n in range(8):
        make_key(tmp_path / f"k{n}")
    settings = _config(cluster, tmp_path, "\n".join(f"IdentityFile {tmp_path}/k{n}" for n in range(8)))
    cause = _line(cluster, settings=settings).fail()
    assert cause.kind is CauseKind.AUTH and "MaxAuthTries" in cause.message


# ---- host keys ----


def _known(cluster: Cluster, tmp_path: Path, text: str, **kwargs: Any) -> tuple[SshSettings, Path]:
    known = tmp_path / "known_hosts"
    known.write_text(text)
    return replace(_config(cluster, tmp_path, f"UserKnownHostsFile {known}"), **kwargs), known


def _name(cluster: Cluster) -> str:
    host = cluster.hosts[0]
    return host.address if host.port == 22 else f"[{host.address}]:{host.port}"


def test_an_unknown_key(cluster: Cluster, tmp_path: Path) -> None:
    settings, known = _known(cluster, tmp_path, "")
    cause = _line(cluster, settings=settings).fail()
    assert cause.kind is CauseKind.HOST_KEY_UNKNOWN and str(known) in cause.message and "SHA256:" in cause.message
    assert "ssh-keyscan" in cause.hint and "--host-key-policy accept-new" in cause.hint
    assert known.read_text() == ""


def test_accept_new_adds_the_key_and_says_so(cluster: Cluster, tmp_path: Path) -> None:
    settings, known = _known(cluster, tmp_path, "# no newline", host_key_policy="accept-new")
    line = _line(cluster, settings=settings)
    for node in range(len(cluster.hosts)):
        line.fleet.open(node)
    remarks = [line.until(Remark).text for _ in cluster.hosts]
    assert all(str(known) in text for text in remarks)
    lines = known.read_text().splitlines()
    assert lines[0] == "# no newline"
    assert sorted(lines[1:]) == sorted((cluster.dir / "known_hosts").read_text().splitlines())
    assert _line(cluster, settings=replace(settings, host_key_policy="strict")).start()


@pytest.mark.parametrize("policy", ["strict", "accept-new"])
def test_a_changed_key_always_stops(cluster: Cluster, tmp_path: Path, policy: str) -> None:
    make_key(tmp_path / "other")
    public = " ".join((tmp_path / "other.pub").read_text().split()[:2])
    settings, known = _known(cluster, tmp_path, f"\n{_name(cluster)} {public}\n", host_key_policy=policy)
    cause = _line(cluster, settings=settings).fail()
    assert cause.kind is CauseKind.HOST_KEY_CHANGED and f"{known}:2" in cause.message and "ssh-keygen" in cause.hint


def test_a_revoked_key_always_stops(cluster: Cluster, tmp_path: Path, own: bool) -> None:
    line = (cluster.dir / "known_hosts").read_text().splitlines()[0]
    settings, known = _known(cluster, tmp_path, f"{line}\n@revoked {line}\n", host_key_policy="accept-new")
    cause = _line(cluster, settings=settings).fail()
    assert cause.kind is CauseKind.HOST_KEY_REVOKED and f"{known}{':2' if own else ''}" in cause.message


def test_hashed_names_and_an_alias(cluster: Cluster, tmp_path: Path) -> None:
    settings, known = _known(cluster, tmp_path, (cluster.dir / "known_hosts").read_text())
    assert os.system(f"ssh-keygen -q -H -f {known} >/dev/null 2>&1") == 0 and "|1|" in known.read_text()
    _line(cluster, settings=settings).start()
    key = (cluster.dir / "host0" / "hostkey.pub").read_text()
    known.write_text(f"the-alias {key}")
    aliased = _config(cluster, tmp_path / "..", f"UserKnownHostsFile {known}\nHostKeyAlias the-alias")
    _line(cluster, settings=aliased).start()


def test_the_known_type_is_asked_for(make_cluster: MakeCluster, tmp_path: Path) -> None:
    """The server prefers its ed25519 key, but we know it by the other one."""
    assert os.system(f"ssh-keygen -q -t ecdsa -N '' -f {tmp_path}/ecdsa") == 0
    cluster = make_cluster(1, sshd=f"HostKey {tmp_path}/ecdsa\n")
    public = " ".join((tmp_path / "ecdsa.pub").read_text().split()[:2])
    settings, _ = _known(cluster, tmp_path, f"{_name(cluster)} {public}\n")
    _line(cluster, settings=settings).start()


# ---- no way there ----


def test_nothing_listens(cluster: Cluster) -> None:
    cause = _line(cluster, Host(cluster.hosts[0].name, port=1)).fail()
    assert cause.kind is CauseKind.REFUSED and cause.heals and "port 1" in cause.message


def test_a_name_that_nobody_knows(cluster: Cluster) -> None:
    cause = _line(cluster, Host("no-such-host.invalid")).fail()
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
    return open_client(Host("127.0.0.1", port=port), SshSettings(config="none"), timeout_s, make_start(sys.executable))


def test_an_ssh_config_that_is_not_there(tmp_path: Path) -> None:
    opener = open_client(Host("h"), SshSettings(config=str(tmp_path / "nope")), 5.0, make_start(sys.executable))
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


# ---- through something ----


def test_a_jump_host(cluster: Cluster, tmp_path: Path) -> None:
    last, jump = cluster.hosts[0].name, cluster.hosts[1].name
    settings = _config(cluster, tmp_path, f"Host {last}\nProxyJump {jump}")
    line = _line(cluster, Host(last), settings=settings)
    line.start()
    text = "x" * 300_000
    assert line.ask(text) == text
    line.fleet.close_all()
    assert cluster.wait_empty(0) == []


def test_a_jump_host_that_is_the_cause(cluster: Cluster, tmp_path: Path) -> None:
    last, jump = cluster.hosts[0].name, cluster.hosts[1].name
    settings = _config(cluster, tmp_path, f"Host {last}\nProxyJump {jump}:1")
    cause = _line(cluster, Host(last), settings=settings).fail()
    assert cause.kind is CauseKind.REFUSED and f"jump host {jump}" in cause.message
    (tmp_path / "two").mkdir()
    settings = _config(cluster, tmp_path / "two", f"Host {last}\nProxyJump {jump}\nPort 1")
    cause = _line(cluster, Host(last), settings=settings).fail()
    assert cause.kind is CauseKind.REFUSED and f"{jump} does not forward" in cause.message


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
    settings = _config(cluster, tmp_path, f"ProxyCommand {sys.executable} {relay} %h %p")
    line = _line(cluster, settings=settings)
    line.start()
    assert line.ask("through") == "through"
    line.fleet.close_all()
    assert cluster.wait_empty(0) == []
    cause = _line(cluster, settings=_config(cluster, relay.parent.parent, "ProxyCommand false")).fail()
    assert cause.kind is CauseKind.DROPPED


# ---- hosts of their own ----


def test_twelve_hosts_behind_one_sshd_that_drops_logins(make_cluster: MakeCluster) -> None:
    """All of them get in: what was dropped is a cause that heals, and is tried again."""
    cluster = make_cluster(1, sshd="MaxStartups 2:80:3\nLoginGraceTime 20\n")
    line = _line(cluster, *[Host(cluster.hosts[0].name)] * 12)
    for node in range(12):
        line.fleet.open(node)
    opened, dropped = set(), 0
    while len(opened) < 12:
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
    line = _line(cluster)
    line.start()
    for n in range(300):
        assert line.ask(f"hey {n}") == f"hey {n}"
    wait_until(lambda: sum(process.state != "Z" for process in cluster.processes(0)) == 2, "the last word")
    line.fleet.send(0, wire.Stacks(0, "exit 0"))
    closed = line.until(Closed)  # although the sleeper still holds the session's stdout open
    assert closed.reason == f"the agent ended (exit code {0 if own else 'unknown'})"
    assert "x\nWelcome\n" in closed.noise and closed.noise.endswith("late\nlast")
    assert [process.command for process in cluster.wait_empty(0, 0)] == ["sleep 1000"]


@pytest.mark.parametrize(
    "shell", [s for s in ("/bin/dash", "/bin/bash", "/usr/bin/fish", "/bin/tcsh") if Path(s).exists()]
)
def test_login_shells_over_ssh(make_cluster: MakeCluster, shell: str) -> None:
    cluster = make_cluster(1, needs="namespaces", shell=shell)
    line = _line(cluster)
    line.start()
    assert line.ask("env SHELL") == shell


def test_an_account_that_may_not_log_in(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(1, needs="namespaces", shell="/usr/sbin/nologin")
    cause = _line(cluster).fail()
    assert cause.kind is CauseKind.AGENT and "not available" in cause.message


def test_a_crash_and_a_cut(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(2, needs="namespaces")
    line = _line(cluster)
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
    interfaces = set(os.listdir("/sys/class/net"))
    cluster = make_cluster(2)
    line = _line(cluster)
    line.start()
    before = [process.pid for process in cluster.processes(0)]
    assert before
    cluster.close()
    assert not cluster.dir.exists()
    wait_until(lambda: not [pid for pid in before if os.path.exists(f"/proc/{pid}")], "the end of its processes")
    assert set(os.listdir("/sys/class/net")) <= interfaces
