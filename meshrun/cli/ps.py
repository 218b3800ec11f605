"""Owns: `meshrun ps`: the live runs under the log directory.
Must not: look for processes; a run is live if it answers.
Called by: cli.main."""

from __future__ import annotations

import time

from meshrun.cli.files import write_stdout
from meshrun.cli.live import Live, find_live, read_log_dir
from meshrun.errors import EXIT_OK
from meshrun.spec.argv import Split

_HEAD = ("RUN", "SINCE", "PHASE", "HOSTS", "MESH", "COMMAND")


def ps(split: Split) -> int:
    """Print a line for each live run; nothing but the head where there is none."""
    rows = [_HEAD, *map(_row, find_live(read_log_dir(split, "ps", 0)))]
    widths = [max(len(row[at]) for row in rows) for at in range(len(_HEAD) - 1)]
    lines = ("  ".join([*map(str.ljust, row, widths), row[-1]]) for row in rows)
    write_stdout("".join(f"{line}\n" for line in lines))
    return EXIT_OK


def _row(live: Live) -> tuple[str, ...]:
    about = live.about
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(float(about.get("since", 0))))
    command = " ".join(map(_printable, about.get("command", ())))
    hosts = [str(host) for host in about.get("hosts", ())]
    where = hosts[0] if len(hosts) == 1 else f"{len(hosts)} hosts"
    return live.run_id, since, str(about.get("phase", "?")), where, ",".join(about.get("mesh", ())) or "-", command


def _printable(word: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in word)
