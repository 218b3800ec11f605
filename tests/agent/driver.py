"""Owns: driving a real agent over a pipe, as the boot code starts it, from a bundle of this checkout.
Must not: know what a test checks.
Called by: the real-process tests of this folder."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

from meshrun import wire

ROOT = Path(__file__).resolve().parents[2]
STAND_IN = Path(__file__).with_name("stand_in_worker.py")
BOOT = "import sys; sys.path.insert(0, sys.argv[1]); from meshrun.agent.__main__ import main; main(sys.argv[1])"
LIMIT_S = 30.0


def make_bundle(path: Path) -> Path:
    """What travels to a node, with the stand-in for the worker package."""
    with zipfile.ZipFile(path, "w") as bundle:
        bundle.writestr("meshrun/__init__.py", "")
        for name in ("errors.py", "dataclass.py", "quickclass.py"):
            bundle.write(ROOT / "meshrun" / name, f"meshrun/{name}")
        for package in ("wire", "agent"):
            for file in sorted((ROOT / "meshrun" / package).glob("*.py")):
                bundle.write(file, f"meshrun/{package}/{file.name}")
        bundle.writestr("meshrun/worker/__init__.py", "")
        bundle.write(STAND_IN, "meshrun/worker/__main__.py")
    return path


class Driver:
    """The launcher's end of one agent's line."""

    def __init__(self, folder: Path, env: dict[str, str] | None = None, prefix: tuple[str, ...] = ()) -> None:
        self.base = folder / "private"
        self.base.mkdir(0o700, parents=True, exist_ok=True)
        bundle = make_bundle(folder / "travelled.zip")
        command = [*prefix, sys.executable, "-I", "-S", "-c", BOOT, str(bundle)]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "TMPDIR": str(self.base), **(env or {})},
            start_new_session=True,
            bufsize=0,
        )
        assert self.process.stdin and self.process.stdout
        self._writing, self._reading = self.process.stdin, self.process.stdout
        self._decoder = wire.Decoder()
        self.seen: list[Any] = []
        self._fresh: list[Any] = []
        self._before = b""
        self.output: dict[tuple[int, int], bytearray] = {}
        self.acking = True
        self.ended = False

    @property
    def homes(self) -> list[Path]:
        """The private directories of agents that were started in this folder."""
        return list(self.base.iterdir())

    def send(self, *messages: Any) -> None:
        for message in messages:
            os.write(self._writing.fileno(), wire.encode(message))

    def _receive(self, until: float) -> bool:
        """Take in what comes next; False at the end of the line."""
        ready, _, _ = select.select([self._reading], [], [], max(0.0, until - time.monotonic()))
        assert ready, f"the agent said nothing more; so far: {[type(m).__name__ for m in self.seen]}"
        data = os.read(self._reading.fileno(), 1 << 20)
        if self._before is not None:
            self._before += data
            at = self._before.find(wire.MARKER)
            if at < 0:
                assert data, self.errors()
                return True
            data, self._before = self._before[at + len(wire.MARKER) :], None  # type: ignore[assignment]
        elif not data:
            self.ended = True
            return False
        for message in self._decoder.feed(data):
            self._take(message)
        return True

    def _take(self, message: Any) -> None:
        self.seen.append(message)
        if isinstance(message, wire.Output):
            self.output.setdefault((message.rank, message.stream), bytearray()).extend(message.data)
            if self.acking:
                self.send(wire.Ack(len(message.data)))
        elif not isinstance(message, wire.Beat):
            self._fresh.append(message)

    def expect(self, kind: type[Any]) -> Any:
        """The next message of this kind; others before it stay in `seen`. A fatal trouble fails the test."""
        until = time.monotonic() + LIMIT_S
        while True:
            for at, message in enumerate(self._fresh):
                if isinstance(message, kind):
                    del self._fresh[at]
                    return message
                assert not (isinstance(message, wire.Trouble) and message.fatal), self._fresh.pop(at)
            assert self._receive(until), f"the line ended; {self.errors()}"

    def wait_for_output(self, rank: int, text: bytes, stream: int = 1) -> bytes:
        """The output so far, once it holds `text`."""
        until = time.monotonic() + LIMIT_S
        while text not in self.output.get((rank, stream), b""):
            assert self._receive(until), self.errors()
        return bytes(self.output[rank, stream])

    def read_to_end(self) -> None:
        until = time.monotonic() + LIMIT_S
        while not self.ended:
            self._receive(until)

    def close(self) -> None:
        """End-of-file for the agent."""
        self._writing.close()

    def errors(self) -> str:
        assert self.process.stderr
        return os.read(self.process.stderr.fileno(), 65536).decode("utf-8", "replace") if self._is_over() else ""

    def _is_over(self) -> bool:
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            return False
        return True

    def all_of(self, kind: type[Any]) -> list[Any]:
        return [message for message in self.seen if isinstance(message, kind)]


def make_brief(folder: Path, *argv: str, **changes: Any) -> wire.Brief:
    values: dict[str, Any] = {
        "protocol": wire.PROTOCOL,
        "run_id": "test-run",
        "form": "program",
        "argv": argv,
        "init": "off",
        "start_method": "fork",
        "preload": (),
        "workdir": str(folder),
        "env": {},
        "env_remote": {},
        "slots": 0,
        "device": "cpu",
        "devices": (),
        "log_dir": "/runs/x",
        "offers": False,
        "offer_port": 0,
        "check_script": False,
        "grace_s": 5.0,
        "silence_s": 20.0,
        "window_bytes": 1 << 20,
    }
    return wire.Brief(**{**values, **changes})


def make_assign(ranks: int = 1, **changes: Any) -> wire.Assign:
    slots = tuple(wire.WorkerSlot(rank, rank, "", {"dp": rank}) for rank in range(ranks))
    mesh = {"dims": {"dp": ranks}, "crosses_nodes": {"dp": False}}
    values: dict[str, Any] = {
        "node_rank": 0,
        "nnodes": 1,
        "world_size": ranks,
        "fingerprint": "f",
        "device": "cpu",
        "backend": "",
        "timeout_s": 60.0,
        "mesh": mesh,
        "workers": slots,
        "max_restarts": 0,
    }
    return wire.Assign(**{**values, **changes})


def start_shell(driver: Driver, folder: Path, script: str, ranks: int = 1, **brief: Any) -> None:
    """Bring an agent to where `ranks` shells run `script`."""
    driver.send(make_brief(folder, "/bin/sh", "-c", script, **brief))
    driver.expect(wire.Facts)
    driver.send(make_assign(ranks), wire.Start(0, "127.0.0.1", 29500))
    for _ in range(ranks):
        driver.expect(wire.Spawned)
