"""Owns: tests of what a server's key or certificate leads to, against real sshds.
Must not: touch the user's own known_hosts.
Called by: pytest."""

from __future__ import annotations

import os
import subprocess
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshrun.errors import CauseKind
from meshrun.launch.channel import Opened, Remark, Unreachable
from meshrun.launch.host_key import Proof, judge_host
from meshrun.launch.known_hosts import parse_known_hosts
from meshrun.launch.ssh_cert import Certificate, find_fault, parse_certificate, read_public_line
from meshrun.launch.ssh_connect import Failed
from meshrun.launch.ssh_transport import _verify
from tests.cluster import Cluster, LoopbackCluster
from tests.cluster_parts import make_key
from tests.conftest import MakeCluster
from tests.launch.ssh_lines import config_with, known_name, line_to, make_known, make_target
from tests.launch.standin import Line


@pytest.mark.usefixtures("own")
def test_an_unknown_key(cluster: Cluster, tmp_path: Path) -> None:
    settings, known = make_known(cluster, tmp_path, "")
    cause = line_to(cluster, settings=settings).fail()
    assert cause.kind is CauseKind.HOST_KEY_UNKNOWN and str(known) in cause.message and "SHA256:" in cause.message
    assert "ssh-keyscan" in cause.hint and "--host-key-policy accept-new" in cause.hint
    assert known.read_text() == ""


@pytest.mark.usefixtures("own")
def test_accept_new_adds_the_key_and_says_so(cluster: Cluster, tmp_path: Path) -> None:
    settings, known = make_known(cluster, tmp_path, "# no newline", host_key_policy="accept-new")
    line = line_to(cluster, settings=settings)
    for node in range(len(cluster.hosts)):
        line.fleet.open(node)
    remarks = [line.until(Remark).text for _ in cluster.hosts]
    assert all(str(known) in text for text in remarks)
    lines = known.read_text().splitlines()
    assert lines[0] == "# no newline"
    assert sorted(lines[1:]) == sorted((cluster.dir / "known_hosts").read_text().splitlines())
    assert line_to(cluster, settings=replace(settings, host_key_policy="strict")).start()


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize("policy", ["strict", "accept-new"])
def test_a_changed_key_always_stops(cluster: Cluster, tmp_path: Path, policy: str) -> None:
    make_key(tmp_path / "other")
    public = " ".join((tmp_path / "other.pub").read_text().split()[:2])
    settings, known = make_known(cluster, tmp_path, f"\n{known_name(cluster)} {public}\n", host_key_policy=policy)
    cause = line_to(cluster, settings=settings).fail()
    assert cause.kind is CauseKind.HOST_KEY_CHANGED and f"{known}:2" in cause.message and "ssh-keygen" in cause.hint


def test_a_revoked_key_always_stops(cluster: Cluster, tmp_path: Path, own: bool) -> None:
    line = (cluster.dir / "known_hosts").read_text().splitlines()[0]
    settings, known = make_known(cluster, tmp_path, f"{line}\n@revoked {line}\n", host_key_policy="accept-new")
    cause = line_to(cluster, settings=settings).fail()
    assert cause.kind is CauseKind.HOST_KEY_REVOKED and f"{known}{':2' if own else ''}" in cause.message


@pytest.mark.usefixtures("own")
def test_hashed_names_and_an_alias(cluster: Cluster, tmp_path: Path) -> None:
    settings, known = make_known(cluster, tmp_path, (cluster.dir / "known_hosts").read_text())
    assert os.system(f"ssh-keygen -q -H -f {known} >/dev/null 2>&1") == 0 and "|1|" in known.read_text()
    line_to(cluster, settings=settings).start()
    key = (cluster.dir / "host0" / "hostkey.pub").read_text()
    known.write_text(f"the-alias {key}")
    aliased = config_with(cluster, tmp_path / "..", f"UserKnownHostsFile {known}\nHostKeyAlias the-alias")
    line_to(cluster, settings=aliased).start()


@pytest.mark.usefixtures("own")
def test_the_known_type_is_asked_for(make_cluster: MakeCluster, tmp_path: Path) -> None:
    """The server prefers its ed25519 key, but we know it by the other one."""
    assert os.system(f"ssh-keygen -q -t ecdsa -N '' -f {tmp_path}/ecdsa") == 0
    cluster = make_cluster(1, sshd=f"HostKey {tmp_path}/ecdsa\n")
    public = " ".join((tmp_path / "ecdsa.pub").read_text().split()[:2])
    settings, _ = make_known(cluster, tmp_path, f"{known_name(cluster)} {public}\n")
    line_to(cluster, settings=settings).start()


def test_accept_new_takes_no_key_of_another_type_just_as_ssh(cluster: Cluster, tmp_path: Path, own: bool) -> None:
    """A host that is known by one type shows another: for ssh its key has changed. It is not added in silence."""
    assert os.system(f"ssh-keygen -q -t ecdsa -N '' -f {tmp_path}/ecdsa") == 0
    line = f"{known_name(cluster)} {' '.join((tmp_path / 'ecdsa.pub').read_text().split()[:2])}\n"
    settings, known = make_known(cluster, tmp_path, line, host_key_policy="accept-new")
    words = ["ssh", "-F", str(settings.config), "-o", "StrictHostKeyChecking=accept-new", "-o", "BatchMode=yes"]
    done = subprocess.run([*words, cluster.hosts[0].name, "true"], capture_output=True, text=True, timeout=30)
    assert (done.returncode, "has changed" in done.stderr) == (255, True)
    cause = line_to(cluster, settings=settings).fail()
    assert cause.kind is (CauseKind.HOST_KEY_UNKNOWN if own else CauseKind.HOST_KEY_CHANGED)
    assert f"{known}:1" in cause.message and known.read_text() == line
    if own:  # `ssh HOST`, which helps with an unknown host, would be refused, too
        assert "ssh-keyscan" in cause.hint and "`ssh " not in cause.hint


def test_accept_new_hashes_names_where_the_config_says_so(cluster: Cluster, tmp_path: Path) -> None:
    settings, known = make_known(cluster, tmp_path, "", host_key_policy="accept-new")
    path = Path(str(settings.config))
    path.write_text("HashKnownHosts yes\n" + path.read_text())
    line_to(cluster, settings=settings).start()
    assert known.read_text().startswith("|1|")
    line_to(cluster, settings=replace(settings, host_key_policy="strict")).start()
    assert known.read_text().count("\n") == 1


def test_no_file_to_remember_in(cluster: Cluster, tmp_path: Path) -> None:
    settings = config_with(cluster, tmp_path, "UserKnownHostsFile none\nStrictHostKeyChecking no")
    line = line_to(cluster, settings=settings)
    line.fleet.open(0)
    assert "UserKnownHostsFile names no file" in line.until(Remark).text
    settings = config_with(cluster, tmp_path, "UserKnownHostsFile /dev/null\nStrictHostKeyChecking no")
    line_to(cluster, settings=settings).start()


def test_revoked_host_keys_of_a_file(cluster: Cluster, tmp_path: Path) -> None:
    revoked = tmp_path / "revoked"
    revoked.write_text("# old ones\n" + (cluster.dir / "host0" / "hostkey.pub").read_text())
    settings = config_with(cluster, tmp_path, f"RevokedHostKeys {revoked}")
    cause = line_to(cluster, settings=settings).fail()
    assert cause.kind is CauseKind.HOST_KEY_REVOKED and f"RevokedHostKeys {revoked}" in cause.message
    subprocess.run(["ssh-keygen", "-q", "-k", "-f", str(revoked), str(cluster.dir / "id.pub")], check=True)
    cause = line_to(cluster, settings=settings).fail()
    assert cause.kind is CauseKind.CONFIG and "is a KRL" in cause.message
    revoked.unlink()
    cause = line_to(cluster, settings=settings).fail()
    assert cause.kind is CauseKind.CONFIG and f"cannot read RevokedHostKeys {revoked}" in cause.message


def test_loopback_without_host_authentication(tmp_path: Path) -> None:
    with closing(LoopbackCluster(1)) as cluster:
        settings, _ = make_known(cluster, tmp_path, "")
        assert line_to(cluster, settings=settings).fail().kind is CauseKind.HOST_KEY_UNKNOWN
        path = Path(str(settings.config))
        text = path.read_text()
        path.write_text("NoHostAuthenticationForLocalhost yes\n" + text)
        line_to(cluster, settings=settings).start()
        path.write_text("NoHostAuthenticationForLocalhost yes\nHostKeyAlias other\n" + text)
        assert line_to(cluster, settings=settings).fail().kind is CauseKind.HOST_KEY_UNKNOWN


# ---- certificates of hosts ----


class Certified:
    """A host with a certificate, and a client whose known_hosts the test writes."""

    def __init__(self, make_cluster: MakeCluster, tmp_path: Path, kind: str = "ecdsa", ca: str = "ed25519") -> None:
        self.dir = tmp_path
        for name, type_ in (("ca", ca), ("other", "ed25519"), ("key", kind)):
            words = ["ssh-keygen", "-q", "-t", type_, "-N", "", "-f", str(tmp_path / name)]
            subprocess.run(words, check=True)
        self.certify("-n", "*")
        sshd = f"HostKey {tmp_path}/key\nHostCertificate {tmp_path}/key-cert.pub\n"
        self.cluster = make_cluster(1, sshd=sshd)

    def certify(self, *options: str, host: bool = True, by: str = "ca") -> None:
        """Sign the host's key anew; sshd must be started, or told, afterwards."""
        sign = ["ssh-keygen", "-q", "-s", str(self.dir / by), "-I", "its id", *(["-h"] if host else [])]
        subprocess.run([*sign, *options, str(self.dir / "key.pub")], check=True)

    def public(self, name: str) -> str:
        return " ".join((self.dir / f"{name}.pub").read_text().split()[:2])

    def cause(self, known: str, extra: str = "", policy: str = "strict") -> Any:
        line = self.line(known, extra, policy)
        line.fleet.open(0)
        event = line.until((Opened, Unreachable))  # type: ignore[arg-type]
        return event.cause if isinstance(event, Unreachable) else None

    def line(self, known: str, extra: str = "", policy: str = "strict") -> Line:
        settings, _ = make_known(self.cluster, self.dir, known, host_key_policy=policy)
        path = Path(str(settings.config))
        path.write_text(f"{extra}\n{path.read_text()}")
        return line_to(self.cluster, settings=settings)


@pytest.mark.parametrize("kind, ca", [("ecdsa", "ed25519"), ("rsa", "rsa"), ("rsa", "ecdsa")])
def test_a_certificate_of_a_known_authority(make_cluster: MakeCluster, tmp_path: Path, kind: str, ca: str) -> None:
    host = Certified(make_cluster, tmp_path, kind, ca)
    assert host.cause(f"@cert-authority * {host.public('ca')}\n") is None
    assert host.cause(f"@cert-authority {known_name(host.cluster)} {host.public('ca')}\n") is None
    cause = host.cause(f"@cert-authority elsewhere {host.public('ca')}\n")
    assert cause.kind is CauseKind.HOST_KEY_UNKNOWN and "@cert-authority" not in cause.message
    cause = host.cause(f"@cert-authority * {host.public('other')}\n")
    assert cause.kind is CauseKind.HOST_KEY_UNKNOWN and "which it has not signed" in cause.message
    assert host.cause(f"{known_name(host.cluster)} {host.public('key')}\n") is None  # its plain key is known


def test_a_certificate_or_its_authority_that_is_revoked(make_cluster: MakeCluster, tmp_path: Path) -> None:
    host = Certified(make_cluster, tmp_path)
    trusted = f"@cert-authority * {host.public('ca')}\n"
    for name in ("ca", "key"):
        cause = host.cause(f"{trusted}@revoked * {host.public(name)}\n", policy="accept-new")
        assert cause.kind is CauseKind.HOST_KEY_REVOKED and "known_hosts:2" in cause.message
        cause = host.cause(trusted, f"RevokedHostKeys {tmp_path}/{name}.pub")
        assert cause.kind is CauseKind.HOST_KEY_REVOKED


def test_a_host_key_alias_is_the_name_in_the_certificate(make_cluster: MakeCluster, tmp_path: Path) -> None:
    host = Certified(make_cluster, tmp_path)
    assert host.cause(f"@cert-authority *.lan {host.public('ca')}\n", "HostKeyAlias node.lan") is None
    extra = "CASignatureAlgorithms rsa-sha2-512\nHostKeyAlias a.lan"
    cause = host.cause(f"@cert-authority *.lan {host.public('ca')}\n", extra)
    assert "is signed with ssh-ed25519, which CASignatureAlgorithms does not allow" in cause.message


def test_a_server_without_a_certificate_where_an_authority_is_known(cluster: Cluster, tmp_path: Path) -> None:
    make_key(tmp_path / "ca")
    public = " ".join((tmp_path / "ca.pub").read_text().split()[:2])
    settings, _ = make_known(cluster, tmp_path, f"@cert-authority * {public}\n")
    cause = line_to(cluster, settings=settings).fail()
    assert cause.kind is CauseKind.HOST_KEY_UNKNOWN and "the server shows no certificate" in cause.message


@pytest.mark.parametrize(
    "options, host, says",
    [
        (("-n", "a.lan,b.*"), True, ""),
        (("-n", "c.lan"), True, "it is for c.lan, not for b.lan"),
        ((), True, "it is for nobody, not for b.lan"),
        (("-n", "b.lan", "-V", "20200101:20210101"), True, "it has expired"),
        (("-n", "b.lan", "-V", "20900101:20910101"), True, "it is not valid yet"),
        (("-n", "b.lan"), False, "it is a user's certificate"),
        (("-n", "b.lan", "-O", "critical:odd=1"), True, "it has a critical option"),
    ],
)
def test_what_a_certificate_says(tmp_path: Path, options: tuple[str, ...], host: bool, says: str) -> None:
    certificate = _make_certificate(tmp_path, *options, host=host)
    assert certificate.key_id == "its id"
    assert find_fault(certificate, "b.lan", 1_800_000_000, ("ssh-ed25519",), _verify).startswith(says)


def test_a_certificate_that_was_tampered_with(tmp_path: Path) -> None:
    certificate = _make_certificate(tmp_path, "-n", "b.lan")
    for changed in (replace(certificate, body=certificate.body + b"x"), replace(certificate, signature=b"\0\0\0\x01x")):
        fault = find_fault(changed, "b.lan", 1_800_000_000, ("ssh-ed25519", "x"), _verify)
        assert fault == "its signature is wrong"


@given(st.data())
def test_any_bytes_are_a_certificate_or_a_value_error(data: st.DataObject) -> None:
    whole = data.draw(st.sampled_from([_EXAMPLE, b""]))
    cut = whole[: data.draw(st.integers(0, len(whole)))] + data.draw(st.binary(max_size=40))
    with suppress(ValueError):
        parse_certificate(cut)


_EXAMPLE = b"".join(
    len(part).to_bytes(4, "big") + part for part in (b"ssh-ed25519-cert-v01@openssh.com", b"nonce", b"key")
)


def _make_certificate(tmp_path: Path, *options: str, host: bool = True) -> Certificate:
    make_key(tmp_path / "ca")
    make_key(tmp_path / "key")
    sign = ["ssh-keygen", "-q", "-s", str(tmp_path / "ca"), "-I", "its id", *(["-h"] if host else [])]
    subprocess.run([*sign, *options, str(tmp_path / "key.pub")], check=True)
    certificate = parse_certificate(read_public_line((tmp_path / "key-cert.pub").read_bytes()))
    assert certificate.key == read_public_line((tmp_path / "key.pub").read_bytes())
    return certificate


def test_a_certificate_for_another_key_than_the_one_that_signed(tmp_path: Path) -> None:
    _make_certificate(tmp_path, "-n", "h")
    shown = read_public_line((tmp_path / "key-cert.pub").read_bytes())
    authority = (tmp_path / "ca.pub").read_text()
    entries = parse_known_hosts(f"@cert-authority * {authority}", "known")
    key = read_public_line((tmp_path / "key.pub").read_bytes())
    assert judge_host(make_target(), entries, Proof(shown, key), _verify, 1_800_000_000) == ""
    with pytest.raises(Failed, match="another key than the one that signed"):
        judge_host(make_target(), entries, Proof(shown, key + b"x"), _verify, 1_800_000_000)


def test_accept_new_does_not_ask_why_a_certificate_is_of_no_use(make_cluster: MakeCluster, tmp_path: Path) -> None:
    """As with ssh: what is left is a key that nobody knows, and that is what accept-new accepts."""
    host = Certified(make_cluster, tmp_path)
    line = host.line(f"@cert-authority * {host.public('other')}\n", policy="accept-new")
    line.fleet.open(0)
    assert "is new and was added" in line.until(Remark).text
    assert host.public("key") in (tmp_path / "known_hosts").read_text()
