"""Owns: one script under torchrun, under meshrun with a mesh (eager) and without one (lazy): what each rank printed.
Must not: change the script or give it anything but arguments.
Called by: the tests here and in tests/examples."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.command import ENVIRON, ROOT, run

SCRIPTS = Path(__file__).parent / "scripts"
EXAMPLES = ROOT / "examples"
LIMIT_S = 240
_TIMED = re.compile(r"\[?\d{4}-\d\d-\d\d[ T]\d\d:\d\d")
_THREADS = {"OMP_NUM_THREADS": "1"}


@dataclass(frozen=True)
class Seen:
    """How a launch ended and what each rank wrote to stdout; `err` is for messages of a failing test, and for logs."""

    code: int
    out: tuple[str, ...]
    err: tuple[str, ...]
    screen: str = ""


def _folder(where: Path, name: str) -> Path:
    made = where / f"{name}{len(list(where.iterdir()))}"
    made.mkdir()
    return made


def torchrun(
    where: Path, n: int, script: Path, *args: str, env: dict[str, str] | None = None, module: str = "run"
) -> Seen:
    """`torchrun --standalone --nproc-per-node n script args` (by its module), or torch.distributed.launch."""
    here = _folder(where, "torchrun")
    logs = here / "logs"
    words = ["--standalone", "--nproc-per-node", str(n), "--log-dir", str(logs), "--redirects", "3"]
    command = [sys.executable, "-m", f"torch.distributed.{module}", *words, str(script), *args]
    done = subprocess.run(
        command,
        cwd=here,
        env={**ENVIRON, **_THREADS, **(env or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    folders = sorted(logs.glob("*/attempt_0/*"), key=lambda folder: int(folder.name))
    return Seen(done.returncode, *(_texts(folders, f"{name}.log") for name in ("stdout", "stderr")), done.stderr)


def _texts(folders: list[Path], name: str) -> tuple[str, ...]:
    return tuple((folder / name).read_text() for folder in folders)


def meshrun(
    where: Path, n: int, script: Path, *args: str, options: str = "", env: dict[str, str] | None = None
) -> Seen:
    """`meshrun --nproc-per-node n options script args`."""
    here = _folder(where, "meshrun")
    words = ["--nproc-per-node", str(n), *options.split()]
    ended = run(here, *words, str(script), *args, env={**_THREADS, **(env or {})})
    files = [[ended.run_dir / f"rank{rank}.{kind}" for rank in range(n)] for kind in ("out", "err")]
    out, err = (tuple(file.read_text() for file in some) for some in files)
    return Seen(ended.code, out, err, ended.err)


def alike(
    where: Path, n: int, mesh: str, script: Path, *args: str, env: dict[str, str] | None = None
) -> tuple[str, ...]:
    """Run `script` unchanged in the three ways, check that every rank printed the same, and return that.

    `mesh` is what --mesh says in the eager way; the lazy way has no mesh, as someone who comes from torchrun begins."""
    theirs = torchrun(where, n, script, *args, env=env)
    if theirs.code:  # torchrun's own: gloo's abort at the end, or a rank that leaves while another still connects
        theirs = torchrun(where, n, script, *args, env=env)
    assert theirs.code == 0, theirs
    assert "".join(theirs.out), theirs
    for options in (f"--mesh {mesh}", ""):
        ours = meshrun(where, n, script, *args, options=options, env=env)
        assert ours.code == 0, (options, ours)
        assert list(map(plain, ours.out)) == list(map(plain, theirs.out)), (options, ours)
    return tuple(map(plain, theirs.out))


def plain(out: str) -> str:
    """Without the lines that a framework's logger has put a time in front of."""
    return "".join(line for line in out.splitlines(keepends=True) if not _TIMED.match(line))
