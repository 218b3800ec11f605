"""Owns: `meshrun run`: from a request to an exit code, the whole program in one function.
Must not: decide anything about the run (watch does), or show it (report does).
Called by: cli.main."""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from meshrun.cli.plan import check_plan, show_plan
from meshrun.cli.request import read_request
from meshrun.cli.ways import open_ways
from meshrun.errors import InputError, Problem
from meshrun.launch.fleet import Fleet
from meshrun.report.report import Report
from meshrun.spec.argv import Split
from meshrun.spec.values import Job
from meshrun.watch.loop import Machine, catch_signals, install_signals, watch
from meshrun.watch.values import Action, Close, Consumed, Event, Finish, Open, ReaderGone, RunResult, Send


def run(split: Split) -> int:
    """Run what the command line asks for and return its exit code. Raises MeshrunError before anything is started."""
    request = read_request(split)
    if request.settings["dry-run"]:
        return show_plan(request)
    if request.settings["format"] != "text":
        raise InputError(
            Problem(f"--format {request.settings['format']} is of the plan", hint="meshrun plan, or --dry-run")
        )
    check_plan(request.job)
    return run_job(request.job)


def run_job(job: Job) -> int:
    """Start, watch and report one job."""
    inbox: SimpleQueue[Event] = SimpleQueue()
    with open_ways(job) as (openers, machine):
        report = Report(job, lambda node, count: inbox.put(Consumed(node, count)), lambda: inbox.put(ReaderGone()))
        fleet = Fleet(openers, inbox.put)
        # Outside: what a signal means once nothing runs any more and only a slow reader is waited for.
        with catch_signals(lambda number: report.hurry(), ignore_after=report.hurried.is_set):
            with install_signals(inbox):
                result = watch_to_end(machine, inbox, fleet, report)
            report.finish(result)
    return result.exit_code


def watch_to_end(machine: Machine[Any], inbox: SimpleQueue[Event], fleet: Fleet, report: Report) -> RunResult:
    """The loop, and no line left open after it."""
    try:
        return watch(machine, inbox, _performer(fleet, report))
    finally:
        fleet.close_all()


def _performer(fleet: Fleet, report: Report) -> Callable[[Action], None]:
    """Who carries out which action."""

    def perform(action: Action) -> None:
        if isinstance(action, Open):
            fleet.open(action.node, action.after_s)
        elif isinstance(action, Send):
            fleet.send(action.node, action.message)
        elif isinstance(action, Close):
            fleet.close(action.node)
        elif not isinstance(action, Finish):
            report.perform(action)

    return perform
