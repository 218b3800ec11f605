"""Owns: what a seeded fault is (a script, how it is started, what must be named), running it, and comparing.
Must not: hold faults.
Called by: the tests of this folder."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import dedent
from typing import Any

from tests.e2e.command import Ended, run

# Races are tried this often; MESHRUN_CAUSES=20 is the long run.
TIMES = int(os.environ.get("MESHRUN_CAUSES", "2"))


@dataclass(frozen=True)
class Fault:
    """A fault and what the last block and summary.json must say of it. `None` and "" are not compared, but for
    `exception`, `signal` and `cause`: what is not named here must not be named there."""

    name: str
    script: str  # the failing line carries `# here`
    code: int
    kind: str = "exception"
    exception: str = ""  # type
    message: str = ""  # a part of it
    at: str = "script.py"  # the file that has the line `# here`; "" if no place is known
    signal: int = 0
    oom: str = ""
    cause: str = ""  # a part of it
    hint: str = ""
    said: str = ""  # a part of what is lifted from stderr
    rank: int = 0
    ranks: int = 1  # 0: the hostfile says
    options: tuple[str, ...] = ("--no-init",)
    argv: tuple[str, ...] = ("script.py",)
    files: dict[str, str] = field(default_factory=dict)

    def start(self, where: Path, **kwargs: Any) -> Ended:
        """Run it with the real command to its end."""
        for name, text in {"script.py": self.script, **self.files}.items():
            (where / name).parent.mkdir(exist_ok=True)
            (where / name).write_text(dedent(text).lstrip("\n"))
        count = ("--nproc-per-node", str(self.ranks)) if self.ranks else ()
        return run(where, *count, *self.options, *self.argv, **kwargs)

    def check(self, where: Path, ended: Ended) -> None:
        """summary.json and the last block name the fault."""
        first = ended.summary["first_failure"]
        assert ended.code == self.code == ended.summary["exit_code"], ended
        assert first is not None, ended
        assert (first["rank"], first["kind"], first["signal"] or 0) == (self.rank, self.kind, self.signal), ended
        assert not self.oom or first["oom"] == self.oom, ended
        self._check_exception(where, first["exception"], ended)
        for name in ("cause", "hint", "said"):
            wanted, found = getattr(self, name), first[name] or ""
            assert wanted in found, f"{name}: {found!r}\n{ended}"
        assert bool(self.cause) == bool(first["cause"]), f"cause: {first['cause']!r}\n{ended}"
        self._check_block(first, ended)

    def _check_exception(self, where: Path, found: dict[str, Any] | None, ended: Ended) -> None:
        if not self.exception:
            assert found is None, ended
            return
        assert found is not None and found["type"] == self.exception, ended
        assert self.message in found["message"], ended
        if self.at:
            place = where / self.at
            lines = [n for n, line in enumerate(place.read_text().splitlines(), 1) if "# here" in line]
            assert (found["file"], [found["line"]]) == (str(place), lines), ended

    def _check_block(self, first: dict[str, Any], ended: Ended) -> None:
        block = last_block(ended)
        assert re.match(rf"meshrun: rank {self.rank} failed first: ", block), ended
        for name in ("cause", "hint"):
            assert not first[name] or f"  {name + ':':<11}{first[name]}\n" in block, ended
        if self.exception:
            assert f"exception: {self.exception}" in block, ended
        if self.exception and self.at:
            assert f"{self.at}:{first['exception']['line']}" in block, ended
        for line in (first["said"] or "").splitlines():
            assert line in block, (line, ended)


def last_block(ended: Ended) -> str:
    """The last block on the screen."""
    at = ended.err.rfind("\nmeshrun: rank ")
    return ended.err[at + 1 :]


def read_events(ended: Ended) -> list[dict[str, Any]]:
    """The lines of events.jsonl."""
    return [json.loads(line) for line in (ended.run_dir / "events.jsonl").read_text().splitlines()]


def trials(where: Path) -> Iterator[Path]:
    """A folder for each trial of a race."""
    for time in range(TIMES):
        folder = where / str(time)
        folder.mkdir()
        yield folder


def repeat(where: Path, fault: Fault) -> None:
    """A race: it must be named right every time."""
    for folder in trials(where):
        fault.check(folder, fault.start(folder))
