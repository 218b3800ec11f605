"""Owns: accepting or refusing the key a server has shown, and the words for a refusal.
Must not: connect, or know paramiko; a changed or revoked key is refused whatever the policy.
Called by: launch.ssh."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from meshrun.errors import Cause, CauseKind
from meshrun.launch.known_hosts import Entry, Verdict, judge_key, make_fingerprint, select_entries
from meshrun.launch.ssh_config import Target
from meshrun.launch.ssh_connect import Failed
from meshrun.launch.ssh_files import add_known_host, read_known_hosts


def find_entries(target: Target) -> tuple[Entry, ...]:
    """What known_hosts says about this host, under its name with port and, if that is not 22, its bare name.

    Raises InputError for a file that cannot be read."""
    bare = target.key_name.startswith("[") and target.port != 22
    names = (target.key_name, target.hostname.lower()) if bare else (target.key_name,)
    return select_entries(read_known_hosts(target.known_hosts), names)


def judge_host(target: Target, entries: Sequence[Entry], key_type: str, key: bytes) -> str:
    """Returns a remark for the user ("" if there is nothing to say); raises Failed when the key is not acceptable.

    `entries`: of `find_entries`."""
    verdict, found = judge_key(entries, target.key_name, key_type, key)
    if verdict is Verdict.KNOWN:
        return ""
    if verdict is Verdict.UNKNOWN and target.accept_new:
        return _add(target, key_type, key)
    raise Failed(_make_cause(target, verdict, found, f"{key_type} {make_fingerprint(key)}"))


def _add(target: Target, key_type: str, key: bytes) -> str:
    path, shown = target.known_hosts[0], make_fingerprint(key)
    try:
        add_known_host(path, target.key_name, key_type, key)
    except OSError as error:
        return f"its host key {shown} was accepted, but not added to {path}: {error.strerror}"
    return f"its host key {key_type} {shown} is new and was added to {path}"


def _make_cause(target: Target, verdict: Verdict, found: Sequence[Entry], shown: str) -> Cause:
    name, places = target.key_name, ", ".join(f"{entry} ({entry.names})" for entry in found)
    if verdict is Verdict.REVOKED:
        message = f"the host key of {name} ({shown}) is revoked at {places}"
        return Cause(CauseKind.HOST_KEY_REVOKED, message, "do not connect; ask who runs that host")
    if verdict is Verdict.CHANGED:
        message = f"the host key of {name} has changed: it shows {shown}, another one is known at {places}"
        remove = shlex.join(["ssh-keygen", "-f", found[0].source, "-R", name])
        hint = f"someone may be in between; if the host was installed anew: `{remove}`, then `{target.login}` once"
        return Cause(CauseKind.HOST_KEY_CHANGED, message, hint)
    message = f"the host key of {name} ({shown}) is not in {' or '.join(target.known_hosts)}"
    if verdict is Verdict.OTHER_TYPE:
        message += f"; other types are, at {places}"
    elif verdict is Verdict.AUTHORITY:
        message += f"; only a @cert-authority is, at {places}, and certificates of hosts are not supported"
    return Cause(CauseKind.HOST_KEY_UNKNOWN, message, _make_hint(target, verdict))


def _make_hint(target: Target, verdict: Verdict) -> str:
    port = ["-p", str(target.port)] if target.port != 22 else []
    scan = shlex.join(["ssh-keyscan", *port, target.hostname])
    hint = f"compare it and add it with `{target.login}` or `{scan} >> {shlex.quote(target.known_hosts[0])}`"
    return hint + (", or use --host-key-policy accept-new" if verdict is Verdict.UNKNOWN else "")
