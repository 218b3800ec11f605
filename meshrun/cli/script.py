"""Owns: a look at the script before anything starts: is it there, is it a script, what is its hash.
Must not: compile or run it; that is node 0's python's to say.
Called by: cli.request."""

from __future__ import annotations

import os
import re
import shlex

from meshrun.cli.files import SCRIPT_LIMIT, read_file
from meshrun.cli.inside import HINT, WRONG, is_launcher
from meshrun.errors import InputError, Place, Problem
from meshrun.spec.guess import looks_like_hostfile
from meshrun.spec.job import form_of, resolve
from meshrun.spec.near import find_near
from meshrun.spec.settings import Settings
from meshrun.wire.digest import hash_content

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
    if words and form_of(settings) == "module":
        _check_module(words[0], workdir)
    if not words or form_of(settings) != "script":
        return ""
    path = resolve(workdir, words[0])
    if not os.path.exists(path):
        if local or os.path.isdir(os.path.dirname(path)):
            raise InputError(Problem("the script is not there", Place(path), hint=_hint(words, path)))
        return ""
    data = _read(path)
    wrong = _what_else(path, data, settings["hostfile"] is None)
    if wrong:
        raise InputError(Problem(wrong[0], Place(path), hint=wrong[1]))
    return hash_content(data)


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


def _check_module(word: str, workdir: str) -> None:
    """`-m train.py` would import the script `train`, run it by that, and then fail for a module `py` in it."""
    path = resolve(workdir, word)
    if "/" not in word and not (word.endswith(".py") and os.path.isfile(path)):
        return
    name = word.removesuffix(".py").strip("/.").replace("/", ".")
    hint = f"leave out -m, or -m {name}" if os.path.isfile(path) else f"-m {name}"
    raise InputError(Problem("this is a path, not the name of a module", Place(word), hint=hint))


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


def _hint(words: tuple[str, ...], path: str) -> str:
    """What was probably meant by the first of `words`, the script and its arguments; it would be at `path`."""
    word, *args = words
    if word in VERBS:
        return _say_verb_first(word, args)
    if near := _find_near_file(path):
        return f"did you mean {os.path.join(os.path.dirname(word), near)}?"
    if len(word.split()) > 1:
        return "these are several words in one: leave out the quotes"
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
    return "" if os.path.isabs(word) else "a relative script is looked for in the working directory, or in --workdir"


def _find_near_file(path: str) -> str:
    """A file beside, of the same kind, whose name is nearly this one; "" if there is none."""
    try:
        beside = os.listdir(os.path.dirname(path))
    except OSError:
        return ""
    name, kind = os.path.basename(path), os.path.splitext(path)[1]
    near = find_near(name, [one for one in beside if kind and one.endswith(kind)], 0.75)
    return near[0] if near else ""


def _say_verb_first(verb: str, args: list[str]) -> str:
    """The verb stood behind options, or behind another verb: there it is the script, whatever it is called."""
    line = " ".join(["meshrun", verb, "[OPTIONS]", *(shlex.quote(arg) for arg in args)])
    return f"if the verb `{verb}` is meant, it stands before all options: {line[:200]}"


def _find_program(word: str) -> str | None:
    import shutil  # it imports every archive format, and only this hint needs it

    return shutil.which(word)
