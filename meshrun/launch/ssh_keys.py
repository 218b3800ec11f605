"""Owns: which keys are offered to a server, in which order, and logging in with them.
Must not: ask for a passphrase or a password; accept a server (host_key.py does).
Called by: launch.ssh_transport."""

from __future__ import annotations

import copy
import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

import paramiko
from paramiko.pkey import PublicBlob

from meshrun.dataclass import dataclass, replace
from meshrun.errors import Cause, CauseKind
from meshrun.launch.ssh_agent import Agent, AgentError, AgentKey
from meshrun.launch.ssh_cert import (
    SUFFIX,
    Certificate,
    count_rsa_bits,
    parse_certificate,
    read_public_line,
    read_public_part,
    read_type,
)
from meshrun.launch.ssh_connect import Failed
from meshrun.launch.ssh_target import Target
from meshrun.launch.ssh_words import restrict

Key = paramiko.PKey | AgentKey
_CLASSES = (paramiko.Ed25519Key, paramiko.ECDSAKey, paramiko.RSAKey)
_PLAIN = (
    "ssh-ed25519",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "rsa-sha2-512",
    "rsa-sha2-256",
)
ALGORITHMS = (*_PLAIN, *(name + SUFFIX for name in _PLAIN))
_MISSING = "no such file"
_LOCKED = "it needs a passphrase and is not in the agent"


@dataclass(frozen=True, slots=True)
class Offer:
    """A key to try, or the reason why there is none."""

    label: str
    key: Key | None = None
    why_not: str = ""

    def __str__(self) -> str:
        return f"{self.label} ({self.why_not})" if self.why_not else self.label


def log_in(transport: paramiko.Transport, target: Target) -> None:
    """Public keys only. Raises Failed, naming all that was tried, in order."""
    if target.no_keys:
        raise _refuse(target, [], target.no_keys)
    tried: list[Offer] = []
    agent, held, why_not = _open_agent(target)
    try:
        for offer in find_offers(target, held):
            tried.append(offer)
            if offer.key is not None and _try_key(transport, target, offer.key, tried):
                return
    finally:
        if agent:
            agent.close()
    raise _refuse(target, tried + why_not, "")


def _refuse(target: Target, tried: Sequence[Offer], why: str) -> Failed:
    """Why nobody was let in, with all that was tried, in order."""
    message = f"{target.hostname} does not let {target.user} in" + (f": {why}" if why else "")
    message += f"; tried in order: {', '.join(map(str, tried))}" if tried else "; there was no key to try"
    hint = f"make `{target.login}` work without a password, or see --identity"
    if locked := [shlex.quote(offer.label) for offer in tried if offer.why_not == _LOCKED]:
        start = "" if target.agent else "start an agent (`eval $(ssh-agent)`), then "
        hint = f"{start}`ssh-add {' '.join(locked)}` asks for the passphrase once; or {hint}"
    return Failed(Cause(CauseKind.AUTH, message, hint))


def _open_agent(target: Target) -> tuple[Agent | None, list[AgentKey], list[Offer]]:
    """The agent, its keys, and why there are none."""
    if not target.agent:
        return None, [], []
    try:
        agent = Agent(target.agent)
        return agent, agent.list_keys(), []
    except AgentError as error:
        return None, [], [Offer(str(error))]


def _try_key(transport: paramiko.Transport, target: Target, key: Key, tried: list[Offer]) -> bool:
    try:
        rest = transport.auth_publickey(target.user, key)  # type: ignore[arg-type]
    except paramiko.BadAuthenticationType as error:
        raise _refuse(target, tried, f"it only offers {', '.join(error.allowed_types)}") from None
    except AgentError as error:
        tried[-1] = replace(tried[-1], why_not=str(error))
        return False
    except (paramiko.SSHException, EOFError, OSError):
        if transport.is_active():
            return False
        if len(tried) == 1:
            message = f"{target.hostname} port {target.port} closed the connection during login"
            raise Failed(Cause(CauseKind.DROPPED, message)) from None
        raise _refuse(target, tried, "it closed the connection (MaxAuthTries)") from None
    if rest:
        raise _refuse(target, tried, f"it also wants {', '.join(rest)}")
    return True


def find_offers(target: Target, held: Sequence[AgentKey]) -> Iterator[Offer]:
    """Configured files, then what the agent has beyond them, then the default files that are there.

    Among the agent's, those that a default file names come first, as with ssh: a crowd of others must not use up what
    the server allows."""
    ring = _Ring(target, held)
    for path in target.identities:
        yield from ring.offer_file(path)
    for path in target.certificates:
        yield from ring.offer_lone_certificate(path)
    held_defaults = [path for path in target.default_keys if read_public_key(path) in ring.held]
    for path in held_defaults:
        yield from ring.offer_file(path)
    if not target.identities_only:
        yield from ring.offer_held()
    for path in target.default_keys:
        if path not in held_defaults:
            yield from (offer for offer in ring.offer_file(path) if offer.why_not != _MISSING)


class _Ring:
    """The keys of one login. What was offered once is not offered again."""

    def __init__(self, target: Target, held: Sequence[AgentKey]) -> None:
        self._allowed = find_allowed(target)
        self._bits = target.rsa_bits
        self._certificates = [(path, *found) for path in target.certificates if (found := _load_certificate(path))]
        self._used: set[bytes] = set()
        self.held = {key.blob: key for key in held}

    def offer_file(self, path: str) -> Iterator[Offer]:
        """With its certificates first; from the agent if the file is locked and the agent has it."""
        key: Key | str = load_key(path)
        if isinstance(key, str):
            held = self.held.get(read_public_key(path))
            if held is None:
                yield Offer(path, None, key)
                return
            key = held
        yield from self._offer_certified(path, key)
        yield from self._offer(path, key)

    def _offer_certified(self, path: str, key: Key) -> Iterator[Offer]:
        implicit = _load_certificate(f"{path}-cert.pub")
        found = self._certificates or ([(f"{path}-cert.pub", *implicit)] if implicit else [])
        for name, blob, certificate in found:
            if certificate.key == key.asbytes():
                yield from self._offer(name, _certify(key, blob))

    def offer_lone_certificate(self, path: str) -> Iterator[Offer]:
        """A CertificateFile whose key is in the agent, or that cannot be used at all."""
        found = _load_certificate(path)
        if found is None:
            yield Offer(path, None, "not a certificate that can be read")
            return
        held = self.held.get(found[1].key) or self.held.get(found[0])
        if held is not None:
            yield from self._offer(path, held if held.blob == found[0] else _certify(held, found[0]))

    def offer_held(self) -> Iterator[Offer]:
        """What the agent has and was not offered yet."""
        for key in self.held.values():
            yield from self._offer(f"agent key {key.comment or key.type}", key)

    def _offer(self, label: str, key: Key) -> Iterator[Offer]:
        shown = getattr(key.public_blob, "key_blob", None) or key.asbytes()
        if shown in self._used:
            return
        self._used.add(shown)
        why_not = self._find_fault(read_type(shown), key)
        yield Offer(label, None, why_not) if why_not else Offer(label, key)

    def _find_fault(self, key_type: str, key: Key) -> str:
        if key_type.startswith("sk-"):
            return "a FIDO key; --ssh-client openssh can use it"
        family = {key_type} if "rsa" not in key_type else _name_rsa(key_type)
        if not family & set(ALGORITHMS):
            return f"{key_type} is no type that paramiko can use"
        if not family & set(self._allowed):
            return "PubkeyAcceptedAlgorithms leaves it out"
        bits = count_rsa_bits(key.certified if isinstance(key, AgentKey) else key.asbytes())
        return f"{bits} bits are below RequiredRSASize" if 0 < bits < self._bits else ""


def _name_rsa(key_type: str) -> set[str]:
    end = SUFFIX if key_type.endswith(SUFFIX) else ""
    return {f"rsa-sha2-512{end}", f"rsa-sha2-256{end}"}


def find_allowed(target: Target) -> tuple[str, ...]:
    """The signature algorithms that PubkeyAcceptedAlgorithms leaves."""
    return restrict(ALGORITHMS, dict(target.algorithms).get("pubkeyacceptedalgorithms", "*"))


def _certify(key: Key, blob: bytes) -> Key:
    certified = copy.copy(key)  # the one that is loaded is shared
    certified.public_blob = PublicBlob(read_type(blob), blob)
    return certified


def _load_certificate(path: str) -> tuple[bytes, Certificate] | None:
    """A certificate of a user, None for a file that has none."""
    blob = read_public_line(_read(path))
    try:
        certificate = parse_certificate(blob)
    except ValueError:
        return None
    return None if certificate.is_host else (blob, certificate)


def read_public_key(path: str) -> bytes:
    """The public half of an IdentityFile, as far as it can be had without a passphrase; b"" if it cannot. The file may
    be the public half itself: then the agent has the other one."""
    own = _read(path)
    return read_public_part(own) or read_public_line(own) or read_public_line(_read(f"{path}.pub"))


def _read(path: str) -> bytes:
    with suppress(OSError):
        return Path(path).read_bytes()
    return b""


@lru_cache(maxsize=64)
def load_key(path: str) -> paramiko.PKey | str:
    """The private key, or why it cannot be used."""
    try:
        status = Path(path).stat()
        if status.st_uid == os.getuid() and status.st_mode & 0o077:
            return f"others may read it, so ssh would not use it: chmod 600 {path}"
        Path(path).read_bytes()
    except FileNotFoundError:
        return _MISSING
    except OSError as error:
        return error.strerror or "unreadable"
    for kind in _CLASSES:
        try:
            return kind.from_private_key_file(path)
        except paramiko.PasswordRequiredException:
            return _LOCKED
        except Exception as error:  # each class and each format has its own way to say: not mine
            if "password" in str(error).lower():
                return _LOCKED
    return "not a private key that paramiko can read"
