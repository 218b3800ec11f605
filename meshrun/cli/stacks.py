"""Owns: `meshrun stacks [RUN]`: where every rank of a live run is, without stopping it.
Must not: touch a worker itself; the run's own agents do.
Called by: cli.main."""

from __future__ import annotations

from meshrun.cli.files import write_stdout
from meshrun.cli.live import ask_run, find_run, read_log_dir
from meshrun.errors import EXIT_OK
from meshrun.spec.argv import Split


def stacks(split: Split) -> int:
    """Print the stacks of the run that is meant, equal ones once, the odd ones first."""
    live = find_run(read_log_dir(split, "stacks"), split.script)
    write_stdout(f"run {live.run_id}\n" + str(ask_run(live, "stacks")["text"]))
    return EXIT_OK
