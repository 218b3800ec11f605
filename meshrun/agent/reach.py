"""Owns: the measuring of node 0's address: the offer (listening on node 0) and the try (connecting from the others).
Must not: exchange a byte over these connections, or block.
Called by: agent.loop."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable

from meshrun.agent import netlink
from meshrun.agent.reactor import READ, WRITE, Reactor
from meshrun.wire import Reached, TryAddresses

_BACKLOG = 4096


class Offer:
    """Accept and close on every address of this node, so that the others can see which of them they reach."""

    def __init__(self, reactor: Reactor, port: int) -> None:
        """Raises OSError if the port is in use."""
        self._reactor = reactor
        self._socket = _listen_anywhere(port)
        self._socket.setblocking(False)
        self.port: int = self._socket.getsockname()[1]
        reactor.watch(self._socket.fileno(), READ, self._accept)

    def _accept(self, events: int) -> None:
        try:
            while True:
                self._socket.accept()[0].close()
        except OSError:
            return

    def close(self) -> None:
        """Stop listening."""
        if self._socket.fileno() >= 0:
            self._reactor.unwatch(self._socket.fileno())
            self._socket.close()


def _listen_anywhere(port: int) -> socket.socket:
    """IPv6 and IPv4 in one socket where the kernel has IPv6."""
    try:
        return _listen(socket.AF_INET6, ("::", port))
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise
        return _listen(socket.AF_INET, ("0.0.0.0", port))


def _listen(family: int, address: tuple[object, ...]) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1 if address[0] != "::" else 0)
        sock.bind(address)
        sock.listen(_BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock


def listen_at(address: str, port: int) -> socket.socket:
    """A listening socket at this one address (a numeric address or a name of this node). Raises OSError."""
    family, target = netlink.resolve(address, port)
    return _listen(family, target)


class Try:
    """Connect to all addresses at once; `done(Reached)` when each has answered or the time is up."""

    def __init__(self, reactor: Reactor, request: TryAddresses, done: Callable[[Reached], None]) -> None:
        self._reactor, self._done = reactor, done
        self._order = request.addresses
        self._reached: dict[str, str] = {}
        self._refused: dict[str, str] = {}
        self._open: dict[str, socket.socket] = {}
        self._reported = False
        for address in request.addresses:
            self._begin(address, request.port)
        reactor.call_at(reactor.now() + request.timeout_s, self._expire)
        self._finish()

    def _begin(self, address: str, port: int) -> None:
        try:
            family, target = netlink.resolve(address, port)
            sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        except OSError as error:
            self._refused[address] = error.strerror or str(error)
            return
        self._open[address] = sock
        number = sock.connect_ex(target)
        if number not in (0, errno.EINPROGRESS):
            self._end(address, number)
        else:
            self._reactor.watch(sock.fileno(), WRITE, lambda _: self._connected(address))

    def _connected(self, address: str) -> None:
        self._end(address, self._open[address].getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
        self._finish()

    def _end(self, address: str, number: int) -> None:
        sock = self._open.pop(address)
        if number:
            self._refused[address] = os.strerror(number)
        else:
            self._reached[address] = netlink.find_interface(sock.getsockname()[0])
        self._reactor.unwatch(sock.fileno())
        sock.close()

    def _expire(self) -> None:
        for address in list(self._open):
            self._end(address, errno.ETIMEDOUT)
        self._finish()

    def _finish(self) -> None:
        if self._open or self._reported:
            return
        self._reported = True
        reached = {address: self._reached[address] for address in self._order if address in self._reached}
        self._done(Reached(reached, self._refused))
