"""Owns: the whole command on this machine: ways to start a script, what it sees, how it ends.
Must not: need root.
Called by: pytest."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.e2e.command import Command, run

TORCHRUN_STYLE = """
import os, torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("dp", "tp"))
x = torch.ones(1) * (dist.get_rank() + 1)
dist.all_reduce(x, group=mesh.get_group("dp"))
print(int(x), os.environ["TORCHELASTIC_USE_AGENT_STORE"], flush=True)
dist.destroy_process_group()
"""


def lines(out: str) -> list[str]:
    return sorted(line.split("] ", 1)[1] for line in out.splitlines())


@pytest.mark.torch
@pytest.mark.parametrize("options", ["--mesh dp=2,tp=1", "--nproc_per_node 2", "--mesh dp=2,tp=1 --start-method spawn"])
def test_a_torchrun_script_runs_unchanged(tmp_path: Path, options: str) -> None:
    (tmp_path / "script.py").write_text(TORCHRUN_STYLE)
    ended = run(tmp_path, *options.split(), "script.py")
    assert ended.code == 0, ended
    assert lines(ended.out) == ["3 True", "3 True"]


def test_preload_auto_imports_once_what_the_script_opens_with(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "einops.py").write_text("import os; open(__file__ + '.log', 'a').write(f'{os.getpid()} ')")
    (tmp_path / "lib" / "tqdm.py").write_text("raise ImportError('not on this machine')")
    (tmp_path / "yaml.py").write_text("mine = True")
    (tmp_path / "script.py").write_text(
        "import os, einops, yaml\nfrom einops import os as os2\ntry:\n    import tqdm\nexcept ImportError:\n"
        "    print(yaml.mine, os.getpid())\n"
    )
    options = ["--nproc-per-node", "2", "--no-init", "--preload", "auto", "-x", f"PYTHONPATH={tmp_path / 'lib'}"]
    ended = run(tmp_path, *options, "script.py")
    assert ended.code == 0, ended
    workers = [line.split() for line in lines(ended.out)]
    assert [word for word, _ in workers] == ["True", "True"], "the script's own yaml"
    (importer,) = (tmp_path / "lib" / "einops.py.log").read_text().split()
    assert importer not in {pid for _, pid in workers}
    shown = run(tmp_path, "--dry-run", *options, "script.py")
    assert "einops?,einops:os?" in shown.out, shown


def test_the_script_sees_its_name_as_it_was_typed(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "script.py").write_text("import sys; print(sys.argv, sys.path[0], __file__)")
    ended = run(tmp_path, "--no-init", "sub/script.py", "x")
    file = tmp_path / "sub" / "script.py"
    assert lines(ended.out) == [f"['sub/script.py', 'x'] {tmp_path / 'sub'} {file}"], ended


def test_a_module_with_arguments(tmp_path: Path) -> None:
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__main__.py").write_text("import sys; print(__package__, __spec__.name, sys.argv[1:])")
    ended = run(tmp_path, "--no-init", "-m", "pack", "--nproc", "-m", "x")
    assert ended.code == 0, ended
    assert lines(ended.out) == ["pack pack.__main__ ['--nproc', '-m', 'x']"]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("import sys; sys.exit(7)", 7),
        ("raise SystemExit('words')", 1),
        ("1 / 0", 1),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", 139),
        ("import os; os.abort()", 134),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", 137),
        ("import os; os._exit(3)", 3),
        ("pass", 0),
    ],
)
def test_exit_codes(tmp_path: Path, text: str, code: int) -> None:
    (tmp_path / "script.py").write_text(text)
    ended = run(tmp_path, "--no-init", "script.py")
    assert ended.code == code, ended
    assert ended.summary["exit_code"] == code
    if code == 137:
        assert ended.summary["first_failure"]["oom"] in ("yes", "no", "unknown")
        assert "OOM" in ended.err


def test_show_selects_and_the_run_directory_has_all(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import sys; print('out'); print('err', file=sys.stderr); print('end', end='')")
    ended = run(tmp_path, "--mesh", "dp=2,tp=2", "--show", "tp=1", "--no-init", "script.py")
    assert ended.code == 0, ended
    assert {line.split("]")[0].split(":")[1] for line in ended.out.splitlines()} == {"1 dp=0,tp=1", "3 dp=1,tp=1"}
    for rank in range(4):
        assert (ended.run_dir / f"rank{rank}.out").read_bytes() == b"out\nend"
        assert (ended.run_dir / f"rank{rank}.err").read_bytes() == b"err\n"


def test_whole_lines_from_chatty_ranks(tmp_path: Path) -> None:
    text = "import os\nfor i in range(20000): print(os.environ['RANK'], i, 'x' * (i % 97))\n"
    (tmp_path / "script.py").write_text(text)
    ended = run(tmp_path, "--nproc-per-node", "3", "--no-init", "script.py")
    assert ended.code == 0
    seen: dict[str, int] = {"0": 0, "1": 0, "2": 0}
    for line in ended.out.splitlines():
        prefix, _, rest = line.partition("] ")
        rank, number, filler = rest.split(" ")
        assert f":{rank} " in prefix and int(number) == seen[rank] and filler == "x" * (seen[rank] % 97)
        seen[rank] += 1
    assert seen == {"0": 20000, "1": 20000, "2": 20000}


def test_grandchildren_in_other_sessions_end_with_the_run(tmp_path: Path) -> None:
    text = """
import os, pathlib, subprocess, time
daemon = "import os, time, sys; os.fork() and os._exit(0); os.setsid(); os.fork() and os._exit(0);" \\
    "open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(600)"
subprocess.Popen(["env", "-i", "/usr/bin/env", "python3", "-c", daemon, "daemon"]).wait()
while not pathlib.Path("daemon").exists() or not pathlib.Path("daemon").read_text(): time.sleep(0.01)
pathlib.Path("ready").touch()
time.sleep(600)
"""
    (tmp_path / "script.py").write_text(text)
    command = Command(tmp_path, "--no-init", "script.py")
    command.wait_for(tmp_path / "ready")
    daemon = int((tmp_path / "daemon").read_text())
    assert os.path.exists(f"/proc/{daemon}")
    command.signal(signal.SIGTERM)
    assert command.end().code == 143
    assert not os.path.exists(f"/proc/{daemon}")


def test_a_nested_run_is_a_run_of_its_own(tmp_path: Path) -> None:
    """A script that starts meshrun itself: the inner run ignores the variables of the outer one."""
    (tmp_path / "inner.py").write_text("import os; print('inner', os.environ['WORLD_SIZE'])")
    (tmp_path / "outer.py").write_text(
        "import subprocess, sys\n"
        "argv = [sys.executable, '-m', 'meshrun', '--nproc-per-node', '2', '--no-init', 'inner.py']\n"
        "done = subprocess.run(argv, capture_output=True, text=True)\n"
        "print(done.returncode, done.stdout.count('inner 2'), done.stderr)\n"
    )
    ended = run(tmp_path, "--no-init", "outer.py")
    assert lines(ended.out)[-1].startswith("0 2"), ended


def test_a_screen_that_takes_nothing_does_not_hold_up_an_interrupt(tmp_path: Path) -> None:
    """A terminal that nobody reads: its buffer is full, the window is shut, the agents hold the rest of the output."""
    text = (
        "import pathlib\nfor i in range(200000): print(i, 'x' * 90)\npathlib.Path('ready').touch()\nwhile True: pass\n"
    )
    (tmp_path / "script.py").write_text(text)
    ours, theirs = os.openpty()
    command = Command(tmp_path, "--no-init", "script.py", stdout=theirs)
    command.wait_for(tmp_path / "ready")
    command.signal(signal.SIGINT)
    ended = command.end(40)
    os.close(theirs)
    os.close(ours)
    assert ended.code == 130, ended
    assert ended.summary["outcome"] == "stopped"
    kept = (ended.run_dir / "rank0.out").read_text().splitlines()
    assert len(kept) == 200000 and kept[-1].startswith("199999 ")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_same_signal_twice_at_once_changes_nothing(tmp_path: Path, number: int) -> None:
    """A double Ctrl-C, or a terminal and a wrapper that both send it."""
    command = Command(tmp_path, "--no-python", "sh", "-c", "touch ready; exec sleep 60")
    command.wait_for(tmp_path / "ready")
    while command.process.poll() is None:  # more of them, until the last moment
        command.signal(number)
    ended = command.end(20)
    assert ended.code == 128 + number, ended
    assert ended.summary["exit_code"] == 128 + number
    assert "meshrun: " in ended.err


def test_few_descriptors_are_enough(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("print('here')")
    limit = ("prlimit", "--nofile=100:100")
    ended = run(tmp_path, "--nproc-per-node", "4", "--no-init", "script.py", prefix=limit)
    assert (ended.code, len(ended.out.splitlines())) == (0, 4), ended
