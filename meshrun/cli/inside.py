"""Owns: words for launchers within launchers: another one given as the script, and this one started by a worker.
Must not: stop a run that a worker starts on purpose.
Called by: cli.script, cli.run."""

from __future__ import annotations

import os
from collections.abc import Mapping

from meshrun.cli.files import write_stderr

LAUNCHERS = frozenset(["torchrun", "deepspeed", "accelerate", "mpirun", "mpiexec", "srun", "horovodrun", "fabric"])
MODULES = frozenset(
    ["torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch", "deepspeed.launcher.runner"]
)
WRONG = "this is a launcher, which starts workers of its own in each of ours"
HINT = "give the script itself: meshrun [OPTIONS] train.py ..., with the options that meshrun has for it"


def is_launcher(word: str) -> bool:
    """Whether a script or module, as typed, is another launcher."""
    return word in MODULES or os.path.basename(word) in LAUNCHERS


def tell_if_inside(environ: Mapping[str, str]) -> None:
    """One line on stderr if this command is a worker's: with several ranks there will be as many runs."""
    if text := describe_outside(environ):
        write_stderr(f"meshrun: {text}")


def describe_outside(environ: Mapping[str, str]) -> str:
    """Which worker this is, if it is one of several."""
    rank, world = environ.get("RANK", ""), environ.get("WORLD_SIZE", "")
    if not (rank.isdigit() and world.isdigit() and int(world) > 1 and environ.get("TORCHELASTIC_RUN_ID")):
        return ""
    ours = environ.get("MESHRUN_RUN_ID") == environ["TORCHELASTIC_RUN_ID"]
    whose = f"run {environ['MESHRUN_RUN_ID']}" if ours else "a torchrun job"
    return f"started by rank {rank} of {world} of {whose}: this run is its own, and other ranks may start more"
