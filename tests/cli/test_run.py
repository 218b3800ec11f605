"""Owns: whole runs on this machine by the real command, without torch: arguments, exit codes, signals, what is left.
Must not: import torch in a worker; tests/e2e does.
Called by: pytest."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.cli.test_main import MESHRUN, environ, meshrun

WAIT = "import os, signal, sys\nopen(os.environ['RANK'], 'w').close()\nsignal.pause()\n"


def run(cwd: Path, *words: str, text: str = "", env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a script of this text with two ranks."""
    (cwd / "t.py").write_text(text)
    return meshrun("--no-init", "--nproc-per-node", "2", *words, cwd=cwd, env=env)


def run_directory(cwd: Path) -> Path:
    """The one run directory."""
    (found,) = (cwd / "meshrun-runs").iterdir()
    return found


def test_arguments_and_values_arrive_byte_for_byte(tmp_path: Path) -> None:
    hard = ["", "a b", "--mesh", "--", "'\"$HOME`\\", "new\nline", "\udcff\udcfe", "ü"]
    text = "import os, sys\nif os.environ['RANK'] == '1':\n    print(ascii([sys.argv[1:], os.environ['V']]))\n"
    done = run(tmp_path, "--quiet", "--show", "1", "-x", "V=\udcff'\n$x", "t.py", *hard, text=text)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.partition("] ")[2] == ascii([hard, "\udcff'\n$x"]) + "\n"


def test_success_leaves_a_run_directory(tmp_path: Path) -> None:
    done = run(tmp_path, "t.py", text="import sys; print('out'); print('err', file=sys.stderr)")
    assert done.returncode == 0
    here = run_directory(tmp_path)
    assert here.stat().st_mode & 0o777 == 0o700
    assert (here / "rank1.out").read_text() == "out\n" and (here / "rank1.err").read_text() == "err\n"
    assert json.loads((here / "summary.json").read_text())["outcome"] == "succeeded"
    assert json.loads((here / "plan.json").read_text())["world_size"] == 2


def test_a_pattern_that_passes_nothing_on_is_a_remark(tmp_path: Path) -> None:
    done = run(tmp_path, "-x", "NOSUCH_*", "t.py")
    assert (done.returncode, done.stderr.count("\n")) == (0, 1) and "'NOSUCH_*' passes nothing on" in done.stderr
    assert run(tmp_path, "-x", "NOSUCH_*", "--quiet", "t.py").stderr == ""


def test_a_list_of_hosts_behind_the_script_is_a_remark(tmp_path: Path) -> None:
    """Without a word the run would be on this machine only, and look well."""
    (tmp_path / "t.py").touch()
    for before, count in (((), 1), (("--nproc-per-node", "1"), 0), (("--quiet",), 0)):
        done = meshrun("--no-init", *before, "t.py", "--hostfile", "hosts", "--timeout", "3", cwd=tmp_path)
        assert (done.returncode, done.stderr.count("\n")) == (0, count)
        assert done.stderr.count("--hostfile behind t.py is for the script") == count


def test_a_hosts_own_directory_is_where_it_works_not_where_the_script_is(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "hosts").write_text(f"localhost slots=1 workdir={tmp_path}/own\n")
    done = run(tmp_path, "--hostfile", "hosts", "--quiet", "t.py", text="import os; print(os.getcwd(), __file__)")
    assert done.stdout.partition("] ")[2] == f"{tmp_path}/own {tmp_path}/t.py\n", done


def test_a_cause_of_every_host_is_told_once(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("Host *\n  Nonsense yes\n")
    done = run(tmp_path, "--hosts", "gpu[01-50]", "--ssh-config", "config", "t.py")
    assert done.returncode == 125
    assert done.stderr.count("config:2: the ssh config says nonsense yes") == 1 and "gpu[01-50]" in done.stderr


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("import sys; sys.exit(7)", 7),
        ("raise ValueError('boom')", 1),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", 137),
        ("import os, signal, time\nif os.environ['RANK'] == '0': raise KeyError('x')\nsignal.pause()", 1),
        ("def f(:", 2),
    ],
)
def test_exit_codes(text: str, code: int, tmp_path: Path) -> None:
    done = run(tmp_path, "t.py", text=text)
    assert done.returncode == code
    assert "Traceback" not in done.stdout


def test_the_last_block_names_the_culprit(tmp_path: Path) -> None:
    text = "import os, signal\nif os.environ['RANK'] == '1':\n    raise ValueError('boom')\nsignal.pause()\n"
    done = run(tmp_path, "t.py", text=text)
    block = done.stderr[done.stderr.rindex("failed first") - 30 :]
    assert "rank 1" in block and "ValueError: boom" in block and "t.py:3" in block and "meshrun-runs" in block


def test_module_and_program(tmp_path: Path) -> None:
    (tmp_path / "mod.py").write_text("import sys\nprint(__name__, sys.argv[1:])\n")
    done = run(tmp_path, "-m", "mod", "-m", text="")
    assert done.stdout.count("__main__ ['-m']") == 2
    done = run(tmp_path, "--no-python", "sh", "-c", "echo r$RANK", text="")
    assert "r0" in done.stdout and "r1" in done.stdout


def test_time_limit(tmp_path: Path) -> None:
    done = run(tmp_path, "--time-limit", "0.5", "t.py", text=WAIT)
    assert done.returncode == 124
    assert "time limit" in done.stderr


def start(cwd: Path, *words: str) -> subprocess.Popen[bytes]:
    """Start two ranks that wait, and return when both are in the script."""
    (cwd / "t.py").write_text(WAIT)
    argv = [*MESHRUN, "--no-init", "--nproc-per-node", "2", *words, "t.py"]
    process = subprocess.Popen(argv, cwd=cwd, env=environ(), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    until = time.monotonic() + 60
    while not all((cwd / rank).exists() for rank in "01"):
        assert process.poll() is None and time.monotonic() < until, process.communicate()
        time.sleep(0.02)
    return process


def left_of(cwd: Path) -> list[int]:
    """Processes of the run whose directory is under `cwd`."""
    mark = f"MESHRUN_RUN_ID={run_directory(cwd).name}".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_signals_stop_the_run_in_order(number: signal.Signals, code: int, tmp_path: Path) -> None:
    process = start(tmp_path)
    assert len(left_of(tmp_path)) >= 2
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == code
    assert b"Traceback" not in said
    assert left_of(tmp_path) == []


def test_a_killed_launcher_leaves_nothing(tmp_path: Path) -> None:
    process = start(tmp_path)
    assert len(left_of(tmp_path)) >= 2
    process.kill()
    process.communicate(timeout=60)
    until = time.monotonic() + 60
    while left_of(tmp_path):
        assert time.monotonic() < until, "something of the run is left"
        time.sleep(0.05)


def test_the_reader_of_stdout_may_leave(tmp_path: Path) -> None:
    (tmp_path / "t.py").write_text("while True:\n    print('y' * 100)\n")
    argv = [*MESHRUN, "--no-init", "--nproc-per-node", "2", "t.py"]
    with subprocess.Popen(argv, cwd=tmp_path, env=environ(), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout and process.stderr
        assert b"y" * 100 in process.stdout.readline()
        process.stdout.close()
        said = process.stderr.read()
    assert (process.returncode, b"Traceback" in said) == (141, False)


def test_a_missing_interpreter_is_named(tmp_path: Path) -> None:
    done = run(tmp_path, "--python", "/no/such/python", "t.py", text="")
    assert done.returncode == 125
    assert "/no/such/python" in done.stderr and os.uname().nodename in done.stderr


def test_a_plan_that_does_not_fit_makes_nothing(tmp_path: Path) -> None:
    done = run(tmp_path, "--mesh", "dp=3", "t.py", text="")
    assert done.returncode == 2
    assert not (tmp_path / "meshrun-runs").exists()


def test_plan_asks_this_machine(tmp_path: Path) -> None:
    done = meshrun("plan", "--device", "cpu", "--format", "json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["world_size"] == 1
