"""Owns: starting one process of ours with fork and exec.
Must not: wait for it.
Called by: agent.loop."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Mapping, Sequence
from typing import NoReturn

from meshrun.agent import kernel
from meshrun.wire.cpus import parse_cpus, render_cpus

# `python -c WORKER_BOOT <bundle> <role> <fd> ...`; the worker package reads sys.argv.
WORKER_BOOT = "import sys; sys.path.insert(0, sys.argv[1]); from meshrun.worker.__main__ import main; main()"
_RESET = (signal.SIGPIPE, signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGCHLD)


def to_bytes(text: str) -> bytes:
    """Text of the wire (undecodable bytes as surrogate escapes) as the bytes it was, in any locale."""
    return text.encode("utf-8", "surrogateescape")


def to_text(data: bytes) -> str:
    """The opposite of `to_bytes`."""
    return data.decode("utf-8", "surrogateescape")


_REMEDIES = {
    errno.EAGAIN: "no more processes are allowed, see ulimit -u and the container's pids limit",
    errno.ENOMEM: "there is no memory for another process",
    errno.EMFILE: "no more open files are allowed, see ulimit -n",
}


def explain_refusal(error: OSError) -> str:
    """Why the kernel gave no process, pipe or socket, and where to look."""
    said = error.strerror or str(error)
    remedy = _REMEDIES.get(error.errno or 0)
    return f"{said} ({remedy})" if remedy else said


def start_process(
    argv: Sequence[str],
    env: Mapping[str, str],
    folder: str,
    outputs: tuple[int, int],
    keep: Sequence[int] = (),
    nice: int = 0,
    cpus: str = "",
) -> int:
    """The pid of a new process in a session of its own: stdin /dev/null, stdout and stderr `outputs`, and `keep` open
    at their numbers; it runs on `cpus` ("": wherever the agent may). It dies with the agent. If it cannot run, it says
    so on its stderr and ends with 126 or 127, as a shell does. Raises OSError if there can be no process."""
    arguments = [to_bytes(text) for text in argv]
    variables = {to_bytes(name): to_bytes(value) for name, value in env.items()}
    allowed = parse_cpus(cpus)
    # Until the child has let go of the agent's wakeup descriptor, a signal meant for it would be the agent's.
    signal.pthread_sigmask(signal.SIG_BLOCK, _RESET)
    try:
        pid = os.fork()
        if pid == 0:
            _become(arguments, variables, to_bytes(folder), outputs, keep, nice, allowed)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _RESET)
    return pid


def _become(
    argv: list[bytes],
    env: dict[bytes, bytes],
    folder: bytes,
    outputs: tuple[int, int],
    keep: Sequence[int],
    nice: int,
    cpus: Sequence[int],
) -> NoReturn:
    code = 126
    try:
        signal.set_wakeup_fd(-1)
        for number in _RESET:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _RESET)
        os.setsid()
        kernel.follow_parent(signal.SIGKILL)
        for source, target in ((os.open(os.devnull, os.O_RDONLY), 0), (outputs[0], 1), (outputs[1], 2)):
            os.dup2(source, target)
        for fd in keep:
            os.set_inheritable(fd, True)
        if nice:
            os.nice(nice)
        if cpus:
            _bind(cpus)
        what = folder
        os.chdir(folder)
        what = argv[0]
        os.execvpe(argv[0], argv, env)
    except (OSError, ValueError) as error:
        code = 127 if isinstance(error, FileNotFoundError) else 126
        os.write(2, b"meshrun: cannot run %s: %s\n" % (what, (getattr(error, "strerror", "") or str(error)).encode()))
    finally:
        os._exit(code)


def _bind(cpus: Sequence[int]) -> None:
    """Run on these CPUs; where that fails (they may have gone since the greeting) unbound, and it is said."""
    try:
        os.sched_setaffinity(0, cpus)
    except OSError as error:
        os.write(2, f"meshrun: cannot bind to CPUs {render_cpus(cpus)}: {error.strerror}\n".encode())


def start_role(
    bundle: str,
    role: str,
    arguments: Sequence[str],
    env: Mapping[str, str],
    folder: str,
    outputs: tuple[int, int],
    keep: Sequence[int],
    nice: int = 0,
) -> int:
    """Start a role of `meshrun.worker` in a fresh interpreter, the one the agent itself was started with."""
    import sys

    argv = [to_text(os.fsencode(sys.executable)), "-c", WORKER_BOOT, bundle, role, *arguments]
    return start_process(argv, env, folder, outputs, keep, nice)
