"""Owns: what the user reads for bad input, word for word: a table of command lines and one golden file.
Must not: start anything; every case is refused before that. MESHRUN_WRITE_GOLDEN=1 writes the file anew.
Called by: pytest."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest

from meshrun.cli.main import main

GOLDEN = Path(__file__).parent / "golden" / "messages.txt"
FILES = {
    "hosts": "gpu[01-02] slots=4\ngpu03 slot=4\ngpu04:2222\ngpu[05-03] slots=4\ngpu01 slots=4 slots=2\n",
    "ok-hosts": "a slots=4\nb slots=4\n",
    "empty": "# nobody\n\n",
    "mesh.yaml": "mesh:\n  dims: {dp: 2, tp: auto, dp: 4}\n  within: [tp]\n  timeout_s: {tp: soon}\n",
    "low.yaml": "dims: {dp: 2, tp: 4}\n",
    "crossing.yaml": "mesh:\n  dims: {dp: 1, tp: 8}\n  within_node: [tp]\n",
    "backend.yaml": "mesh:\n  dims: {dp: 2, tp: 4}\n  backend: {tp: glo}\n",
    "job.yaml": "mesh: dp=2\nhostfil: hosts\nscript: train.py\n",
    "names.env": "GOOD=1\nno equals\nexport 1BAD=2\n",
    "train.py": "print('never')\n",
    "keys.yaml": "Mesh: dp=2\nMESHRUN_GRACE: 3\n--nproc_per_node: 4\n",
}
CASES = [
    "--hostfile hosts train.py",
    "--hostfile empty train.py",
    "--hostfile missing train.py",
    "--hostfile . train.py",
    "--hosts a:4,b:four,[c slots train.py",
    "--hostfile ok-hosts --mesh dp=3,tp=4 train.py",
    "--hostfile ok-hosts --mesh dp=2,tp train.py",
    "--hostfile ok-hosts --mesh dp=auto,tp=auto train.py",
    "--hostfile ok-hosts --mesh dp=2,dp=4 train.py",
    "--hostfile ok-hosts --mesh mesh.yaml train.py",
    "--hostfile ok-hosts --mesh low.yaml train.py",
    "--hostfile ok-hosts --mesh crossing.yaml train.py",
    "--hostfile ok-hosts --include c@a:9 train.py",
    "--hostfile ok-hosts --exclude a@b train.py",
    "--hostfile ok-hosts --nodes 3 train.py",
    "--hostfile ok-hosts --hosts a:4 train.py",
    "--job job.yaml train.py",
    "--env-file names.env train.py",
    "-x NOT_SET_ANYWHERE -x =1 train.py",
    "--meshes dp=2 --grace never --rdzv-backend c10d train.py",
    "--hostfile ok-hosts --backend foo --mesh dp=8 train.py",
    "--hostfile ok-hosts --backend cpu:gloo,cuda:nccl --device cpu train.py",
    "--hostfile ok-hosts --mesh backend.yaml train.py",
    "--hostfile ok-hosts --master-addr 127.0.0.1 train.py",
    "--nnodes 2 train.py",
    "--no-init --init eager --time-limit 10 --signal-workers NOPE@20 train.py",
    "--nproc-per-node x --mesh dp=0 --hostfile missing --show tp=0 --nosuch missing.py",
    "--nproc-per-node x --mesh dp=0 missing.py",
    "--grace x --workdir /nowhere --nosuch 5 missing.py",
    "--job job.yaml --hosts a:x missing.py",
    "plan --nosuch --diff a.json b.json",
    "ps --nosuch",
    "stop --log-dri x run",
    "stop --signal=9 --grace 5 --no-init run",
    "stacks --log-dir",
    "stop run --log-dir x",
    "ps run",
    "--mesh dp=2 plan train.py 'a b'",
    "--log-dir runs ps",
    "missing.py",
    "/nowhere/missing.py",
    "tran.py",
    "./trian.py --lr 1",
    "'train.py --lr 1'",
    "-m train.py",
    "-m pkg/train.py",
    "--job keys.yaml train.py",
    "--job '' train.py",
    "--hosts 'a:2 b:2' train.py",
    "--hosts 'a b' train.py",
    "--hosts 'a:2;b:2' train.py",
    "--hosts a:22:4 train.py",
    "--hosts ::1 train.py",
    "--hosts fe80::1:4 train.py",
    "--hosts a:b:c train.py",
    "--hostfile a:2,b:2 train.py",
    "--mesh 'dp=2 tp=2' train.py",
    "--mesh 'dp = 2, tp = 2' train.py",
    "--time-limit 1h30m --grace 5m --timeout 1:00:00 --start-timeout 2d --connect-timeout 5:0 --hang-timeout soon t.py",
    "--Help train.py",
    "-help train.py",
    "--HOSTS a:1 train.py",
    "--no-quiet --no-dry_run train.py",
    "ok-hosts",
    "dp=2,tp=4",
    "",
]


def test_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PWD", str(tmp_path))
    for name in [name for name in os.environ if name.startswith("MESHRUN_") and name != "MESHRUN_WRITE_GOLDEN"]:
        monkeypatch.delenv(name)
    shown = []
    write = os.environ.get("MESHRUN_WRITE_GOLDEN")
    monkeypatch.delenv("MESHRUN_WRITE_GOLDEN", raising=False)
    for line in CASES:
        code = main(shlex.split(line))
        out, err = capfd.readouterr()
        assert (code, out) == (2, ""), (line, code, out, err)
        shown.append(f"$ meshrun {line}\n{err.replace(str(tmp_path), 'HERE').rstrip()}\n")
    text = "\n".join(shown)
    if write:
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()
    assert not (tmp_path / "meshrun-runs").exists()


def test_a_crowd_of_problems_is_cut(capfd: pytest.CaptureFixture[str]) -> None:
    assert main([f"--nosuch{number}" for number in range(150)]) == 2
    said = capfd.readouterr().err
    assert said.startswith("meshrun: 150 problems\n") and said.endswith("\nand 50 more\n")
    assert "--nosuch99\n" in said and "--nosuch100\n" not in said


def test_options_that_do_not_go_together_say_who_gave_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text("explain: 3\n")
    for name, value in {"MESHRUN_HOSTS": "a:1", "MESHRUN_HOSTFILE": "hosts"}.items():
        monkeypatch.setenv(name, value)
    assert main(["--job", "job.yaml", "-m", "x"]) == 2
    said = capfd.readouterr().err
    both = "--hostfile: environment MESHRUN_HOSTFILE; --hosts: environment MESHRUN_HOSTS"
    assert f"--hostfile and --hosts exclude each other ({both})" in said
    assert "--explain is about a plan (--explain: job file job.yaml:1)" in said
