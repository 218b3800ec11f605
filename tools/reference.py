"""Owns: docs/reference/cli.md, written from the code: `python tools/reference.py` writes it anew.
Must not: hold words about a single option; those stand beside the option table.
Called by: whoever changes an option; a test compares the page with what this makes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reference" / "cli.md"
sys.path.insert(0, str(ROOT))

from meshrun.cli.help import ABOUT, EXIT_CODES, RUN, USAGE  # noqa: E402  (also run as a file)
from meshrun.spec.foreign import ALL  # noqa: E402
from meshrun.spec.notes import EXAMPLES, INSTEAD, MORE  # noqa: E402
from meshrun.spec.options import ALWAYS, FIXED, GROUPS, OPTIONS, Kind, Option  # noqa: E402

HEAD = """# Command line

<!-- Written by `python tools/reference.py` from the code; a test compares them. -->

Options stand before SCRIPT; everything behind it belongs to the script and is passed on untouched, byte for byte. Long
options may be written with `-` or `_`, and with a blank or `=` before their value. An option given twice counts as
given last, unless it may repeat. Nothing is abbreviated. Whatever is wrong is reported at once, with the place, and
nothing is started: exit code 2. With `--format json`, stdout is then empty.
"""
SOURCES = """## Where a value comes from

Command line > job file > environment > default. `--hostfile` and `--hosts` are one thing here: a stronger source's
list takes the place of a weaker one's. `meshrun plan` shows for each option that was given, and for each variable that
is set on the nodes, who said so (`--format json`: `options` and `variables`).

What meshrun itself gives each worker (`RANK`, `WORLD_SIZE`, `MASTER_ADDR`, `TORCHELASTIC_RUN_ID`, ...) cannot be set by
name, neither with `--env`, `--env-file` and `--env-remote` nor with `env.NAME=`.

**Job file** (`--job FILE`): YAML, one document of `option: value` lines; keys are the names of the options below, with
`-` or `_`. Values are text as they stand there: `yes`, `off` or `1e3` mean what they mean on a command line. Options
that may repeat take a list; `env` and `env-remote` also a mapping of NAME: VALUE. Anchors, aliases, tags and merge keys
are not read; at most 64 KiB. The script and its arguments stand on the command line.

```yaml
hostfile: hosts
mesh: dp=auto,tp=4
env: {WANDB_MODE: offline}
env-file: [prod.env]
time-limit: 3600
```

**Environment**: `MESHRUN_<OPTION>`; one that is empty counts as not set; options that may repeat have one value a line.
Inside a run (`MESHRUN_RUN_ID` is set) none of them counts.

**Numbers**: counts are ASCII digits; seconds may have a fraction and an `s` behind them.
"""
FOREIGN = """## Spellings of other launchers

Where torchrun or deepspeed have another name for the same thing, it is accepted and stands beside the option above. The
other options of torchrun, deepspeed, `accelerate launch`, mpirun and srun are refused by name, with what to write here.
Some letters mean something else here than there: mpirun's `--timeout` is `--time-limit` (ours is that of collective
operations), deepspeed's `-H` is `--hostfile`, and srun's `-x`, `-m`, `-q` and `-H` are not our `--env`, `--module`,
`--quiet` and `--hosts`.
"""


def render_page() -> str:
    """The whole page."""
    return "\n".join([HEAD, *_verbs(), SOURCES, *_options(), FOREIGN, *_accepted(), *_refused(), *_exit_codes()])


def _verbs() -> Iterator[str]:
    yield "## Verbs\n"
    for verb, about in ABOUT.items():
        usage = USAGE[verb].splitlines()[0]
        spelled = f"meshrun {usage}`, `meshrun run {usage}" if verb == "run" else f"meshrun {verb} {usage}"
        yield f"- `{spelled}`: {about}"
    yield f"\n{RUN}\n\n`meshrun --help`, `meshrun VERB --help`, `meshrun --version`."
    yield "A script named like a verb: `meshrun run plan`, or `meshrun ./plan`.\n"


def _options() -> Iterator[str]:
    for group in GROUPS:
        yield f"## Options: {group}\n"
        for option in OPTIONS:
            if option.group == group:
                yield from _option(option)


def _option(option: Option) -> Iterator[str]:
    value = "" if option.kind is Kind.FLAG else f" {option.metavar}"
    yield f"### `--{option.name}{value}`\n"
    yield f"{option.help}.{' ' + MORE[option.name] if option.name in MORE else ''}\n"
    if option.choices:
        yield f"- one of: {_code(*option.choices)}"
    others = [flag for flag in option.spellings if flag != f"--{option.name}"]
    fixed = [f"{flag}` for `--{name} {text}" for flag, (name, text) in FIXED.items() if name == option.name]
    if others or fixed:
        yield f"- also: {_code(*others, *fixed)}"
    key = "" if option.name == "job" else f"; job key `{option.name}`"
    yield f"- variable `{option.variable}`{key}{_default(option)}{_bounds(option)}"
    if option.name in EXAMPLES:
        yield f"- example: `{EXAMPLES[option.name]}`"
    for way, texts in groupby(INSTEAD.get(option.name, {}).items(), key=lambda item: item[1]):
        yield f"- not {_code(*(text for text, _ in texts))}: {way}"
    yield ""


def _default(option: Option) -> str:
    if option.kind is Kind.MULTI:
        return "; may repeat"
    if option.default in (None, "", False):
        return ""
    return f"; default `{option.default:g}`" if isinstance(option.default, float) else f"; default `{option.default}`"


def _bounds(option: Option) -> str:
    if option.kind is not Kind.COUNT:
        return ""
    return f"; {option.least:.0f} to {option.most:.0f}" if option.most < 1_000_000 else f"; at least {option.least:.0f}"


def _accepted() -> Iterator[str]:
    yield "Accepted, because it is always so here:\n"
    yield from (f"- `{flag}`: {why}" for flag, why in ALWAYS.items())
    yield ""


def _refused() -> Iterator[str]:
    for program, entries in groupby(ALL, key=lambda entry: entry.program):
        title = "Not in this version" if program == "meshrun" else f"Refused: {program}"
        yield f"### {title}\n\n| option | instead |\n|---|---|"
        for way, alike in groupby(entries, key=lambda entry: entry.way):
            yield f"| {_code(*(entry.flag for entry in alike))} | {_cell(way)} |"
        yield ""


def _exit_codes() -> Iterator[str]:
    yield "## Exit codes\n\n| code | meaning |\n|---|---|"
    yield from (f"| {code} | {meaning} |" for code, meaning in EXIT_CODES)
    yield ""


def _code(*words: str) -> str:
    return ", ".join(f"`{word}`" for word in words)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(render_page())
