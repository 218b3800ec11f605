"""Owns: a look at the script before anything starts: is it there, is it a script, what is its hash.
Must not: compile or run it; that is node 0's python's to say.
Called by: cli.request."""

from __future__ import annotations

import hashlib
import os
import re

from meshrun.cli.files import SCRIPT_LIMIT, read_file
from meshrun.cli.inside import HINT, WRONG, is_launcher
from meshrun.errors import InputError, Place, Problem
from meshrun.spec.guess import looks_like_hostfile
from meshrun.spec.job import form_of, resolve
from meshrun.spec.near import find_near
from meshrun.spec.settings import Settings

VERBS = ("run", "plan", "ps", "stacks", "stop")
# Words that somebody may take for verbs, and what they would do.
_MEANT = {
    "help": "`meshrun --help`",
    "version": "`meshrun --version`",
    "check": "`meshrun plan` shows the placement; every run checks all nodes before it starts a worker",
    "logs": "the run directory (--log-dir) has every rank's output; `meshrun ps` lists live runs",
    "status": "`meshrun ps` lists live runs",
    "kill": "`meshrun stop` ends a run",
    "launch": "`meshrun [OPTIONS] SCRIPT`, without a verb",
}


def read_script(settings: Settings, words: tuple[str, ...], workdir: str, local: bool) -> str:
    """sha256 of the script, "" if there is none to see here: a module, a program, or a directory only nodes have.

    `local`: some node is this machine, so that it must be here. Raises InputError."""
    if words and form_of(settings) != "program" and is_launcher(words[0]):
        raise InputError(Problem(WRONG, Place(words[0]), hint=HINT))
    if not words or form_of(settings) != "script":
        return ""
    path = resolve(workdir, words[0])
    if not os.path.exists(path):
        if local or os.path.isdir(os.path.dirname(path)):
            raise InputError(Problem("the script is not there", Place(path), hint=_hint(words[0])))
        return ""
    data = _read(path)
    wrong = _what_else(path, data, settings["hostfile"] is None)
    if wrong:
        raise InputError(Problem(wrong[0], Place(path), hint=wrong[1]))
    return hashlib.sha256(data).hexdigest()


def resolve_preload(settings: Settings, words: tuple[str, ...], workdir: str) -> str:
    """`--preload` with `auto` replaced by what the script opens with; nothing where the script is not to be seen."""
    asked = settings["preload"].split(",")
    if "auto" not in asked:
        return ",".join(asked)
    from meshrun.spec.imports import find_early_imports

    path = resolve(workdir, words[0]) if words else ""
    found: tuple[str, ...] = ()
    if form_of(settings) == "script" and os.path.isfile(path):
        beside = os.path.join(os.path.dirname(path), "")
        found = find_early_imports(
            _read(path), lambda name: os.path.exists(f"{beside}{name}.py") or os.path.isdir(beside + name)
        )
    return ",".join(name for word in asked for name in (found if word == "auto" else (word,)))


def _read(path: str) -> bytes:
    if os.path.isdir(path):
        raise InputError(Problem("the script is a directory", Place(path), hint="-m runs a package"))
    return read_file(path, "script", SCRIPT_LIMIT)


def _what_else(path: str, data: bytes, no_hostfile: bool) -> tuple[str, str] | None:
    """What a file is that is no Python script, and what to do about it."""
    first = data.split(b"\n", 1)[0]
    if data.startswith(b"\x7fELF") or (first.startswith(b"#!") and b"python" not in first):
        return "this is a program, not a Python script", "--no-python runs it as it is"
    if path.endswith((".yaml", ".yml")):
        name = os.path.basename(path)
        return "this is a YAML file, not a Python script", f"--mesh {name} SCRIPT, or --job {name} SCRIPT"
    if no_hostfile and looks_like_hostfile(path, data):
        return "this is a list of hosts, not a Python script", f"--hostfile {os.path.basename(path)} SCRIPT"
    return None


def _hint(word: str) -> str:
    if "=" in word:
        return f"if it is a mesh: --mesh {word}"
    if close := find_near(word[:40], [*VERBS, *_MEANT], 0.7):
        return _MEANT.get(close[0]) or f"did you mean `meshrun {close[0]}`?"
    if re.fullmatch(r"python[0-9.]*", os.path.basename(word)):
        return f"the script runs under python anyway: leave out `{word}`"
    if "/" not in word and (program := _find_program(word)):
        return f"--no-python runs the program {program}"
    if "/" not in word and "." in word and not word.endswith(".py"):
        return f"if it is a module: -m {word}"
    return "a relative script is looked for in the working directory, or in --workdir"


def _find_program(word: str) -> str | None:
    import shutil  # it imports every archive format, and only this hint needs it

    return shutil.which(word)
