"""Owns: from a rank's failure to all ranks back in the script, with their mesh, in the next attempt.
Must not: count the start of the first attempt.
Called by: bench.parts."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from bench.measure import MESHRUN, SCRIPTS, TORCHRUN, Row, medians, seconds

RANKS = 8
# Without the last, torchrun's second attempt reads the first one's gloo addresses and never comes back (2.13).
TORCHRUN_ENV = {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


def part_restart(times: int) -> list[Row]:
    """One of 8 ranks fails while the others wait; one restart is allowed."""
    ours, theirs = medians(
        times,
        partial(_restart_once, [*MESHRUN, "--mesh", "dp=2,tp=4", "--max-restarts", "1"], {}),
        partial(_restart_once, [*TORCHRUN, f"--nproc_per_node={RANKS}", "--max-restarts", "1"], TORCHRUN_ENV),
    )
    return [Row("failure to 8 ranks back in the script", ours, "s", 0.15, theirs, "torchrun")]


def _restart_once(launcher: Sequence[str], env: dict[str, str]) -> float:
    """Seconds from just before the failing rank raises to the last rank's mesh in the second attempt."""
    with tempfile.TemporaryDirectory() as cwd:
        here = Path(cwd)
        seconds([*launcher, str(SCRIPTS / "restart.py"), cwd], cwd, **env)
        back = [float(path.read_text()) for path in here.glob("1.*")]
        if len(back) != RANKS:
            raise SystemExit(f"{' '.join(launcher)}: {len(back)} of {RANKS} ranks came back")
        return max(back) - float((here / "failed").read_text())
