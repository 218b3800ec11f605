"""Owns: odd scripts in torchrun style: the same under torchrun and meshrun, or better, and where it is said so.
Must not: need a package that meshrun does not need.
Called by: pytest."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from tests.e2e.command import run
from tests.frameworks.launchers import SCRIPTS, alike, meshrun, plain, torchrun

pytestmark = pytest.mark.torch
WAYS = ("--mesh dp=2", "", "--start-method spawn")


def free_port() -> str:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return str(one.getsockname()[1])


def test_destroy_and_init_again(tmp_path: Path) -> None:
    """Not beside torchrun: its agent's store keeps the first groups' addresses, and it can wait there for ever."""
    eager, lazy = (meshrun(tmp_path, 2, SCRIPTS / "again.py", options=options) for options in ("--mesh dp=2", ""))
    assert (eager.code, lazy.code) == (0, 0), (eager, lazy)
    assert list(map(plain, eager.out)) == list(map(plain, lazy.out))
    assert "default process group twice" in plain(eager.out[0])


def test_what_torch_refuses_is_refused(tmp_path: Path) -> None:
    outs = alike(tmp_path, 2, "dp=2", SCRIPTS / "odd.py")
    assert outs[1].count("Error") == 3 and outs[1].endswith("1 2 True\n")


@pytest.mark.parametrize("way", ["env", "file", "store"])
def test_places_to_meet(tmp_path: Path, way: str) -> None:
    theirs = torchrun(tmp_path, 2, SCRIPTS / "meeting.py", way, str(tmp_path))
    assert theirs.code == 0, theirs
    for options in WAYS[:2]:
        for name in ("meet", "store"):  # what an earlier launch left: torch does not remove a FileStore's file itself
            (tmp_path / name).unlink(missing_ok=True)
        ours = meshrun(tmp_path, 2, SCRIPTS / "meeting.py", way, str(tmp_path), options=options)
        assert (ours.code, without_default(ours.out)) == (0, without_default(theirs.out)), (options, ours)


def without_default(outs: tuple[str, ...]) -> list[str]:
    """Without torch's default time-out and ours, which differ (30 min, and --timeout)."""
    return [out.replace(" 0:30:00", "").replace(" 0:10:00", "") for out in outs]


@pytest.mark.parametrize("options", WAYS)
def test_an_address_of_the_scripts_own(tmp_path: Path, options: str) -> None:
    """Not under torchrun --standalone: there torch takes any address for that of the agent's store, and waits."""
    ours = meshrun(tmp_path, 2, SCRIPTS / "meeting.py", "tcp", free_port(), options=options)
    assert (ours.code, [out.split()[:4] for out in ours.out]) == (0, [["tcp", "3", "3", "0"], ["tcp", "3", "3", "1"]])
    ours = meshrun(tmp_path, 2, SCRIPTS / "hardcoded.py", options=options)
    assert (ours.code, ours.out) == (0, ("3\n", "3\n")), ours


def test_scripts_that_start_their_own_ranks(tmp_path: Path) -> None:
    outs = alike(tmp_path, 1, "dp=1", SCRIPTS / "spawner.py", "fork:env", "spawn:file")
    assert outs == ("fork env 6 3\nspawn file 6 3\n",)


def test_a_script_whose_ranks_bring_their_own_store_is_a_program(tmp_path: Path) -> None:
    """With a store of the agent's announced, torch starts none in the script's own ranks."""
    script = SCRIPTS / "spawner.py"
    ended = run(
        tmp_path, "--no-python", "python3", "-c", "import os; print('TORCHELASTIC_USE_AGENT_STORE' in os.environ)"
    )
    assert ended.out.endswith("False\n"), ended
    ended = run(tmp_path, "--no-python", sys.executable, str(script), "spawn:own")
    assert (ended.code, ended.out.split("] ")[1]) == (0, "spawn env 6 3\n"), ended


def test_data_loaders_of_every_start_method(tmp_path: Path) -> None:
    outs = alike(tmp_path, 2, "dp=2", SCRIPTS / "loaders.py")
    assert [line.split()[0] for line in outs[1].splitlines()] == ["fork", "forkserver", "spawn"]


def test_torch_logs_of_each_rank(tmp_path: Path) -> None:
    env = {"TORCH_LOGS": "recompiles"}
    seen = [torchrun(tmp_path, 2, SCRIPTS / "logs.py", env=env)]
    seen += [meshrun(tmp_path, 2, SCRIPTS / "logs.py", options=options, env=env) for options in WAYS]
    counts = [[err.count("Recompiling function double") for err in one.err] for one in seen]
    assert counts == [[1, 1]] * 4, seen
    assert all("[rank1]:" in one.err[1] for one in seen)


def test_torchs_context_parallel_up_to_its_attention(tmp_path: Path) -> None:
    outs = alike(tmp_path, 2, "cp=2", SCRIPTS / "torch_context_parallel.py")
    assert outs[1].startswith("(2, 4, 16, 16) 1\n")


def test_local_rank_as_an_argument(tmp_path: Path) -> None:
    theirs = torchrun(tmp_path, 2, SCRIPTS / "local_rank.py", "--lr", "1e-3", module="launch")
    assert theirs.code == 0, theirs
    options = ("--pass-local-rank", "--pass_local_rank --start-method spawn", "--pass-local-rank --no-init")
    for some in options:
        ours = meshrun(tmp_path, 2, SCRIPTS / "local_rank.py", "--lr", "1e-3", options=some)
        assert (ours.code, ours.out) == (0, theirs.out), ours
    without = meshrun(tmp_path, 2, SCRIPTS / "local_rank.py")
    assert without.code == 2 and "--local_rank" in "".join(without.err)  # whichever rank was the first to fail


def test_local_rank_of_a_program_and_a_module(tmp_path: Path) -> None:
    (tmp_path / "show").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "show").chmod(0o755)
    (tmp_path / "tool.py").write_text("import sys; print(*sys.argv[1:])")
    for words in (["--no-python", str(tmp_path / "show")], ["--no-init", "-m", "tool"]):
        ended = run(tmp_path, "--nproc-per-node", "2", "--pass-local-rank", *words, "--x", "y")
        lines = sorted(line.split("] ")[1] for line in ended.out.splitlines())
        assert lines == ["--local_rank=0 --x y", "--local_rank=1 --x y"], ended


def test_record_around_main(tmp_path: Path) -> None:
    assert alike(tmp_path, 2, "dp=2", SCRIPTS / "recorded.py") == ("done recorded.py main\n",) * 2


def test_record_around_a_main_that_fails(tmp_path: Path) -> None:
    theirs = torchrun(tmp_path, 2, SCRIPTS / "recorded.py", "1")
    assert theirs.code == 1 and "LookupError: no such batch" in theirs.screen
    for options in WAYS:
        ended = run(tmp_path, "--nproc-per-node", "2", *options.split(), str(SCRIPTS / "recorded.py"), "1")
        first = ended.summary["first_failure"]
        assert (ended.code, first["rank"], first["exception"]["type"]) == (1, 1, "LookupError"), ended
        assert first["exception"]["message"] == "no such batch"


INNER = ["--nproc-per-node", "2", str(SCRIPTS / "inner.py")]


@pytest.mark.parametrize(
    ("outer", "words"),
    [("torchrun", "meshrun"), ("meshrun", "torch.distributed.run --standalone"), ("meshrun", "meshrun")],
)
def test_a_launcher_that_a_rank_starts(tmp_path: Path, outer: str, words: str) -> None:
    """The inner workers see the inner world: its ranks, its coordinates."""
    args = ["-m", *words.split(), *INNER]
    if outer == "torchrun":
        seen = torchrun(tmp_path, 2, SCRIPTS / "nested.py", *args)
    else:
        seen = meshrun(tmp_path, 2, SCRIPTS / "nested.py", *args, options="--mesh dp=1,tp=2")
    expected = [f"{rank} 2 {{'dp': {rank}}} {rank} (2,)" for rank in range(2)]
    assert (seen.code, seen.out) == (0, ("", f"0 {expected}  2\n")), seen


def test_a_nested_run_says_whose_it_is(tmp_path: Path) -> None:
    (tmp_path / "inner.py").write_text("print('in')")
    env = {"RANK": "1", "WORLD_SIZE": "4", "TORCHELASTIC_RUN_ID": "x"}
    ended = run(tmp_path, "--no-init", "inner.py", env=env)
    assert ended.code == 0
    assert ended.err.startswith("meshrun: started by rank 1 of 4 of a torchrun job: this run is its own"), ended
    ended = run(tmp_path, "--no-init", "inner.py", env={**env, "MESHRUN_RUN_ID": "x"})
    assert ended.err.startswith("meshrun: started by rank 1 of 4 of run x: "), ended
    assert run(tmp_path, "--quiet", "--no-init", "inner.py", env=env).err == ""
    assert run(tmp_path, "--no-init", "inner.py", env={**env, "WORLD_SIZE": "1"}).err == ""


@pytest.mark.parametrize("words", ["torchrun", "deepspeed --num_gpus 2", "-m torch.distributed.run"])
def test_another_launcher_as_the_script_is_refused(tmp_path: Path, words: str) -> None:
    ended = run(tmp_path, *words.split(), "train.py")
    assert ended.code == 2
    assert "this is a launcher" in ended.err and "meshrun [OPTIONS] train.py" in ended.err
