"""Owns: a tiny agent for tests of the carriers: it says who it is, then answers; and the bundle that holds it.
Must not: depend on the real agent.
Called by: tests of launch."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from queue import Empty, Queue
from typing import Any, ClassVar

from meshrun import wire
from meshrun.launch.boot import make_prologue
from meshrun.launch.bundle import make_bundle
from meshrun.launch.channel import ChannelEvent, Closed, Opened, Received, Unreachable
from meshrun.launch.fleet import Fleet
from meshrun.launch.sources import read_sources

# `Stacks` serves as an envelope for text: it is the simplest message with a string in it.
# Words it knows: "env NAME", "flood N" (N frames of 64 KiB), "exit N", "die", "noise TEXT" (on stderr), else an echo.
SOURCE = """
import os, sys, shutil, signal, tempfile
from meshrun import wire

def main(bundle, watcher, stands):
    tmp = tempfile.mkdtemp(prefix="meshrun-")
    os.kill(watcher, signal.SIGKILL)
    os.waitpid(watcher, 0)
    out = os.dup(1)
    os.dup2(2, 1)
    def say(message):
        data = memoryview(wire.encode(message))
        while data:
            data = data[os.write(out, data):]
    os.write(out, wire.MARKER)
    say(wire.Stacks(0, "hello %d.%d %s" % (sys.version_info[0], sys.version_info[1], tmp)))
    decoder = wire.Decoder()
    try:
        while True:
            data = os.read(0, 65536)
            if not data:
                return 0
            for message in decoder.feed(data):
                if not isinstance(message, wire.Stacks):
                    say(message)
                    continue
                word, _, rest = message.text.partition(" ")
                if word == "env":
                    say(wire.Stacks(1, os.environ.get(rest, "unset")))
                elif word == "flood":
                    for n in range(int(rest)):
                        os.write(2, b"e" * 1000)
                        say(wire.Output(n, 1, b"x" * 65536))
                elif word == "noise":
                    os.write(2, rest.encode())
                    say(wire.Beat())
                elif word == "exit":
                    return int(rest)
                elif word == "die":
                    shutil.rmtree(tmp)
                    os.kill(os.getpid(), signal.SIGKILL)
                else:
                    say(message)
    finally:
        shutil.rmtree(tmp, ignore_errors=True)
"""

WAIT_S = 60.0  # only ever reached by a failing test


@cache
def make_standin_bundle() -> bytes:
    """The real wire and what it imports, and the stand-in as `meshrun.agent.__main__`."""
    parts = ("meshrun/wire/", "meshrun/errors.", "meshrun/dataclass.", "meshrun/quickclass.")
    files = {name: data for name, data in read_sources().items() if name.startswith(parts)}
    return make_bundle(
        {
            **files,
            "meshrun/__init__.py": b"",
            "meshrun/agent/__init__.py": b"",
            "meshrun/agent/__main__.py": SOURCE.encode(),
        }
    )


def make_start(*pythons: str, prelude: str = "") -> Callable[[], bytes]:
    """What an opener writes first."""
    return lambda: make_prologue(pythons, prelude, make_standin_bundle())


class Line:
    """A Fleet and its events, in order of arrival. tests/launch/conftest.py closes what a test leaves open."""

    made: ClassVar[list[Line]] = []

    def __init__(self, *openers: Any) -> None:
        self.events: Queue[ChannelEvent] = Queue()
        self.fleet = Fleet(openers, self.events.put)
        self.made.append(self)

    def next(self, timeout_s: float = WAIT_S) -> ChannelEvent:
        """The next event."""
        return self.events.get(timeout=timeout_s)

    def until(self, kind: type[Any]) -> Any:
        """The next event of this kind; the others are dropped."""
        while not isinstance(event := self.next(), kind):
            pass
        return event

    def ask(self, text: str, node: int = 0) -> str:
        """Send one word to the stand-in and return its answer."""
        self.fleet.send(node, wire.Stacks(7, text))
        while True:
            event = self.until((Received, Closed, Unreachable))  # type: ignore[arg-type]
            assert isinstance(event, Received), event
            if isinstance(event.message, wire.Stacks) and event.node == node and event.message.rank in (1, 7):
                return str(event.message.text)

    def start(self, node: int = 0) -> str:
        """Open and wait for the greeting; returns it."""
        self.fleet.open(node)
        event = self.until((Opened, Unreachable))  # type: ignore[arg-type]
        assert isinstance(event, Opened), event
        return str(self.until(Received).message.text)

    def fail(self, node: int = 0) -> Any:
        """Open, expect that it fails, and return the cause."""
        self.fleet.open(node)
        event = self.until((Opened, Unreachable))  # type: ignore[arg-type]
        assert isinstance(event, Unreachable), event
        return event.cause

    def quiet(self) -> bool:
        """No event is waiting."""
        try:
            self.events.get_nowait()
        except Empty:
            return True
        return False
