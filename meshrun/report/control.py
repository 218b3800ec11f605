"""Owns: the socket in the run directory through which a live run is asked: who it is, its stacks, an orderly stop.
Must not: decide anything about the run: what is asked becomes an event, what is answered was an action.
Called by: cli.runner (serves), cli.live (asks, through `open_socket`)."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from meshrun.report.collectives import render_disagreements
from meshrun.report.stacks import render_groups
from meshrun.spec.values import Job
from meshrun.watch.values import Answer, Asked, Event, Signalled

NAME = "control.sock"
ANSWER_S = 6.0  # the stacks of a run take two seconds at most; the loop may be busy with a flood of output
_REQUEST_S = 1.0
_REQUEST_BYTES = 64


@contextmanager
def reach_socket(directory: str) -> Iterator[str]:
    """A path of the socket in `directory` that is short enough for an address (108 bytes), whatever the directory's."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}/{NAME}"
    finally:
        os.close(fd)


class Control:
    """Serves one run until `close`. One question at a time, in a thread of its own."""

    def __init__(self, job: Job, phase: Callable[[], str], put: Callable[[Event], None]) -> None:
        """`phase` is called from the thread. OSError: no socket can be made there."""
        self._job, self._phase, self._put = job, phase, put
        self._since = time.time()
        self._answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        self._path = os.path.join(job.log_dir, NAME)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with reach_socket(job.log_dir) as path:
                self._socket.bind(path)
            os.chmod(self._path, stat.S_IRUSR | stat.S_IWUSR)
            self._socket.listen(8)
        except OSError:
            self._socket.close()
            raise
        threading.Thread(target=self._serve, name="meshrun-control", daemon=True).start()

    def answer(self, action: Answer) -> None:
        """What the machine says to `Asked`."""
        self._answers.put(action)

    def close(self) -> None:
        """The run is over: nobody can ask any more."""
        with contextlib.suppress(OSError):
            os.unlink(self._path)
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread, which a mere close would leave in its accept
        self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                peer, _ = self._socket.accept()
            except OSError:
                return
            with peer, contextlib.suppress(OSError):
                peer.settimeout(_REQUEST_S)
                word = peer.recv(_REQUEST_BYTES).decode("ascii", "replace").strip()
                peer.sendall(json.dumps(self._reply(word)).encode("ascii"))

    def _reply(self, word: str) -> dict[str, Any]:
        if word == "who":
            return self._describe()
        if word == "stop":
            self._put(Signalled(signal.SIGTERM))
            return {}
        if word == "stacks":
            return self._ask_stacks()
        return {"error": f"this run does not know {word!r}"}

    def _describe(self) -> dict[str, Any]:
        job = self._job
        return {
            "run_id": job.run_id,
            "pid": os.getpid(),
            "since": self._since,
            "phase": self._phase(),
            "hosts": [host.name for host in job.hosts],
            "mesh": [f"{name}={size or 'auto'}" for name, size in job.mesh.dims] if job.mesh else [],
            "command": [job.typed or job.argv[0], *job.argv[1:]],
        }

    def _ask_stacks(self) -> dict[str, Any]:
        while not self._answers.empty():  # to a question that was given up
            self._answers.get()
        self._put(Asked())
        try:
            answer = self._answers.get(timeout=ANSWER_S)
        except queue.Empty:
            return {"error": "the run did not answer"}
        if answer.why:
            return {"error": answer.why}
        lines = render_groups(answer.stacks, answer.plan, render_disagreements(answer.disagreements, answer.plan))
        return {"text": "".join(f"{line}\n" for line in lines)}
