"""Owns: what each process of a start imports before it has done what others wait for.
Must not: measure time (bench does).
Called by: pytest."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.test_style import ROOT

ISOLATED = ("-I", "-S")
GREETING = ("probe", "netlink", "reach", "shares", "accelerators", "topology", "installed")
# Who, how its interpreter is started, what it has imported by then, and what must not be among that.
POINTS = (
    (
        "the launcher, as its agent here starts",
        (),
        "import meshrun.cli.entry, meshrun.cli.main, meshrun.cli.run",
        ("pathlib", "ipaddress", "hashlib", "socket", "dataclasses", "urllib", "meshrun.cli.runner", "meshrun.watch"),
    ),
    (
        "the start, as guard and agent part",
        ISOLATED,
        "import meshrun.agent.__main__",
        ("json", "socket", "subprocess", "meshrun.wire", "meshrun.agent.loop"),
    ),
    (
        "the agent, as the fork server starts",
        ISOLATED,
        "import meshrun.agent.__main__, meshrun.agent.loop",
        ("hashlib", "subprocess", "dataclasses", "pathlib", *(f"meshrun.agent.{name}" for name in GREETING)),
    ),
    (
        "the fork server, as it imports torch",
        (),
        "import meshrun.worker.__main__, meshrun.worker.forkserver as s; s.import_all(s._ALWAYS)",
        ("random", "datetime", "hashlib", "subprocess", "dataclasses", "pathlib", "inspect", "torch"),
    ),
    (
        "a run, once the launcher waits",
        (),
        "import meshrun.cli.entry, meshrun.cli.main, meshrun.cli.run, meshrun.cli.runner",
        ("hashlib", "ipaddress", "dataclasses", "inspect", "paramiko", "yaml", "rich"),
    ),
)


@pytest.mark.parametrize(
    ("options", "imports", "needless"), [point[1:] for point in POINTS], ids=[p[0] for p in POINTS]
)
def test_nothing_is_imported_that_can_wait(options: tuple[str, ...], imports: str, needless: tuple[str, ...]) -> None:
    code = (
        f"import sys; before = set(sys.modules); sys.path.insert(0, {str(ROOT)!r}); {imports}; "
        "print(*sorted(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, *options, "-c", code], capture_output=True, text=True, check=True, cwd="/")
    assert not set(done.stdout.split()) & set(needless)
    assert any(name.startswith("meshrun.") for name in done.stdout.split())
