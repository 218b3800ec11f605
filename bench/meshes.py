"""Owns: building a mesh of gloo groups: seconds, groups and store keys a rank, beside `init_device_mesh` alone.
Must not: count imports: all ranks are in their script before the first of them begins.
Called by: bench.parts."""

from __future__ import annotations

import json
import tempfile
from math import prod
from pathlib import Path

from bench.measure import MESHRUN, SCRIPTS, Asked, Found, seconds
from bench.result import OURS, Row

SHAPES = ((2, 2), (2, 4), (2, 2, 2), (4, 4), (2, 2, 4), (4, 8), (2, 4, 4))
NAMES = ("pp", "dp", "tp")
PLAIN = "init_device_mesh"


def part_mesh(asked: Asked) -> Found:
    """2-D and 3-D meshes of 4 to 32 gloo ranks, beside torch's own call under the same launcher."""
    rows = []
    for shape in (one for one in SHAPES if prod(one) <= 2 * asked.most):
        samples: dict[str, list[tuple[float, float, float]]] = {OURS: [], PLAIN: []}
        for _ in range(asked.times):
            for name, way in ((OURS, "ours"), (PLAIN, "plain")):
                samples[name].append(_build(way, shape))
        for at, (what, unit) in enumerate((("built", "s"), ("groups of a rank", ""), ("store keys of a rank", ""))):
            series = {name: tuple(sample[at] for sample in found) for name, found in samples.items()}
            rows.append(Row(f"mesh {'x'.join(map(str, shape))}: {what}", unit, series))
    return Found(rows)


def _build(way: str, shape: tuple[int, ...]) -> tuple[float, float, float]:
    """Seconds from the first rank's beginning to the last one's end; most groups; store keys by rank."""
    mesh = ",".join(f"{name}={size}" for name, size in zip(NAMES[-len(shape) :], shape, strict=True))
    with tempfile.TemporaryDirectory() as cwd:
        init = ["--init", "lazy", "--mesh", mesh] if way == "ours" else ["--no-init", f"--nproc-per-node={prod(shape)}"]
        script = [str(SCRIPTS / "mesh_time.py"), cwd, way, ",".join(map(str, shape))]
        seconds([*MESHRUN, *init, "--preload", "torch", *script], cwd)
        told = [json.loads(path.read_text()) for path in Path(cwd).glob("told*")]
    began, ended, groups, keys = zip(*told, strict=True)
    return max(ended) - min(began), float(max(groups)), max(keys) / len(told)
