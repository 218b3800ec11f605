"""Owns: node 0 of a run by hand with real TCP lines on loopback: what so many nodes that arrive at once cost it.
Must not: start workers; count the nodes' side (one other process plays all of them, in one thread).
Called by: bench.parts; `python -m bench.hand NODES` prints one measurement."""

from __future__ import annotations

import contextlib
import json
import resource
import selectors
import socket
import subprocess
import sys
import time
from queue import SimpleQueue
from typing import Any

from bench.core import SLOTS, Agents, make_job
from bench.measure import ROOT, Asked, Broken, Found, environ
from bench.result import OURS, Curve, Row
from meshrun import wire
from meshrun.dataclass import replace
from meshrun.launch import handshake
from meshrun.launch.channel import Channel, Deliver, Opened, Received
from meshrun.launch.fleet import Fleet
from meshrun.launch.limits import raise_file_limit
from meshrun.launch.manual import Gate
from meshrun.spec.values import ByHand, Host, Job
from meshrun.watch import state
from meshrun.watch.loop import Machine, watch
from meshrun.watch.values import Action, Close, Event, Open, Record, Send

SIZES = (64, 256, 1024)
BEAT_S = 2.0
TOKEN = b"a token, as a careful user gives one"


def make_hand_job(node: int, nodes: int) -> Job:
    """The job of one node's command."""
    hosts = (Host("gpu00000", slots=SLOTS), *(Host(f"node{other}") for other in range(1, nodes)))
    hand = ByHand(nodes, node, "127.0.0.1", 29500, TOKEN)
    return replace(make_job(1), hosts=hosts, local=(True,) + (False,) * (nodes - 1), by_hand=hand)


def answer(agents: Agents, node: int, message: Any) -> list[Any]:
    """What a node says to one message; its workers end with 0 as soon as they are told to start."""
    said = agents.answer(node, message)
    return [*said, *agents.end(node)] if type(message) is wire.Start else said


def part_hand(asked: Asked) -> Found:
    """By hand, 64 to 1,024 nodes of 8 ranks that all dial node 0 at once: its processor time and what it writes."""
    told = [_measure(size) for size in SIZES]
    last = told[-1]
    words = {"cpu_s": ("node 0's CPU", "s"), "start_s": ("all nodes told to start", "s"), "mib": ("memory", "MiB")}
    words["bytes_a_node"] = ("bytes to a node", "")
    rows = [
        Row(f"by hand, {last['nodes']} nodes x {SLOTS}: {what}", unit, {OURS: (last[field],)})
        for field, (what, unit) in words.items()
    ]
    curves = []
    for field, (what, unit) in words.items():
        points = tuple((float(one["nodes"]), float(one[field])) for one in told)
        curves.append(Curve(f"by hand: {what}", "nodes", f"{what}, {unit}".rstrip(", "), {"good": points}))
    return Found(rows, curves)


def _measure(nodes: int) -> dict[str, Any]:
    argv = [sys.executable, "-m", "bench.hand", str(nodes)]
    done = subprocess.run(argv, cwd=ROOT, env=environ(), capture_output=True, text=True, check=True)
    told = dict(json.loads(done.stdout))
    if told["exit_code"] or told["dialled_again"]:
        raise Broken(f"{nodes} nodes by hand: {told}\n{done.stderr}")
    return told


# ---- node 0 ----------------------------------------------------------------------------------------------------------


class OwnAgent:
    """Node 0's own agent, in memory: the opener and the channel."""

    def __init__(self, agents: Agents) -> None:
        self._agents, self._decoder = agents, wire.Decoder()

    def __call__(self, node: int, deliver: Deliver) -> Channel:
        """Open at once."""
        self._deliver = deliver
        deliver(Opened(node))
        return self

    def send(self, data: bytes) -> None:
        """Answer at once."""
        for message in self._decoder.feed(data):
            said = self._agents.greet(0) if type(message) is wire.Brief else answer(self._agents, 0, message)
            for one in said:
                self._deliver(Received(0, one))

    def close(self) -> None:
        """Nothing to end."""


def measure(nodes: int, at_once: int) -> dict[str, Any]:
    """One whole run: all nodes join, get the plan, start, end and leave."""
    raise_file_limit(nodes)
    job = make_hand_job(0, nodes)
    gate = Gate("127.0.0.1", 0, handshake.make_claim(job, "gpu00000"), run_id="bench", token=TOKEN)
    argv = [sys.executable, "-m", "bench.hand", "peers", str(gate.port), str(nodes), str(at_once)]
    base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    clock, cpu = time.monotonic(), time.process_time()
    with subprocess.Popen(argv, cwd=ROOT, env=environ(), stdout=subprocess.PIPE, text=True) as peers:
        marks, code = _run(job, gate, Agents("good", nodes))
        spent_s = time.process_time() - cpu
        said, _ = peers.communicate()
    heard = json.loads(said) if said else {}
    return {
        "nodes": nodes,
        "exit_code": code,
        "cpu_s": spent_s,
        "joined_s": marks.get("planned", clock) - clock,
        "start_s": marks.get("start", clock) - clock,
        "wall_s": time.monotonic() - clock,
        "mib": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - base) / 1024,
        "bytes_a_node": heard.get("bytes", 0) // nodes,
        "dialled_again": heard.get("dialled_again", 0),
    }


def _run(job: Job, gate: Gate, agents: Agents) -> tuple[dict[str, float], int]:
    inbox: SimpleQueue[Event] = SimpleQueue()
    others = [gate.opener(node) for node in range(1, len(job.hosts))]
    fleet = Fleet([OwnAgent(agents), *others], inbox.put)
    marks: dict[str, float] = {}

    def perform(action: Action) -> None:
        if isinstance(action, Send):
            fleet.send(action.node, action.message)
        elif isinstance(action, Open):
            fleet.open(action.node, action.after_s)
        elif isinstance(action, Close):
            fleet.close(action.node)
        elif isinstance(action, Record):
            marks.setdefault(action.kind, time.monotonic())

    try:
        result = watch(Machine(state.begin(job), state.advance, state.next_deadline), inbox, perform)
    finally:
        fleet.close_all()
        gate.close()
    for entry in result.causes[:3]:
        print(entry, file=sys.stderr)
    return marks, result.exit_code


# ---- all other nodes -------------------------------------------------------------------------------------------------


class Peers:
    """Nodes 1 to N-1: each dials, proves itself, answers, leaves. All in one thread."""

    def __init__(self, port: int, nodes: int, at_once: int) -> None:
        self.port, self.agents = port, Agents("good", nodes)
        self.heard = self.retried = 0
        self.waiting = list(range(nodes - 1, 0, -1))
        self.selector = selectors.DefaultSelector()
        self.open: set[Peer] = set()
        self.joining, self.at_once = 0, at_once
        self.claim = handshake.make_claim(make_hand_job(0, nodes), "")

    def run(self) -> None:
        """Until every node has left."""
        due = time.monotonic() + BEAT_S
        while self.waiting or self.open:
            while self.waiting and self.joining < self.at_once:
                self.joining += 1
                self.open.add(Peer(self, self.waiting.pop()))
            for key, _ in self.selector.select(BEAT_S / 4):
                key.data()
            if time.monotonic() >= due:
                due += BEAT_S
                for peer in self.open:
                    peer.beat()


class Peer:
    """One node."""

    def __init__(self, peers: Peers, node: int) -> None:
        self.peers, self.node, self.joined = peers, node, False
        claim = replace(peers.claim, node_rank=node, hostname=f"gpu{node:05}")
        self.side, self.ear = handshake.Side(TOKEN, f"{node:064x}", claim), handshake.Ear()
        self.sock = socket.socket()
        self.sock.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            self.sock.connect(("127.0.0.1", peers.port))
        peers.selector.register(self.sock, selectors.EVENT_WRITE, self.greet)

    def greet(self) -> None:
        """Connected."""
        self.peers.selector.modify(self.sock, selectors.EVENT_READ, self.read)
        self._write(handshake.PREAMBLE + wire.encode(self.side.hello))

    def read(self) -> None:
        """Bytes have come, or the end."""
        try:
            data = self.sock.recv(1 << 20)
            self.peers.heard += len(data)
            for message in self.ear.feed(data):
                self._hear(message)
        except (OSError, handshake.Refused):
            data = b""
        if not data:
            self._leave()

    def beat(self) -> None:
        """Alive."""
        if self.joined:
            self._write(wire.encode(wire.Beat()))

    def _hear(self, message: Any) -> None:
        if not self.joined:
            self.side, said = handshake.advance_node(self.side, message)
            self.joined = self.side.stage is handshake.Stage.JOINED
            if self.joined:
                self.ear.trust(wire.MAX_FRAME)
                self.peers.joining -= 1
                self._write(b"".join(map(wire.encode, self.peers.agents.greet(self.node))))
            else:
                self._write(wire.encode(said))
        else:
            self._write(b"".join(map(wire.encode, answer(self.peers.agents, self.node, message))))

    def _write(self, data: bytes) -> None:
        if data:
            self.sock.sendall(data)  # little, to an empty socket

    def _leave(self) -> None:
        self.peers.selector.unregister(self.sock)
        self.sock.close()
        self.peers.open.discard(self)
        if not self.joined:
            self.peers.joining -= 1
            self.peers.retried += 1
            self.peers.waiting.append(self.node)


def _main(argv: list[str]) -> None:
    if argv[0] == "peers":
        port, nodes, at_once = map(int, argv[1:])
        raise_file_limit(nodes)
        peers = Peers(port, nodes, at_once)
        peers.run()
        print(json.dumps({"bytes": peers.heard, "dialled_again": peers.retried}))
    else:
        nodes = int(argv[0])
        print(json.dumps(measure(nodes, int(argv[1]) if argv[1:] else nodes)))


if __name__ == "__main__":
    _main(sys.argv[1:])
