"""Owns: golden files of the plan as text, JSON and commands.
Must not: write the golden files unless MESHRUN_GOLDEN=write is set.
Called by: pytest."""

import json
import os
import shlex
import subprocess
from pathlib import Path

import pytest

from meshrun.plan.commands import render_commands
from meshrun.plan.describe import describe_mesh, describe_plan
from meshrun.plan.explain import explain_rank
from meshrun.plan.placement import with_shares
from meshrun.plan.runs import compact_ids, compact_names
from meshrun.plan.text import render_plan
from meshrun.spec.hostlist import expand, split_outside
from meshrun.spec.mesh import parse_mesh
from meshrun.spec.mesh_file import parse_mesh_file
from meshrun.spec.values import ByHand, EarlySignal, MeshSpec
from meshrun.wire import Share
from tests.plan.examples import hosts, job, plan
from tests.spec.test_mesh_file import FULL

GOLDEN = Path(__file__).parent / "golden"
SMALL = "a slots=4\nb devices=0,2-4 env.X=hidden"
BIG = "\n".join(f"gpu{number:04} slots=8" for number in range(1, 1025))
UNEVEN = "a slots=3\nb slots=5"


def check_golden(name: str, text: str) -> None:
    path = GOLDEN / name
    if os.environ.get("MESHRUN_GOLDEN") == "write":
        path.write_text(text)
    assert text == path.read_text()


def full_mesh() -> MeshSpec:
    return parse_mesh_file(FULL, "conf/mesh.yaml")


def test_text_of_a_small_plan() -> None:
    sources = {"hostfile": ("hosts", "command line"), "mesh": ("dp=2,tp=auto", "job.yaml"), "grace": ("5", "default")}
    check_golden("small.txt", render_plan(plan(SMALL, "dp=2,tp=auto"), sources))


def test_text_of_an_uneven_plan() -> None:
    check_golden("uneven.txt", render_plan(plan(UNEVEN, "dp=2,tp=4")))


def test_text_of_a_plan_with_all_that_a_mesh_file_says() -> None:
    check_golden("full.txt", render_plan(plan("a slots=8\nb slots=8", full_mesh())))


def test_text_of_a_big_plan_is_short() -> None:
    text = render_plan(plan(BIG + "\nlast slots=16\nlogin slots=16", "pp=2,dp=auto,tp=8"))
    assert len(text.splitlines()) < 15
    check_golden("big.txt", text)


def test_json_of_a_small_plan() -> None:
    check_golden("small.json", json.dumps(describe_plan(plan(SMALL, "dp=2,tp=4")), indent=2) + "\n")


def test_json_is_what_the_contract_says() -> None:
    described = describe_plan(plan("a slots=4\nb slots=4", "dp=2,tp=4"))
    assert list(described) == [
        "plan_version",
        "fingerprint",
        "mesh",
        "world_size",
        "nodes",
        "workers",
        "groups",
        "reach",
        "warnings",
    ]
    assert described["plan_version"] == 1
    assert described["mesh"] == {"dims": {"dp": 2, "tp": 4}, "crosses_nodes": {"dp": True, "tp": False}}
    assert described["nodes"][0] == {"node_rank": 0, "host": "a", "slots": 4, "devices": ["0", "1", "2", "3"]}
    worker = {"rank": 0, "node_rank": 0, "local_rank": 0, "host": "a", "device": "0", "coords": {"dp": 0, "tp": 0}}
    assert described["workers"][0] == worker
    assert described["groups"]["tp"] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_the_mesh_object_says_what_the_mesh_file_said() -> None:
    mesh = describe_mesh(plan("a slots=8\nb slots=8", full_mesh()))
    assert mesh["views"] == {"dp_tp": ["dp", "tp"]}
    assert mesh["factorings"] == {"expert": {"pp": 2, "edp": 2, "ep": 4}}
    assert mesh["backend"] == {"dp": "gloo", "edp": "cpu:gloo,cuda:nccl"}
    assert mesh["timeout_s"] == {"default": 600.0, "tp": 60.5}


def test_commands_of_a_small_plan() -> None:
    changes = {"init": "eager", "env": (("TOKEN", "hidden"),), "grace_s": 2.5, "mesh": parse_mesh("dp=auto,tp=4")}
    text = render_commands(plan(SMALL, "dp=2,tp=4"), job(hosts(SMALL), **changes))
    assert "hidden" not in text
    check_golden("small.sh", text)


def test_commands_with_everything_else() -> None:
    listed = "[fd00::1] slots=8 python=/opt/py/bin/python workdir='/scratch/my dir'\nb slots=8 addr=10.0.0.2"
    changes = {
        "form": "module",
        "argv": ("pkg.train", "it's", "$HOME", "a\nb"),
        "init": "off",
        "mesh": full_mesh(),
        "preload": ("numpy", "x"),
        "env_remote": (("SCRATCH", "$HOME/hidden"),),
        "device": "cuda",
        "by_hand": ByHand(2, 0, "h", 1, b"hidden"),
        "master_port": 3000,
        "timeout_s": 1_000_000.0,
        "quiet": True,
    }
    text = render_commands(plan(listed, full_mesh()), job(hosts(listed), **changes), ["A", "B\nC"])
    assert "hidden" not in text
    check_golden("full.sh", text)


@pytest.mark.parametrize(
    "word", ["a b", "it's", '$HOME `id` \\ "', "two\nlines", "\n", "\n\nx\n", "", "--", "*", "#x", "ü"]
)
def test_a_shell_gives_the_arguments_back_as_they_were(word: str, tmp_path: Path) -> None:
    show = tmp_path / "show me"
    show.write_text("#!/bin/sh\nprintf '%s\\0' \"$@\"\n")
    show.chmod(0o755)
    asked = job(workdir=str(tmp_path), python=str(show), argv=("/s.py", word, "end"))
    lines = render_commands(plan("a\nb"), asked).splitlines()
    commands = [line for line in lines if not line.startswith("#")]
    assert len(commands) == 2
    done = subprocess.run(["/bin/sh", "-c", commands[1]], capture_output=True, check=True)
    words = done.stdout.decode().split("\0")[:-1]
    assert words[-3:] == ["/s.py", word, "end"]
    assert words[:6] == ["-m", "meshrun", "--nnodes", "2", "--node-rank", "1"]


def test_a_program_needs_no_init() -> None:
    (line,) = render_commands(plan("a"), job(form="program", argv=("hostname",))).splitlines()[1:]
    assert shlex.split(line)[-2:] == ["--no-python", "hostname"]
    assert "--init" not in line


def test_long_lists_in_few_words() -> None:
    assert compact_ids(["0", "1", "2", "5", "GPU-a", "07"]) == "0-2,5,GPU-a,07"
    names = ["gpu08", "gpu09", "gpu10", "gpu12", "login", "a1-ib", "a2-ib", "fd00::1", "b9", "b10", "b010"]
    assert compact_names(names) == "gpu[08-10,12],login,a[1-2]-ib,fd00::1,b[9-10,010]"
    back = [one for part, _ in split_outside(compact_names(names), ",") for one in expand(part)]
    assert back == names


def test_restarts_and_signals_are_the_same_on_every_node() -> None:
    asked = job(max_restarts=3, time_limit_s=90.0, signal_workers=EarlySignal(10, 60.0))
    for line in render_commands(plan("a\nb"), asked).splitlines()[1::2]:
        assert "--max-restarts 3" in line and "--signal-workers USR1@60" in line


def test_cpus_are_shown_as_far_as_nodes_have_said() -> None:
    known = with_shares(plan("a slots=1\nb slots=2\n"), {1: (Share("0-3,8-11", 4), Share("4-7,12-15", 4))})
    table = render_plan(known).split("\n\n")[3]
    assert table.splitlines() == [
        "rank  host  cpus       threads",
        "1     b     0-3,8-11   4",
        "2     b     4-7,12-15  4",
    ]
    assert "on CPUs 0-3,8-11, threads: 4" in explain_rank(known, 1) and "CPUs" not in explain_rank(known, 0)
    assert [worker.get("cpus") for worker in describe_plan(known)["workers"]] == [None, "0-3,8-11", "4-7,12-15"]


def test_binding_is_a_matter_of_each_node_by_hand() -> None:
    assert "--bind cores" in render_commands(plan("a\nb\n"), job(bind="cores"))
