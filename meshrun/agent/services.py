"""Owns: the node's two service processes: the fork server and the rendezvous store with its socket.
Must not: decide when they are needed.
Called by: agent.loop."""

from __future__ import annotations

import errno
import os
import signal
import socket
from collections.abc import Callable, Mapping
from typing import Any

from meshrun.agent import procs
from meshrun.agent.events import Event, FromServer, ServerLost, Started, StoreBound, StoreRefused
from meshrun.agent.link import Link
from meshrun.agent.reactor import READ, Reactor
from meshrun.agent.spawn import explain_refusal, start_role
from meshrun.wire import Brief, Forked, ForkStore, OpenStore

Deliver = Callable[[Event], None]
_LAST_WORDS = 2000
_LAST_WORDS_S = 0.5
_REBIND_S, _REBIND_EVERY_S = 1.0, 0.02


class ForkServer:
    """The process that imports torch once and forks the workers; `pid` 0: there is none."""

    def __init__(self, reactor: Reactor, deliver: Deliver, bundle: str, tmp: str) -> None:
        self._reactor, self._deliver, self._bundle, self._tmp = reactor, deliver, bundle, tmp
        self._link: Link | None = None
        self.pid = 0

    def start(self, brief: Brief, env: Mapping[str, str]) -> None:
        """Start it; `FromServer` or `ServerLost` follows."""
        modules = (*(("torch",) if brief.init != "off" else ()), *brief.preload)
        link = Link(self._reactor, self._heard, self._let_go)
        said = os.open(f"{self._tmp}/server.err", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            far = link.far.fileno()
            # Only a preloaded module of the user's may be found in the working directory; torch's imports must not be.
            own = any(not name.endswith("?") for name in brief.preload)
            folder = brief.workdir if own else self._tmp
            arguments = [str(far), ",".join(modules)]
            self.pid = start_role(self._bundle, "forkserver", arguments, env, folder, (said, said), [far])
            self._link = link
        except OSError as error:
            link.close()
            self._deliver(ServerLost(explain_refusal(error)))
        finally:
            os.close(said)
            link.far.close()

    def _heard(self, message: Any) -> None:
        if isinstance(message, Forked):
            self._deliver(Started(message.rank, message.pid, self._reactor.now()))
        else:
            self._deliver(FromServer(message))

    def send(self, message: Any, fds: tuple[int, ...] = ()) -> None:
        """Queue a message with descriptors that become its own."""
        if self._link is not None and self._link.open:
            self._link.send(message, fds)
        else:
            for fd in fds:
                os.close(fd)

    def drain(self) -> None:
        """Take in what it said before it ended."""
        if self._link is not None:
            self._link.drain()

    def _let_go(self) -> None:
        """It has closed its line. From Python 3.12 on that may come before what it says as it ends of an exception."""
        self._reactor.call_at(self._reactor.now() + _LAST_WORDS_S, self.kill)

    def ended(self, how: str) -> None:
        """It has been reaped: say so, with what it wrote last."""
        self.pid = 0
        if self._link is not None:
            self._link.close()
        self._deliver(ServerLost("\n".join(filter(None, (how, self._read_last_words())))))

    def _read_last_words(self) -> str:
        try:
            with open(f"{self._tmp}/server.err", "rb") as file:
                return file.read()[-_LAST_WORDS:].decode("utf-8", "replace").strip()
        except OSError:
            return ""

    def kill(self) -> None:
        """End it now; it is reaped like any child."""
        if self.pid:
            procs.send_signal(self.pid, signal.SIGKILL)


class StoreHolder:
    """The listening socket of the rendezvous, and the process that serves it (`pid` 0: none that we know of)."""

    def __init__(self, reactor: Reactor, deliver: Deliver, bundle: str, tmp: str) -> None:
        self._reactor, self._deliver, self._bundle, self._tmp = reactor, deliver, bundle, tmp
        self._socket: socket.socket | None = None
        self._link: Link | None = None
        self.pid = 0
        self.ending = 0  # the store of the attempt before, killed but not reaped yet

    def bind(self, request: OpenStore, until: float | None = None) -> None:
        """Take the port; `StoreBound` or `StoreRefused` follows. The last attempt's store may hold it a moment more."""
        from meshrun.agent import reach

        try:
            listening = reach.listen_at(request.address, request.port)
        except OSError as error:
            now = self._reactor.now()
            until = now + _REBIND_S if until is None else until
            if error.errno == errno.EADDRINUSE and self.ending and now < until:
                self._reactor.call_at(now + _REBIND_EVERY_S, lambda: self.bind(request, until))
            else:
                self._deliver(StoreRefused(_explain(request, error)))
            return
        port = listening.getsockname()[1]
        if request.bind:
            self._socket = listening
        else:
            listening.close()
        self._deliver(StoreBound(port))

    def serve_forked(self, message: ForkStore, server: ForkServer) -> None:
        """Hand the socket to a process forked from `server`, which says `Started`."""
        assert self._socket is not None
        server.send(message, (os.dup(self._socket.fileno()),))

    def serve_afresh(self, message: ForkStore, env: Mapping[str, str], at_once: bool) -> None:
        """Hand the socket to a fresh interpreter, now or when somebody connects; `Started` follows."""
        assert self._socket is not None
        if at_once:
            self._start(message, env)
        else:
            self._reactor.watch(self._socket.fileno(), READ, lambda _: self._start(message, env))

    def _start(self, message: ForkStore, env: Mapping[str, str]) -> None:
        assert self._socket is not None
        self._reactor.unwatch(self._socket.fileno())
        self._link = Link(self._reactor, lambda message: None, lambda: None)
        self._link.send(message, (os.dup(self._socket.fileno()),))
        nothing = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        far = self._link.far.fileno()
        try:
            pid = start_role(self._bundle, "store", [str(far), ""], env, self._tmp, (nothing, nothing), [far], nice=10)
            self._deliver(Started(-1, pid, self._reactor.now()))
        except OSError:
            self._link.close()
        finally:
            os.close(nothing)
            self._link.far.close()

    def started(self, pid: int) -> None:
        """The process has the socket; ours would only keep the port open after it ended."""
        self.pid = pid
        self._close_socket()

    def _close_socket(self) -> None:
        if self._socket is not None:
            self._reactor.unwatch(self._socket.fileno())
            self._socket.close()
            self._socket = None

    def close(self) -> None:
        """End the store of this attempt."""
        self._close_socket()
        if self._link is not None:
            self._link.close()
        if self.pid:
            procs.send_signal(self.pid, signal.SIGKILL)
            self.ending, self.pid = self.pid, 0

    def reaped(self, pid: int) -> None:
        """Note that a child is gone, if it was a store."""
        if pid == self.pid:
            self.pid = 0
        if pid == self.ending:
            self.ending = 0


def _explain(request: OpenStore, error: OSError) -> str:
    place = f"{request.address}:{request.port}" if request.port else request.address
    if error.errno == errno.EADDRINUSE:
        return f"{place} is in use by another process"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{request.address} is not an address of this node"
    return f"the rendezvous cannot listen at {place}: {error.strerror or error}"
