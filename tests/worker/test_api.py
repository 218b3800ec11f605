"""Owns: the public API without a launcher (plain python, torchrun's variables), and its pure helpers.
Must not: start a fork server.
Called by: pytest."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshrun.spec.grid import split_ranks
from meshrun.worker.session import Rank, coordinate, mesh_from, read_rank

ROOT = Path(__file__).resolve().parents[2]


def python(text: str, **env: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    clean |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **env}
    return subprocess.run([sys.executable, "-c", text], env=clean, capture_output=True, text=True, timeout=120)


def test_importing_meshrun_imports_no_torch() -> None:
    done = python("import meshrun, sys; print(meshrun.coords(), 'torch' in sys.modules, 'click' in sys.modules)")
    assert done.stdout == "{'dp': 0} False False\n", done.stderr


@pytest.mark.torch
def test_plain_python_is_a_world_of_one() -> None:
    done = python(
        "import meshrun, torch.distributed as dist\n"
        "m = meshrun.mesh(); print(meshrun.device(), m.mesh_dim_names, dist.get_world_size(), meshrun.init() is m)\n"
        "dist.destroy_process_group()\n"
        "try: meshrun.mesh()\n"
        "except RuntimeError as error: print('destroyed' in str(error))\n"
        "print(meshrun.init().mesh_dim_names)"
    )
    assert done.stdout.splitlines() == ["cpu ('dp',) 1 True", "True", "('dp',)"], done.stderr


@pytest.mark.torch
def test_under_torchrun() -> None:
    pytest.importorskip("meshrun.spec.mesh")
    text = "import meshrun\nm = meshrun.init('dp=1,tp=auto')\nprint(m.mesh_dim_names, meshrun.coords())\n"
    script = Path(os.environ.get("TMPDIR", "/tmp")) / f"meshrun-torchrun-{os.getpid()}.py"
    script.write_text(text)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    script.unlink()
    assert sorted(done.stdout.splitlines()) == [f"('dp', 'tp') {{'dp': 0, 'tp': {r}}}" for r in (0, 1)], done.stderr


def test_coordinates_from_the_environment_without_a_session() -> None:
    done = python(
        "import meshrun; print(meshrun.coords())", RANK="5", WORLD_SIZE="8", MESHRUN_MESH='{"dims": {"a": 2, "b": 4}}'
    )
    assert done.stdout == "{'a': 1, 'b': 1}\n", done.stderr


def test_reading_ranks() -> None:
    assert read_rank({}) == Rank(0, 1, 0)
    assert read_rank({"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}) == Rank(3, 4, 1)
    assert mesh_from({"WORLD_SIZE": "4", "RANK": "1"}) == {"dims": {"dp": 4}}


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4))
def test_coordinates_are_row_major(sizes: list[int]) -> None:
    dims = {f"d{i}": size for i, size in enumerate(sizes)}
    places = [tuple(coordinate(dims, rank).values()) for rank in range(len(list(product(*map(range, sizes)))))]
    assert places == list(product(*map(range, sizes)))


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.data())
def test_partitions_cover_the_world_once_in_ascending_order(sizes: list[int], data: st.DataObject) -> None:
    chosen = data.draw(st.sets(st.sampled_from(range(len(sizes)))))
    groups = split_ranks(sizes, chosen)
    total = len(list(product(*map(range, sizes))))
    assert sorted(rank for group in groups for rank in group) == list(range(total))
    assert all(list(group) == sorted(group) for group in groups)
    assert [group[0] for group in groups] == sorted(group[0] for group in groups)
