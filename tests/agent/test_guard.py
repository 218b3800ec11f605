"""Owns: what the guard and the start of a process owe to each other's signals.
Must not: start whole agents (test_programs does).
Called by: pytest."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

GUARD = """
import os, signal, sys, time
from meshrun.agent import guard
guard._FROZEN_S = float(sys.argv[2])
agent = os.fork()
if agent == 0:
    if sys.argv[3] == "freeze":
        os.kill(os.getpid(), signal.SIGSTOP)
    os._exit(int(sys.argv[4]))
if sys.argv[3] == "freeze" and sys.argv[4] == "0":
    if os.fork() == 0:
        while open(f"/proc/{agent}/stat").read().rsplit(") ")[1][0] != "T":
            time.sleep(0.01)
        os.kill(agent, signal.SIGCONT)
        os._exit(0)
guard.stand_guard(agent, "no-such-mark")
"""
WAKEUP = """
import os, signal
from meshrun.agent.spawn import start_process
reading, writing = os.pipe2(os.O_NONBLOCK)
signal.set_wakeup_fd(writing)
signal.signal(signal.SIGTERM, lambda number, frame: None)
for _ in range(200):
    pid = start_process(["sleep", "60"], {"PATH": os.environ["PATH"]}, "/", (1, 2))
    os.kill(pid, signal.SIGTERM)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == -15, status
try:
    print(os.read(reading, 100))
except BlockingIOError:
    print("nothing")
"""


def stand(tmp: Path, frozen_s: float, how: str, status: int) -> int:
    (tmp / f"meshrun-{os.getuid()}.no-such-mark").mkdir(parents=True)
    argv = [sys.executable, "-c", GUARD, str(tmp), str(frozen_s), how, str(status)]
    return subprocess.run(argv, timeout=60, env={**os.environ, "TMPDIR": str(tmp)}).returncode


def test_an_agent_that_stays_frozen_is_ended(tmp_path: Path) -> None:
    assert stand(tmp_path / "tmp", 0.2, "freeze", 1) == 125
    assert not list((tmp_path / "tmp").iterdir())


def test_an_agent_that_goes_on_is_left_alone(tmp_path: Path) -> None:
    assert stand(tmp_path / "tmp", 50.0, "freeze", 0) == 0


def test_an_agent_that_ends_is_reported(tmp_path: Path) -> None:
    assert [stand(tmp_path / str(status), 50.0, "run", status) for status in (0, 1)] == [0, 125]


def test_a_signal_for_a_new_process_is_never_taken_for_the_agents() -> None:
    """Between fork and exec a child still has the agent's wakeup descriptor: the agent then believed it was told to
    end."""
    ended = subprocess.run([sys.executable, "-c", WAKEUP], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout.strip()) == (0, "nothing"), ended.stderr
