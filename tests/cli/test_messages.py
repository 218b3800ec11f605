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
    "missing.py",
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
