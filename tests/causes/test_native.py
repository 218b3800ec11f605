"""Owns: ends by a signal: crashes in native code with their Python stack, signals from outside.
Must not: need torch or root.
Called by: pytest."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.causes.fault import Fault, last_block
from tests.e2e.command import Command

CRASH = (
    "import os, signal\ndef deep():\n    os.kill(os.getpid(), signal.{name})  # here\ndef outer(): deep()\nouter()\n"
)
FATAL = {
    "SIGSEGV": (11, "Segmentation fault", "memory that is not its own"),
    "SIGABRT": (6, "Aborted", "gave up"),
    "SIGILL": (4, "Illegal instruction", "an instruction that the CPU"),
    "SIGBUS": (7, "Bus error", "/dev/shm"),
    "SIGFPE": (8, "Floating", "divided an integer"),
}
FAULTS = [
    *(
        Fault(
            name,
            CRASH.format(name=name),
            128 + number,
            "signal",
            signal=number,
            said=f"Fatal Python error: {said}",
            cause=cause,
        )
        for name, (number, said, cause) in FATAL.items()
    ),
    Fault(
        "a null pointer",
        "import ctypes\ndef read(): ctypes.string_at(0)\nread()\n",
        139,
        "signal",
        signal=11,
        said="line 2 in read",
        cause="memory that is not its own",
    ),
    Fault(
        "a crash in a thread",
        """
        import ctypes, threading
        def crash(): ctypes.string_at(0)
        thread = threading.Thread(target=crash); thread.start(); thread.join()
        """,
        139,
        "signal",
        signal=11,
        said="line 2 in crash",
        cause="memory that is not its own",
    ),
    Fault("SIGKILL from itself", CRASH.format(name="SIGKILL"), 137, "signal", signal=9, oom="no", cause="from outside"),
    Fault("SIGTERM from itself", CRASH.format(name="SIGTERM"), 143, "signal", signal=15, cause="SIGTERM came"),
    Fault("SIGXCPU", CRASH.format(name="SIGXCPU"), 152, "signal", signal=24, cause="limit of CPU time"),
    Fault(
        "a program that crashes",
        "",
        139,
        "signal",
        signal=11,
        cause="memory that is not its own",
        options=("--no-python",),
        argv=("sh", "-c", "kill -SEGV $$"),
    ),
    Fault(
        "a C++ exception that nobody caught",
        "import os, sys\nos.write(2, b\"terminate called after throwing an instance of 'std::bad_alloc'\\n"
        '  what():  std::bad_alloc\\n")\nos.abort()\n',
        134,
        "signal",
        signal=6,
        said="what():  std::bad_alloc",
        cause="no more memory",
    ),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_named(fault: Fault, tmp_path: Path) -> None:
    ended = fault.start(tmp_path)
    fault.check(tmp_path, ended)
    assert "meshrun/worker" not in (ended.summary["first_failure"]["said"] or "")


OVERFLOW = """
    import ctypes, mmap, platform
    calls_itself = {"x86_64": "e8fbffffff", "aarch64": "fd7bbfa9ffffff97"}[platform.machine()]
    code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    code.write(bytes.fromhex(calls_itself))
    address = ctypes.addressof(ctypes.c_char.from_buffer(code))
    def into_c(): ctypes.CFUNCTYPE(None)(address)()
    into_c()
"""


def test_a_stack_overflow_in_native_code(tmp_path: Path) -> None:
    fault = Fault("", OVERFLOW, 139, "signal", signal=11, said="line 6 in into_c", cause="its stack overflowed")
    fault.check(tmp_path, fault.start(tmp_path))


WAITS = """
    import os, pathlib, signal
    pathlib.Path(f"pid{os.environ['RANK']}").write_text(str(os.getpid()))
    os.rename(f"pid{os.environ['RANK']}", f"ready{os.environ['RANK']}")
    signal.pause()
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_kill_from_outside(number: int, tmp_path: Path) -> None:
    """Only the rank that was killed is named; the others were stopped by us and are no failures."""
    name, cause = signal.Signals(number).name, "came from outside the run"
    fault = Fault("", WAITS, 128 + number, "signal", signal=number, cause=f"{name} {cause}", rank=1, ranks=3)
    (tmp_path / "script.py").write_text("\n".join(line[4:] for line in WAITS.splitlines()))
    command = Command(tmp_path, "--nproc-per-node", "3", "--no-init", "script.py")
    for rank in range(3):
        command.wait_for(tmp_path / f"ready{rank}")
    os.kill(int((tmp_path / "ready1").read_text()), number)
    ended = command.end()
    fault.check(tmp_path, ended)
    assert ended.summary["followed"] == [0, 2]
    assert number != signal.SIGKILL or "OOM killer: no" in last_block(ended)


def test_our_own_stop_is_no_failure(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("\n".join(line[4:] for line in WAITS.splitlines()))
    command = Command(tmp_path, "--nproc-per-node", "2", "--no-init", "--grace", "0.2", "script.py")
    for rank in range(2):
        command.wait_for(tmp_path / f"ready{rank}")
    command.signal(signal.SIGINT)
    ended = command.end()
    assert ended.code == 130 and ended.summary["first_failure"] is None and "failed first" not in ended.err, ended
