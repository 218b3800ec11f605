"""Owns: which workers count as moving: with made-up processor times, and with real processes.
Must not: depend on how fast anything is.
Called by: pytest."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from meshrun import wire
from meshrun.agent import progress
from tests.agent.driver import Driver, make_assign, make_brief


class Clock:
    """A reactor whose time is ours."""

    def __init__(self) -> None:
        self.at = 0.0
        self.due: list[tuple[float, Callable[[], None]]] = []

    def now(self) -> float:
        return self.at

    def call_at(self, at: float, due: Callable[[], None]) -> None:
        self.due.append((at, due))

    def turn(self) -> None:
        self.at, due = self.due.pop(0)
        due()


class Node:
    """Two workers, pids 70 and 71, whose processor time and output the test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock, self.told = Clock(), list[tuple[int, ...]]()
        self.ticks, self.writers = {70: 0, 71: 0}, set[int]()
        monkeypatch.setattr(progress, "count_ticks", self.ticks.__getitem__)
        monkeypatch.setattr(progress, "_TICK_S", 0.01)
        workers = lambda: {0: 70, 1: 71}  # noqa: E731
        self.progress = progress.Progress(self.clock, 2.0, workers, self.take, self.told.append)  # type: ignore[arg-type]
        self.clock.turn()
        assert self.told.pop() == (0, 1), "new workers have moved"

    def take(self) -> set[int]:
        taken, self.writers = self.writers, set()
        return taken


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Node:
    return Node(monkeypatch)


@pytest.mark.parametrize(("ticks", "told"), [(0, []), (10, []), (11, [(1,)]), (200, [(1,)]), (-5, [(1,)])])
def test_more_than_a_twentieth_of_a_core_is_a_movement(node: Node, ticks: int, told: list[tuple[int, ...]]) -> None:
    node.ticks[71] += ticks
    node.clock.turn()
    assert node.told == told


def test_output_is_a_movement_once(node: Node) -> None:
    node.writers = {0}
    node.clock.turn()
    node.clock.turn()
    assert node.told == [(0,)]


def test_it_stops(node: Node) -> None:
    node.progress.stop()
    node.ticks[70] += 500
    node.clock.turn()
    assert node.told == [] and node.clock.due == []


def test_the_time_of_children_counts() -> None:
    busy = "import time\nwhile time.process_time() < 0.1: pass"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {busy!r}]); print(1, flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout and parent.stdin
        parent.stdout.readline()
        assert progress.count_ticks(parent.pid) >= 0.09 * os.sysconf("SC_CLK_TCK")
        parent.stdin.close()
    assert progress.count_ticks(parent.pid) == 0


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    made = Driver(tmp_path)
    yield made
    made.close()
    made.process.wait(20)


SHELL = """case $RANK in 0) while :; do :; done;; 1) exec sleep 600;; esac"""


def test_a_real_agent_tells_the_busy_rank(driver: Driver, tmp_path: Path) -> None:
    driver.send(make_brief(tmp_path, "/bin/sh", "-c", SHELL))
    driver.expect(wire.Facts)
    driver.send(make_assign(2, progress_s=0.2), wire.Start(0, "127.0.0.1", 29500))
    while driver.expect(wire.Progress).ranks != (0,):
        pass
    driver.send(wire.Stop(0.0, "test"))
    driver.expect(wire.Drained)


def test_an_agent_that_is_not_asked_tells_nothing(driver: Driver, tmp_path: Path) -> None:
    driver.send(make_brief(tmp_path, "/bin/sh", "-c", "echo x"))
    driver.send(make_assign(1), wire.Start(0, "127.0.0.1", 29500))
    driver.expect(wire.Drained)
    assert driver.all_of(wire.Progress) == []
