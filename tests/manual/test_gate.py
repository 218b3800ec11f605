"""Owns: tests of node 0's gate with real sockets: who joins, who is refused, and what ends the run.
Must not: use anything but loopback.
Called by: pytest."""

from __future__ import annotations

import queue
import socket
import subprocess
import sys
from typing import Any

import pytest

from meshrun import wire
from meshrun.errors import CauseKind, ClusterError
from meshrun.launch import handshake, manual
from meshrun.launch.channel import Closed, Opened, Received, Remark, Unreachable
from meshrun.launch.dial import dial
from meshrun.launch.listen import listen
from meshrun.launch.manual import Gate
from tests.manual.helpers import Caller, calling, claim_of, open_gate, read_to_end

BRIEF = wire.Brief(
    1, "r", "script", ("rm", "-rf"), "off", "fork", (), "/", {"A": "secret"}, {}, 1, "cpu", (), "", False, 0, False,
    5.0, 10.0, 1,
)  # fmt: skip
ASSIGN = wire.Assign(1, 2, 2, "f", "cpu", "", 60.0, {}, (wire.WorkerSlot(1, 0, "0", {}),), 0)
START = wire.Start(0, "127.0.0.1", 29500)


@pytest.mark.parametrize("token", [b"", b"secret"])
def test_nodes_join_in_any_order(token: bytes) -> None:
    with (
        open_gate(4, token=token) as (gate, mailbox, _),
        calling(*(Caller(gate.port, claim_of(rank), token) for rank in (3, 1, 2))) as callers,
    ):
        for caller in callers:
            caller.joined()
        assert {mailbox.next() for _ in range(3)} == {Opened(1), Opened(2), Opened(3)}


def test_a_node_may_join_before_the_fleet_opens_it() -> None:
    gate = Gate("127.0.0.1", 0, claim_of(0, 2), run_id="run-1")
    try:
        with calling(Caller(gate.port, claim_of(1, 2)).joined()) as (caller,):
            caller.send(wire.Beat())
            box: queue.SimpleQueue[Any] = queue.SimpleQueue()
            gate.opener(1)(1, box.put)
            assert [box.get(timeout=20), box.get(timeout=20)] == [Opened(1), Received(1, wire.Beat())]
    finally:
        gate.close()


def test_only_what_may_cross_does() -> None:
    with open_gate(2) as (gate, mailbox, channels), calling(Caller(gate.port, claim_of(1, 2)).joined()) as (caller,):
        assert mailbox.next() == Opened(1)
        for message in (BRIEF, wire.Ack(5), ASSIGN, wire.OpenStore("x", 1, 0, True), START):
            channels[1].send(wire.encode(message))
        assert caller.mailbox.next() == Received(1, ASSIGN)
        assert caller.mailbox.next() == Received(1, START)
        caller.send(wire.Output(1, 1, b"text"), wire.StoreOpened(0, "x", 1), wire.Ready(1, 0, 0.5))
        assert mailbox.next() == Received(1, wire.Ready(1, 0, 0.5))


def test_an_end_of_file_is_told_both_ways() -> None:
    with (
        open_gate(3) as (gate, mailbox, channels),
        calling(Caller(gate.port, claim_of(1, 3)), Caller(gate.port, claim_of(2, 3))) as (one, two),
    ):
        one.joined()
        two.joined()
        assert {mailbox.next(), mailbox.next()} == {Opened(1), Opened(2)}
        one.channel.close()
        event = mailbox.next()
        assert isinstance(event, Closed) and event.node == 1
        last = wire.Leave(3, {"a": "x" * 8_000_000}, "")  # more than a socket takes at once
        channels[2].send(wire.encode(last))
        channels[2].close()
        assert two.mailbox.next() == Received(1, last)  # what was queued still arrives
        assert isinstance(two.mailbox.next(), Closed)
        assert mailbox.empty  # closing a channel gives no event at the end that closed it


def test_large_messages_cross_whole() -> None:
    with open_gate(2) as (gate, mailbox, channels), calling(Caller(gate.port, claim_of(1, 2)).joined()) as (caller,):
        mailbox.until(Opened)
        big = handshake.Whole({"x": "y" * 8_000_000})
        channels[1].send(wire.encode(big))
        assert caller.mailbox.next() == Received(1, big)
        channels[1].send(wire.encode(ASSIGN))
        assert caller.mailbox.next() == Received(1, ASSIGN)  # from now on it may speak for rank 1
        stacks = wire.Stacks(1, "z" * 2_000_000)
        caller.send(stacks)
        assert mailbox.next() == Received(1, stacks)


def test_a_busy_port_is_an_error_with_address_and_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(ClusterError, match=f"127.0.0.1:{port} is in use") as caught:
            Gate("127.0.0.1", port, claim_of(0), run_id="r")
    assert caught.value.exit_code == 125


def test_an_address_of_another_machine_is_an_error() -> None:
    with pytest.raises(ClusterError, match=r"192\.0\.2\.1:0: not an address of this machine"):
        Gate("192.0.2.1", 0, claim_of(0), run_id="r")


@pytest.mark.parametrize("addr", ["127.0.0.1", "localhost", "::1", "[::1]"])
def test_a_gate_listens_on_the_address_given(addr: str) -> None:
    gate = Gate(addr, 0, claim_of(0, 2), run_id="run-1")
    box: queue.SimpleQueue[Any] = queue.SimpleQueue()
    gate.opener(1)(1, box.put)
    caller = dial(addr, gate.port, claim_of(1, 2), b"", 20.0)(1, lambda event: None)
    try:
        assert box.get(timeout=20) == Opened(1)
    finally:
        caller.close()
        gate.close()


def test_a_name_that_is_loopback_here_only_means_all_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    # As with Debian's /etc/hosts, where a machine's own name is 127.0.1.1 to itself and something else to the others.
    debian = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.1.1", 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **options: debian)
    sock, remark = listen("gpu0", 0)
    with sock:
        assert sock.getsockname()[0] == "0.0.0.0"
    assert "gpu0 is a loopback address here" in remark


# ---- refused peers never end the run ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("token", "words"), [(b"", "has no token"), (b"wrong", "another token")])
def test_a_peer_without_the_token_is_refused_and_named(token: bytes, words: str) -> None:
    with (
        open_gate(2, token=b"right") as (gate, mailbox, _),
        calling(Caller(gate.port, claim_of(1, 2), token)) as (bad,),
    ):
        event = bad.mailbox.next()
        assert isinstance(event, Unreachable) and event.cause.kind is CauseKind.AUTH and words in event.cause.message
        remark = mailbox.next()
        assert isinstance(remark, Remark) and words in remark.text and "127.0.0.1:" in remark.text
        with calling(Caller(gate.port, claim_of(1, 2), b"right").joined()):
            assert mailbox.next() == Opened(1)


RUBBISH = [
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"\x16\x03\x01\x02\x00" + bytes(range(256)),
    handshake.PREAMBLE + b"\xff" * 100,
    handshake.PREAMBLE + b"\x01\xff\xff\xff\xff",
    handshake.PREAMBLE + wire.encode(wire.Leave(0, {}, "")),
    handshake.PREAMBLE + wire.encode(handshake.Hello("0" * 64, False)) + wire.encode(BRIEF),
    handshake.PREAMBLE + wire.encode(handshake.Hello("0" * 64, False)) + b"\x01\x00\x00\x00\x03[[[",
    b"meshrun:by-hand:999\n",
]


@pytest.mark.parametrize("data", RUBBISH)
def test_rubbish_is_refused_and_the_run_goes_on(data: bytes) -> None:
    with open_gate(2) as (gate, mailbox, _):
        with socket.create_connection(("127.0.0.1", gate.port)) as sock:
            sock.sendall(data)
            answer = read_to_end(sock)
        assert answer.startswith(handshake.PREAMBLE)
        assert "Refusal" in answer.decode("latin1")
        remark = mailbox.next()
        assert isinstance(remark, Remark) and "refused a connection from 127.0.0.1:" in remark.text
        with calling(Caller(gate.port, claim_of(1, 2)).joined()):
            assert mailbox.next() == Opened(1)


def test_a_probe_that_connects_and_leaves_is_not_worth_a_word() -> None:
    with open_gate(2) as (gate, mailbox, _):
        socket.create_connection(("127.0.0.1", gate.port)).close()
        with calling(Caller(gate.port, claim_of(1, 2)).joined()):
            assert mailbox.next() == Opened(1)


def test_a_flood_of_idle_connections_keeps_no_node_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manual, "HANDSHAKE_S", 600.0)  # none of them makes room by being late
    with open_gate(2) as (gate, mailbox, _):
        idle = [socket.create_connection(("127.0.0.1", gate.port)) for _ in range(100)]
        try:
            with calling(Caller(gate.port, claim_of(1, 2)).joined()):
                assert mailbox.until(Opened) == Opened(1)
            # no more than the limit are kept: the oldest were dropped
            assert read_to_end(idle[0]) == b""
        finally:
            for sock in idle:
                sock.close()
        assert len(mailbox.skipped) <= manual.MAX_REMARKS + 1


NO_FILES = """
import os, queue, resource, socket, sys
from meshrun.launch.channel import Opened, Remark
from tests.manual.helpers import Caller, claim_of, open_gate
with open_gate(2) as (gate, mailbox, _):
    caller = socket.socket()
    free = os.dup(0)
    os.close(free)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, limits[1]))
    caller.connect(("127.0.0.1", gate.port))
    print(mailbox.until(Remark).text)
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    node = Caller(gate.port, claim_of(1, 2)).joined()
    print(mailbox.until(Opened))
    node.channel.close()
"""


def test_a_gate_that_may_open_no_more_files_says_so_and_goes_on() -> None:
    done = subprocess.run([sys.executable, "-c", NO_FILES], capture_output=True, text=True, timeout=60)
    said, opened = done.stdout.splitlines()
    assert "takes no more connections: Too many open files, see ulimit -n; trying again" in said, done.stderr
    assert opened == "Opened(node=1)"


@pytest.mark.parametrize("data", [b"", b"mesh", handshake.PREAMBLE, handshake.PREAMBLE + b"\x01\x00"])
def test_a_slow_stranger_is_dropped(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(manual, "HANDSHAKE_S", 0.2)
    with open_gate(2) as (gate, mailbox, _), socket.create_connection(("127.0.0.1", gate.port)) as sock:
        sock.sendall(data)
        read_to_end(sock)
        remark = mailbox.next()
        assert isinstance(remark, Remark) and "did not join within 0.2 s" in remark.text


def test_a_flood_of_refusals_does_not_flood_the_screen() -> None:
    with open_gate(2) as (gate, mailbox, _):
        for rank in range(2 * manual.MAX_REMARKS):
            with socket.create_connection(("127.0.0.1", gate.port)) as sock:
                sock.sendall(b"meshrun:by-hand:%d\n" % (100 + rank))
                read_to_end(sock)
        with calling(Caller(gate.port, claim_of(1, 2)).joined()):
            mailbox.until(Opened)
        assert len(mailbox.skipped) == manual.MAX_REMARKS + 1
        assert "further ones are not shown" in mailbox.skipped[-1].text  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (wire.Ready(7, 0, 0.0), "rank 7"),
        (wire.Leave(0, {}, ""), "Leave"),
        (BRIEF, "Brief"),
        (claim_of(2, 3), "Claim"),
    ],
)
def test_a_node_that_oversteps_is_closed_and_the_others_stay(message: Any, words: str) -> None:
    with open_gate(3) as (gate, mailbox, channels), calling(Caller(gate.port, claim_of(2, 3)).joined()) as (good,):
        assert mailbox.next() == Opened(2)
        with _raw_join(gate.port, claim_of(1, 3)) as sock:
            assert mailbox.next() == Opened(1)
            sock.sendall(wire.encode(message))
            event = mailbox.next()
            assert isinstance(event, Closed) and event.node == 1 and words in event.reason
            assert "127.0.0.1" in event.reason
        channels[2].send(wire.encode(wire.Beat()))
        assert good.mailbox.next() == Received(1, wire.Beat())


def _raw_join(port: int, claim: handshake.Claim) -> socket.socket:
    """A node without its own checks: joined, and free to send anything."""
    sock = socket.create_connection(("127.0.0.1", port))
    side, ear = handshake.Side(b"", "5" * 64, claim), handshake.Ear()
    sock.sendall(handshake.PREAMBLE + wire.encode(side.hello))
    while side.stage is not handshake.Stage.JOINED:
        for heard in ear.feed(sock.recv(65536)):
            side, answer = handshake.advance_node(side, heard)
            if side.stage is not handshake.Stage.JOINED:
                sock.sendall(wire.encode(answer))
    return sock
