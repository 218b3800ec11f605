"""Owns: tests of logging in: files, agents and certificates, against real sshd and ssh-agent.
Must not: ask anybody anything.
Called by: pytest."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from meshrun.errors import CauseKind
from meshrun.launch.ssh_agent import Agent, AgentError, AgentKey
from meshrun.launch.ssh_keys import find_offers, read_public_key
from meshrun.launch.ssh_target import Target
from meshrun.spec.values import SshSettings
from tests.cluster import Cluster
from tests.cluster_parts import end, make_key, wait_until
from tests.conftest import MakeCluster
from tests.launch.ssh_lines import config_with, line_to, make_target


@pytest.mark.usefixtures("own")
def test_a_key_that_nobody_there_knows(cluster: Cluster, tmp_path: Path) -> None:
    make_key(tmp_path / "wrong")
    shutil.copy(cluster.dir / "ssh_config", tmp_path / "plain")
    text = (tmp_path / "plain").read_text().replace(f"IdentityFile {cluster.dir}/id", f"IdentityFile {tmp_path}/nope")
    (tmp_path / "plain").write_text(text)
    settings = SshSettings(config=str(tmp_path / "plain"), identity=str(tmp_path / "wrong"))
    cause = line_to(cluster, settings=settings).fail()
    assert cause.kind is CauseKind.AUTH and not cause.heals
    assert f"tried in order: {tmp_path}/wrong, {tmp_path}/nope (no such file)" in cause.message


@pytest.mark.usefixtures("own")
def test_the_configured_key_comes_first(cluster: Cluster, tmp_path: Path) -> None:
    make_key(tmp_path / "wrong")
    settings = config_with(cluster, tmp_path, f"IdentityFile {tmp_path}/wrong")
    line_to(cluster, settings=replace(settings, identity=str(cluster.dir / "id"))).start()
    line_to(cluster, settings=settings).start()


@pytest.mark.usefixtures("own")
def test_a_key_with_a_passphrase_is_never_asked_for(cluster: Cluster, tmp_path: Path) -> None:
    text = (cluster.dir / "ssh_config").read_text().replace(f"{cluster.dir}/id", f"{tmp_path}/locked")
    (tmp_path / "config").write_text(text)
    shutil.copy(cluster.dir / "id", tmp_path / "locked")
    assert os.system(f"ssh-keygen -q -p -N secret -f {tmp_path}/locked >/dev/null") == 0
    cause = line_to(cluster, settings=SshSettings(config=str(tmp_path / "config"))).fail()
    assert cause.kind is CauseKind.AUTH and "needs a passphrase" in cause.message
    assert f"`ssh-add {tmp_path}/locked`" in cause.hint


@pytest.mark.usefixtures("own")
def test_more_wrong_keys_than_the_server_allows(cluster: Cluster, tmp_path: Path) -> None:
    for n in range(8):
        make_key(tmp_path / f"k{n}")
    settings = config_with(cluster, tmp_path, "\n".join(f"IdentityFile {tmp_path}/k{n}" for n in range(8)))
    cause = line_to(cluster, settings=settings).fail()
    assert cause.kind is CauseKind.AUTH and "MaxAuthTries" in cause.message


# ---- kinds of keys ----


@pytest.fixture
def alone(make_cluster: MakeCluster, tmp_path: Path) -> Cluster:
    """One host that counts tries strictly and trusts the user authority at tmp_path/ca."""
    make_key(tmp_path / "ca")
    return make_cluster(1, sshd=f"MaxAuthTries 3\nTrustedUserCAKeys {tmp_path}/ca.pub\n")


def _use(cluster: Cluster, tmp_path: Path, text: str) -> SshSettings:
    """The cluster's config without its key, and `text` first."""
    path = tmp_path / "ssh_config"
    rest = (cluster.dir / "ssh_config").read_text().replace(f"  IdentityFile {cluster.dir}/id\n", "")
    path.write_text(f"{text}\nHost *\n{rest.replace('  IdentitiesOnly yes', '')}")
    return SshSettings(config=str(path))


def _let_in(cluster: Cluster, public: Path) -> None:
    with (cluster.dir / "host0" / "authorized_keys").open("a") as file:
        file.write(public.read_text())


def _generate(path: Path, *options: str) -> None:
    subprocess.run(["ssh-keygen", "-q", "-N", "", "-f", str(path), *options], check=True)


def _certify(tmp_path: Path, public: Path, *options: str, authority: str = "ca") -> Path:
    """`ssh-keygen -s`: the certificate lies beside the key."""
    me = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
    words = ["-s", str(tmp_path / authority), "-I", "the id", *(options or ("-n", me)), str(public)]
    subprocess.run(["ssh-keygen", "-q", *words], check=True)
    return public.with_name(public.name.replace(".pub", "-cert.pub"))


@pytest.mark.parametrize("kind", ["ed25519", "ecdsa", "rsa", "rsa-pem"])
def test_every_kind_of_key(alone: Cluster, tmp_path: Path, kind: str) -> None:
    _generate(tmp_path / "key", "-t", kind.removesuffix("-pem"), *(["-m", "PEM"] if kind.endswith("-pem") else []))
    _let_in(alone, tmp_path / "key.pub")
    line_to(alone, settings=_use(alone, tmp_path, f"IdentityFile {tmp_path}/key")).start()


@pytest.mark.parametrize("kind", ["ed25519", "ecdsa", "rsa"])
def test_a_certificate_beside_its_key(alone: Cluster, tmp_path: Path, kind: str) -> None:
    _generate(tmp_path / "key", "-t", kind)
    _certify(tmp_path, tmp_path / "key.pub")
    line_to(alone, settings=_use(alone, tmp_path, f"IdentityFile {tmp_path}/key")).start()


def test_a_certificate_elsewhere_and_one_of_nobody(alone: Cluster, tmp_path: Path) -> None:
    make_key(tmp_path / "key")
    _certify(tmp_path, tmp_path / "key.pub").rename(tmp_path / "elsewhere")
    text = f"IdentityFile {tmp_path}/key\nCertificateFile {tmp_path}/nope\nCertificateFile {tmp_path}/elsewhere"
    line_to(alone, settings=_use(alone, tmp_path, text)).start()
    make_key(tmp_path / "stranger")
    _certify(tmp_path, tmp_path / "key.pub", authority="stranger")
    cause = line_to(alone, settings=_use(alone, tmp_path, f"IdentityFile {tmp_path}/key")).fail()
    assert cause.kind is CauseKind.AUTH
    assert f"tried in order: {tmp_path}/key-cert.pub, {tmp_path}/key" in cause.message


def test_a_broken_certificate_does_not_hide_its_key(alone: Cluster, tmp_path: Path) -> None:
    make_key(tmp_path / "key")
    _let_in(alone, tmp_path / "key.pub")
    (tmp_path / "key-cert.pub").write_text("ssh-ed25519-cert-v01@openssh.com AAAA\n")
    line_to(alone, settings=_use(alone, tmp_path, f"IdentityFile {tmp_path}/key")).start()


def test_a_key_that_others_may_read_is_not_used(alone: Cluster, tmp_path: Path) -> None:
    make_key(tmp_path / "key")
    _let_in(alone, tmp_path / "key.pub")
    (tmp_path / "key").chmod(0o644)
    cause = line_to(alone, settings=_use(alone, tmp_path, f"IdentityFile {tmp_path}/key")).fail()
    assert cause.kind is CauseKind.AUTH and f"chmod 600 {tmp_path}/key" in cause.message


def test_keys_that_the_config_leaves_out(alone: Cluster, tmp_path: Path) -> None:
    make_key(tmp_path / "ed")
    _generate(tmp_path / "rsa", "-t", "rsa", "-b", "2048")
    files = f"IdentityFile {tmp_path}/ed\nIdentityFile {tmp_path}/rsa\n"
    text = f"{files}PubkeyAcceptedAlgorithms -ssh-ed25519*\nRequiredRSASize 3072"
    cause = line_to(alone, settings=_use(alone, tmp_path, text)).fail()
    assert f"{tmp_path}/ed (PubkeyAcceptedAlgorithms leaves it out)" in cause.message
    assert f"{tmp_path}/rsa (2048 bits are below RequiredRSASize)" in cause.message
    _let_in(alone, tmp_path / "rsa.pub")
    line_to(alone, settings=_use(alone, tmp_path, f"{files}PubkeyAcceptedAlgorithms rsa-sha2-256")).start()


def test_a_config_that_forbids_keys(alone: Cluster, tmp_path: Path) -> None:
    cause = line_to(alone, settings=_use(alone, tmp_path, "PubkeyAuthentication no")).fail()
    assert cause.kind is CauseKind.AUTH and "ssh_config:1 (PubkeyAuthentication no)" in cause.message


# ---- the agent ----


class SshAgent:
    """A real ssh-agent."""

    def __init__(self, path: Path) -> None:
        self.socket = path
        self.process = subprocess.Popen(["ssh-agent", "-D", "-a", str(path)], stdout=subprocess.DEVNULL)
        wait_until(path.exists, "the agent")

    def add(self, key: Path, passphrase: str = "") -> None:
        """`ssh-add`, with a passphrase from a program of ours."""
        ask = self.socket.with_name("askpass")
        ask.write_text(f"#!/bin/sh\necho '{passphrase}'\n")
        ask.chmod(0o700)
        environ = {**os.environ, "SSH_AUTH_SOCK": str(self.socket), "SSH_ASKPASS": str(ask)}
        environ["SSH_ASKPASS_REQUIRE"] = "force"
        subprocess.run(["ssh-add", "-q", str(key)], env=environ, check=True)


@pytest.fixture
def ssh_agent(tmp_path: Path) -> Iterator[SshAgent]:
    agent = SshAgent(tmp_path / "agent")
    yield agent
    end(agent.process)


def _agent(tmp_path: Path, text: str = "") -> str:
    return f"IdentityAgent {tmp_path}/agent\n{text}"


def test_a_key_of_the_agent(
    alone: Cluster, tmp_path: Path, ssh_agent: SshAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    ssh_agent.add(alone.dir / "id")
    line_to(alone, settings=_use(alone, tmp_path, _agent(tmp_path))).start()
    monkeypatch.setenv("SSH_AUTH_SOCK", str(ssh_agent.socket))
    line_to(alone, settings=_use(alone, tmp_path, "")).start()
    monkeypatch.setenv("OTHER_SOCK", str(ssh_agent.socket))
    monkeypatch.delenv("SSH_AUTH_SOCK")
    line_to(alone, settings=_use(alone, tmp_path, "IdentityAgent $OTHER_SOCK")).start()
    cause = line_to(alone, settings=_use(alone, tmp_path, "IdentityAgent none\nIdentityFile none")).fail()
    assert cause.kind is CauseKind.AUTH and "there was no key to try" in cause.message


@pytest.mark.parametrize("kind", ["ed25519", "ecdsa", "rsa"])
def test_a_locked_file_is_taken_from_the_agent(alone: Cluster, tmp_path: Path, ssh_agent: SshAgent, kind: str) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", "secret", "-f", str(tmp_path / "key")], check=True)
    _let_in(alone, tmp_path / "key.pub")
    text = _agent(tmp_path, f"IdentitiesOnly yes\nIdentityFile {tmp_path}/key")
    cause = line_to(alone, settings=_use(alone, tmp_path, text)).fail()
    assert "needs a passphrase and is not in the agent" in cause.message
    ssh_agent.add(tmp_path / "key", "secret")
    line_to(alone, settings=_use(alone, tmp_path, text)).start()
    (tmp_path / "key.pub").unlink()  # the private file shows its public half, too
    line_to(alone, settings=_use(alone, tmp_path, text)).start()


def test_an_identity_file_may_be_the_public_half(alone: Cluster, tmp_path: Path, ssh_agent: SshAgent) -> None:
    ssh_agent.add(alone.dir / "id")
    shutil.copy(alone.dir / "id.pub", tmp_path / "hint.pub")
    text = _agent(tmp_path, f"IdentitiesOnly yes\nIdentityFile {tmp_path}/hint.pub")
    line_to(alone, settings=_use(alone, tmp_path, text)).start()


@pytest.mark.parametrize("only", ["IdentitiesOnly yes", "IdentitiesOnly no"])
def test_eight_foreign_keys_in_the_agent(alone: Cluster, tmp_path: Path, ssh_agent: SshAgent, only: str) -> None:
    for n in range(8):
        make_key(tmp_path / f"k{n}")
        ssh_agent.add(tmp_path / f"k{n}")
    text = _agent(tmp_path, f"{only}\nIdentityFile {alone.dir}/id")
    line_to(alone, settings=_use(alone, tmp_path, text)).start()
    cause = line_to(alone, settings=_use(alone, tmp_path, _agent(tmp_path))).fail()
    assert cause.kind is CauseKind.AUTH and "MaxAuthTries" in cause.message
    assert "tried in order: agent key k0, agent key k1, agent key k2" in cause.message


@pytest.mark.parametrize("kind", ["ed25519", "ecdsa", "rsa"])
def test_a_certificate_in_the_agent(alone: Cluster, tmp_path: Path, ssh_agent: SshAgent, kind: str) -> None:
    _generate(tmp_path / "key", "-t", kind)
    certificate = _certify(tmp_path, tmp_path / "key.pub")
    ssh_agent.add(tmp_path / "key")  # takes the certificate, too
    certificate.unlink()
    line_to(alone, settings=_use(alone, tmp_path, _agent(tmp_path))).start()


def test_a_certificate_whose_key_is_in_the_agent_only(alone: Cluster, tmp_path: Path, ssh_agent: SshAgent) -> None:
    make_key(tmp_path / "key")
    ssh_agent.add(tmp_path / "key")
    _certify(tmp_path, tmp_path / "key.pub")
    (tmp_path / "key").unlink()
    text = _agent(tmp_path, f"IdentitiesOnly yes\nCertificateFile {tmp_path}/key-cert.pub\nIdentityFile none")
    line_to(alone, settings=_use(alone, tmp_path, text)).start()


def test_an_agent_that_is_gone_is_named(alone: Cluster, tmp_path: Path, ssh_agent: SshAgent) -> None:
    end(ssh_agent.process)
    text = _agent(tmp_path, "IdentityFile none")
    cause = line_to(alone, settings=_use(alone, tmp_path, text)).fail()
    assert cause.kind is CauseKind.AUTH and f"no ssh agent answers at {tmp_path}/agent" in cause.message
    line_to(alone, settings=_use(alone, tmp_path, _agent(tmp_path, f"IdentityFile {alone.dir}/id"))).start()


# ---- without a server ----


def _pack(*parts: bytes) -> bytes:
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def _offers(target: Target, *blobs: bytes) -> list[tuple[str, str]]:
    held = [AgentKey(None, blob, f"c{n}") for n, blob in enumerate(blobs)]  # type: ignore[arg-type]
    return [(offer.label, offer.why_not) for offer in find_offers(target, held)]


def test_keys_that_only_another_client_can_use_are_passed_over_by_name() -> None:
    sk = _pack(b"sk-ssh-ed25519@openssh.com", b"x" * 32, b"ssh:")
    odd = _pack(b"ssh-xmss@openssh.com", b"x")
    assert _offers(make_target(), sk, odd) == [
        ("agent key c0", "a FIDO key; --ssh-client openssh can use it"),
        ("agent key c1", "ssh-xmss@openssh.com is no type that paramiko can use"),
    ]


def test_the_agents_copy_of_a_default_key_comes_before_its_others(tmp_path: Path) -> None:
    make_key(tmp_path / "id_ed25519")
    mine, other = read_public_key(str(tmp_path / "id_ed25519")), _pack(b"ssh-ed25519", b"y" * 32)
    target = make_target(default_keys=(str(tmp_path / "id_rsa"), str(tmp_path / "id_ed25519")))
    assert [label for label, _ in _offers(target, other, mine)] == [f"{tmp_path}/id_ed25519", "agent key c0"]
    assert [label for label, _ in _offers(replace(target, identities_only=True), other)] == [f"{tmp_path}/id_ed25519"]


@pytest.mark.parametrize(
    "answer",
    [b"", b"\x00", b"\x00\x00\x00\x00", b"\xff\xff\xff\xff", b"\x00\x00\x00\x05\x0c\x00\x00\x00\x09", b"SSH-2.0-x\r\n"],
)
def test_what_answers_is_no_agent(tmp_path: Path, answer: bytes, listen: Callable[[Path, bytes], None]) -> None:
    listen(tmp_path / "sock", answer)
    with pytest.raises(AgentError):
        Agent(str(tmp_path / "sock")).list_keys()


@pytest.fixture
def listen() -> Iterator[Callable[[Path, bytes], None]]:
    """A Unix socket that gives one answer and hangs up."""
    import socket
    import threading

    servers = []

    def start(path: Path, answer: bytes) -> None:
        server = socket.socket(socket.AF_UNIX)
        server.bind(str(path))
        server.listen(1)
        servers.append(server)

        def serve() -> None:
            peer = server.accept()[0]
            with peer:
                peer.recv(100)
                peer.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()

    yield start
    for server in servers:
        server.close()
