"""Owns: accepting or refusing the key or certificate a server has shown, and the words for a refusal.
Must not: connect, or know paramiko; a changed or revoked key is refused whatever the policy.
Called by: launch.ssh_transport."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from meshrun.dataclass import dataclass
from meshrun.errors import Cause, CauseKind
from meshrun.launch.known_hosts import Entry, Verdict, judge_key, make_fingerprint, select_entries
from meshrun.launch.ssh_cert import SUFFIX, Certificate, Verify, find_fault, parse_certificate, read_type
from meshrun.launch.ssh_connect import Failed
from meshrun.launch.ssh_files import add_known_host, read_known_hosts, read_revoked
from meshrun.launch.ssh_target import Target
from meshrun.launch.ssh_words import restrict

_AUTHORITY_ALGORITHMS = (
    *("ssh-ed25519", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521"),
    *("rsa-sha2-512", "rsa-sha2-256"),
)


@dataclass(frozen=True, slots=True)
class Proof:
    """What a server has shown: its key or certificate, the plain key that its signature was checked with, and whether
    it is this machine, reached without a proxy."""

    shown: bytes
    key: bytes
    local: bool = False


def find_entries(target: Target) -> tuple[Entry, ...]:
    """What known_hosts says about this host, under its name with port and, if that is not 22, its bare name.

    Raises InputError for a file that cannot be read."""
    bare = not target.aliased and target.port != 22
    names = (target.key_name, target.hostname) if bare else (target.key_name,)
    return tuple(entry for known in read_known_hosts(target.known_hosts) for entry in select_entries(known, names))


def judge_host(target: Target, entries: Sequence[Entry], proof: Proof, verify: Verify, now_s: float) -> str:
    """Returns a remark for the user ("" if there is nothing to say); raises Failed when the key is not acceptable.

    `entries`: of `find_entries`."""
    if proof.local and not target.check_key and not target.aliased:
        return ""
    certificate, key = _parse(proof), proof.key
    fingerprint = f"{read_type(key)} {make_fingerprint(key)}"
    _check_revoked(target, entries, key, certificate, fingerprint)
    fault = ""
    if certificate and any(_signs(entry, certificate) for entry in entries):
        fault = find_fault(certificate, _plain_name(target), now_s, _authority_algorithms(target), verify)
        if not fault:
            return ""
    # As ssh does: a certificate that does not help is a plain key.
    verdict, found = judge_key(entries, target.key_name, read_type(key), key)
    if verdict is Verdict.KNOWN:
        return ""
    if verdict in (Verdict.UNKNOWN, Verdict.AUTHORITY) and target.accept_new:
        return _add(target, read_type(key), key)
    raise Failed(_make_cause(target, verdict, found, fingerprint, _explain(certificate, fault, verdict)))


def _parse(proof: Proof) -> Certificate | None:
    if not read_type(proof.shown).endswith(SUFFIX):
        return None
    try:
        certificate = parse_certificate(proof.shown)
        if certificate.key != proof.key:
            raise ValueError("it is for another key than the one that signed")
        return certificate
    except ValueError as error:
        cause = Cause(CauseKind.HOST_KEY_UNKNOWN, f"the server shows a broken host certificate: {error}")
        raise Failed(cause) from None


def _signs(entry: Entry, certificate: Certificate) -> bool:
    return entry.marker == "@cert-authority" and entry.key == certificate.authority


def _plain_name(target: Target) -> str:
    return target.key_name if target.aliased else target.hostname


def _authority_algorithms(target: Target) -> tuple[str, ...]:
    return restrict(_AUTHORITY_ALGORITHMS, dict(target.algorithms).get("casignaturealgorithms", "*"))


def _check_revoked(
    target: Target, entries: Sequence[Entry], key: bytes, certificate: Certificate | None, shown: str
) -> None:
    keys = {key, certificate.authority} if certificate else {key}
    found = [f"{entry} ({entry.names})" for entry in entries if entry.marker == "@revoked" and entry.key in keys]
    if keys & read_revoked(target.revoked_keys):
        found.append(f"RevokedHostKeys {' '.join(target.revoked_keys)}")
    if found:
        message = f"the host key of {target.key_name} ({shown}) is revoked at {', '.join(found)}"
        raise Failed(Cause(CauseKind.HOST_KEY_REVOKED, message, "do not connect; ask who runs that host"))


def _add(target: Target, key_type: str, key: bytes) -> str:
    shown = make_fingerprint(key)
    if not target.user_known_hosts:
        return f"its host key {key_type} {shown} is new; UserKnownHostsFile names no file to remember it"
    path = target.user_known_hosts[0]
    if path == "/dev/null":  # the user's wish to hear nothing of it
        return ""
    try:
        add_known_host(path, target.key_name, key_type, key, target.hash_names)
    except OSError as error:
        return f"its host key {shown} was accepted, but not added to {path}: {error.strerror}"
    return f"its host key {key_type} {shown} is new and was added to {path}"


def _explain(certificate: Certificate | None, fault: str, verdict: Verdict) -> str:
    if fault and certificate:
        return f"; its certificate {certificate.key_id!r} does not help: {fault}"
    if verdict is Verdict.AUTHORITY:
        return ", which it has not signed" if certificate else ", and the server shows no certificate"
    return ""


def _make_cause(target: Target, verdict: Verdict, found: Sequence[Entry], shown: str, more: str) -> Cause:
    name, places = target.key_name, ", ".join(f"{entry} ({entry.names})" for entry in found)
    if verdict is Verdict.CHANGED:
        message = f"the host key of {name} has changed: it shows {shown}, another one is known at {places}{more}"
        remove = shlex.join(["ssh-keygen", "-f", found[0].source, "-R", name])
        hint = f"someone may be in between; if the host was installed anew: `{remove}`, then `{target.login}` once"
        return Cause(CauseKind.HOST_KEY_CHANGED, message, hint)
    message = f"the host key of {name} ({shown}) is not in {' or '.join(target.known_hosts) or 'any file'}"
    if verdict is Verdict.OTHER_TYPE:
        message += f"; other types are, at {places}"
    elif verdict is Verdict.AUTHORITY:
        message += f"; a @cert-authority is, at {places}"
    return Cause(CauseKind.HOST_KEY_UNKNOWN, message + more, _make_hint(target, verdict))


def _make_hint(target: Target, verdict: Verdict) -> str:
    port = ["-p", str(target.port)] if target.port != 22 else []
    scan = shlex.join(["ssh-keyscan", *port, target.hostname])
    file = shlex.quote(target.known_hosts[0]) if target.known_hosts else "~/.ssh/known_hosts"
    if verdict is Verdict.OTHER_TYPE:  # for ssh that is a changed key, too, whatever the policy: it would not add it
        return f"someone may be in between, also with accept-new; compare it and add it with `{scan} >> {file}`"
    return f"compare it and add it with `{target.login}` or `{scan} >> {file}`, or use --host-key-policy accept-new"
