"""Owns: the programs that meshrun is measured beside: where they are, how each starts n ranks, installing them.
Must not: install anything unless asked.
Called by: bench.__main__, the parts."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.measure import ROOT

OWN = ROOT / "bench" / ".peers"
PIP = ("accelerate", "deepspeed")
APT = ("pdsh", "openmpi-bin")
VERSIONS = ("torch", *PIP, *APT)
TORCHRUN, ACCELERATE, DEEPSPEED, MPIRUN, LOOP = "torchrun", "accelerate", "deepspeed", "mpirun", "bare loop"
BY_HAND = "torchrun, threads by hand"


@dataclass(frozen=True)
class Peers:
    """`home`: the environment in which accelerate and deepspeed are looked for, this interpreter's if it has them."""

    home: Path

    def command(self, name: str, ranks: int) -> list[str]:
        """What stands before a script to start so many local ranks of it; KeyError for a peer that is missing."""
        if name in self.missing([name]):
            raise KeyError(name)
        if name == TORCHRUN:
            return [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}"]
        if name == ACCELERATE:
            # Its way to several processes, also without a GPU.
            launch = [str(self._find(name)), "launch", "--multi_gpu", "--num_machines=1", f"--num_processes={ranks}"]
            return [*launch, "--mixed_precision=no", "--dynamo_backend=no", "--main_process_port=0"]
        if name == DEEPSPEED:
            return [str(self._find(name)), f"--num_gpus={ranks}", "--no_local_rank"]
        if name == MPIRUN:
            root = ["--allow-run-as-root"] if os.getuid() == 0 else []
            return ["mpirun", *root, "--oversubscribe", "-np", str(ranks), sys.executable]
        return [sys.executable, str(ROOT / "bench" / "scripts" / "loop.py"), str(ranks)]

    def missing(self, names: Sequence[str]) -> dict[str, str]:
        """Those of the peers that are not here, and what would help."""
        found = {ACCELERATE: self._find(ACCELERATE), DEEPSPEED: self._find(DEEPSPEED), MPIRUN: shutil.which("mpirun")}
        found["pdsh"] = shutil.which("pdsh")
        return {name: "not installed (--install)" for name in names if name in found and not found[name]}

    def python(self, name: str) -> str:
        """The interpreter of a peer's workers."""
        found = self._find(name)
        return str(found.parent / "python") if found else sys.executable

    def version(self, name: str) -> str:
        """The version of a package, "" if it is not there."""
        if name in APT:
            query = ["dpkg-query", "-W", "-f", "${Version}", name]
        else:
            code = f"import importlib.metadata as m; print(m.version({name!r}), end='')"
            query = [self.python(name), "-c", code]
        try:
            return subprocess.run(query, capture_output=True, text=True, check=True).stdout
        except (OSError, subprocess.CalledProcessError):
            return ""

    def _find(self, name: str) -> Path | None:
        places = (self.home / "bin" / name, Path(sys.executable).parent / name)
        return next((place for place in places if place.exists()), None)


def install() -> None:
    """accelerate and deepspeed into an environment of their own, with our torch; as root pdsh and Open MPI."""
    if not (OWN / "bin" / "pip").exists():
        subprocess.run([sys.executable, "-m", "venv", str(OWN)], check=True)
    pip = [str(OWN / "bin" / "pip"), "install", "--quiet", "--constraint", str(ROOT / "constraints.txt")]
    subprocess.run([*pip, "torch", "numpy", *PIP], check=True)
    lacking = [name for name, program in zip(APT, ("pdsh", "mpirun"), strict=True) if not shutil.which(program)]
    if lacking and os.getuid() == 0 and shutil.which("apt-get"):
        quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        subprocess.run(["apt-get", "update", "-qq"], check=False, env=quiet)
        subprocess.run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", *lacking], check=False, env=quiet)
