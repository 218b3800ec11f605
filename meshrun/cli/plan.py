"""Owns: `meshrun plan`: the placement as text, JSON or commands.
Must not: connect to any host, or start a worker.
Called by: cli.main, and cli.run for `--dry-run`."""

from __future__ import annotations

import json

from meshrun.cli.files import write_stdout
from meshrun.cli.request import Request, read_request
from meshrun.errors import EXIT_OK
from meshrun.plan.commands import render_commands
from meshrun.plan.describe import describe_plan
from meshrun.plan.text import render_plan
from meshrun.spec.argv import Split


def plan(split: Split) -> int:
    """Print what a run of the same command line would do."""
    return show_plan(read_request(split, dry_run=True))


def show_plan(request: Request) -> int:
    """Print the plan of a request that has been read."""
    placed = place(request)
    form = request.settings["format"]
    if form == "json":
        write_stdout(json.dumps(describe_plan(placed), indent=2) + "\n")
    elif form == "commands":
        write_stdout(render_commands(placed, request.job))
    else:
        write_stdout(render_plan(placed, request.sources))
    return EXIT_OK
