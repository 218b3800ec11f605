"""Owns: the line to an ssh agent: which keys it holds, and having it sign.
Must not: add or remove keys, wait for ever, or know paramiko (its keys have the methods that paramiko asks for).
Called by: launch.ssh_keys."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

from meshrun.launch.ssh_cert import SUFFIX, count_rsa_bits, parse_certificate, read_type

_ASK_KEYS, _KEYS, _ASK_SIGN, _SIGNED = 11, 12, 13, 14
# An agent may ask its owner to confirm a signature, or to touch a key; nobody should have to hurry.
_ANSWER_S = 30.0
_MAX_ANSWER = 4 * 1024 * 1024
_FLAGS = {"rsa-sha2-256": 2, "rsa-sha2-512": 4}


class AgentError(Exception):
    """The agent does not answer, or not as one; the message is for the user."""


class AgentKey:
    """A key, or a certificate, that the agent holds. Looks like a key of paramiko's."""

    def __init__(self, agent: Agent, blob: bytes, comment: str) -> None:
        self._agent, self.blob, self.comment = agent, blob, comment
        self.type = read_type(blob)
        self.public_blob: object = None  # paramiko: a certificate to show instead of the key

    @property
    def certified(self) -> bytes:
        """The plain key that a certificate is for; of a plain key, itself."""
        if not self.type.endswith(SUFFIX):
            return self.blob
        try:
            return parse_certificate(self.blob).key
        except ValueError:
            return self.blob

    def get_name(self) -> str:
        return self.type

    def get_bits(self) -> int:
        return count_rsa_bits(self.certified)

    def asbytes(self) -> bytes:
        return self.blob

    def sign_ssh_data(self, data: bytes, algorithm: str | None = None) -> bytes:
        flags = _FLAGS.get((algorithm or "").removesuffix(SUFFIX), 0)
        return self._agent.sign(self.blob, data, flags)


class Agent:
    """One connection. Raises AgentError where nobody answers."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._turn = threading.Lock()
        self._line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._line.settimeout(_ANSWER_S)
        try:
            self._line.connect(path)
        except (OSError, ValueError) as error:
            self._line.close()
            reason = getattr(error, "strerror", None) or str(error)
            raise AgentError(f"no ssh agent answers at {path}: {reason}") from None

    def list_keys(self) -> list[AgentKey]:
        kind, body = self._ask(bytes([_ASK_KEYS]))
        if kind != _KEYS:
            raise AgentError(f"the ssh agent at {self._path} does not show its keys")
        found = []
        count, rest = int.from_bytes(body[:4], "big"), body[4:]
        for _ in range(count):
            blob, rest = _cut(rest)
            comment, rest = _cut(rest)
            found.append(AgentKey(self, blob, comment.decode("utf-8", "replace")))
        return found

    def sign(self, blob: bytes, data: bytes, flags: int) -> bytes:
        kind, body = self._ask(bytes([_ASK_SIGN]) + _pack(blob) + _pack(data) + flags.to_bytes(4, "big"))
        if kind != _SIGNED:
            raise AgentError("the ssh agent refuses to sign")
        return _cut(body)[0]

    def close(self) -> None:
        with suppress(OSError):
            self._line.close()

    def _ask(self, request: bytes) -> tuple[int, bytes]:
        try:
            with self._turn:
                self._line.sendall(_pack(request))
                size = int.from_bytes(self._read(4), "big")
                if not 0 < size <= _MAX_ANSWER:
                    raise AgentError(f"what answers at {self._path} is no ssh agent")
                answer = self._read(size)
        except OSError as error:
            raise AgentError(f"the ssh agent at {self._path} fell silent: {error}") from None
        return answer[0], answer[1:]

    def _read(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            piece = self._line.recv(count - len(data))
            if not piece:
                raise AgentError(f"the ssh agent at {self._path} hung up")
            data += piece
        return data


def _pack(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


def _cut(data: bytes) -> tuple[bytes, bytes]:
    size = int.from_bytes(data[:4], "big")
    if len(data) < 4 + size:
        raise AgentError("the ssh agent's answer ends too early")
    return data[4 : 4 + size], data[4 + size :]
