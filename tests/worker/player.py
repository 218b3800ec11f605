"""Owns: a test's agent: starts the real fork server, store and workers, talks the real protocol, reaps.
Must not: decide what a test expects.
Called by: the tests here and tests/examples."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from meshrun import wire

ROOT = Path(__file__).resolve().parents[2]
BOOT = "import sys; sys.path.insert(0, sys.argv[1]); from meshrun.worker.__main__ import main; main()"
_PARTS = ("errors.py", "__init__.py", "dataclass.py", "quickclass.py", "wire", "spec", "agent", "worker")
_LIMIT_S = 120


def make_bundle(path: Path) -> Path:
    with zipfile.ZipFile(path, "w") as bundle:
        for part in _PARTS:
            place = ROOT / "meshrun" / part
            for file in [place] if place.is_file() else sorted(place.rglob("*.py")):
                bundle.write(file, file.relative_to(ROOT))
    return path


@dataclass
class End:
    """What a worker left: exit status as `subprocess` has it, output, and its messages."""

    rank: int
    pid: int = 0
    code: int | None = None
    out: str = ""
    err: str = ""
    messages: list[Any] = field(default_factory=list)

    @property
    def raised(self) -> wire.Raised:
        found = [m for m in self.messages if isinstance(m, wire.Raised)]
        assert len(found) == 1, (found, self.out, self.err)
        return found[0]

    @property
    def ready(self) -> bool:
        return any(isinstance(m, wire.Ready) for m in self.messages)


class Pipes:
    """Reads descriptors in threads until their end."""

    def __init__(self) -> None:
        self.data: dict[int, bytearray] = {}
        self.threads: list[threading.Thread] = []

    def read(self, fd: int) -> None:
        self.data[fd] = bytearray()
        self.threads.append(threading.Thread(target=self._drain, args=(fd,), daemon=True))
        self.threads[-1].start()

    def _drain(self, fd: int) -> None:
        while piece := os.read(fd, 65536):
            self.data[fd] += piece

    def join(self) -> None:
        for thread in self.threads:
            thread.join(_LIMIT_S)


class Player:
    """One node's agent for tests: `start()` once, then `run()` as often as wanted (each is an attempt)."""

    def __init__(self, tmp: Path, preload: str, python: str = sys.executable, path: str = "") -> None:
        self.tmp, self.preload, self.python, self.path = tmp, preload, python, path
        self.bundle = make_bundle(tmp / "bundle.zip")
        self.imported: wire.Imported | None = None
        self.line: socket.socket | None = None
        self.decoder = wire.Decoder()
        self.process: subprocess.Popen[bytes] | None = None
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER

    def spawn(self, role: str, env: dict[str, str], **kwargs: Any) -> tuple[subprocess.Popen[bytes], socket.socket]:
        ours, theirs = socket.socketpair()
        preload = self.preload if role == "forkserver" else ""
        command = [self.python, "-c", BOOT, str(self.bundle), role, str(theirs.fileno()), preload]
        process = subprocess.Popen(
            command, env=env, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, cwd=self.tmp, **kwargs
        )
        theirs.close()
        return process, ours

    def start(self) -> None:
        env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "PYTHONPATH": self.path}
        self.process, self.line = self.spawn("forkserver", env)
        self.imported = self.expect(wire.Imported)

    def expect(self, kind: type[Any]) -> Any:
        assert self.line is not None
        while True:
            ready, _, _ = select.select([self.line], [], [], _LIMIT_S)
            data = self.line.recv(65536) if ready else b""
            assert data, "the fork server is gone or silent"
            for message in self.decoder.feed(data):
                assert isinstance(message, kind)
                return message

    def close(self) -> None:
        assert self.line is not None and self.process is not None
        self.line.close()
        self.process.wait(_LIMIT_S)

    def order(self, script: str | os.PathLike[str], *args: str, **changes: Any) -> wire.Order:
        values: dict[str, Any] = {
            "form": "script",
            "argv": (str(script), *args),
            "init": "lazy",
            "device": "cpu",
            "backend": "",
            "timeout_s": 60.0,
            "mesh": {"dims": {"dp": 1}},
            "fingerprint": "f00d",
            "workdir": str(self.tmp),
            "attempt": 0,
            "tmp": str(self.tmp),
            "exit_bound_s": 5.0,
        }
        return wire.Order(**{**values, **changes})

    @contextmanager
    def store(self, world_size: int) -> Iterator[int]:
        """A store forked from the fork server, on a port the kernel picked; killed at the end."""
        with socket.create_server(("127.0.0.1", 0), backlog=512) as listening:
            assert self.line is not None
            frame = wire.encode(wire.ForkStore(world_size, 60.0))
            socket.send_fds(self.line, [frame], [listening.fileno()])
            port = listening.getsockname()[1]
            pid = self.expect(wire.Forked).pid
        try:
            yield port
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)

    def env(self, rank: int, world_size: int, port: int, **more: str) -> dict[str, str]:
        return {
            **{k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "TORCHELASTIC"))},
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(world_size),
            "LOCAL_WORLD_SIZE": str(world_size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCHELASTIC_RESTART_COUNT": "0",
            "OMP_NUM_THREADS": "1",
            "MESHRUN_RUN_ID": "test",
            "TORCHELASTIC_RUN_ID": "test",
            "PYTHONUNBUFFERED": "1",
            "PYTHONPATH": "",
            **more,
        }

    def fork(self, rank: int, env: dict[str, str]) -> Running:
        assert self.line is not None
        running = Running(rank)
        frame = wire.encode(wire.Fork(rank, env))
        socket.send_fds(self.line, [frame], running.theirs())
        running.end.pid = self.expect(wire.Forked).pid
        running.let_go()
        return running

    def launch(self, order: wire.Order, world_size: int, port: int, **more: str) -> list[Running]:
        assert self.line is not None
        self.line.sendall(wire.encode(order))
        return [self.fork(rank, self.env(rank, world_size, port, **more)) for rank in range(world_size)]

    def run(self, order: wire.Order, world_size: int = 1, **more: str) -> list[End]:
        """Fork all ranks with a fresh store, wait for all."""
        with self.store(world_size) as port:
            return [running.wait() for running in self.launch(order, world_size, port, **more)]

    def run_spawned(self, order: wire.Order, port: int, rank: int, world_size: int, **more: str) -> End:
        """One worker in a fresh interpreter."""
        env = self.env(rank, world_size, port, **more)
        running = Running(rank, socket_too=False)
        out, err = running.theirs()
        process, line = self.spawn("worker", env, stdout=out, stderr=err, start_new_session=True)
        running.let_go()
        running.pipes.read(line.fileno())
        running.line = line
        line.sendall(wire.encode(order) + wire.encode(wire.Fork(rank, env)))
        running.end.pid = process.pid
        end = running.wait()
        process.returncode = end.code
        return end


class Running:
    """A worker under way, its pipes and its line."""

    def __init__(self, rank: int, socket_too: bool = True) -> None:
        self.end = End(rank)
        self.pipes = Pipes()
        (self.out, out), (self.err, err) = os.pipe(), os.pipe()
        self._theirs: list[int] = [out, err]
        self.line, theirs = socket.socketpair() if socket_too else (None, None)
        if self.line is not None and theirs is not None:
            self._theirs.append(theirs.detach())
            self.pipes.read(self.line.fileno())
        self.pipes.read(self.out)
        self.pipes.read(self.err)

    def theirs(self) -> list[int]:
        return self._theirs

    def let_go(self) -> None:
        for fd in self._theirs:
            os.close(fd)

    def wait(self) -> End:
        end = self.end
        _, status = os.waitpid(end.pid, 0)
        end.code = os.waitstatus_to_exitcode(status)
        self.pipes.join()
        end.out = bytes(self.pipes.data[self.out]).decode()
        end.err = bytes(self.pipes.data[self.err]).decode()
        assert self.line is not None
        end.messages = list(wire.Decoder().feed(bytes(self.pipes.data[self.line.fileno()])))
        for fd in (self.out, self.err):
            os.close(fd)
        self.line.close()
        return end
