"""Owns: `meshrun plan --diff A [B]`: two plans from files, or one from a file and one from the options.
Must not: place anything itself.
Called by: cli.plan."""

from __future__ import annotations

import json

from meshrun.cli.files import read_text_file, write_stdout
from meshrun.errors import EXIT_OK, InputError, Place, Problem, WireError
from meshrun.plan.compare import compare_plans
from meshrun.plan.reread import read_plan
from meshrun.plan.values import Plan
from meshrun.spec.argv import Split

_PICTURES = (".svg", ".html", ".htm")
_NO_SCRIPTS = (".json", *_PICTURES, ".yaml", ".yml", ".txt")


def names_two_plans(split: Split) -> bool:
    """True for `--diff A.json B.json`: what stands in the script's place is the second plan, or is meant to be."""
    return "diff" in dict(split.given) and split.script.endswith(_NO_SCRIPTS)


def show_difference(split: Split) -> int:
    """Print how two plan files differ; nothing else of the command line has a say. Raises InputError."""
    if split.problems:
        raise InputError(split.problems)
    others = [name for name, _ in split.given if name != "diff"]
    if others or split.args:
        word = f"--{others[0]}" if others else split.args[0]
        hint = "meshrun plan --diff A.json B.json, or --diff A.json and the options of the other plan"
        raise InputError(Problem(f"two plan files are compared as they are; {word} has no say", hint=hint))
    before, after = _read(dict(split.given)["diff"]), _read(split.script)
    write_stdout(compare_plans(before, after))
    return EXIT_OK


def render_difference(path: str, after: Plan) -> str:
    """How the plan of the options differs from the one in the file."""
    return compare_plans(_read(path), after)


def _read(path: str) -> Plan:
    hint = "it is written by meshrun plan --format json, and stands as plan.json in a run's directory"
    if path.endswith(_PICTURES):
        raise InputError(Problem("a picture is no plan that could be compared", Place(path), hint=hint))
    if path.endswith(".py"):
        raise InputError(Problem("a script is no plan that could be compared", Place(path), hint=hint))
    try:
        plain = json.loads(read_text_file(path, "plan"))
        return read_plan(plain)
    except (ValueError, RecursionError) as error:
        raise InputError(Problem(f"the plan is not JSON: {error}", Place(path), hint=hint)) from None
    except WireError as error:
        raise InputError(Problem(str(error), Place(path), hint=hint)) from None
