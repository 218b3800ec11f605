"""Owns: asking the installed `ssh -G` and our own resolver the same question, and comparing the answers.
Must not: connect anywhere, or hold tests.
Called by: test_ssh_oracle.py, test_ssh_keywords.py."""

from __future__ import annotations

import glob
import os
import pwd
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from meshrun.errors import InputError
from meshrun.launch.ssh_canonical import normalize
from meshrun.launch.ssh_config import Options, Source, parse_lines, resolve
from meshrun.launch.ssh_keywords import KEYWORDS
from meshrun.launch.ssh_match import World
from meshrun.launch.ssh_words import WordsError, expand, parse_time

ME = pwd.getpwuid(os.getuid())
ENVIRON = {"ORACLE": "seen", "PATH": os.environ["PATH"]}


@dataclass(frozen=True)
class Answer:
    """keyword → its values, or what was refused."""

    values: dict[str, list[str]]
    refused: str = ""


def ask_ssh(config: Path | str, name: str, *options: str) -> Answer:
    """What `ssh -G` says."""
    done = subprocess.run(
        ["ssh", *options, "-G", "-F", str(config), name],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=ENVIRON,
        errors="surrogateescape",
    )
    if done.returncode:
        return Answer({}, done.stderr.strip())
    values: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        key, _, value = line.partition(" ")
        values.setdefault(key.lower(), []).append(value)
    return Answer(values)


@cache
def ssh_defaults() -> dict[str, list[str]]:
    """What `ssh -G` says of a host that nothing is configured for."""
    return ask_ssh("/dev/null", "x").values


def our_world() -> World:
    """This machine, as ssh sees it: the home is the one of the user database."""

    def run(command: str) -> bool:
        return subprocess.run(["/bin/sh", "-c", command], stdin=subprocess.DEVNULL).returncode == 0

    return World(
        ME.pw_name,
        ME.pw_dir,
        ME.pw_uid,
        os.uname().nodename,
        ENVIRON,
        run,
        home_of=lambda user: {"root": "/root"}.get(user),
    )


def ask_ours(config: Path, name: str, given: dict[str, str] | None = None) -> tuple[Options, str]:
    """What our resolver says, and what it refused."""

    def include(pattern: str, user: bool) -> list[tuple]:  # type: ignore[type-arg]
        base = Path(ME.pw_dir, ".ssh")
        paths = [Path(path) for path in sorted(glob.glob(str(base / pattern)))]
        return [parse_lines(path.read_text(errors="surrogateescape"), str(path)) for path in paths]

    source = Source(parse_lines(config.read_text(errors="surrogateescape"), str(config)))
    try:
        return resolve([source], name, given or {}, our_world(), include), ""
    except InputError as error:
        return {}, str(error)


# `ssh -G` shows these in a form of its own, or not as they were written; tests of their own look at them.
_OTHER_FORM = """
    ignoreunknown proxyjump controlpersist rekeylimit ipqos localforward remoteforward dynamicforward tunneldevice
    escapechar streamlocalbindmask addkeystoagent canonicalizepermittedcnames sendenv requesttty updatehostkeys host
"""
_EXPANDED = "userknownhostsfile controlpath identityagent hostname remotecommand"


def compare(options: Options, answer: Answer, name: str) -> list[str]:
    """Where the two differ, for every keyword that `ssh -G` shows."""
    differences = []
    for key, said in answer.values.items():
        if key in _OTHER_FORM.split() or key not in KEYWORDS:
            continue
        mine = _normal(key, options, answer) if key in options else ssh_defaults().get(key, said)
        theirs = [_plain(key, value) for value in said]
        if key not in options and key in ("hostname", "user"):
            mine = [{"hostname": name.lower(), "user": ME.pw_name}[key]]
        elif key not in options:
            mine = [_plain(key, value) for value in mine]
        if mine != theirs:
            differences.append(f"{name}: {key}: ssh says {theirs}, we say {mine}")
    return differences


def _normal(key: str, options: Options, answer: Answer) -> list[str]:
    lines, kind = options[key], KEYWORDS[key].kind
    if kind == "text":
        return [lines[0].text.lstrip(" \t=")]
    if kind in ("words", "list"):
        words = lines[0].words
        values = [_fill(key, word, answer) for word in words]
        return values if key == "setenv" else [" ".join(values)]
    return [_plain(key, _fill(key, line.word, answer)) for line in lines]


def _fill(key: str, word: str, answer: Answer) -> str:
    if key not in _EXPANDED.split():
        return word
    said = {k: v[0] for k, v in answer.values.items()}
    tokens = {"h": said["hostname"], "n": said["host"], "p": said["port"], "r": said["user"], "u": ME.pw_name}
    tokens |= {"d": ME.pw_dir, "i": str(ME.pw_uid), "k": said.get("hostkeyalias", said["host"])}
    word = ME.pw_dir + word[1:] if word.startswith("~/") else word
    try:
        return expand(word, {"h": said["host"]} if key == "hostname" else tokens, ENVIRON)
    except WordsError as error:
        return f"refused: {error}"


def _plain(key: str, value: str) -> str:
    kind = KEYWORDS[key].kind
    if key == "hostname":
        return normalize(value)
    if kind == "time":
        return str(parse_time(value) or "none") if value != "none" else "none"
    if kind in ("word", "words", "list", "text", "jump", "port"):
        return value.lower() if key in ("hostkeyalias", "fingerprinthash", "loglevel") else value
    if kind == "number":
        return str(int(value))
    return {"true": "yes", "false": "no", "off": "no", "point-to-point": "yes"}.get(value.lower(), value.lower())
