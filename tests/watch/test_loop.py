"""Owns: the loop with a tiny machine and a clock of its own, and real signals.
Must not: test the launcher's states.
Called by: pytest."""

import os
import queue
import signal
import subprocess
import sys
import threading

from meshrun.watch.loop import BATCH, Machine, install_signals, watch
from meshrun.watch.state import advance, begin, next_deadline
from meshrun.watch.values import Began, Consumed, Finish, Note, Outcome, ReaderGone, RunResult, Signalled, Tick
from tests.watch.history import make_job

DONE = RunResult(Outcome.SUCCEEDED, 0)


class Clock:
    """Goes on by `step` with every look."""

    def __init__(self, step=0.0):
        self.now, self.step = 0.0, step

    def __call__(self):
        self.now += self.step
        return self.now


def collector(end, deadline=None):
    """A machine whose state is the events so far; it finishes when `end(events)` says so."""

    def step(events, event, now):
        events = (*events, event)
        return events, (Note("info", type(event).__name__), *([Finish(DONE)] if end(events) else []))

    return Machine((), step, lambda events: deadline)


def test_began_comes_first_then_the_queue_in_order_and_actions_too():
    inbox = queue.SimpleQueue()
    for count in range(3):
        inbox.put(Consumed(0, count))
    machine, done = collector(lambda events: len(events) == 4), []
    assert watch(machine, inbox, done.append) is DONE
    assert machine.state == (Began(), Consumed(0, 0), Consumed(0, 1), Consumed(0, 2))
    assert [getattr(action, "text", "end") for action in done] == ["Began", "Consumed", "Consumed", "Consumed", "end"]


def test_a_deadline_brings_a_tick_without_any_event():
    machine = collector(lambda events: Tick() in events, deadline=0.01)
    watch(machine, queue.SimpleQueue(), lambda action: None, Clock(0.004))
    assert machine.state[-1] == Tick()


def test_what_has_arrived_is_read_before_a_tick_that_is_due():
    inbox = queue.SimpleQueue()
    inbox.put(ReaderGone())
    machine = collector(lambda events: Tick() in events, deadline=-1.0)
    watch(machine, inbox, lambda action: None, Clock())
    assert machine.state == (Began(), ReaderGone(), Tick())


def test_a_flood_does_not_keep_a_tick_away():
    inbox = queue.SimpleQueue()
    for count in range(5 * BATCH):
        inbox.put(Consumed(0, count))
    machine = collector(lambda events: Tick() in events, deadline=-1.0)
    watch(machine, inbox, lambda action: None, Clock())
    assert len(machine.state) == 1 + BATCH + 1


def test_events_from_another_thread_wake_the_loop():
    inbox = queue.SimpleQueue()
    machine = collector(lambda events: ReaderGone() in events)
    thread = threading.Thread(target=inbox.put, args=(ReaderGone(),))
    watch(machine, inbox, lambda action: thread.start() if action == Note("info", "Began") else None)
    thread.join()
    assert machine.state == (Began(), ReaderGone())


def test_the_launchers_machine_in_the_loop():
    inbox = queue.SimpleQueue()
    inbox.put(Signalled(15))
    machine, done = Machine(begin(make_job()), advance, next_deadline), []
    assert watch(machine, inbox, done.append).exit_code == 143
    assert isinstance(done[-1], Finish)


def test_signals_become_events_while_the_loop_waits_and_are_restored():
    inbox = queue.SimpleQueue()
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    numbers = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]
    machine = collector(lambda events: len(events) == 4)

    def kill_next(action):
        if numbers:
            os.kill(os.getpid(), numbers.pop(0))

    with install_signals(inbox):
        watch(machine, inbox, kill_next)
    assert machine.state == (Began(), Signalled(15), Signalled(2), Signalled(1))
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before


NOHUP = """
import os, queue, signal
from meshrun.watch.loop import install_signals
signal.signal(signal.SIGHUP, signal.SIG_IGN)
inbox = queue.SimpleQueue()
with install_signals(inbox):
    os.kill(os.getpid(), signal.SIGHUP)
    os.kill(os.getpid(), signal.SIGTERM)
    print(inbox.get(timeout=5), inbox.empty())
"""


def test_sighup_stays_ignored_under_nohup():
    done = subprocess.run([sys.executable, "-c", NOHUP], capture_output=True, text=True, timeout=30)
    assert done.stdout == "Signalled(signal=<Signals.SIGTERM: 15>) True\n" or done.stdout == (
        "Signalled(signal=15) True\n"
    ), done.stderr
