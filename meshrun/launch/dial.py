"""Owns: a by-hand node's line to node 0: dialling until it answers, joining, then frames both ways.
Must not: let a command in, or decide what a lost line means for the run.
Called by: cli (makes the opener), launch.fleet through it."""

from __future__ import annotations

import errno
import random
import secrets
import socket
import threading
import time

from meshrun import wire
from meshrun.errors import Cause, CauseKind
from meshrun.launch import handshake
from meshrun.launch.channel import Channel, ChannelEvent, Closed, Deliver, Opened, Opener, Received, Unreachable
from meshrun.launch.crossing import DOWNWARD, UPWARD, Sieve
from meshrun.launch.handshake import Claim, Ear, Refusal, Refused, Side, Stage, Welcome
from meshrun.launch.lines import LINGER_S, Line, Lines, show_address

_TRY_S = 5.0  # one attempt to connect
# One handshake. Longer than node 0 gives one once it has taken it up: whoever waits in a long queue there and leaves it
# to come again only makes it longer.
_GREET_S = 15.0
_PAUSE_S = (0.1, 0.4)
_BUSY = (CauseKind.DROPPED, CauseKind.TIMED_OUT)  # node 0 had no time or no room for us: another attempt may succeed
_LEAVE_S = 0.5  # for an attempt that is under way when the dialler is closed


def dial(addr: str, port: int, claim: Claim, token: bytes, connect_timeout_s: float) -> Opener:
    """An opener for the line to node 0. What may heal is tried again for `connect_timeout_s`; then, or at once for what
    cannot heal, `Unreachable`. After `Opened` the first message is a `handshake.Welcome`."""

    def open_line(node: int, deliver: Deliver) -> Channel:
        return _Dialler(addr.strip("[]"), port, claim, token, connect_timeout_s, node, deliver)

    return open_line


class _Heals(Exception):
    """This attempt failed, another may succeed."""

    def __init__(self, kind: CauseKind, text: str) -> None:
        super().__init__(text)
        self.kind, self.text = kind, text


class _Dialler:
    """The channel to node 0, and the thread behind it."""

    def __init__(
        self, addr: str, port: int, claim: Claim, token: bytes, timeout_s: float, node: int, deliver: Deliver
    ) -> None:
        self._addr, self._port, self._claim, self._token = addr, port, claim, token
        self._timeout_s, self._node, self._deliver = timeout_s, node, deliver
        self._where = show_address(addr, port)
        self._closed = threading.Event()
        self._lines = Lines()
        self._line: Line | None = None
        self._sieve = Sieve(UPWARD)
        self._lines.start("meshrun-dial", self._run)

    def send(self, data: bytes) -> None:
        """Queue whole messages for node 0; those that may not cross are dropped."""
        self._lines.call(lambda: self._send(data))

    def close(self) -> None:
        """End the line after what is queued was sent (at most a second), or stop dialling; no event follows."""
        self._closed.set()
        self._lines.stop(2 * LINGER_S if self._line else _LEAVE_S)

    def _send(self, data: bytes) -> None:
        if self._line is not None:
            self._line.write(self._sieve.sift(data)[0])

    def _tell(self, event: ChannelEvent) -> None:
        if not self._closed.is_set():
            self._deliver(event)

    # -- in the dialling thread --

    def _run(self) -> None:
        try:
            sock, ear, welcome = self._join()
        except Refused as refused:
            self._tell(Unreachable(self._node, Cause(refused.kind, refused.message, refused.hint)))
            self._lines.stop()
        else:
            self._line = self._lines.add(sock, self._where)
            self._line.on_data = lambda data: self._hear(ear, data)
            self._line.on_end = self._lose
            self._tell(Opened(self._node))
            self._tell(Received(self._node, welcome))
            self._hear(ear, b"")  # what came together with the welcome
        self._lines.run()

    def _hear(self, ear: Ear, data: bytes) -> None:
        try:
            for message in ear.feed(data):
                if type(message) not in (*DOWNWARD, Refusal):
                    raise Refused(CauseKind.AUTH, f"it sent a {type(message).__name__}, which may not cross")
                self._tell(Received(self._node, message))
        except Refused as refused:
            if self._line is not None:
                self._line.close()
            self._lose(refused.message)

    def _lose(self, reason: str) -> None:
        self._tell(Closed(self._node, reason))

    def _join(self) -> tuple[socket.socket, Ear, Welcome]:
        """Dial until node 0 lets us in. Raises Refused."""
        end = time.monotonic() + self._timeout_s
        while not self._closed.is_set():
            try:
                return self._attempt(max(0.1, min(_TRY_S, end - time.monotonic())))
            except _Heals as problem:
                pause = random.uniform(*_PAUSE_S)
                if time.monotonic() + pause >= end or self._closed.wait(pause):
                    raise self._gave_up(problem) from None
        raise Refused(CauseKind.DROPPED, "closed while dialling")

    def _gave_up(self, problem: _Heals) -> Refused:
        text = f"node 0 did not answer at {self._where} within {self._timeout_s:g} s: {problem.text}"
        hint = "start the command with --node-rank 0 there; check --master-addr, --master-port and the firewall"
        return Refused(problem.kind, text, hint)

    def _attempt(self, limit_s: float) -> tuple[socket.socket, Ear, Welcome]:
        sock = self._connect(limit_s)
        try:
            return self._greet(sock)
        except Refused as refused:
            sock.close()
            if refused.kind in _BUSY:
                raise _Heals(refused.kind, f"it was too busy: {refused.message}") from None
            raise Refused(refused.kind, f"node 0 at {self._where}: {refused.message}", refused.hint) from None
        except OSError as error:
            sock.close()
            raise _Heals(*_explain(error)) from None
        except BaseException:
            sock.close()
            raise

    def _connect(self, limit_s: float) -> socket.socket:
        try:
            sock = socket.create_connection((self._addr, self._port), timeout=limit_s)
        except (OSError, UnicodeError) as error:
            raise _Heals(*_explain(error)) from None
        # A port that nobody listens on, dialled again and again on one's own machine, may connect to itself in the end.
        if sock.getsockname() == sock.getpeername():
            sock.close()
            raise _Heals(CauseKind.REFUSED, "connection refused")
        return sock

    def _greet(self, sock: socket.socket) -> tuple[socket.socket, Ear, Welcome]:
        side = Side(self._token, secrets.token_hex(handshake.NONCE_BYTES), self._claim)
        ear, end = Ear(), time.monotonic() + _GREET_S
        sock.sendall(handshake.PREAMBLE + wire.encode(side.hello))
        while True:
            sock.settimeout(max(0.05, end - time.monotonic()))
            data = sock.recv(wire.MAX_UNTRUSTED_FRAME) if time.monotonic() < end else b""
            if not data:
                raise _Heals(CauseKind.DROPPED, "the connection ended before node 0 let us in")
            for heard in ear.feed(data):
                side, answer = handshake.advance_node(side, heard)
                if side.stage is Stage.JOINED:
                    ear.trust(wire.MAX_FRAME)
                    return sock, ear, answer
                sock.sendall(wire.encode(answer))


def _explain(error: OSError | UnicodeError) -> tuple[CauseKind, str]:
    """The kind and the plain words of a failed connection."""
    if isinstance(error, socket.gaierror | UnicodeError):
        return CauseKind.NAME_UNKNOWN, "the name is not known here"
    if isinstance(error, ConnectionRefusedError):
        return CauseKind.REFUSED, "connection refused"
    if isinstance(error, TimeoutError):
        return CauseKind.TIMED_OUT, "no answer"
    if error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH):
        return CauseKind.NO_ROUTE, "no route to it"
    return CauseKind.DROPPED, error.strerror or str(error)
