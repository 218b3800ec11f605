"""Owns: by-hand mode's TCP line: the port where node 0 waits for the others, `Gate`; the far end is launch.dial.
Must not: let a command cross, trust a stranger's bytes, or decide what a missing node means for the run.
Called by: cli (to make openers for the fleet), launch.fleet through the openers."""

from __future__ import annotations

import secrets
import selectors
import socket
from collections import Counter
from functools import partial

from meshrun import wire
from meshrun.dataclass import dataclass, field
from meshrun.errors import Cause, CauseKind
from meshrun.launch import handshake
from meshrun.launch.channel import Channel, ChannelEvent, Closed, Deliver, Opened, Opener, Received, Remark, Unreachable
from meshrun.launch.crossing import DOWNWARD, Sieve, check_upward
from meshrun.launch.handshake import Claim, Ear, Refused, Side, tame
from meshrun.launch.lines import Line, Lines, show_address
from meshrun.launch.listen import listen

HANDSHAKE_S = 5.0
MAX_PENDING = 64  # connections that have not joined, beyond one for each node: all of them may come at once
MAX_ACCEPTED = 64  # at one go: then those that are open are heard
REMIND_FIRST_S, REMIND_AGAIN_S = 3.0, 30.0
PAUSE_S = 0.2
MAX_REMARKS = 16  # about strangers; a flood of them must not flood the screen


def _fresh_side(token: bytes, claim: Claim) -> Side:
    return Side(token, secrets.token_hex(handshake.NONCE_BYTES), claim)


# ---- node 0 ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Stranger:
    """A connection that has not joined yet."""

    line: Line
    side: Side
    ear: Ear = field(default_factory=Ear)
    spoke: bool = False


@dataclass(slots=True)
class _Seat:
    """A node rank that somebody must claim."""

    node: int
    deliver: Deliver | None = None  # None until the fleet opens this node: events wait
    waiting: list[ChannelEvent] = field(default_factory=list)
    line: Line | None = None
    who: str = ""
    ranks: frozenset[int] = frozenset()

    def tell(self, event: ChannelEvent) -> None:
        if self.deliver is None:
            self.waiting.append(event)
        else:
            self.deliver(event)


@dataclass(frozen=True, slots=True)
class _SeatChannel:
    """The launcher's handle on a node's line; the node may not have joined yet."""

    gate: Gate
    node: int

    def send(self, data: bytes) -> None:
        """Queue whole messages; those that may not cross are dropped."""
        self.gate.lines.call(partial(self.gate.send_to, self.node, data))

    def close(self) -> None:
        """End this node's line; no event follows."""
        self.gate.lines.call(partial(self.gate.leave_seat, self.node))


class Gate:
    """Node 0 waits here for the others. Everything but the constructor, `opener` and `close` runs in its one thread."""

    def __init__(
        self, addr: str, port: int, claim: Claim, *, run_id: str, token: bytes = b"", start_timeout_s: float = 300.0
    ) -> None:
        """Listen at once. Raises ClusterError if the port is busy or the address is not this machine's."""
        self._claim, self._run_id, self._token = claim, run_id, token
        self._listener, remark = listen(addr, port)
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._where = show_address(addr.strip("[]"), self.port)
        self._timeout_s = start_timeout_s
        self._seats = {node: _Seat(node) for node in range(1, claim.nnodes)}
        self._strangers: dict[Line, _Stranger] = {}  # oldest first
        self._max_strangers = MAX_PENDING + len(self._seats)
        self._sieve = Sieve(DOWNWARD)
        self._remarks: list[str] = [remark] if remark else []
        self._said: set[str] = set()
        self._started = False
        self._over: Refused | None = None
        self.lines = Lines()
        self.lines.watch(self._listener, selectors.EVENT_READ, self._accept)
        self.lines.after(REMIND_FIRST_S, self._remind)
        self.lines.after(start_timeout_s, self._give_up)
        self.lines.start("meshrun-gate")

    def opener(self, node: int) -> Opener:
        """How the fleet opens `node` (1..nnodes-1): its channel is open when that node has joined."""
        if node not in self._seats:
            raise ValueError(f"node {node} is not one that joins by hand")
        return self._open

    def close(self) -> None:
        """Stop listening and end all lines, after what is queued was sent (at most a second)."""
        self.lines.call(lambda: self.lines.forget(self._listener))
        self.lines.stop()
        self._listener.close()

    def _open(self, node: int, deliver: Deliver) -> Channel:
        self.lines.call(partial(self._take_seat, node, deliver))
        return _SeatChannel(self, node)

    # -- in the gate's thread --

    def _take_seat(self, node: int, deliver: Deliver) -> None:
        seat = self._seats[node]
        seat.deliver = deliver
        for event in seat.waiting:
            deliver(event)
        seat.waiting.clear()
        for text in self._remarks:
            deliver(Remark(0, text))
        self._remarks.clear()
        if self._over is not None and seat.line is None:
            deliver(Unreachable(node, Cause(self._over.kind, self._over.message, self._over.hint)))

    def send_to(self, node: int, data: bytes) -> None:
        """Pass on what may cross, and remember what it means for this seat."""
        seat = self._seats[node]
        frames, messages = self._sieve.sift(data)
        for message in messages:
            if type(message) is wire.Assign:
                seat.ranks = frozenset(worker.rank for worker in message.workers)
            self._started = self._started or type(message) is wire.Start
        if seat.line is not None:
            seat.line.write(frames)

    def leave_seat(self, node: int) -> None:
        """The launcher is done with this node."""
        seat = self._seats[node]
        line, seat.line, seat.deliver = seat.line, None, None
        seat.waiting.clear()
        if line is not None:
            line.close()

    def _accept(self, mask: int) -> None:
        for _ in range(MAX_ACCEPTED):
            try:
                sock, address = self._listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                self._pause(error)
                return
            self._admit(sock, show_address(address[0], address[1]))

    def _pause(self, error: OSError) -> None:
        """Out of descriptors, most likely: say so, and look again a little later instead of spinning."""
        text = f"{self._where} takes no more connections: {error.strerror or error}"
        self._say(f"{text}, see ulimit -n; trying again", text)
        self.lines.forget(self._listener)
        self.lines.after(PAUSE_S, lambda: self.lines.watch(self._listener, selectors.EVENT_READ, self._accept))

    def _admit(self, sock: socket.socket, peer: str) -> None:
        if len(self._strangers) >= self._max_strangers:
            self._drop_one()
        stranger = _Stranger(self.lines.add(sock, peer), _fresh_side(self._token, self._claim))
        self._strangers[stranger.line] = stranger
        stranger.line.on_data = partial(self._hear, stranger)
        stranger.line.on_end = lambda reason: self._forget(stranger)
        self.lines.after(HANDSHAKE_S, partial(self._expire, stranger))

    def _drop_one(self) -> None:
        """The oldest of the address with the most open: a flood pushes itself out, not the nodes that join."""
        counts = Counter(line.peer.rpartition(":")[0] for line in self._strangers)
        worst = counts.most_common(1)[0][0]
        victim = next(s for line, s in self._strangers.items() if line.peer.rpartition(":")[0] == worst)
        self._refuse(victim, Refused(CauseKind.DROPPED, f"more than {self._max_strangers} connections at once"))

    def _forget(self, stranger: _Stranger) -> None:
        self._strangers.pop(stranger.line, None)

    def _expire(self, stranger: _Stranger) -> None:
        if stranger.line in self._strangers:
            self._refuse(stranger, Refused(CauseKind.TIMED_OUT, f"it did not join within {HANDSHAKE_S:g} s"))

    def _hear(self, stranger: _Stranger, data: bytes) -> None:
        if not stranger.spoke:
            stranger.spoke = True
            stranger.line.write(handshake.PREAMBLE)
        try:
            for message in stranger.ear.feed(data):
                before = stranger.side
                stranger.side, claim = handshake.advance_gate(before, message)
                if claim is not None:
                    self._judge(stranger, claim)
                    return
                if stranger.side.stage is not before.stage:
                    stranger.line.write(wire.encode(stranger.side.hello))
        except Refused as refused:
            self._refuse(stranger, refused)

    def _refuse(self, stranger: _Stranger, refused: Refused, claim: Claim | None = None) -> None:
        self._forget(stranger)
        if stranger.spoke and self.lines.count < len(self._seats) + 2 * MAX_PENDING:
            stranger.line.write(wire.encode(refused.to_wire()))
            stranger.line.close()
        else:
            stranger.line.drop()
        who = _who(claim, stranger.line) if claim else stranger.line.peer
        self._say(f"refused a connection from {who}: {refused.message}", f"{who.rpartition(':')[0]} {refused.message}")

    def _say(self, text: str, key: str) -> None:
        if key in self._said or len(self._said) > MAX_REMARKS:
            return
        self._said.add(key)
        if len(self._said) > MAX_REMARKS:
            text = "refused more connections; further ones are not shown"
        seat = next((s for s in self._seats.values() if s.deliver is not None), None)
        if seat is None:
            self._remarks.append(text)
        else:
            seat.tell(Remark(0, text))

    def _judge(self, stranger: _Stranger, claim: Claim) -> None:
        """A peer that has proven itself says which node it is: let it in, or say why not."""
        seat = self._seats.get(claim.node_rank)
        problem = self._find_problem(stranger, claim, seat)
        if problem is not None:
            if not self._started and self._over is None:
                self._end_all(seat or self._any_seat(), problem)
            self._refuse(stranger, problem, claim)
        elif seat is not None:
            self._join(stranger, claim, seat)

    def _find_problem(self, stranger: _Stranger, claim: Claim, seat: _Seat | None) -> Refused | None:
        if self._over is not None:
            return Refused(self._over.kind, f"the run has ended: {self._over.message}", self._over.hint)
        differences = handshake.find_differences(self._claim, claim)
        if differences:
            hint = "run the same command on every node; only --node-rank and --nproc-per-node may differ"
            return Refused(CauseKind.MISMATCH, "; ".join(differences), hint)
        who = _who(claim, stranger.line)
        if seat is not None and seat.line is None and not self._started:
            return None
        held = seat.who if seat is not None and seat.who else "the node that listens at " + self._where
        if 0 <= claim.node_rank < self._claim.nnodes:
            text = f"node rank {claim.node_rank} was claimed twice: by {held} and by {who}"
        else:
            text = f"{who} claims node rank {claim.node_rank}; there are {self._claim.nnodes}, from 0"
        return Refused(CauseKind.MISMATCH, text, "give every node its own --node-rank, from 0 to --nnodes minus 1")

    def _any_seat(self) -> _Seat | None:
        seats = sorted(self._seats.values(), key=lambda seat: seat.line is not None)
        return seats[0] if seats else None

    def _end_all(self, seat: _Seat | None, problem: Refused) -> None:
        """Two commands do not fit together, which nobody can heal: who holds the seat is told, and the launcher."""
        self._over = problem
        if seat is None:
            return
        if seat.line is None:
            seat.tell(Unreachable(seat.node, Cause(problem.kind, problem.message, problem.hint)))
        else:
            seat.line.write(wire.encode(problem.to_wire()))
            seat.line.close()
            self._lose(seat, seat.line, problem.message)
        # No other node can join any more: without this word the launcher would wait for them before it reports.
        for other in self._seats.values():
            if other is not seat and other.line is None:
                text = f"node rank {other.node} had not joined by then"
                other.tell(Unreachable(other.node, Cause(CauseKind.MISSING, text)))

    def _join(self, stranger: _Stranger, claim: Claim, seat: _Seat) -> None:
        self._forget(stranger)
        stranger.ear.trust(handshake.MAX_NODE_FRAME)
        line = stranger.line
        seat.line, seat.who = line, _who(claim, line)
        line.on_data = partial(self._hear_node, seat, line, stranger.ear)
        line.on_end = partial(self._lose, seat, line)
        line.write(wire.encode(handshake.make_welcome(stranger.side, self._run_id)))
        seat.tell(Opened(seat.node))

    def _hear_node(self, seat: _Seat, line: Line, ear: Ear, data: bytes) -> None:
        try:
            for message in ear.feed(data):
                if seat.line is not line:
                    return
                check_upward(message, seat.ranks)
                seat.tell(Received(seat.node, message))
        except Refused as refused:
            line.close()
            self._lose(seat, line, f"{seat.who}: {refused.message}")

    def _lose(self, seat: _Seat, line: Line, reason: str) -> None:
        if seat.line is line:
            seat.line = None
            seat.tell(Closed(seat.node, reason))

    def _missing(self) -> list[_Seat]:
        return [] if self._started or self._over else [s for s in self._seats.values() if s.line is None]

    def _remind(self) -> None:
        missing = self._missing()
        if missing:
            text = f"waiting for {_name_ranks([s.node for s in missing])} of {self._claim.nnodes} at {self._where}"
            missing[0].tell(Remark(0, text))
        self.lines.after(REMIND_AGAIN_S, self._remind)

    def _give_up(self) -> None:
        missing = self._missing()
        if not missing:
            return
        text = f"did not join at {self._where} within {self._timeout_s:g} s"
        hint = "start the same command there with its own --node-rank, or raise --start-timeout"
        self._over = Refused(CauseKind.MISSING, f"{_name_ranks([s.node for s in missing])} {text}", hint)
        for seat in missing:
            seat.tell(Unreachable(seat.node, Cause(CauseKind.MISSING, f"node rank {seat.node} {text}", hint)))


def _who(claim: Claim, line: Line) -> str:
    return f"{tame(claim.hostname, 64)} ({line.peer})"


def _name_ranks(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:20])) + (f", ... ({len(ranks)} in all)" if len(ranks) > 20 else "")
    return f"node rank {shown}" if len(ranks) == 1 else f"node ranks {shown}"
