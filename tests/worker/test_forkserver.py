"""Owns: the fork server's promises: one thread, workers that are the agent's own, nothing shared by accident.
Must not: test groups or the script's view.
Called by: pytest."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from meshrun import wire
from tests.worker.player import Player


def write(player: Player, text: str) -> Path:
    path = player.tmp / "script.py"
    path.write_text(dedent(text))
    return path


def lines(player: Player, text: str, n: int = 1, **env: str) -> list[list[str]]:
    ends = [running.wait() for running in player.launch(player.order(write(player, text)), n, 1, **env)]
    assert [end.code for end in ends] == [0] * n, [end.err for end in ends]
    return [end.out.splitlines() for end in ends]


@pytest.mark.torch
def test_what_it_reports(player: Player) -> None:
    assert player.imported is not None
    assert player.imported.threads == 1
    assert player.imported.problem == ""
    assert player.imported.torch.startswith("2.")


@pytest.mark.parametrize(
    ("source", "word"),
    [
        (
            "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
            "2 threads run",
        ),
        ("raise ValueError('not here')", "cannot import culprit: ValueError: not here"),
    ],
)
def test_a_preload_that_makes_forking_unsafe_is_named(
    tmp_path: Path, source: str, word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "culprit.py").write_text(source)
    player = Player(tmp_path, "culprit")  # the working directory is on the path of `python -c`
    player.start()
    assert player.imported is not None
    assert word in player.imported.problem
    player.close()


@pytest.mark.parametrize(
    ("preload", "problem"),
    [
        ("no_such?,json:dumps?,json:decoder,no_such:x?,json:nothing?", ""),
        ("json:nothing", "cannot import json:nothing: ModuleNotFoundError"),
        ("no_such", "cannot import no_such: ModuleNotFoundError"),
    ],
)
def test_a_preload_with_a_question_mark_may_be_missing(tmp_path: Path, preload: str, problem: str) -> None:
    player = Player(tmp_path, preload)
    player.start()
    assert player.imported is not None
    assert player.imported.problem.startswith(problem) and bool(player.imported.problem) == bool(problem)
    player.close()


def test_a_worker_is_the_agents_child_in_its_own_session(bare: Player) -> None:
    ((out,),) = lines(bare, "import os; print(os.getppid(), os.getsid(0) == os.getpid() == os.getpgid(0))")
    assert out == f"{os.getpid()} True"


def test_a_worker_dies_with_the_agent(bare: Player) -> None:
    """PR_GET_PDEATHSIG in the worker."""
    text = "import ctypes; n = ctypes.c_int(); ctypes.CDLL(None).prctl(2, ctypes.byref(n)); print(n.value)"
    assert lines(bare, text) == [[str(int(signal.SIGKILL))]]


def test_the_environment_is_replaced_for_python_and_c(bare: Player) -> None:
    text = "import os; print('HOME' in os.environ, os.environ['ONLY']); os.system('echo $ONLY; env | grep -c .')"
    bare_env = {"ONLY": "this", "RANK": "0"}
    assert bare.line is not None
    bare.line.sendall(wire.encode(bare.order(write(bare, text))))
    end = bare.fork(0, bare_env).wait()
    assert end.out.splitlines()[:2] == ["False this", "this"]
    assert int(end.out.splitlines()[2]) <= 5  # RANK, ONLY and what the shell adds


def test_no_descriptor_leaks_into_a_worker(bare: Player) -> None:
    with open(os.devnull) as kept:
        os.set_inheritable(kept.fileno(), True)
        text = """
            import os
            fds = [int(f) for f in os.listdir("/proc/self/fd")]
            links = [os.readlink(f"/proc/self/fd/{f}") for f in fds if f > 2 and os.path.lexists(f"/proc/self/fd/{f}")]
            print(sorted(os.path.basename(link).split(":")[0] for link in links))
            """
        ((out,),) = lines(bare, text)
    assert out == "['socket', 'stacks0']"


def test_siblings_share_no_random_numbers(bare: Player) -> None:
    text = """
        import random, multiprocessing, uuid
        print(random.random(), multiprocessing.current_process().authkey, uuid.uuid4())
        """
    first, second = lines(bare, text, 2)
    assert not set(first[0].split()) & set(second[0].split())


@pytest.mark.torch
def test_siblings_share_no_torch_random_numbers(player: Player) -> None:
    first, second = lines(player, "import torch, numpy\nprint(torch.rand(1).item()); print(numpy.random.rand())", 2)
    assert not set(first) & set(second)


@pytest.mark.torch
def test_threads_are_the_users(player: Player) -> None:
    text = """
        import torch, os, ctypes
        print(torch.get_num_threads())
        torch.ones(400, 400) @ torch.ones(400, 400)
        path = next(l.split()[-1] for l in open("/proc/self/maps") if "openblas" in l)
        print(ctypes.CDLL(path).scipy_openblas_get_num_threads64_())
        """
    assert lines(player, text, OMP_NUM_THREADS="2") == [["2", "2"]]
    assert lines(player, text, OMP_NUM_THREADS="1") == [["1", "1"]]


@pytest.mark.torch
def test_torch_is_shared_not_copied(player: Player) -> None:
    """A forked worker's own memory is a fraction of what the import takes."""
    text = """
        import torch
        rollup = dict(l.split()[:2] for l in open("/proc/self/smaps_rollup").readlines()[1:])
        print(int(rollup["Private_Dirty:"]) / int(rollup["Rss:"]))
        """
    ((out,),) = lines(player, text)
    assert float(out) < 0.25


@pytest.mark.torch
def test_distributed_debug_level_is_read_again(player: Player) -> None:
    text = "import torch.distributed as dist; print(dist.get_debug_level())"
    assert lines(player, text, TORCH_DISTRIBUTED_DEBUG="DETAIL") == [["DebugLevel.DETAIL"]]
    assert lines(player, text) == [["DebugLevel.OFF"]]


@pytest.mark.parametrize(
    ("own", "seen"), [("gc.disable()", "False True"), ("gc.set_threshold(99)", "True False"), ("", "True True")]
)
def test_what_a_preload_says_about_collections_stays(tmp_path: Path, own: str, seen: str) -> None:
    """They are put off while modules are imported."""
    (tmp_path / "frugal.py").write_text(f"import gc\n{own}\n")
    player = Player(tmp_path, "frugal")
    player.start()
    script = "import gc; print(gc.isenabled(), gc.get_threshold()[0] not in (0, 99))"
    assert lines(player, script) == [[seen]]
    player.close()


def test_it_leaves_when_the_agent_closes_the_line(tmp_path: Path) -> None:
    player = Player(tmp_path, "")
    player.start()
    player.close()
    assert player.process is not None
    assert player.process.returncode == 0


def test_a_fresh_interpreter_does_the_same(bare: Player) -> None:
    script = write(
        bare, "import sys, os, meshrun; print(sys.argv[1:], sys.path[0], meshrun.coords(), 'torch' in sys.modules)"
    )
    end = bare.run_spawned(bare.order(script, "a"), 1, 0, 1)
    assert (end.code, end.out, end.err) == (0, f"['a'] {bare.tmp} {{'dp': 0}} False\n", "")
    assert end.ready


@pytest.mark.torch
def test_a_fresh_interpreter_hooks_torch_at_its_import(player: Player) -> None:
    text = """
        import sys
        assert "torch" not in sys.modules
        import torch.distributed as dist, meshrun
        from torch.distributed import init_process_group, device_mesh, distributed_c10d
        dist.init_process_group("gloo")
        print(meshrun.mesh() is dist.init_device_mesh("cpu", (1,), mesh_dim_names=("dp",)))
        print(all(hasattr(f, "meshrun_original") for f in (init_process_group, device_mesh.init_device_mesh)))
        """
    with player.store(1) as port:
        end = player.run_spawned(player.order(write(player, text), init="lazy"), port, 0, 1)
    assert (end.code, end.err) == (0, "")
    assert end.out.splitlines() == ["True", "True"]


def test_a_store_of_its_own_waits_for_its_first_client(bare: Player) -> None:
    """Both ways to start it; torch comes only with the first client, which waits in the backlog meanwhile."""
    from torch.distributed import TCPStore

    with bare.store(2) as port:
        client = TCPStore("127.0.0.1", port, is_master=False)
        client.set("a", "1")
        assert TCPStore("127.0.0.1", port, is_master=False).get("a") == b"1"


def test_a_store_in_a_fresh_interpreter(bare: Player) -> None:
    from torch.distributed import TCPStore

    process, line = bare.spawn("store", {**os.environ, "PYTHONPATH": ""})
    with socket.create_server(("127.0.0.1", 0)) as listening:
        socket.send_fds(line, [wire.encode(wire.ForkStore(1, 60.0))], [listening.fileno()])
        client = TCPStore("127.0.0.1", listening.getsockname()[1], is_master=False)
    client.set("a", "1")
    assert client.get("a") == b"1"
    process.kill()
    process.wait()
    line.close()


def test_a_refused_fork_is_said_in_words() -> None:
    code = (
        "import os\nfrom meshrun.worker import forkserver\n"
        "def refuse(): raise BlockingIOError(11, 'Resource temporarily unavailable')\n"
        "os.fork = refuse\nforkserver.fork_for_agent(os.getppid())\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith("meshrun: the kernel refused to fork") and "Traceback" not in ended.stderr
