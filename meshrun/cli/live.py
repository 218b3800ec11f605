"""Owns: finding live runs by their control sockets, and asking one.
Must not: change anything in a run directory, or start anything.
Called by: cli.ps, cli.stacks, cli.stop."""

from __future__ import annotations

import json
import os
import socket
from typing import Any

from meshrun.cli.request import read_settings
from meshrun.dataclass import dataclass
from meshrun.errors import ClusterError, InputError, Problem
from meshrun.report.control import ANSWER_S, NAME, reach_socket
from meshrun.spec.argv import Split

_MARGIN_S = 2.0


@dataclass(frozen=True, slots=True)
class Live:
    """A run that answers."""

    directory: str
    about: dict[str, Any]

    @property
    def run_id(self) -> str:
        return str(self.about.get("run_id", os.path.basename(self.directory)))


def read_log_dir(split: Split, verb: str, most: int = 1) -> str:
    """Where runs are looked for. Raises InputError for options and words that mean nothing here."""
    settings, sources = read_settings(split)
    words = [word for word in (split.script, *split.args) if word]
    problems = _check_words(words, verb, most)
    log_dir = str(settings["log-dir"])
    if sources["log-dir"] != "default" and not os.path.isdir(log_dir):
        problems.append(Problem(f"there is no directory {log_dir}", hint="--log-dir is where runs are made"))
    if problems:
        raise InputError(problems)
    return log_dir


def _check_words(words: list[str], verb: str, most: int) -> list[Problem]:
    if len(words) <= most:
        return []
    options = any(word.startswith("-") for word in words[most:])
    hint = f"options stand before the run: meshrun {verb} [OPTIONS]{' RUN' * most}" if options else ""
    return [Problem(f"`meshrun {verb}` takes {'one run' if most else 'no run'}, got {' '.join(words)}", hint=hint)]


def find_live(log_dir: str) -> list[Live]:
    """The runs under `log_dir` that answer, in order of their ids, which begin with their time."""
    try:
        names = sorted(os.listdir(log_dir))
    except OSError:
        return []
    found = (look_at(os.path.join(log_dir, name)) for name in names)
    return [live for live in found if live]


def look_at(directory: str) -> Live | None:
    """The live run of this run directory; None: there is none, or it has ended, or was killed."""
    if not os.path.exists(os.path.join(directory, NAME)):
        return None
    try:
        return Live(directory, ask(directory, "who"))
    except OSError:
        return None


def find_run(log_dir: str, named: str) -> Live:
    """The live run that is meant: by id, by run directory, or the only one. Raises InputError."""
    if named:
        places = [named, os.path.join(log_dir, named)]
        live = next(filter(None, map(look_at, places)), None)
        if live is None:
            known = any(os.path.isdir(place) for place in places)
            what = "has ended, or its launcher is on another host" if known else f"is not in {log_dir}"
            raise InputError(Problem(f"run {named} {what}", hint=_name_live(find_live(log_dir))))
        return live
    lives = find_live(log_dir)
    if len(lives) != 1:
        what = f"{len(lives)} live runs are in {log_dir}: which one?" if lives else f"no live run is in {log_dir}"
        raise InputError(Problem(what, hint=_name_live(lives)))
    return lives[0]


def _name_live(lives: list[Live]) -> str:
    return f"live: {', '.join(live.run_id for live in lives)}" if lives else "--log-dir DIR says where runs are"


def ask(directory: str, word: str) -> dict[str, Any]:
    """Send one word to the run in `directory`. OSError: nobody is there. Raises ClusterError for any other answer."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
        peer.settimeout(ANSWER_S + _MARGIN_S)
        with reach_socket(directory) as path:
            peer.connect(path)
        peer.sendall(f"{word}\n".encode("ascii"))
        pieces = []
        while piece := peer.recv(65536):
            pieces.append(piece)
    try:
        reply = json.loads(b"".join(pieces))
        return reply if isinstance(reply, dict) else {"error": "its answer makes no sense"}
    except ValueError:
        return {"error": "it ended before it answered"}


def ask_run(live: Live, word: str) -> dict[str, Any]:
    """As `ask`; whatever is no answer raises ClusterError."""
    try:
        reply = ask(live.directory, word)
    except OSError as error:
        reply = {"error": error.strerror or str(error)}
    if "error" in reply:
        raise ClusterError(f"run {live.run_id}: {reply['error']}")
    return reply
