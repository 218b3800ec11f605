"""Owns: tests of servers that misbehave as no sshd does: cut off, half a banner, no sessions, no answer.
Must not: need a cluster; the server is paramiko's, or a bare socket.
Called by: pytest."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import paramiko
import pytest

from meshrun.errors import Cause, CauseKind
from meshrun.launch.ssh import open_ssh
from meshrun.spec.values import Host, SshSettings
from tests.cluster_parts import make_key
from tests.launch.standin import Line, make_start


class Server(paramiko.ServerInterface):
    """Lets everybody in; what happens then is the test's."""

    def __init__(self, fault: str) -> None:
        self.fault = fault
        self.transport: paramiko.Transport | None = None

    def get_allowed_auths(self, username: str) -> str:
        return "password,keyboard-interactive" if self.fault == "no keys" else "publickey"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        if self.fault == "cut at login":
            self._cut()
        if self.fault == "more":
            return paramiko.AUTH_PARTIALLY_SUCCESSFUL
        return paramiko.AUTH_FAILED if self.fault == "no keys" else paramiko.AUTH_SUCCESSFUL

    def check_channel_request(self, kind: str, chanid: int) -> int:
        if self.fault == "cut after login":
            self._cut()
        no = paramiko.OPEN_FAILED_ADMINISTRATIVELY_PROHIBITED
        return no if self.fault == "no session" else paramiko.OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        if self.fault == "half a greeting":
            threading.Thread(target=self._say, args=(channel,), daemon=True).start()
        return self.fault != "no command"

    def _say(self, channel: paramiko.Channel) -> None:
        channel.sendall(b"welcome to the machine")
        self._cut()

    def _cut(self) -> None:
        assert self.transport
        self.transport.close()


Serve = Callable[[str], int]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Start a server with a fault on a port of its own."""
    make_key(tmp_path / "host")
    listeners, transports = [], []

    def start(fault: str) -> int:
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)

        def run() -> None:
            with suppress(OSError, EOFError, paramiko.SSHException):
                transport = paramiko.Transport(listener.accept()[0])
                transports.append(transport)
                transport.add_server_key(paramiko.PKey.from_path(str(tmp_path / "host")))
                server = Server(fault)
                server.transport = transport
                transport.start_server(server=server)

        threading.Thread(target=run, daemon=True).start()
        return int(listener.getsockname()[1])

    yield start
    for thing in [*listeners, *transports]:
        thing.close()


def _opener(tmp_path: Path, port: int, timeout_s: float = 20.0) -> Any:
    make_key(tmp_path / "id")
    config = tmp_path / "config"
    config.write_text(
        f"IdentityFile {tmp_path}/id\nIdentityAgent none\nUserKnownHostsFile {tmp_path}/known\n"
        "StrictHostKeyChecking accept-new\n"
    )
    start = make_start(sys.executable)
    return open_ssh(Host("127.0.0.1", port=port), SshSettings(config=str(config)), timeout_s, start)


def _fail(tmp_path: Path, port: int, timeout_s: float = 20.0) -> Cause:
    cause = Line(_opener(tmp_path, port, timeout_s)).fail()
    assert isinstance(cause, Cause)
    return cause


@pytest.mark.parametrize(
    "fault, kind, says",
    [
        ("cut at login", CauseKind.DROPPED, "closed the connection during login"),
        ("cut after login", CauseKind.DROPPED, "closed the connection after login"),
        ("no session", CauseKind.AGENT, "let "),
        ("no command", CauseKind.AGENT, "ran no command"),
        ("no keys", CauseKind.AUTH, "it only offers password, keyboard-interactive"),
        ("more", CauseKind.AUTH, "it also wants publickey"),
        ("half a greeting", CauseKind.DROPPED, ""),
    ],
)
def test_a_server_that_lets_one_down(serve: Serve, tmp_path: Path, fault: str, kind: CauseKind, says: str) -> None:
    cause = _fail(tmp_path, serve(fault))
    assert cause.kind is kind and says in cause.message, cause
    assert cause.heals is (kind is CauseKind.DROPPED)


@pytest.mark.parametrize(
    "said, kind, says",
    [
        (b"SSH-2.0-half", CauseKind.DROPPED, "closed the connection before login"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", CauseKind.DROPPED, "closed the connection before login"),
        (b"SSH-1.5-old\r\n", CauseKind.CONFIG, "no ssh algorithm in common"),
        (b"SSH-2.0-x\r\n\xff\xff\xff\xff\xff\xff\xff\xff", CauseKind.DROPPED, "before login"),
        (b"\x00" * 300, CauseKind.DROPPED, "closed the connection before login"),
    ],
)
def test_a_server_that_is_none(tmp_path: Path, said: bytes, kind: CauseKind, says: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def run() -> None:
            peer = listener.accept()[0]
            with peer, suppress(OSError):
                peer.sendall(said)
                peer.shutdown(socket.SHUT_WR)
                while peer.recv(1000):
                    pass

        threading.Thread(target=run, daemon=True).start()
        cause = _fail(tmp_path, listener.getsockname()[1])
        assert cause.kind is kind and says in cause.message


def test_half_a_banner_and_then_silence(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        peers = []

        def run() -> None:
            peers.append(listener.accept()[0])
            peers[0].sendall(b"SSH-2.0-ha")

        threading.Thread(target=run, daemon=True).start()
        cause = _fail(tmp_path, listener.getsockname()[1], 0.5)
        assert cause.kind is CauseKind.TIMED_OUT
        peers[0].close()


def test_connect_timeout_of_the_config_is_the_shorter_one(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        opener = _opener(tmp_path, listener.getsockname()[1], 3600.0)
        config = tmp_path / "config"
        config.write_text("ConnectTimeout 1\n" + config.read_text())
        cause = Line(opener).fail()
        assert cause.kind is CauseKind.TIMED_OUT and "too slow" in cause.message


@pytest.mark.parametrize(
    "extra, kind, says",
    [
        ("AddressFamily inet6", CauseKind.NAME_UNKNOWN, "127.0.0.1"),
        ("BindAddress 203.0.113.9", CauseKind.CONFIG, "cannot start at 203.0.113.9"),
        ("BindInterface no-such-one", CauseKind.CONFIG, "cannot start at no-such-one"),
        ("HostKeyAlgorithms ssh-dss", CauseKind.CONFIG, "allows no algorithm that paramiko knows"),
        ("Nonsense 1", CauseKind.CONFIG, "config:1: the ssh config says nonsense 1: OpenSSH knows no such keyword"),
        ("KnownHostsCommand /bin/x", CauseKind.CONFIG, "config:1: the ssh config sets KnownHostsCommand"),
    ],
)
def test_what_a_config_can_make_impossible(
    serve: Serve, tmp_path: Path, extra: str, kind: CauseKind, says: str
) -> None:
    opener = _opener(tmp_path, serve("no command"))
    config = tmp_path / "config"
    config.write_text(f"{extra}\n{config.read_text()}")
    cause = Line(opener).fail()
    assert cause.kind is kind and says in cause.message, cause


def test_a_bind_address_that_is_ours(serve: Serve, tmp_path: Path) -> None:
    opener = _opener(tmp_path, serve("no command"))
    config = tmp_path / "config"
    config.write_text(f"BindAddress 127.0.0.7\nBindInterface lo\nCompression yes\n{config.read_text()}")
    assert "ran no command" in Line(opener).fail().message
