"""Owns: OpenSSH certificates as values: what one says, and whether it vouches for a host.
Must not: check signatures (ssh_transport.py does, with paramiko's keys), read files or the clock.
Called by: launch.host_key, ssh_keys, ssh_transport."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence

from meshrun.dataclass import dataclass
from meshrun.launch.ssh_words import match_pattern

SUFFIX = "-cert-v01@openssh.com"
_USER, _HOST = 1, 2
# How many strings of key material stand between the nonce and the serial number.
_PARTS = {
    "ssh-rsa": 2,
    "ssh-ed25519": 1,
    "ecdsa-sha2-nistp256": 2,
    "ecdsa-sha2-nistp384": 2,
    "ecdsa-sha2-nistp521": 2,
    "sk-ssh-ed25519": 2,
    "sk-ecdsa-sha2-nistp256": 3,
}


@dataclass(frozen=True, slots=True)
class Certificate:
    """`key` is the plain key that it is for, `authority` the one that signed `body`; both as ssh writes them."""

    key_type: str
    key: bytes
    key_id: str
    is_host: bool
    principals: tuple[str, ...]
    valid_after: int
    valid_before: int
    critical: bytes
    authority: bytes
    body: bytes
    signature: bytes

    @property
    def signature_type(self) -> str:
        """The algorithm of the authority's signature."""
        return _Cursor(self.signature).text()


class _Cursor:
    """Reads ssh's binary form. Raises ValueError where it ends too early."""

    def __init__(self, data: bytes) -> None:
        self._data, self.at = data, 0

    def take(self, count: int) -> bytes:
        piece = self._data[self.at : self.at + count]
        if len(piece) < count:
            raise ValueError("it ends too early")
        self.at += count
        return piece

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def string(self) -> bytes:
        return self.take(self.number(4))

    def text(self) -> str:
        return self.string().decode("utf-8", "surrogateescape")

    @property
    def more(self) -> bool:
        return self.at < len(self._data)


def read_type(blob: bytes) -> str:
    """The type that a public key or certificate gives itself, "" if it is neither."""
    try:
        return _Cursor(blob).text()
    except ValueError:
        return ""


def count_rsa_bits(blob: bytes) -> int:
    """The size of an RSA key; 0 for another key."""
    cursor = _Cursor(blob)
    try:
        if cursor.text() != "ssh-rsa":
            return 0
        cursor.string()
        return int.from_bytes(cursor.string(), "big").bit_length()
    except ValueError:
        return 0


def read_public_part(private: bytes) -> bytes:
    """The public key that OpenSSH's format for private keys shows without a passphrase; b"" if there is none."""
    lines = private.split(b"-----")
    try:
        data = base64.b64decode(b"".join(lines[2].split())) if len(lines) > 2 else b""
        magic = b"openssh-key-v1\0"
        cursor = _Cursor(data.removeprefix(magic))
        if not data.startswith(magic):
            return b""
        for _ in range(3):  # cipher, key derivation, its options
            cursor.string()
        cursor.number(4)
        return cursor.string()
    except ValueError:
        return b""


def read_public_line(line: bytes) -> bytes:
    """The key or certificate of a `.pub` file, b"" if it is none."""
    fields = line.split()
    try:
        blob = base64.b64decode(fields[1], validate=True) if len(fields) > 1 else b""
    except ValueError:
        return b""
    return blob if blob and read_type(blob) == fields[0].decode("ascii", "replace") else b""


def parse_certificate(blob: bytes) -> Certificate:
    """Raises ValueError for what is no certificate."""
    cursor = _Cursor(blob)
    written = cursor.text()
    plain = written.removesuffix(SUFFIX)
    if plain == written or plain not in _PARTS:
        raise ValueError(f"{written!r} is no certificate's type")
    cursor.string()  # a nonce
    start = cursor.at
    for _ in range(_PARTS[plain]):
        cursor.string()
    material = blob[start : cursor.at]
    key_type = plain + ("@openssh.com" if plain.startswith("sk-") else "")
    cursor.number(8)  # a serial number
    kind = cursor.number(4)
    if kind not in (_USER, _HOST):
        raise ValueError(f"{kind} is no kind of certificate")
    key_id, principals = cursor.text(), cursor.string()
    after, before = cursor.number(8), cursor.number(8)
    critical, _, _, authority = (cursor.string() for _ in range(4))
    end = cursor.at
    return Certificate(
        key_type=key_type,
        key=_pack(key_type.encode()) + material,
        key_id=key_id,
        is_host=kind == _HOST,
        principals=tuple(_split(principals)),
        valid_after=after,
        valid_before=before,
        critical=critical,
        authority=authority,
        body=blob[:end],
        signature=cursor.string(),
    )


def _pack(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


def _split(data: bytes) -> Sequence[str]:
    cursor, found = _Cursor(data), []
    while cursor.more:
        found.append(cursor.text())
    return found


Verify = Callable[[bytes, bytes, bytes], bool]


def find_fault(certificate: Certificate, host: str, now_s: float, algorithms: Sequence[str], verify: Verify) -> str:
    """Why this certificate does not vouch for `host`, "" if it does, provided that its authority is to be believed.

    `verify(key, data, signature)`; `algorithms`: those with which an authority may sign."""
    if not certificate.is_host:
        return "it is a user's certificate"
    if now_s < certificate.valid_after:
        return "it is not valid yet"
    if now_s >= certificate.valid_before:
        return "it has expired"
    if not any(match_pattern(host, principal) for principal in certificate.principals):
        return f"it is for {', '.join(certificate.principals) or 'nobody'}, not for {host}"
    if certificate.critical:
        return "it has a critical option, and none is known for hosts"
    if certificate.signature_type not in algorithms:
        return f"it is signed with {certificate.signature_type}, which CASignatureAlgorithms does not allow"
    if not verify(certificate.authority, certificate.body, certificate.signature):
        return "its signature is wrong"
    return ""
