"""Owns: nothing of the product: a small stand-in for `meshrun.worker`, to try the agent's side of the protocol.
Must not: import torch.
Called by: the agent under test, as `python -c WORKER_BOOT <bundle> <role> <fd> <preload>`."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from typing import Any

from meshrun import wire

PROBLEM = os.environ.get("STAND_IN_PROBLEM", "")


class Line:
    def __init__(self, sock: socket.socket) -> None:
        self.sock, self.decoder = sock, wire.Decoder()
        self.messages: list[Any] = []
        self.fds: list[int] = []

    def receive(self) -> Any:
        while not self.messages:
            data, fds, _, _ = socket.recv_fds(self.sock, 65536, 64)
            self.fds += fds
            if not data:
                return None
            self.messages += self.decoder.feed(data)
        return self.messages.pop(0)


def main() -> None:
    role, fd = sys.argv[2], int(sys.argv[3])
    line = Line(socket.socket(fileno=fd))
    if role == "forkserver":
        serve(line)
    elif role == "worker":
        order, fork = line.receive(), line.receive()
        run(order, fork, line.sock)
    else:
        message = line.receive()
        serve_store(message, line.fds[0])


def serve(line: Line) -> None:
    if PROBLEM == "die":
        sys.exit("the stand-in dies")
    if PROBLEM == "close-and-die":  # as Python 3.12 does it on a busy machine
        line.sock.close()
        time.sleep(0.1)
        sys.exit("the stand-in dies")
    line.sock.sendall(wire.encode(wire.Imported("0", 0.0, 1, PROBLEM)))
    order = None
    while (message := line.receive()) is not None:
        if isinstance(message, wire.Order):
            order = message
            continue
        fds, line.fds = line.fds, []
        pid = fork_twice(child, order, message, fds)
        for fd in fds:
            os.close(fd)
        rank = message.rank if isinstance(message, wire.Fork) else -1
        if "die-while-forking" in (order.argv if order else ()):
            os._exit(3)
        line.sock.sendall(wire.encode(wire.Forked(rank, pid)))


def fork_twice(run_child: Any, *args: Any) -> int:
    reading, writing = os.pipe()
    middle = os.fork()
    if middle == 0:
        pid = os.fork()
        if pid == 0:
            os.setsid()
            run_child(*args)
        os.write(writing, str(pid).encode())
        os._exit(0)
    os.close(writing)
    os.waitpid(middle, 0)
    pid = int(os.read(reading, 20))
    os.close(reading)
    return pid


def child(order: wire.Order | None, message: Any, fds: list[int]) -> None:
    if isinstance(message, wire.ForkStore):
        serve_store(message, fds[0])
    assert order is not None
    os.dup2(fds[0], 1)
    os.dup2(fds[1], 2)
    os.environ.clear()
    os.environ.update(message.env)
    run(order, message, socket.socket(fileno=fds[2]))


def serve_store(message: wire.ForkStore, fd: int) -> None:
    listening = socket.socket(fileno=fd)
    while True:
        peer, _ = listening.accept()
        peer.sendall(f"store of {message.world_size}".encode())
        peer.close()


def run(order: wire.Order, fork: wire.Fork, sock: socket.socket) -> None:
    def say(message: Any) -> None:
        sock.sendall(wire.encode(message))

    what = order.argv[1] if len(order.argv) > 1 else ""
    print(f"rank {fork.rank} of {os.environ['WORLD_SIZE']} does {what} pid {os.getpid()}", flush=True)
    say(wire.Ready(fork.rank, 99, 0.0))
    if what == "raise":
        say(wire.Raised(fork.rank, 99, 0.0, "script", "ValueError", "no", "f.py", 3, (), "Traceback", 1))
        os._exit(1)
    if what == "wait":
        time.sleep(600)
    if what == "stacks":
        import faulthandler

        file = open(f"{order.tmp}/stacks{fork.rank}", "ab", buffering=0)  # noqa: SIM115
        faulthandler.register(signal.SIGRTMIN + wire.STACKS_SIGNAL_OFFSET, file=file, all_threads=True)
        print("registered", flush=True)
        time.sleep(600)
    os._exit(int(what.removeprefix("exit") or 0) if what.startswith("exit") else 0)
