"""Owns: what the operating system refuses: files, disks, ports, permissions, modules, libraries, threads.
Must not: need torch; fill a disk.
Called by: pytest."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.causes.fault import Fault

UNPRIVILEGED = "import os\nif os.getuid() == 0: os.setresuid(65534, 65534, 65534)\n"

FAULTS = [
    Fault(
        "too many open files",
        """
        import resource
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        files = [open("/dev/null") for _ in range(100)]  # here
        """,
        1,
        exception="OSError",
        message="[Errno 24] Too many open files",
        cause="the limit of open files is reached on ",
        hint="ulimit -n",
    ),
    Fault(
        "too many open sockets",
        """
        import resource, socket
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        sockets = [socket.socket() for _ in range(100)]  # here
        """,
        1,
        exception="OSError",
        cause="open files",
    ),
    Fault(
        "no space left",
        "file = open('/dev/full', 'w')\nfile.write('x')\nfile.flush()  # here\n",
        1,
        exception="OSError",
        message="No space left on device",
        cause="a disk of ",
        hint="df -h",
    ),
    Fault(
        "a port in use",
        """
        import socket
        first = socket.create_server(("127.0.0.1", 0))
        socket.create_server(first.getsockname())  # here
        """,
        1,
        exception="OSError",
        message="Address already in use",
        cause="has that port",
        hint="MASTER_PORT",
    ),
    Fault(
        "permission denied",
        UNPRIVILEGED + "open('/proc/1/environ')  # here\n",
        1,
        exception="PermissionError",
        message="/proc/1/environ",
        cause="may not do this",
    ),
    Fault(
        "a missing module",
        "import nosuchmodule.part  # here\n",
        1,
        exception="ModuleNotFoundError",
        message="No module named 'nosuchmodule'",
        cause="has no module nosuchmodule",
        hint="--python",
    ),
    Fault(
        "a missing module, with -m",
        "",
        1,
        kind="exit",
        argv=("-m", "nosuchmodule"),
        cause="has no module nosuchmodule",
    ),
    Fault(
        "a missing shared library",
        "import ctypes\nctypes.CDLL('libcudart.so.99')  # here\n",
        1,
        exception="OSError",
        message="libcudart.so.99: cannot open shared object file",
        cause="lacks the shared library libcudart.so.99",
        hint="LD_LIBRARY_PATH",
    ),
    Fault(
        "an extension that lacks a library",
        "raise ImportError('libcudnn.so.9: cannot open shared object file: No such file or directory')  # here\n",
        1,
        exception="ImportError",
        cause="lacks the shared library libcudnn.so.9",
    ),
    Fault(
        "no more threads",
        'raise RuntimeError("can\'t start new thread")  # here\n',
        1,
        exception="RuntimeError",
        cause="the limit of processes or threads",
    ),
    Fault(
        "an error that only its cause explains",
        """
        class TrainingFailed(Exception): pass
        try:
            open("/dev/full", "w").write("x" * 100_000)
        except OSError as error:
            raise TrainingFailed("step 7") from error  # here
        """,
        1,
        exception="TrainingFailed",
        message="step 7",
        cause="a disk of ",
    ),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_named(fault: Fault, tmp_path: Path) -> None:
    os.chmod(tmp_path, 0o755)
    ended = fault.start(tmp_path)
    fault.check(tmp_path, ended)
