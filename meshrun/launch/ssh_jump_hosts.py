"""Owns: connections to jump hosts, one for all nodes that go the same way, as ssh users know it from ControlMaster.
Must not: outlive the last node that goes through it, or make one node's end the end of the others.
Called by: launch.ssh."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress

import paramiko

from meshrun.errors import Cause, CauseKind
from meshrun.launch.ssh_connect import Failed, Stream, blame_jump, name_server, open_stream, take_turn, wait_limit_s
from meshrun.launch.ssh_target import Target
from meshrun.launch.ssh_transport import enter, forward

Route = tuple[Target, ...]

# More channels than this go over another connection: one process there, and one thread here, decrypts for all.
_MAX_USERS = 64
_ENDING_S = 0.3
_registry = threading.Lock()
_open: dict[Route, list[JumpHost]] = {}


class Closers:
    """What ends a connection that is being made or stands: run once, in order, also for what comes too late."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._closers: list[Callable[[], object]] = []
        self.closed = False

    def keep(self, closer: Callable[[], object]) -> None:
        """Raises Gone when it is all over already."""
        with self._lock:
            self._closers.append(closer)
            closed = self.closed
        if closed:
            self.close()
            raise Gone

    def close(self) -> None:
        with self._lock:
            self.closed = True
            closers, self._closers = self._closers, []
        for closer in closers:  # the socket first: that wakes every thread that waits on it
            with suppress(OSError, EOFError):
                closer()


class Gone(Exception):
    """The channel was closed while it was being opened."""


class JumpHost:
    """A connection to the last of `route`, by way of those before it. `ready`: the transport, or why there is none."""

    def __init__(self, route: Route, timeout_s: float, note: Callable[[str], None]) -> None:
        self.route, self.users = route, 0
        self.ready: Future[paramiko.Transport] = Future()
        self._closers = Closers()
        self._before: JumpHost | None = None
        args = (timeout_s, note)
        threading.Thread(target=self._connect, args=args, name=f"ssh-jump-{route[-1].name}", daemon=True).start()

    @property
    def usable(self) -> bool:
        """May another node join it?"""
        if self.users >= _MAX_USERS or self._closers.closed:
            return False
        return not self.ready.done() or (self.ready.exception() is None and self.ready.result().is_active())

    def find_broken(self) -> str:
        """The first server on the way whose connection is no more, "" if all stand."""
        before = self._before.find_broken() if self._before else ""
        if before or not self.ready.done() or self.ready.exception() is not None:
            return before
        transport = self.ready.result()
        transport.join(_ENDING_S)  # it tells its channels before it calls itself dead
        return "" if transport.is_active() else self.route[-1].name

    def close(self) -> None:
        self._closers.close()

    def _connect(self, timeout_s: float, note: Callable[[str], None]) -> None:
        hop = self.route[-1]
        try:
            transport, self._before = reach(self.route, timeout_s, self._closers, note)
            self.ready.set_result(transport)
        except Failed as failed:
            self.ready.set_exception(blame_jump(failed, hop))
        except Exception as error:  # paramiko's depths; whoever waits must hear of it
            gone = "closed" if isinstance(error, Gone) else f"{type(error).__name__}: {error}"
            cause = Cause(CauseKind.DROPPED, f"jump host {hop.name}: the connection failed ({gone})")
            self.ready.set_exception(Failed(cause))
        finally:
            if self.ready.exception() is not None:
                self.close()


def reach(
    route: Route, timeout_s: float, closers: Closers, note: Callable[[str], None]
) -> tuple[paramiko.Transport, JumpHost | None]:
    """Log in at the last of `route`, through those before it, of which the last is returned, too. Raises Failed, and
    Gone once `closers` are closed.

    `timeout_s` bounds each login, time spent waiting for others' not counted."""
    hop, before = route[-1], route[:-1]
    if not before:
        with take_turn(name_server(hop)):
            deadline = time.monotonic() + wait_limit_s(hop, timeout_s)
            with open_stream(hop, deadline, closers.keep) as stream:
                return enter(hop, stream, deadline, closers.keep, note), None
    jump = _join(before, timeout_s, note)
    closers.keep(lambda: _leave(jump))
    transport = jump.ready.result()
    with take_turn(name_server(hop)):
        deadline = time.monotonic() + wait_limit_s(hop, timeout_s)
        through: Stream = forward(transport, before[-1], hop, deadline)
        return enter(hop, through, deadline, closers.keep, note), jump


def _join(route: Route, timeout_s: float, note: Callable[[str], None]) -> JumpHost:
    with _registry:
        known = _open.setdefault(route, [])
        jump = next((jump for jump in known if jump.usable), None)
        if jump is None:
            jump = JumpHost(route, timeout_s, note)
            known.append(jump)
        jump.users += 1
        return jump


def _leave(jump: JumpHost) -> None:
    with _registry:
        jump.users -= 1
        last = jump.users == 0
        if last:
            _open[jump.route].remove(jump)
            if not _open[jump.route]:
                del _open[jump.route]
    if last:
        jump.close()
