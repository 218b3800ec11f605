"""Owns: tests of agents on this machine without SSH.
Must not: use the real agent.
Called by: pytest."""

from __future__ import annotations

import os
import pwd
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from meshrun import wire
from meshrun.agent import procs
from meshrun.errors import CauseKind
from meshrun.launch.channel import Closed, Received
from meshrun.launch.here import is_this_machine
from meshrun.launch.local import open_local
from meshrun.spec.values import Host, SshSettings
from tests.cluster_parts import list_processes, wait_until
from tests.launch.standin import Line, make_start

_ME = pwd.getpwuid(os.getuid()).pw_name
_NOBODY_ELSE = SshSettings(config="none")


def _line(**kwargs: str) -> Line:
    return Line(open_local(make_start(sys.executable, **kwargs)))


def test_a_conversation() -> None:
    line = _line()
    tmp = Path(line.start().split()[2])
    assert line.ask("hey") == "hey" and tmp.exists()
    line.fleet.send(0, wire.Stacks(0, "exit 3"))
    closed = line.until(Closed)
    assert closed.reason == "the agent ended (exit code 3)" and closed.noise == ""
    assert not tmp.exists()


def test_what_was_queued_before_closing_still_arrives(tmp_path: Path) -> None:
    line = _line(prelude=f"TMPDIR={tmp_path}")
    line.start()
    line.fleet.close_all()
    wait_until(lambda: not list(tmp_path.iterdir()), "the agent's end")
    assert line.quiet()


def _is_gone(pid: int) -> bool:
    process = procs.read_process(pid)
    return process is None or process.dead  # an orphan is not ours to wait for


def test_one_that_is_stopped_before_it_greets_is_ended_with_the_line() -> None:
    """Also what its prelude waits for."""

    def find() -> list[procs.Process]:
        return [process for process in procs.find_descendants(os.getpid()) if process.name == "sleep"]

    line = _line(prelude="sleep 1000")
    line.fleet.open(0)
    wait_until(lambda: len(find()) == 1, "the prelude")
    (child,) = find()
    pid = child.parent
    os.kill(pid, signal.SIGSTOP)
    line.fleet.close_all()
    wait_until(lambda: _is_gone(pid), "its end")
    wait_until(lambda: _is_gone(child.pid), "the end of its prelude")


def test_a_large_message_each_way() -> None:
    line = _line()
    line.start()
    text = "x" * 3_000_000
    assert line.ask(text) == text


def test_much_on_stdout_and_stderr_together() -> None:
    line = _line()
    line.start()
    line.fleet.send(0, wire.Stacks(0, "flood 300"))
    for n in range(300):
        message = line.until(Received).message
        assert message.rank == n and len(message.data) == 65536
    line.fleet.send(0, wire.Stacks(0, "exit 0"))
    assert len(line.until(Closed).noise) == 65536  # the last of 300,000 bytes


def test_send_never_waits_for_an_agent_that_does_not_read() -> None:
    line = _line()
    pid = _start_and_find(line)
    os.kill(pid, signal.SIGSTOP)
    for _ in range(100):
        line.fleet.send(0, wire.Stacks(0, "x" * 100_000))
    os.kill(pid, signal.SIGKILL)
    assert line.until(Closed).reason == "the agent ended (signal 9)"


def test_an_agent_that_is_killed_is_reported() -> None:
    line = _line()
    line.start()
    line.fleet.send(0, wire.Stacks(0, "die"))
    assert line.until(Closed).reason == "the agent ended (signal 9)"


def test_something_left_by_the_prelude_neither_holds_the_line_nor_disturbs_it() -> None:
    line = _line(prelude="sleep 1000 & echo $! ; echo more; LEFT=$!")
    line.start()
    left = int(line.ask("env LEFT"))
    line.fleet.send(0, wire.Stacks(0, "exit 0"))
    closed = line.until(Closed)
    os.kill(left, signal.SIGKILL)
    assert closed.noise == f"{left}\nmore"


def test_no_python_here() -> None:
    cause = Line(open_local(make_start("/nope/python"))).fail()
    assert cause.kind is CauseKind.NO_PYTHON and "/nope/python" in cause.message


def test_reopening_gives_a_new_agent() -> None:
    line = _line()
    assert line.start() != line.start()
    assert line.ask("hey") == "hey"


def test_agents_leave_when_their_launcher_is_killed(tmp_path: Path) -> None:
    """Two agents: neither may hold the other's line open."""
    code = (
        "import sys, time; from tests.launch.standin import *; from meshrun.launch.local import open_local\n"
        "start = make_start(sys.executable, prelude='TMPDIR=' + sys.argv[1])\n"
        "line = Line(open_local(start), open_local(start)); line.start(0); line.start(1)\n"
        "print('up', flush=True); time.sleep(1000)"
    )
    root = Path(__file__).parents[2]
    launcher = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, cwd=root)
    with launcher:
        assert launcher.stdout and launcher.stdout.readline() == b"up\n"
        assert len(list(tmp_path.iterdir())) == 2
        launcher.kill()
        launcher.wait()
        wait_until(lambda: not list(tmp_path.iterdir()), "the agents' end")


def _start_and_find(line: Line) -> int:
    """The pid of the agent: the youngest child of ours that is one."""
    line.start()
    mine = [p for p in list_processes() if p.ppid == os.getpid() and p.command.endswith("meshrun-agent")]
    return max(p.pid for p in mine)


@pytest.mark.parametrize(
    "host, ours",
    [
        (Host("localhost"), True),
        (Host("LOCALHOST"), True),
        (Host("127.0.0.1"), True),
        (Host("::1"), True),
        (Host(socket.gethostname()), True),
        (Host(socket.gethostname().split(".")[0] + ".example"), "." not in socket.gethostname()),
        (Host("localhost", user=_ME), True),
        (Host("localhost", port=22), True),
        (Host("localhost", user="somebody-else"), False),
        (Host("localhost", port=2222), False),
        (Host("127.0.0.7"), True),
        (Host("127.0.0.7", port=22), False),
        (Host("127.0.0.7", user=_ME), False),
        (Host("192.0.2.1"), False),
        (Host("0.0.0.0"), False),
        (Host("elsewhere"), False),
    ],
)
def test_is_this_machine(host: Host, ours: bool) -> None:
    assert is_this_machine(host, _NOBODY_ELSE) is ours


def test_the_command_line_and_the_ssh_config_count_too(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("Host localhost\n Port 7\nHost 127.0.0.1\n ProxyJump x\nHost 127.0.0.9\n User y\n")
    settings = SshSettings(config=str(config))
    assert not any(is_this_machine(Host(name), settings) for name in ("localhost", "127.0.0.1", "127.0.0.9"))
    assert is_this_machine(Host("127.0.0.8"), settings)
    assert not is_this_machine(Host("localhost"), SshSettings(config="none", port=2222))
    assert not is_this_machine(Host("localhost"), SshSettings(config="none", user="somebody-else"))
    other = tmp_path / "other"
    other.write_text(f"Host {socket.gethostname()}\n HostName 192.0.2.1\n")
    assert not is_this_machine(Host(socket.gethostname()), SshSettings(config=str(other)))
