"""Owns: one ssh connection over one stream: algorithms, handshake, host key, login, a way onwards, a command.
Must not: decide which stream, or what a host key is worth (host_key.py), or which keys to offer (ssh_keys.py).
Called by: launch.ssh, ssh_jump_hosts."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, Sequence

import paramiko

from meshrun.errors import Cause, CauseKind
from meshrun.launch.boot import COMMAND
from meshrun.launch.host_key import Proof, find_entries, judge_host
from meshrun.launch.known_hosts import find_types, has_authority
from meshrun.launch.ssh_cert import SUFFIX, read_type
from meshrun.launch.ssh_connect import Failed, Stream, time_left
from meshrun.launch.ssh_keys import ALGORITHMS, find_allowed, log_in
from meshrun.launch.ssh_target import Target
from meshrun.launch.ssh_words import restrict

# paramiko wakes up this often only to look whether it was closed; we wake it by shutting the socket down instead.
_IDLE_S = 30.0
# How often stderr is looked at when stdout is silent, until the agent greets.
_POLL_S = 0.5
# These need no message code beside them, which paramiko compares in Python: an eighth of all that a host costs.
_CIPHERS = "aes128-gcm@openssh.com,aes256-gcm@openssh.com,*"

logging.getLogger("paramiko").addHandler(logging.NullHandler())
logging.getLogger("paramiko").propagate = False

Keep = Callable[[Callable[[], object]], None]


class Transport(paramiko.Transport):
    """paramiko's, but it asks for the key types by which the host is known first, and for certificates only where an
    authority is known for it (paramiko alone would take one for a plain key)."""

    known_types: frozenset[str] = frozenset()
    certificates = False
    wish = "*"
    shown = b""  # the host key or certificate, as it came

    @property
    def preferred_keys(self) -> tuple[str, ...]:
        names = restrict(
            [name for name in super().preferred_keys if self.certificates or SUFFIX not in name], self.wish
        )
        if not self.wish.startswith(("*", "+", "-")):
            return names  # the config's own order
        return tuple(sorted(names, key=lambda name: (SUFFIX not in name, _family(name) not in self.known_types)))

    def _verify_key(self, host_key: bytes, sig: bytes) -> None:
        if self.shown and self.shown != host_key:  # keys are exchanged anew later on; only the first was judged
            raise paramiko.SSHException("the server shows another host key than before")
        super()._verify_key(host_key, sig)  # type: ignore[misc]
        self.shown = bytes(host_key)


def _family(algorithm: str) -> str:
    return "ssh-rsa" if algorithm.startswith("rsa-sha2-") else algorithm


def enter(hop: Target, stream: Stream, deadline: float, keep: Keep, note: Callable[[str], None]) -> Transport:
    """Shake hands, check the host key, log in; `keep` gets what ends it, `note` remarks for the user. Raises Failed."""
    entries = find_entries(hop)
    refused = [name for name in ALGORITHMS if name not in find_allowed(hop)]
    transport = Transport(stream, disabled_algorithms={"pubkeys": refused})  # type: ignore[arg-type]
    transport.daemon = True
    keep(transport.close)
    transport.known_types, transport.certificates = find_types(entries), has_authority(entries)
    _configure(transport, hop)
    _shake_hands(transport, hop, deadline)
    proof = Proof(transport.shown, transport.get_remote_server_key().asbytes(), _is_local(stream))
    if remark := judge_host(hop, entries, proof, _verify, time.time()):
        note(remark)
    transport.auth_timeout = time_left(deadline, hop)
    log_in(transport, hop)
    stream.settimeout(_IDLE_S)
    return transport


def _verify(key: bytes, data: bytes, signature: bytes) -> bool:
    try:
        authority = paramiko.PKey.from_type_string(read_type(key), key)
        return bool(authority.verify_ssh_sig(data, paramiko.Message(signature)))
    except Exception:  # a key or a signature that is none, in the words of each class
        return False


def _is_local(stream: Stream) -> bool:
    """Straight to a loopback address (and not by a proxy, which may lead anywhere)."""
    if not isinstance(stream, socket.socket) or stream.family == socket.AF_UNIX:
        return False
    address = stream.getpeername()[0]
    return bool(address == "::1" or address.startswith("127."))


def _configure(transport: Transport, hop: Target) -> None:
    options, wishes = transport.get_security_options(), dict(hop.algorithms)
    transport.wish = wishes.get("hostkeyalgorithms", "*")
    transport.use_compression(hop.compress)
    options.ciphers = restrict(options.ciphers, wishes.get("ciphers", _CIPHERS))
    options.digests = restrict(options.digests, wishes.get("macs", "*"))
    options.kex = restrict(options.kex, wishes.get("kexalgorithms", "*"))
    if not (options.ciphers and options.digests and options.kex and transport.preferred_keys):
        message = "the ssh config allows no algorithm that paramiko knows"
        raise Failed(Cause(CauseKind.CONFIG, message, "see Ciphers, MACs, KexAlgorithms, HostKeyAlgorithms there"))


def _shake_hands(transport: Transport, hop: Target, deadline: float) -> None:
    transport.banner_timeout = transport.handshake_timeout = left = time_left(deadline, hop)
    try:
        transport.start_client(timeout=left)
        transport.get_remote_server_key()  # raises if the time was over before there was one
    except paramiko.ssh_exception.IncompatiblePeer as error:
        raise Failed(Cause(CauseKind.CONFIG, f"{hop.hostname} speaks no ssh algorithm in common: {error}")) from None
    except (paramiko.SSHException, EOFError, OSError):
        time_left(deadline, hop)
        message = f"{hop.hostname} port {hop.port} closed the connection before login"
        raise Failed(Cause(CauseKind.DROPPED, message, "its sshd may be at MaxStartups, or is no sshd")) from None


def forward(transport: paramiko.Transport, hop: Target, after: Target, deadline: float) -> paramiko.Channel:
    """A stream from `hop` on to the next server. Raises Failed."""
    where = (after.hostname, after.port)
    try:
        return transport.open_channel("direct-tcpip", where, ("127.0.0.1", 0), timeout=time_left(deadline, hop))
    except paramiko.ChannelException as error:
        forbidden = error.code == 1
        kind = CauseKind.JUMP if forbidden else CauseKind.REFUSED
        message = f"{hop.name} does not forward to {after.hostname} port {after.port}: {error.text}"
        raise Failed(Cause(kind, message, "see AllowTcpForwarding in its sshd_config" if forbidden else "")) from None
    except (paramiko.SSHException, EOFError, OSError):
        time_left(deadline, hop)
        raise Failed(Cause(CauseKind.DROPPED, f"{hop.name} closed the connection")) from None


def execute(transport: paramiko.Transport, target: Target, deadline: float) -> paramiko.Channel:
    """The constant command, with the environment that the config sends. Raises Failed."""
    try:
        session = transport.open_session(timeout=time_left(deadline, target))
        _send_environment(session, target.environment)
        session.exec_command(COMMAND)
        session.settimeout(_POLL_S)
        return session
    except (paramiko.SSHException, EOFError, OSError) as error:
        if not transport.is_active():
            raise Failed(Cause(CauseKind.DROPPED, f"{target.hostname} closed the connection after login")) from None
        message = f"{target.hostname} let {target.user} in but ran no command: {error}"
        raise Failed(Cause(CauseKind.AGENT, message, "see ForceCommand and MaxSessions in its sshd_config")) from None


def _send_environment(session: paramiko.Channel, environment: Sequence[tuple[str, str]]) -> None:
    for name, value in environment:  # the server takes what its AcceptEnv allows, and says nothing about the rest
        session.set_environment_variable(os.fsencode(name), os.fsencode(value))
