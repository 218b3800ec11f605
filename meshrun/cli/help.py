"""Owns: the help page, made from the option table; the words about verbs and exit codes, which the reference has too.
Must not: parse; only `--help` imports click, so that a run does not wait for it.
Called by: cli.main."""

from __future__ import annotations

import click

from meshrun.spec.options import GROUPS, OPTIONS, Kind, Option

USAGE = {
    "run": "[OPTIONS] SCRIPT [ARGS]...\n       meshrun plan [OPTIONS] [SCRIPT]\n"
    "       meshrun ps | stacks [RUN] | stop [RUN]",
    "plan": "[OPTIONS] [SCRIPT]",
    "ps": "[--log-dir DIR]",
    "stacks": "[--log-dir DIR] [RUN]",
    "stop": "[--log-dir DIR] [RUN]",
}
ABOUT = {
    "run": "Start one worker per accelerator on every host, build the mesh, run SCRIPT, leave nothing behind.",
    "plan": "Show which worker would run where. Starts nothing, connects nowhere.",
    "ps": "List the live runs of this host: id, since when, phase, hosts, mesh, command.",
    "stacks": "Show where every rank of a live run is, without stopping it: Python stacks, equal ones once.",
    "stop": "Stop a live run in order, as SIGTERM to its launcher does.",
}
EXIT_CODES = (
    ("0", "every worker ended with 0"),
    ("1-255", "the code of the worker that failed first; 128+n if signal n ended it"),
    ("2", "bad input: nothing was started"),
    ("124", "the time limit, or a hang (--hang-timeout)"),
    ("125", "meshrun or the cluster failed: a host unreachable, refused or lost, no rendezvous, the start deadline"),
    ("129, 130, 143", "ended by SIGHUP, SIGINT or SIGTERM to meshrun"),
    ("141", "whoever read meshrun's stdout has gone"),
)
RUN = "RUN is a run id, a run directory, or nothing: the only live run under --log-dir. Ask on its launcher's host."
_EPILOG = (
    "Options stand before SCRIPT; all behind it belongs to it. Each option is also a variable MESHRUN_<OPTION> and a "
    "key of a job file: command line > job file > environment > default. The spellings of torchrun and deepspeed that "
    "mean the same are accepted, long flags with - or _."
)


def render_help(verb: str, width: int) -> str:
    """The help page of `verb` for a terminal of `width` columns."""
    formatter = click.HelpFormatter(width=min(max(width, 60), 110))
    program = "meshrun" if verb == "run" else f"meshrun {verb}"
    formatter.write(f"Usage: {program} {USAGE[verb]}\n\n")
    formatter.write_text(ABOUT[verb])
    if verb not in ("run", "plan"):
        formatter.write_paragraph()
        formatter.write_text(RUN)
        return formatter.getvalue()
    for group in GROUPS:
        with formatter.section(group):
            formatter.write_dl([(_left(option), _right(option)) for option in OPTIONS if option.group == group])
    with formatter.section("exit codes"):
        formatter.write_dl(EXIT_CODES)
    formatter.write_paragraph()
    formatter.write_text(_EPILOG)
    return formatter.getvalue()


def _left(option: Option) -> str:
    flags = [flag for flag in option.spellings if len(flag) == 2 or flag == f"--{option.name}"]
    value = "" if option.kind is Kind.FLAG else f" {'|'.join(option.choices) or option.metavar}"
    return ", ".join(flags) + value


def _right(option: Option) -> str:
    default = option.default
    shown = (
        ""
        if default in (None, "", (), False, 0)
        else f" [{default:g}]"
        if isinstance(default, float)
        else f" [{default}]"
    )
    return option.help + shown
