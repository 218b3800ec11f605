"""Owns: real agents that run shell commands: output, stopping, and that nothing is ever left behind.
Must not: measure time, or look at processes it did not start.
Called by: pytest."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from meshrun import wire
from meshrun.agent import procs
from tests.agent.driver import LIMIT_S, Driver, make_assign, make_brief, start_shell


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    driver = Driver(tmp_path)
    yield driver
    driver.close()
    driver.process.wait(LIMIT_S)
    assert not driver.homes


def is_alive(pid: int) -> bool:
    process = procs.read_process(pid)
    return process is not None and not process.dead


def wait_until_gone(*pids: int) -> None:
    until = time.monotonic() + LIMIT_S
    while left := [pid for pid in pids if is_alive(pid)]:
        assert time.monotonic() < until, [str(procs.read_process(pid)) for pid in left]
        time.sleep(0.01)


def read_pids(folder: Path, *names: str) -> list[int]:
    """Pids that the shells wrote to files, once they are there."""
    until = time.monotonic() + LIMIT_S
    while True:
        texts = [(folder / name).read_text() if (folder / name).exists() else "" for name in names]
        if all(text.endswith("\n") for text in texts):
            return [int(text) for text in texts]
        assert time.monotonic() < until, texts
        time.sleep(0.01)


# A child in the group, a setsid child, and a double-forked one with a new session and an empty environment.
FAMILY = """
sleep 1000 & echo $! > grouped
setsid sh -c 'echo $$ > session; exec sleep 1000' &
(env -i setsid sh -c 'echo $$ > bare; exec sleep 1000' &)
while [ ! -s session ] || [ ! -s bare ]; do sleep 0.02; done
echo $$ > main
"""
MEMBERS = ("grouped", "session", "bare", "main")


def test_every_line_arrives_in_order(driver: Driver, tmp_path: Path) -> None:
    start_shell(driver, tmp_path, "seq 1 200000; seq 1 1000 >&2", ranks=2)
    driver.expect(wire.Drained)
    expected = b"".join(b"%d\n" % number for number in range(1, 200001))
    for rank in range(2):
        assert driver.output[rank, wire.STDOUT] == expected
        assert driver.output[rank, wire.STDERR] == expected[: expected.index(b"1001\n")]


def test_a_stalled_launcher_gets_its_window_and_no_more_and_the_worker_never_waits(
    driver: Driver, tmp_path: Path
) -> None:
    driver.acking = False
    start_shell(driver, tmp_path, "seq 1 400000; echo done > finished", window_bytes=10_000)
    exited = driver.expect(wire.Exited)
    assert exited.exit_code == 0 and (tmp_path / "finished").exists()
    assert sum(map(len, driver.output.values())) == 10_000, "the exit overtook the rest of the output"
    driver.send(wire.Ack(5_000))
    while sum(map(len, driver.output.values())) < 15_000:
        driver._receive(time.monotonic() + LIMIT_S)
    driver.acking = True
    driver.send(wire.Ack(10_000))
    driver.expect(wire.Drained)
    assert driver.output[0, wire.STDOUT] == b"".join(b"%d\n" % number for number in range(1, 400001))


def test_exit_codes_and_signals_are_told_as_they_were(driver: Driver, tmp_path: Path) -> None:
    start_shell(driver, tmp_path, "[ $RANK = 0 ] && exit 7; kill -9 $$", ranks=2)
    ended = {message.rank: message for message in (driver.expect(wire.Exited), driver.expect(wire.Exited))}
    assert (ended[0].exit_code, ended[0].signal, ended[0].oom, ended[0].stopped) == (7, 0, "", False)
    assert (ended[1].exit_code, ended[1].signal, ended[1].oom, ended[1].stopped) == (137, 9, "no", False)
    driver.expect(wire.Drained)


def test_a_failure_comes_with_the_end_of_its_stderr_also_while_a_child_holds_it_open(
    driver: Driver, tmp_path: Path
) -> None:
    driver.acking = False
    start_shell(driver, tmp_path, "sleep 1000 & seq 1 20000 >&2; echo 'last words' >&2; exit 7", window_bytes=1000)
    said = driver.expect(wire.Exited).said
    assert said.endswith("19999\n20000\nlast words\n") and 4000 < len(said) <= 8192
    driver.acking = True
    driver.send(wire.Ack(100_000))
    driver.expect(wire.Drained)


def test_a_success_says_nothing(driver: Driver, tmp_path: Path) -> None:
    start_shell(driver, tmp_path, "echo warning >&2")
    assert driver.expect(wire.Exited).said == ""
    driver.expect(wire.Drained)


def test_torch_elastics_error_file_is_told_before_the_end(driver: Driver, tmp_path: Path) -> None:
    body = '{"message": {"message": "ValueError: x", "extraInfo": {"py_callstack": "T", "timestamp": "1"}}}'
    start_shell(driver, tmp_path, f"echo '{body}' > $TORCHELASTIC_ERROR_FILE; exit 5")
    raised = driver.expect(wire.Raised)
    assert (raised.type, raised.message, raised.exit_code) == ("ValueError", "x", 5)
    assert driver.expect(wire.Exited).exit_code == 5
    driver.expect(wire.Drained)


def test_a_program_that_cannot_run_says_so_as_a_shell_would(driver: Driver, tmp_path: Path) -> None:
    driver.send(make_brief(tmp_path, "./nowhere"))
    assert driver.expect(wire.Facts).script_error == "missing"
    driver.send(make_assign(1), wire.Start(0, "127.0.0.1", 1))
    assert driver.expect(wire.Exited).exit_code == 127
    driver.expect(wire.Drained)
    assert b"./nowhere: No such file" in driver.output[0, wire.STDERR]


def test_stdin_is_empty_and_arguments_and_values_keep_their_bytes(driver: Driver, tmp_path: Path) -> None:
    odd = b"a b\t'\"$x\xff\xc3\xa9\n*".decode("utf-8", "surrogateescape")
    script = 'cat; printf %s "$1|$ODD|$FROM"'
    brief = make_brief(tmp_path, "/bin/sh", "-c", script, "sh", odd, env={"ODD": odd}, env_remote={"FROM": "${HOME}/x"})
    driver.send(brief, make_assign(1), wire.Start(0, "127.0.0.1", 1))
    driver.expect(wire.Drained)
    raw = odd.encode("utf-8", "surrogateescape")
    home = os.environb[b"HOME"] + b"/x"
    assert driver.output[0, wire.STDOUT] == b"|".join((raw, raw, home))


def test_an_early_finisher_takes_its_own_children_along_and_nobody_elses(driver: Driver, tmp_path: Path) -> None:
    script = "sleep 1000 & echo $! > child$RANK; [ $RANK = 0 ] && exit 0; sleep 1000"
    start_shell(driver, tmp_path, script, ranks=2)
    first, second = read_pids(tmp_path, "child0", "child1")
    assert driver.expect(wire.Exited).rank == 0
    wait_until_gone(first)
    assert is_alive(second)
    driver.send(wire.Stop(5.0, "test"))
    assert driver.expect(wire.Exited).stopped
    driver.expect(wire.Drained)
    assert not is_alive(second)


def test_leftovers_of_a_finished_worker_do_not_outlive_the_attempt(driver: Driver, tmp_path: Path) -> None:
    start_shell(driver, tmp_path, FAMILY)
    driver.expect(wire.Drained)
    assert not any(map(is_alive, read_pids(tmp_path, *MEMBERS)))


def test_stop_sends_sigterm_once_and_kills_after_the_grace(driver: Driver, tmp_path: Path) -> None:
    script = "trap 'echo told' TERM; echo ready; while :; do sleep 0.05; done"
    start_shell(driver, tmp_path, script)
    driver.wait_for_output(0, b"ready")
    driver.send(wire.Stop(0.5, "test"))
    exited = driver.expect(wire.Exited)
    assert (exited.signal, exited.stopped) == (9, True)
    driver.expect(wire.Drained)
    assert driver.output[0, wire.STDOUT].count(b"told") == 1


def test_a_stopped_process_dies_too(driver: Driver, tmp_path: Path) -> None:
    start_shell(driver, tmp_path, "sleep 1000 & echo $! > child; kill -STOP $!; kill -STOP $$")
    (child,) = read_pids(tmp_path, "child")
    driver.send(wire.Stop(0.3, "test"))
    assert driver.expect(wire.Exited).signal == 9
    driver.expect(wire.Drained)
    assert not is_alive(child)


def test_grace_zero_is_at_once_and_shortens_a_long_one(driver: Driver, tmp_path: Path) -> None:
    start_shell(driver, tmp_path, "trap '' TERM; echo ready; while :; do sleep 1; done")
    driver.wait_for_output(0, b"ready")
    driver.send(wire.Stop(3600.0, "patience"), wire.Stop(0.0, "no more"))
    assert driver.expect(wire.Exited).signal == 9
    driver.expect(wire.Drained)


def test_a_second_attempt_follows_a_drained_one(driver: Driver, tmp_path: Path) -> None:
    start_shell(driver, tmp_path, "echo attempt $TORCHELASTIC_RESTART_COUNT; exit 1")
    assert driver.expect(wire.Drained).attempt == 0
    driver.send(wire.Start(1, "127.0.0.1", 29501))
    assert driver.expect(wire.Drained).attempt == 1
    assert [exited.attempt for exited in driver.all_of(wire.Exited)] == [0, 1]
    assert driver.output[0, wire.STDOUT] == b"attempt 0\nattempt 1\n"


def test_leave_ends_what_runs_and_says_goodbye_last(driver: Driver, tmp_path: Path) -> None:
    start_shell(driver, tmp_path, FAMILY + "wait")
    pids = read_pids(tmp_path, *MEMBERS)
    driver.send(wire.Leave(1, {}, ""))
    assert driver.expect(wire.Bye).left == ()
    assert not any(map(is_alive, pids)) and not driver.homes
    driver.read_to_end()
    assert isinstance(driver.seen[-1], wire.Bye) and driver.process.wait(LIMIT_S) == 0


@pytest.mark.parametrize(
    "way", ["end of file", "agent killed", "parent killed", "agent terminated", "parent terminated"]
)
def test_however_the_agent_ends_nothing_is_left_and_the_neighbour_lives(tmp_path: Path, way: str) -> None:
    neighbour = subprocess.Popen(
        ["sleep", "1000"], start_new_session=True, env={"MESHRUN_MARK": "other.123", "RANK": "0"}
    )
    driver = Driver(tmp_path)
    try:
        start_shell(driver, tmp_path, FAMILY + "wait", grace_s=1.0)
        pids = read_pids(tmp_path, *MEMBERS)
        agent = driver.all_of(wire.Facts)[0].pid
        who = {"agent": agent, "parent": driver.process.pid}.get(way.split()[0])
        if who is None:
            driver.close()
        else:
            os.kill(who, signal.SIGKILL if way.endswith("killed") else signal.SIGTERM)
        wait_until_gone(*pids, agent)
        driver.process.wait(LIMIT_S)
        assert neighbour.poll() is None
        until = time.monotonic() + LIMIT_S
        while driver.homes:
            assert time.monotonic() < until
            time.sleep(0.01)
    finally:
        driver.close()
        neighbour.kill()
        neighbour.wait()


def test_workers_that_ignore_sigterm_do_not_survive_the_end_of_file(driver: Driver, tmp_path: Path) -> None:
    start_shell(driver, tmp_path, "trap '' TERM; echo $$ > main; while :; do sleep 1; done", grace_s=0.3)
    (pid,) = read_pids(tmp_path, "main")
    driver.close()
    wait_until_gone(pid)


def test_silence_of_the_launcher_ends_the_agent(driver: Driver, tmp_path: Path) -> None:
    start_shell(driver, tmp_path, "echo $$ > main; exec sleep 1000", silence_s=0.5)
    (pid,) = read_pids(tmp_path, "main")
    driver.read_to_end()
    assert not is_alive(pid)


def test_the_agent_beats_when_there_is_nothing_to_say(driver: Driver, tmp_path: Path) -> None:
    start_shell(driver, tmp_path, "exec sleep 1000")
    until = time.monotonic() + LIMIT_S
    while not driver.all_of(wire.Beat):
        driver._receive(until)


def test_nonsense_on_the_line_ends_the_agent(driver: Driver, tmp_path: Path) -> None:
    start_shell(driver, tmp_path, "echo $$ > main; exec sleep 1000")
    (pid,) = read_pids(tmp_path, "main")
    os.write(driver._writing.fileno(), b"\xff" * 64)
    driver.read_to_end()
    assert not is_alive(pid)


def test_a_crash_of_the_agent_is_told_on_stderr(tmp_path: Path) -> None:
    driver = Driver(tmp_path)
    driver.send(make_brief(tmp_path, "x", env={"A": "b"}))
    agent = driver.expect(wire.Facts).pid
    broken = make_assign(1, mesh={"dims": 5})
    driver.send(broken, wire.Start(0, "127.0.0.1", 1))
    driver.read_to_end()
    assert "Traceback" in driver.errors() and driver.process.wait(LIMIT_S) == 125
    assert not is_alive(agent) and not driver.homes
