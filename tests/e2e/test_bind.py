"""Owns: --bind with the whole command on this machine: every way of starting workers, restarts, what is shown.
Must not: need more than one core.
Called by: pytest."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from meshrun.wire.cpus import parse_cpus, render_cpus
from tests.e2e.command import Ended, run

SCRIPT = """
import os
print(os.environ["RANK"], ",".join(map(str, sorted(os.sched_getaffinity(0)))), os.environ["OMP_NUM_THREADS"])
"""
USABLE = os.sched_getaffinity(0)


def cpus_of(ended: Ended) -> dict[int, tuple[set[int], int]]:
    """By rank: where it could run, and its threads."""
    words = [line.split("] ", 1)[1].split() for line in ended.out.splitlines()]
    return {int(rank): (set(parse_cpus(cpus)), int(threads)) for rank, cpus, threads in words}


def planned(ended: Ended) -> dict[int, tuple[set[int], int]]:
    workers: list[dict[str, Any]] = json.loads((ended.run_dir / "plan.json").read_text())["workers"]
    return {worker["rank"]: (set(parse_cpus(worker["cpus"])), worker["threads"]) for worker in workers}


@pytest.mark.parametrize(
    "options",
    ["", "--start-method spawn", "-x OMP_PROC_BIND=close", "--max-restarts 1"],
    ids=["fork", "spawn", "placed by OpenMP too", "after a restart"],
)
@pytest.mark.parametrize("how", ["cores", "numa"])
def test_workers_run_where_the_plan_says(tmp_path: Path, how: str, options: str) -> None:
    fails = (
        "import os\nif os.environ['TORCHELASTIC_RESTART_COUNT'] < os.environ['TORCHELASTIC_MAX_RESTARTS']: raise X\n"
    )
    (tmp_path / "script.py").write_text(fails + SCRIPT)
    ended = run(tmp_path, "--bind", how, "--no-init", "--nproc-per-node", "2", *options.split(), "script.py")
    assert ended.code == 0, ended
    seen = cpus_of(ended)
    assert seen == planned(ended) and len(seen) == 2
    assert seen[0][0] | seen[1][0] <= USABLE
    if len(USABLE) > 1 and seen[0] != seen[1]:
        assert not seen[0][0] & seen[1][0]
    assert ("fresh interpreters: OMP_PROC_BIND must" in ended.err) == ("-x" in options), ended


def test_programs_are_bound_before_they_run(tmp_path: Path) -> None:
    text = 'echo "$RANK $(sed -n "s/^Cpus_allowed_list:[[:space:]]*//p" /proc/self/status) $OMP_NUM_THREADS"'
    ended = run(tmp_path, "--bind", "cores", "--no-python", "--nproc-per-node", "2", "/bin/sh", "-c", text)
    assert ended.code == 0 and cpus_of(ended) == planned(ended), ended


@pytest.mark.torch
def test_every_thread_of_a_worker_is_bound_and_there_are_so_many(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import os, torch\n"
        "torch.ones(600, 600) @ torch.ones(600, 600)\n"
        "where = {frozenset(os.sched_getaffinity(int(t))) for t in os.listdir('/proc/self/task')}\n"
        "print(os.environ['RANK'], ','.join(map(str, sorted(set().union(*where)))), torch.get_num_threads())\n"
    )
    ended = run(tmp_path, "--bind", "cores", "--mesh", "dp=2", "script.py")
    assert ended.code == 0 and cpus_of(ended) == planned(ended), ended


def test_what_the_user_says_wins(tmp_path: Path) -> None:
    last = max(USABLE)
    (tmp_path / "script.py").write_text(f"import os\nos.sched_setaffinity(0, [{last}])\n{SCRIPT}")
    ended = run(
        tmp_path, "--bind", "cores", "--no-init", "-x", "OMP_NUM_THREADS=7", "--nproc-per-node", "2", "script.py"
    )
    assert cpus_of(ended) == {0: ({last}, 7), 1: ({last}, 7)}, ended


def test_more_workers_than_cores_share_them_and_it_is_said(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    many = str(len(USABLE) + 1)
    ended = run(tmp_path, "--bind", "cores", "--no-init", "--nproc-per-node", many, "script.py")
    assert ended.code == 0 and cpus_of(ended) == planned(ended), ended
    assert f"{many} workers share" in ended.err and all(threads == 1 for _, threads in cpus_of(ended).values())


def test_the_launchers_own_cpus_are_all_there_is(tmp_path: Path) -> None:
    """As under taskset, a cpuset or Slurm: what the agent may use is divided."""
    (tmp_path / "script.py").write_text(SCRIPT)
    first = min(USABLE)
    options = ("--bind", "numa", "--no-init", "script.py")
    ended = run(tmp_path, *options, prefix=("taskset", "-c", str(first)))
    assert cpus_of(ended) == {0: ({first}, 1)}, ended


@pytest.mark.parametrize("form", ["text", "json"])
def test_plan_shows_this_machines_cpus(tmp_path: Path, form: str) -> None:
    shown = run(tmp_path, "--dry-run", "--bind", "cores", "--nproc-per-node", "1", "--format", form)
    first = run(tmp_path, "--bind", "cores", "--no-init", "--no-python", "/bin/true")
    cpus = render_cpus(planned(first)[0][0])
    assert shown.code == 0, shown
    assert cpus in (json.loads(shown.out)["workers"][0]["cpus"] if form == "json" else shown.out.split("threads")[1])


def test_without_bind_nothing_is_said_of_cpus(tmp_path: Path) -> None:
    shown = run(tmp_path, "--dry-run", "--nproc-per-node", "2")
    assert shown.code == 0 and "cpus" not in shown.out


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        (("--bind", "core"), "did you mean cores"),
        (("--bind-to", "core"), "--bind cores"),
        (("--numa-binding", "node"), ""),
    ],
)
def test_other_values_and_other_launchers_options_are_refused(
    tmp_path: Path, options: tuple[str, ...], hint: str
) -> None:
    ended = run(tmp_path, *options, "script.py")
    assert ended.code == 2 and options[0] in ended.err and hint in ended.err and "--bind" in ended.err, ended
