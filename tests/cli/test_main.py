"""Owns: the command as a user meets it, where nothing is started: refusals, plans, help, exit codes.
Must not: start workers; the end-to-end tests do.
Called by: pytest."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
MESHRUN = (sys.executable, "-m", "meshrun")


def meshrun(*words: str, cwd: Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command and wait for its end."""
    return subprocess.run([*MESHRUN, *words], cwd=cwd, env=environ(env), capture_output=True, text=True, check=False)


def environ(extra: dict[str, str] | None = None) -> dict[str, str]:
    """This project importable, and nothing of ours set."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("MESHRUN_", "CUDA_VIS"))}
    return {**plain, "PYTHONPATH": str(ROOT), **(extra or {})}


def refused(*words: str, cwd: Path, env: dict[str, str] | None = None) -> str:
    """The message of a command that must end with 2, without a traceback, with nothing on stdout."""
    done = meshrun(*words, cwd=cwd, env=env)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr and "bug" not in done.stderr
    return done.stderr


@pytest.mark.parametrize("verb", [[], ["run"], ["plan"]])
def test_help(verb: list[str], tmp_path: Path) -> None:
    done = meshrun(*verb, "--help", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "--hostfile FILE" in done.stdout and "Usage: meshrun" in done.stdout


def test_plan_as_json(tmp_path: Path) -> None:
    done = meshrun("plan", "--hosts", "a:4,b:4", "--mesh", "dp=2,tp=4", "--format", "json", cwd=tmp_path)
    plan = json.loads(done.stdout)
    assert (plan["plan_version"], plan["world_size"], plan["mesh"]["dims"]) == (1, 8, {"dp": 2, "tp": 4})
    assert [node["host"] for node in plan["nodes"]] == ["a", "b"]


def test_plan_shows_sources_but_no_value_of_a_variable(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("hosts: a:2\n")
    words = ["plan", "--job", "job.yaml", "-x", "KEY=hidden", "--env-remote", "R=hidden"]
    done = meshrun(*words, cwd=tmp_path, env={"MESHRUN_GRACE": "7"})
    assert done.returncode == 0
    for part in ("job file job.yaml:1", "environment MESHRUN_GRACE", "command line", "KEY"):
        assert part in done.stdout
    assert "hidden" not in done.stdout


def test_dry_run_is_plan(tmp_path: Path) -> None:
    words = ["--hosts", "a:2", "--format", "json"]
    assert meshrun("--dry-run", *words, cwd=tmp_path).stdout == meshrun("plan", *words, cwd=tmp_path).stdout != ""


def test_a_mesh_sets_the_count_here(tmp_path: Path) -> None:
    done = meshrun("plan", "--mesh", "dp=2,tp=2", "--format", "json", cwd=tmp_path)
    node = json.loads(done.stdout)["nodes"][0]
    assert (node["host"], node["slots"]) == (os.uname().nodename, 4)


def test_a_mask_is_respected(tmp_path: Path) -> None:
    words = ["plan", "--nproc-per-node", "2", "--format", "json"]
    done = meshrun(*words, cwd=tmp_path, env={"CUDA_VISIBLE_DEVICES": "5,7"})
    assert json.loads(done.stdout)["nodes"][0]["devices"] == ["5", "7"]
    for mask in ("5", "", "-1"):
        assert "CUDA_VISIBLE_DEVICES" in refused(*words, cwd=tmp_path, env={"CUDA_VISIBLE_DEVICES": mask})
    done = meshrun(*words, "--device", "cpu", cwd=tmp_path, env={"CUDA_VISIBLE_DEVICES": ""})
    assert json.loads(done.stdout)["nodes"][0]["devices"] == ["0", "1"]


@pytest.mark.parametrize(
    ("line", "words", "mask", "message"),
    [
        ("devices=0", [], "5,7", "device 0 was asked for (devices=0), but CUDA_VISIBLE_DEVICES=5,7 is in force here"),
        ("devices=5,7", [], "5,7", ""),
        ("slots=2", [], "5,5", "CUDA_VISIBLE_DEVICES=5,5 names 5 twice"),
        ("slots=2", ["-x", "CUDA_VISIBLE_DEVICES=1"], "5,7", "2 workers, but CUDA_VISIBLE_DEVICES=1 shows 1"),
        ("slots=2 env.CUDA_VISIBLE_DEVICES=3,4", [], "5", ""),
    ],
)
def test_a_mask_here_is_a_pool_also_for_the_plan(
    tmp_path: Path, line: str, words: list[str], mask: str, message: str
) -> None:
    (tmp_path / "hosts").write_text(f"localhost {line}\n")
    command = ["plan", "--hostfile", "hosts", "--format", "json", *words]
    if message:
        assert message in refused(*command, cwd=tmp_path, env={"CUDA_VISIBLE_DEVICES": mask})
    else:
        done = meshrun(*command, cwd=tmp_path, env={"CUDA_VISIBLE_DEVICES": mask})
        named = line.partition("VISIBLE_DEVICES=")[2] or line.partition("=")[2]
        assert json.loads(done.stdout)["nodes"][0]["devices"] == named.split(",")


def test_devices_that_were_asked_for_and_are_not_here_are_named(tmp_path: Path) -> None:
    assert "no npu device is visible" in refused("plan", "--device", "npu", cwd=tmp_path)
    assert "mps is the GPU of Apple's" in refused("plan", "--device", "mps", cwd=tmp_path)


def test_inside_a_run_its_variables_do_not_count(tmp_path: Path) -> None:
    env = {"MESHRUN_RUN_ID": "x", "MESHRUN_MESH": '{"dims": {"dp": 9}}', "MESHRUN_LOG_DIR": "/x"}
    assert meshrun("plan", "--hosts", "a:2", cwd=tmp_path, env=env).returncode == 0


def test_the_reader_may_leave(tmp_path: Path) -> None:
    words = [*MESHRUN, "plan", "--hosts", "gpu[0001-1024]:8", "--format", "json"]
    with subprocess.Popen(
        words, cwd=tmp_path, env=environ(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout and process.stderr
        process.stdout.read(10)
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


def test_all_problems_at_once(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("a slot=4\nb slots=x\n")
    words = ["--hostfile", "hosts", "--mesh", "dp=", "-x", "MESHRUN_NOT_SET", "--env-file", "nothing", "gone.py"]
    message = refused(*words, cwd=tmp_path)
    for part in ("hosts:1", "hosts:2", "--mesh", "MESHRUN_NOT_SET", "nothing", "gone.py"):
        assert part in message


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ([], "no script given"),
        (["--hostfile", "gone", "t.py"], "gone: cannot read the hostfile: No such file"),
        (["--hostfile", ".", "t.py"], "is a directory"),
        (["--hostfile", "fifo", "t.py"], "is a pipe"),
        (["--hostfile", "binary", "t.py"], "not a text file"),
        (["--hostfile", "/dev/zero", "t.py"], "is a device"),
        (["--hostfile", "h", "--hosts", "a", "t.py"], "exclude each other"),
        (["--hosts", "a,b", "--dry-run"], "how many workers on a, b?"),
        (["--hosts", "a:4", "--mesh", "dp=3", "--dry-run"], "dp=4"),
        (["--hosts", "a:4", "--nodes", "2", "--dry-run"], "2"),
        (["dp=2,tp=2"], "--mesh dp=2,tp=2"),
        (["plna"], "did you mean `meshrun plan`?"),
        (["--", "plna"], "did you mean `meshrun plan`?"),
        (["hlep"], "`meshrun --help`"),
        (["check"], "every run checks all nodes"),
        (["--master-addr", "10.0.0.1:29500", "--hosts", "a:1", "t.py"], "--master-addr 10.0.0.1 --master-port 29500"),
        (["--master-addr", "a b", "--hosts", "a:1", "t.py"], "is not an address"),
        (["--preload", "numpy,a b", "t.py"], "'a b' is not the name of a module"),
        (["--backend", "NCCL!", "t.py"], "'NCCL!' is not a backend"),
        (["pkg.mod"], "-m pkg.mod"),
        (["dir"], "is a directory"),
        (["hosts", "t.py"], "--hostfile hosts"),
        (["tool"], "--no-python"),
        (["--format", "json", "t.py"], "meshrun plan"),
        (["--nnodes", "2", "--node-rank", "auto", "t.py"], "SLURM_NODEID, OMPI_COMM_WORLD_RANK, PMI_RANK"),
        (["--show", "0-", "t.py"], "--show"),
    ],
)
def test_refusals(words: list[str], part: str, tmp_path: Path) -> None:
    (tmp_path / "t.py").write_text("print('never')\n")
    (tmp_path / "hosts").write_text("a slots=4\nb slots=4\n")
    (tmp_path / "tool").write_text("#!/bin/sh\n")
    (tmp_path / "binary").write_bytes(b"a\0b")
    (tmp_path / "dir").mkdir()
    os.mkfifo(tmp_path / "fifo")
    assert part in refused(*words, cwd=tmp_path)
    assert not (tmp_path / "meshrun-runs").exists()


def test_the_words_that_verbs_are_mistaken_for_are_no_verbs() -> None:
    from meshrun.cli.main import VERBS
    from meshrun.cli.script import VERBS as NAMED

    assert tuple(VERBS) == NAMED


def test_a_file_named_like_a_verb(tmp_path: Path) -> None:
    (tmp_path / "plan").write_text("")
    assert "workers" in meshrun("plan", "--hosts", "a:2", "plan", cwd=tmp_path).stdout
    assert "is_there" not in refused("run", "--hosts", "a:2", "--launcher", "local", "plan", cwd=tmp_path)


def test_a_bug_is_called_one(tmp_path: Path) -> None:
    code = (
        "import sys; from meshrun.cli import main\n"
        "main.VERBS['run'] = lambda split: 1 / 0\n"
        "sys.exit(main.main(['t.py']))"
    )
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, cwd=tmp_path, env=environ(), capture_output=True, text=True, check=False)
    assert done.returncode == 125
    assert "this is a bug in meshrun: ZeroDivisionError" in done.stderr and "Traceback" not in done.stderr
    env = environ({"MESHRUN_DEBUG": "1"})
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert "Traceback" in done.stderr


def test_node_rank_auto_and_one_node_by_hand_need_no_address(tmp_path: Path) -> None:
    words = ["plan", "--nnodes", "1", "--node-rank", "auto", "--nproc-per-node", "2"]
    assert meshrun(*words, cwd=tmp_path, env={"SLURM_NODEID": "0"}).returncode == 0
    assert "not below --nnodes" in refused(*words, cwd=tmp_path, env={"PMI_RANK": "1"})
