"""Owns: real agents with a stand-in worker package: fork server, fresh interpreters, store, stacks, addresses.
Must not: import torch.
Called by: pytest."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from meshrun import wire
from meshrun.agent import procs
from tests.agent.driver import LIMIT_S, Driver, make_assign, make_brief
from tests.agent.test_programs import is_alive

Make = Callable[..., Driver]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[Driver] = []

    def make_driver(**env: str) -> Driver:
        made.append(Driver(tmp_path / f"agent{len(made)}", env))
        return made[-1]

    yield make_driver
    for driver in made:
        driver.close()
        driver.process.wait(LIMIT_S)
        assert not driver.homes


def script(folder: Path, what: str, **changes: Any) -> wire.Brief:
    (folder / "train.py").write_text("print(1)\n")
    return make_brief(folder, str(folder / "train.py"), what, form="script", init="eager", **changes)


def start(driver: Driver, brief: wire.Brief, ranks: int = 2) -> list[wire.Spawned]:
    driver.send(brief, make_assign(ranks))
    driver.expect(wire.Facts)
    driver.send(wire.Start(0, "127.0.0.1", 29500))
    return [driver.expect(wire.Spawned) for _ in range(ranks)]


def parent_of(pid: int) -> int:
    process = procs.read_process(pid)
    assert process is not None
    return process.parent


def is_listening(pid: int, port: int) -> bool:
    """True if `pid` holds the socket that listens on `port`."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    (number,) = [row[9] for row in rows if row[3] == "0A" and int(row[1].partition(":")[2], 16) == port]
    held = [os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir() if path.is_symlink()]
    return f"socket:[{number}]" in held


def test_forked_workers_are_the_agents_own_children_and_a_restart_is_warm(make: Make, tmp_path: Path) -> None:
    driver = make()
    spawned = start(driver, script(tmp_path, "wait"))
    agent = driver.all_of(wire.Facts)[0].pid
    assert {driver.expect(wire.Ready).rank for _ in spawned} == {0, 1}
    assert {parent_of(worker.pid) for worker in spawned} == {agent}
    (server,) = set(procs.read_children(agent) or ()) - {worker.pid for worker in spawned}
    driver.send(wire.Stop(5.0, "again"))
    assert driver.expect(wire.Drained).attempt == 0
    driver.send(wire.Start(1, "127.0.0.1", 29501))
    again = [driver.expect(wire.Spawned) for _ in range(2)]
    assert {worker.attempt for worker in again} == {1} and is_alive(server)
    assert set(procs.read_children(agent) or ()) == {server, *(worker.pid for worker in again)}


def test_what_a_worker_said_last_comes_before_its_exit_with_our_rank_and_attempt(make: Make, tmp_path: Path) -> None:
    driver = make()
    start(driver, script(tmp_path, "raise"))
    driver.expect(wire.Drained)
    for rank in range(2):
        told = [m for m in driver.seen if getattr(m, "rank", None) == rank and not isinstance(m, wire.Output)]
        assert [type(m) for m in told] == [wire.Spawned, wire.Ready, wire.Raised, wire.Exited]
        assert told[-2].attempt == 0 and told[-2].age_s >= told[-1].age_s - 60
    assert b"rank 0 of 2 does raise" in driver.output[0, wire.STDOUT]


@pytest.mark.parametrize(
    ("changes", "env", "word"),
    [
        ({"start_method": "spawn"}, {}, None),
        ({}, {"STAND_IN_PROBLEM": "9 threads"}, "9 threads"),
        ({}, {"STAND_IN_PROBLEM": "die"}, "the stand-in dies"),
        ({}, {"STAND_IN_PROBLEM": "close-and-die"}, "the stand-in dies"),
    ],
)
def test_fresh_interpreters_get_the_same_order(
    make: Make, tmp_path: Path, changes: dict[str, Any], env: dict[str, str], word: str | None
) -> None:
    driver = make(**env)
    start(driver, script(tmp_path, "exit3", **changes))
    assert [driver.expect(wire.Exited).exit_code for _ in range(2)] == [3, 3]
    driver.expect(wire.Drained)
    remarks = driver.all_of(wire.Trouble)
    assert not any(remark.fatal for remark in remarks)
    assert [word in remark.message for remark in remarks] == ([True] if word else []), remarks


def test_a_fork_server_that_dies_while_forking_is_a_fatal_trouble_and_no_hang(make: Make, tmp_path: Path) -> None:
    driver = make()
    (tmp_path / "train.py").write_text("")
    brief = make_brief(tmp_path, str(tmp_path / "train.py"), "wait", "die-while-forking", form="script", init="eager")
    driver.send(brief, make_assign(2), wire.Start(0, "127.0.0.1", 1))
    with pytest.raises(AssertionError, match="fork server ended"):
        driver.expect(wire.Drained)
    driver.expect(wire.Drained)


@pytest.mark.parametrize("init", ["eager", "off"])
def test_the_store_answers_at_the_address_that_was_told(make: Make, tmp_path: Path, init: str) -> None:
    driver = make()
    (tmp_path / "train.py").write_text("")
    brief = make_brief(tmp_path, str(tmp_path / "train.py"), "exit0", form="script", init=init)
    driver.send(brief, make_assign(3), wire.OpenStore("127.0.0.1", 0, 0, True))
    opened = driver.expect(wire.StoreOpened)
    with socket.create_connection((opened.address, opened.port), LIMIT_S) as peer:
        assert peer.recv(100) == b"store of 3"
    driver.send(wire.Start(0, opened.address, opened.port))
    driver.expect(wire.Drained)
    driver.send(wire.OpenStore("127.0.0.1", opened.port, 1, True))
    assert driver.expect(wire.StoreOpened).port == opened.port, "the next attempt may pin the same port"


def test_a_busy_port_is_named(make: Make, tmp_path: Path) -> None:
    driver = make()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        driver.send(make_brief(tmp_path, "true"), make_assign(1), wire.OpenStore("127.0.0.1", port, 0, False))
        with pytest.raises(AssertionError, match=f"127.0.0.1:{port} is in use"):
            driver.expect(wire.StoreOpened)


def test_without_bind_the_port_is_free_again(make: Make, tmp_path: Path) -> None:
    driver = make()
    driver.send(make_brief(tmp_path, "true"), make_assign(1), wire.OpenStore("127.0.0.1", 0, 0, False))
    with socket.create_server(("127.0.0.1", driver.expect(wire.StoreOpened).port)):
        pass


def test_two_nodes_measure_the_address(make: Make, tmp_path: Path) -> None:
    first, second = make(), make()
    first.send(make_brief(tmp_path, "true", offers=True))
    second.send(make_brief(tmp_path, "true"))
    port = first.expect(wire.Facts).offer_port
    second.expect(wire.Facts)
    second.send(wire.TryAddresses(("127.0.0.1", "127.0.0.2", "::1"), port, 10.0))
    reached = second.expect(wire.Reached)
    assert reached.interfaces["127.0.0.1"] == "lo" and not reached.refused
    first.send(make_assign(1), wire.OpenStore("127.0.0.1", port, 0, False))
    assert first.expect(wire.StoreOpened).port == port, "the offer has been closed"
    second.send(wire.TryAddresses(("127.0.0.1",), port, 10.0))
    assert second.expect(wire.Reached).refused == {"127.0.0.1": "Connection refused"}


def test_stacks_come_from_processes_that_can_show_them(make: Make, tmp_path: Path) -> None:
    driver = make()
    start(driver, script(tmp_path, "stacks"))
    for rank in range(2):
        driver.wait_for_output(rank, b"registered")
    driver.send(wire.Dump((1,)))
    stacks = driver.expect(wire.Stacks)
    assert stacks.rank == 1 and "most recent call first" in stacks.text


def test_a_process_without_a_handler_survives_a_dump(make: Make, tmp_path: Path) -> None:
    driver = make()
    (spawned,) = start(driver, make_brief(tmp_path, "sleep", "1000"), 1)
    driver.send(wire.Dump(()))
    assert "no Python stacks" in driver.expect(wire.Stacks).text
    assert is_alive(spawned.pid)


def test_a_fork_server_killed_while_workers_run_is_harmless(make: Make, tmp_path: Path) -> None:
    driver = make()
    spawned = start(driver, script(tmp_path, "wait"), 1)
    agent = driver.all_of(wire.Facts)[0].pid
    (server,) = set(procs.read_children(agent) or ()) - {worker.pid for worker in spawned}
    os.kill(server, signal.SIGKILL)
    driver.expect(wire.Ready)
    driver.send(wire.Stop(5.0, "test"))
    driver.expect(wire.Drained)
    driver.send(wire.Start(1, "127.0.0.1", 1))
    assert driver.expect(wire.Spawned).attempt == 1, "the next attempt starts fresh interpreters"


def test_a_store_killed_while_workers_run_is_a_remark(make: Make, tmp_path: Path) -> None:
    driver = make()
    driver.send(script(tmp_path, "wait"), make_assign(1), wire.OpenStore("127.0.0.1", 0, 0, True))
    opened = driver.expect(wire.StoreOpened)
    driver.send(wire.Start(0, opened.address, opened.port))
    worker = driver.expect(wire.Spawned).pid
    driver.expect(wire.Ready)
    until = time.monotonic() + LIMIT_S
    while len(children := set(procs.read_children(driver.all_of(wire.Facts)[0].pid) or ())) < 3:
        assert time.monotonic() < until
    os.kill(next(pid for pid in children - {worker} if is_listening(pid, opened.port)), signal.SIGKILL)
    trouble = driver.expect(wire.Trouble)
    assert (trouble.kind, trouble.fatal) == ("store", False)
    driver.send(wire.Stop(5.0, "test"))
    driver.expect(wire.Drained)
