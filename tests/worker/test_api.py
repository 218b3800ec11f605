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
    # In one write: torchrun mixes the pieces of what ranks print at the same time.
    text = "import os, meshrun\nm = meshrun.init('dp=1,tp=auto')\n"
    text += "os.write(1, f'{m.mesh_dim_names} {meshrun.coords()}\\n'.encode())\n"
    script = Path(os.environ.get("TMPDIR", "/tmp")) / f"meshrun-torchrun-{os.getpid()}.py"
    script.write_text(text)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    script.unlink()
    assert sorted(done.stdout.splitlines()) == [f"('dp', 'tp') {{'dp': 0, 'tp': {r}}}" for r in (0, 1)], done.stderr


CHILD = {"MESHRUN_RUN_ID": "r", "TORCHELASTIC_RUN_ID": "r"}  # what a worker's own children find


def test_coordinates_from_the_environment_without_a_session() -> None:
    env = {**CHILD, "RANK": "5", "WORLD_SIZE": "8", "MESHRUN_MESH": '{"dims": {"a": 2, "b": 4}}'}
    done = python("import meshrun; print(meshrun.coords())", **env)
    assert done.stdout == "{'a': 1, 'b': 1}\n", done.stderr


def test_a_launcher_that_a_worker_started_has_a_mesh_of_its_own() -> None:
    env = {**CHILD, "RANK": "1", "WORLD_SIZE": "2", "MESHRUN_MESH": '{"dims": {"a": 2, "b": 4}}'}
    done = python("import meshrun; print(meshrun.coords())", **{**env, "TORCHELASTIC_RUN_ID": "another"})
    assert done.stdout == "{'dp': 1}\n", done.stderr


def test_first_and_last_need_no_torch() -> None:
    mesh = '{"dims": {"a": 2, "b": 4}, "factorings": {"f": {"a": 2, "c": 2, "d": 2}}, "views": {"v": ["a", "b"]}}'
    done = python(
        "import meshrun, sys\n"
        "print([(meshrun.is_first(n), meshrun.is_last(n)) for n in 'abcdv'], 'torch' in sys.modules)\n"
        "try: meshrun.is_first('x')\n"
        "except KeyError as error: print(error)",
        RANK="7",
        WORLD_SIZE="8",
        MESHRUN_MESH=mesh,
        **CHILD,
    )
    first, second = done.stdout.splitlines()
    assert first == f"{[(False, True)] * 5} False", done.stderr
    assert "known: a, b, c, d, v" in second


@pytest.mark.torch
def test_options_of_nccl_become_torchs_object() -> None:
    """With a stand-in for NCCL's class: what is asked is set, the time-out too, and an unknown field is named."""
    done = python(
        "import torch.distributed as dist, types\n"
        "class Options:\n"
        "    def __init__(self, is_high_priority_stream):\n"
        "        self.priority, self.config = is_high_priority_stream, types.SimpleNamespace(max_ctas=0, net_name='')\n"
        "dist.ProcessGroupNCCL = types.SimpleNamespace(Options=Options)\n"
        "from meshrun.worker.options import make_options\n"
        "asked = {'is_high_priority_stream': 1, 'max_ctas': 8, 'net_name': 'IB'}\n"
        "made = make_options(asked, 'cpu:gloo,cuda:nccl', 9, 'tp')\n"
        "print(made.priority, vars(made.config), made._timeout.total_seconds(), make_options({}, 'nccl', 9, 'tp'))\n"
        "try: make_options({'nvls_ctas': 1}, 'nccl', 9, 'tp')\n"
        "except ValueError as error: print(error)\n"
    )
    first, second = done.stdout.splitlines()
    assert first == "True {'max_ctas': 8, 'net_name': 'IB'} 9.0 None", done.stderr
    assert "has no option nvls_ctas" in second and "options of tp" in second


@pytest.mark.torch
def test_a_notebook(tmp_path: Path) -> None:
    """Cells that are run one after the other in one process that is no script: again, the same, then another mesh."""
    (tmp_path / "mesh.yaml").write_text("mesh: {dims: {dp: 1, tp: auto}, views: {all: [dp, tp]}, timeout_s: {tp: 9}}")
    file = str(tmp_path / "mesh.yaml")
    cells = [
        "import meshrun",
        f"m = meshrun.init({file!r})",
        "print(m.mesh_dim_names, meshrun.mesh('all').mesh.tolist(), meshrun.coords(), meshrun.is_first('tp'))",
        f"print(meshrun.init({file!r}) is m, meshrun.init('dp=1,tp=1') is m, meshrun.init() is m)",
        "meshrun.init('dp=1')",
        "meshrun.init(timeout_s=7)",
        "meshrun.init(backend='mpi')",
        "meshrun.init('dp=2')",
        "print(meshrun.mesh() is m)",
    ]
    text = "import code; shell = code.InteractiveConsole()\n" + "".join(f"shell.push({cell!r})\n" for cell in cells)
    done = python(text)
    assert done.stdout.splitlines() == ["('dp', 'tp') [0] {'dp': 0, 'tp': 0} True", "True True True", "True"], (
        done.stderr
    )
    errors = [line for line in done.stderr.splitlines() if "Error: " in line]
    assert len(errors) == 4, done.stderr
    assert "has the mesh dp=1,tp=1 already" in errors[0] and "restart it (in a notebook: the kernel)" in errors[0]
    assert "init(timeout_s=7), but this process was initialised with 600" in errors[1]
    assert "init(backend='mpi'), but" in errors[2]
    assert "needs 2 slots, but 1 slot takes part" in errors[3]
    assert "plain python is one rank: meshrun --mesh dp=2 SCRIPT starts them all" in done.stderr


@pytest.mark.torch
def test_arguments_that_cannot_be_meant_are_named_at_once() -> None:
    """Instead of what torch, or a line of meshrun's own, says about them: AttributeError, timedelta, gloo's enforce."""
    cases = [
        ("{'dp': 1}", "the mesh is a dict, not text"),
        ("device='gpu'", "device 'gpu' is not a device"),
        ("device=None", "device 'None' is not a device"),
        ("device='cuda'", "device cuda, but torch finds none here"),
        ("backend='glo'", "no backend is named glo"),
        ("backend=3", "the backend is a int, not text"),
        *((f"timeout_s={text}", "is not a number of seconds") for text in ("-1", "0", "'60'", "True", "float('nan')")),
    ]
    calls = "".join(f"    lambda: meshrun.init({call}),\n" for call, _ in cases)
    text = f"import meshrun\nfor call in [\n{calls}]:\n"
    text += "    try: call()\n    except Exception as error: print(type(error).__name__, ascii(str(error)))\n"
    text += "print(meshrun.init('dp=1', backend='gloo', timeout_s=60, device='cpu').mesh_dim_names)\n"
    text += "try: meshrun.init(device='gpu', timeout_s=0)\nexcept Exception as error: print(len(error.problems))"
    *said, last, both = python(text, CUDA_VISIBLE_DEVICES="").stdout.splitlines()
    for (call, words), line in zip(cases, said, strict=True):
        assert line.startswith("InputError") and words in line and "hint:" in line, (call, line)
    assert (last, both) == ("('dp',)", "2")


@pytest.mark.torch
def test_a_mesh_that_does_not_fit_leaves_nothing_behind() -> None:
    done = python(
        "import meshrun\n"
        "for text in ('dp=3', 'dp=', 'no/such.yaml', 'dp=1'):\n"
        "    try: print(meshrun.init(text).mesh_dim_names)\n"
        "    except Exception as error: print(type(error).__name__, str(error).splitlines()[0])\n"
    )
    first, second, third, last = done.stdout.splitlines()
    assert "dp=3 needs 3 slots, but 1 slot takes part" in first and "InputError" in second, done.stderr
    assert "cannot read the mesh file no/such.yaml" in third
    assert last == "('dp',)"


def test_reading_ranks() -> None:
    assert read_rank({}) == Rank(0, 1, 0)
    assert read_rank({"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}) == Rank(3, 4, 1)
    assert mesh_from({"WORLD_SIZE": "4", "RANK": "1"}) == {"dims": {"dp": 4}}


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4))
def test_coordinates_are_row_major(sizes: list[int]) -> None:
    dims = {f"d{i}": size for i, size in enumerate(sizes)}
    places = [tuple(coordinate(dims, rank).values()) for rank in range(len(list(product(*map(range, sizes)))))]
    assert places == list(product(*map(range, sizes)))


@pytest.mark.torch
def test_a_notebooks_kernel() -> None:
    """As a kernel runs cells: in a running loop, no `__file__`, foreign words in sys.argv, output that is no file
    descriptor; a cell may fork."""
    cells = [
        "import os, meshrun, torch, torch.distributed as dist",
        "m = meshrun.init('dp=1,tp=1')",
        "x = torch.ones(2); dist.all_reduce(x, group=m['tp'].get_group())",
        "print(x.tolist(), meshrun.coords(), meshrun.mesh('tp').size(), meshrun.init() is m)",
        "child = os.fork()\nif not child:\n    os._exit(len(meshrun.coords()))",
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))",
        "dist.destroy_process_group(); print(meshrun.init('dp=1,tp=1').mesh_dim_names)",
        "dist.destroy_process_group()",  # else torch can crash as the interpreter ends
    ]
    kernel = (
        "import asyncio, io, sys\n"
        "class Words(io.StringIO):\n"
        "    def fileno(self): raise io.UnsupportedOperation('fileno')\n"
        "real, sys.stdout, sys.stderr = sys.stdout, Words(), Words()\n"
        "sys.argv = ['kernel', '-f', 'connection.json']\n"
        "names = {'__name__': '__main__'}\n"
        f"async def main():\n    for cell in {cells!r}:\n        exec(compile(cell, '<cell>', 'exec'), names)\n"
        "try: asyncio.run(main())\n"
        "finally:\n    real.write(sys.stdout.getvalue() + sys.stderr.getvalue())\n"
        "    real.flush()\n"  # nobody else does: it is sys.stdout no more
    )
    done = python(kernel)
    said = ["[1.0, 1.0] {'dp': 0, 'tp': 0} 1 True", "1", "('dp', 'tp')"]
    assert (done.returncode, done.stdout.splitlines()) == (0, said), done.stderr
