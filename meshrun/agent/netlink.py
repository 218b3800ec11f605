"""Owns: this node's addresses and the interfaces they are on, asked from the kernel.
Must not: resolve names or send anything into the network.
Called by: agent.probe (addresses), agent.reach and agent.loop (interfaces)."""

from __future__ import annotations

import os
import socket
import struct

from meshrun.dataclass import dataclass

_RTM_GETADDR, _NLMSG_DONE, _NLMSG_ERROR = 22, 3, 2
_REQUEST_DUMP = 0x301
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_HEAD, _ADDRESS, _ATTRIBUTE = struct.Struct("=IHHII"), struct.Struct("=BBBBI"), struct.Struct("=HH")
_GLOBAL, _HOST = 0, 254
# Bridges that containers and virtual machines hang on: real addresses, but rarely the way to another node.
_VIRTUAL = ("docker", "virbr", "veth", "br-", "cni", "flannel", "cali", "podman", "lxcbr")


@dataclass(frozen=True, slots=True)
class Address:
    """One address of this node."""

    address: str
    interface: str
    family: int
    scope: int


def read_addresses() -> list[Address]:
    """All addresses in the kernel's order. Empty where netlink is not allowed."""
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0) as link:
            link.send(_HEAD.pack(_HEAD.size + 8, _RTM_GETADDR, _REQUEST_DUMP, 1, 0) + _ADDRESS.pack(0, 0, 0, 0, 0))
            return _receive(link)
    except OSError:
        return []


def _receive(link: socket.socket) -> list[Address]:
    found: list[Address] = []
    while True:
        data = link.recv(65536)
        while len(data) >= _HEAD.size:
            length, kind, *_ = _HEAD.unpack_from(data)
            if kind in (_NLMSG_DONE, _NLMSG_ERROR):
                return found
            address = parse_address(data[_HEAD.size : length])
            if address:
                found.append(address)
            data = data[(length + 3) & ~3 :]


def parse_address(body: bytes) -> Address | None:
    """One RTM_NEWADDR body. A point-to-point interface has its own address in IFA_LOCAL, the peer's in IFA_ADDRESS."""
    family, _, _, scope, index = _ADDRESS.unpack_from(body)
    values: dict[int, bytes] = {}
    at = _ADDRESS.size
    while at + _ATTRIBUTE.size <= len(body):
        length, kind = _ATTRIBUTE.unpack_from(body, at)
        if length < _ATTRIBUTE.size:
            break
        values[kind] = body[at + _ATTRIBUTE.size : at + length]
        at += (length + 3) & ~3
    packed = values.get(_IFA_LOCAL) or values.get(_IFA_ADDRESS)
    if family not in (socket.AF_INET, socket.AF_INET6) or not packed:
        return None
    return Address(socket.inet_ntop(family, packed), socket.if_indextoname(index), family, scope)


def order_addresses(addresses: list[Address], first: str = "") -> tuple[str, ...]:
    """Best first: the one the login came to, then global IPv4, global IPv6, container bridges, loopback last."""

    def rank(item: Address) -> tuple[bool, bool, bool, bool]:
        loop = item.scope == _HOST
        return loop, item.interface.startswith(_VIRTUAL), item.family == socket.AF_INET6, item.address != first

    usable = [item for item in addresses if item.scope in (_GLOBAL, _HOST)]
    chosen = [item.address for item in usable if item.address == first and item.scope == _GLOBAL]
    return tuple(dict.fromkeys(chosen + [item.address for item in sorted(usable, key=rank)]))


def login_address() -> str:
    """The address of ours that the SSH login came to, "" if there was none."""
    parts = os.environ.get("SSH_CONNECTION", "").split()
    return parts[2] if len(parts) == 4 else ""


def find_interface(address: str) -> str:
    """The interface that has `address`, "" if none does."""
    return next((item.interface for item in read_addresses() if item.address == address.partition("%")[0]), "")


def resolve(address: str, port: int) -> tuple[int, tuple[object, ...]]:
    """Family and socket address of a numeric address or a name. Raises OSError. Bytes, so that no codec is loaded."""
    found = socket.getaddrinfo(address.encode("utf-8", "surrogateescape"), port, type=socket.SOCK_STREAM)
    return found[0][0], found[0][4]


def find_interface_towards(address: str, port: int) -> str:
    """The interface that packets to `address` leave by, as routing says; nothing is sent. "" if there is no route."""
    try:
        family, target = resolve(address, port or 9)
        with socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as probe:
            probe.connect(target)
            return find_interface(probe.getsockname()[0])
    except OSError:
        return ""
