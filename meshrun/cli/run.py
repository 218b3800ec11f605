"""Owns: `meshrun run`: from a command line to an exit code.
Must not: import at its top what is only needed once something runs (runner): the agent starts meanwhile.
Called by: cli.main."""

from __future__ import annotations

import gc
import os

from meshrun.cli.inside import tell_if_inside
from meshrun.cli.plan import check_plan, show_plan, tell_remarks
from meshrun.cli.request import read_request
from meshrun.errors import InputError, Problem
from meshrun.launch.ahead import open_ahead
from meshrun.launch.openers import make_openers
from meshrun.spec.argv import Split

_LEAVE_S = 5.0


def run(split: Split) -> int:
    """Run what the command line asks for and return its exit code. Raises MeshrunError before anything is started."""
    request = read_request(split)
    if request.settings["dry-run"]:
        return show_plan(request)
    if request.settings["format"] != "text":
        raise InputError(
            Problem(f"--format {request.settings['format']} is of the plan", hint="meshrun plan, or --dry-run")
        )
    check_plan(request)
    if not request.job.quiet:
        tell_if_inside(os.environ)
        tell_remarks(request)
    openers = open_ahead(request.job, make_openers(request.job))
    try:
        from meshrun.cli.runner import run_job  # 30 ms of imports, in which an agent here starts

        gc.enable()
        return run_job(request.job, openers)
    except BaseException:
        _end_agents()
        raise


def _end_agents() -> None:
    """Nothing of a run is left when its command returns, also where it never came to watch it."""
    from meshrun.launch.local import end_agents

    end_agents(_LEAVE_S)
