"""Owns: the tutorial says what happens: its files are written, its commands run in order, its output compared.
Must not: know what the tutorial is about.
Called by: pytest."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
_BLOCK = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```\n", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A fenced block: its language, what stands behind it, its text."""

    kind: str
    more: str
    text: str


def read_blocks() -> list[Block]:
    return [
        Block(kind, more.strip(), text) for kind, more, text in _BLOCK.findall((ROOT / "docs/tutorial.md").read_text())
    ]


def fits(line: str, said: str) -> bool:
    """Whether a line of the tutorial, `...` standing for anything, is a line of what was said."""
    pattern = ".*".join(map(re.escape, line.split("...")))
    return any(re.fullmatch(pattern, one.rstrip()) for one in said.splitlines())


@pytest.mark.torch
def test_the_tutorial(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "meshrun"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m meshrun "$@"\n')
    command.chmod(0o755)
    where = tmp_path / "work"
    where.mkdir()
    env = os.environ | {"PATH": f"{command.parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    said, ran = "", 0
    for block in read_blocks():
        if block.more.startswith("file="):
            (where / block.more.removeprefix("file=")).write_text(block.text)
        elif block.kind == "sh":
            done = subprocess.run(
                ["sh", "-ec", block.text], cwd=where, env=env, capture_output=True, text=True, timeout=300
            )
            said, ran = done.stdout + done.stderr, ran + 1
            assert done.returncode == int(block.more.removeprefix("exit=") or 0), (block.text, said)
        else:
            assert [line for line in block.text.splitlines() if not fits(line, said)] == [], said
    assert ran >= 8
