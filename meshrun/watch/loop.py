"""Owns: the launcher's one loop: events from one queue into a pure machine, its actions to one performer.
Must not: decide; print; know what an action does.
Called by: cli."""

from __future__ import annotations

import queue
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType
from typing import Generic, TypeVar

from meshrun.dataclass import dataclass
from meshrun.watch.values import Action, Began, Event, Finish, RunResult, Signalled, Tick

S = TypeVar("S")
BATCH = 256  # events between two looks at the clock: a flood of output delays no timer for long


@dataclass(slots=True)
class Machine(Generic[S]):
    """A state and the two pure functions that move it. `state` is the current one; others may read it at any time."""

    state: S
    advance: Callable[[S, Event, float], tuple[S, tuple[Action, ...]]]
    next_deadline: Callable[[S], float | None]


def watch(
    machine: Machine[S],
    inbox: queue.SimpleQueue[Event],
    perform: Callable[[Action], None],
    clock: Callable[[], float] = time.monotonic,
) -> RunResult:
    """Run `machine` from `Began` to its `Finish` (which is performed too) and return the result.

    `perform` is called in this thread, in the order of the actions; it must not block for long and must not raise."""
    events: Iterator[Event] = _read(machine, inbox, clock)
    for event in events:
        machine.state, actions = machine.advance(machine.state, event, clock())
        for action in actions:
            perform(action)
            if type(action) is Finish:
                return action.result
    raise AssertionError("the queue of events never ends")


def _read(machine: Machine[S], inbox: queue.SimpleQueue[Event], clock: Callable[[], float]) -> Iterator[Event]:
    yield Began()
    while True:
        # A Tick only once what has already arrived is read: an answer in the queue is in time.
        yield from _read_batch(inbox, _wait(machine, clock))
        if _wait(machine, clock) == 0:
            yield Tick()


def _wait(machine: Machine[S], clock: Callable[[], float]) -> float | None:
    deadline = machine.next_deadline(machine.state)
    return None if deadline is None else max(0.0, deadline - clock())


def _read_batch(inbox: queue.SimpleQueue[Event], timeout_s: float | None) -> Iterator[Event]:
    try:
        yield inbox.get(timeout=timeout_s)
        for _ in range(BATCH - 1):
            yield inbox.get_nowait()
    except queue.Empty:
        return


def install_signals(inbox: queue.SimpleQueue[Event]) -> AbstractContextManager[None]:
    """While inside, SIGINT, SIGTERM and SIGHUP become `Signalled` events.

    `SimpleQueue.put` is reentrant, so a handler may call it while the loop is inside `get`."""
    return catch_signals(lambda number: inbox.put(Signalled(number)))


@contextmanager
def catch_signals(act: Callable[[int], None], ignore_after: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """While inside, SIGINT, SIGTERM and SIGHUP call `act`. SIGHUP stays ignored if it is (nohup). Main thread only.

    Then the old handlers are back, or with `ignore_after` none: an exit that a first signal has caused is under way,
    and a second one, as a double Ctrl-C gives, must not change its code."""

    def handle(number: int, frame: FrameType | None) -> None:
        act(number)

    wanted = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        wanted.append(signal.SIGHUP)
    before = {number: signal.signal(number, handle) for number in wanted}
    try:
        yield
    finally:
        ignored = ignore_after()
        for number, old in before.items():
            signal.signal(number, signal.SIG_IGN if ignored else signal.SIG_DFL if old is None else old)
