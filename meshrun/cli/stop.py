"""Owns: `meshrun stop [RUN]`: what SIGTERM to its launcher does, from anywhere on that host.
Must not: signal a process by its id, which may be another's by now.
Called by: cli.main."""

from __future__ import annotations

from meshrun.cli.files import write_stdout
from meshrun.cli.live import ask_run, find_run, read_log_dir
from meshrun.errors import EXIT_OK
from meshrun.spec.argv import Split


def stop(split: Split) -> int:
    """Tell the run that is meant to stop in order; it says itself, with its exit code 143, when it has."""
    live = find_run(read_log_dir(split, "stop"), split.script)
    ask_run(live, "stop")
    write_stdout(f"run {live.run_id} was told to stop\n")
    return EXIT_OK
