"""Owns: one run from its job to its exit code, the whole program in one function.
Must not: decide anything about the run (watch does), or show it (report does).
Called by: cli.run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any

from meshrun.cli.ways import open_ways
from meshrun.launch.channel import Opener
from meshrun.launch.fleet import Fleet
from meshrun.launch.limits import raise_file_limit
from meshrun.report.control import Control
from meshrun.report.report import Report
from meshrun.spec.values import Job
from meshrun.watch.loop import Machine, catch_signals, install_signals, watch
from meshrun.watch.values import (
    Action,
    Answer,
    Close,
    Consumed,
    Event,
    Finish,
    Open,
    ReaderGone,
    Record,
    RunResult,
    Send,
)


def run_job(job: Job, openers: Sequence[Opener]) -> int:
    """Start, watch and report one job."""
    inbox: SimpleQueue[Event] = SimpleQueue()
    with open_ways(job, openers) as (lines, machine):
        raise_file_limit(len(lines))
        report = Report(job, lambda node, count: inbox.put(Consumed(node, count)), lambda: inbox.put(ReaderGone()))
        fleet = Fleet(lines, inbox.put)
        # Outside: what a signal means once nothing runs any more and only a slow reader is waited for.
        with catch_signals(lambda number: report.hurry(), ignore_after=report.hurried.is_set):
            with install_signals(inbox), serve_control(job, machine, inbox, report) as control:
                result = watch_to_end(machine, inbox, fleet, report, control)
            report.finish(result)
    return result.exit_code


@contextmanager
def serve_control(
    job: Job, machine: Machine[Any], inbox: SimpleQueue[Event], report: Report
) -> Iterator[Control | None]:
    """While inside, the run can be asked; where the run directory takes no socket, events.jsonl says why it cannot."""
    try:
        control = Control(job, lambda: machine.state.doing, inbox.put)
    except OSError as error:
        report.perform(Record("control", {"error": error.strerror or str(error)}))
        yield None
        return
    try:
        yield control
    finally:
        control.close()


def watch_to_end(
    machine: Machine[Any], inbox: SimpleQueue[Event], fleet: Fleet, report: Report, control: Control | None = None
) -> RunResult:
    """The loop, and no line left open after it."""
    try:
        return watch(machine, inbox, _performer(fleet, report, control))
    finally:
        fleet.close_all()


def _performer(fleet: Fleet, report: Report, control: Control | None) -> Callable[[Action], None]:
    """Who carries out which action."""

    def perform(action: Action) -> None:
        if isinstance(action, Open):
            fleet.open(action.node, action.after_s)
        elif isinstance(action, Send):
            fleet.send(action.node, action.message)
        elif isinstance(action, Close):
            fleet.close(action.node)
        elif isinstance(action, Answer):
            if control:
                control.answer(action)
        elif not isinstance(action, Finish):
            report.perform(action)

    return perform
