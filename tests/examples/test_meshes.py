"""Owns: every mesh of docs/reference/mesh.md and of examples/ is read and planned; examples/groups.py runs.
Must not: repeat what the mesh tests say.
Called by: pytest."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from meshrun.plan.describe import describe_mesh
from meshrun.plan.placement import make_plan
from meshrun.plan.values import Plan
from meshrun.spec.hostfile import parse_hostfile
from meshrun.spec.mesh_file import KEYS, parse_mesh_file
from tests.cli.test_main import meshrun
from tests.worker.player import ROOT, Player

PAGE = (ROOT / "docs" / "reference" / "mesh.md").read_text()
BLOCKS = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
FILES = sorted((ROOT / "examples").glob("*.yaml"))
HOSTS = b"gpu[01-08] slots=8 label=r1\n"


def plan(text: str, source: str, slots: int) -> Plan:
    hosts = parse_hostfile(HOSTS, "hosts")[: slots // 8]
    return make_plan(hosts, [8] * len(hosts), [tuple("01234567")] * len(hosts), parse_mesh_file(text.encode(), source))


def sizes(text: str) -> list[int]:
    """Numbers of slots to try: a block need not fit all."""
    return [8, 16, 32, 64] if "auto" in text or "preset" in text else [8, 16, 32]


@pytest.mark.parametrize("text", BLOCKS)
def test_every_mesh_of_the_page_is_read_and_fits_a_cluster(text: str) -> None:
    spec = parse_mesh_file(text.encode(), "mesh.md")
    fixed = 1
    for _, size in spec.dims:
        fixed *= size or 1
    slots = next(
        slots for slots in sizes(text) if slots % fixed == 0 and (None in dict(spec.dims).values() or slots == fixed)
    )
    assert plan(text, "mesh.md", slots).world_size == slots


def test_every_key_has_an_example_on_the_page() -> None:
    shown = {key for text in BLOCKS for key in re.findall(r"^  (\w+):", text, re.MULTILINE)}
    assert shown == set(KEYS)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_mesh_of_the_examples_is_planned(path: object) -> None:
    text = path.read_text()  # type: ignore[attr-defined]
    assert plan(text, "example", 16).world_size == 16


def read_commands() -> list[tuple[str, str]]:
    """(example, command) for each `meshrun ...` in the head of an example; a remark stands behind many blanks."""
    found = []
    for path in sorted((ROOT / "examples").iterdir()):
        head = path.read_text().split("\nmesh:")[0].split("\nimport ")[0] if path.is_file() else ""
        found += [
            (path.name, line) for line in re.findall(r'(?:^|[#:]) *(meshrun .*?)(?:"""|    .*|$)', head, re.MULTILINE)
        ]
    return found


def test_every_example_says_how_it_is_run() -> None:
    names = {path.name for path in (ROOT / "examples").iterdir() if path.is_file()}
    assert {name for name, _ in read_commands()} == names


@pytest.mark.parametrize("command", [command for _, command in read_commands()])
def test_the_command_in_an_examples_head_is_taken_and_fits(tmp_path: Path, command: str) -> None:
    """Planned, which reads options, mesh and script as a run does; the runs are in the other tests of this folder, and
    (packages of others) in tests/frameworks."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "hosts").write_text("a slots=4\nb slots=4\n")
    words = ["plan", *(word for word in command.split()[1:] if word != "plan")]
    done = meshrun(*words, cwd=tmp_path)
    assert (done.returncode, done.stderr.replace("warning", "")) == (0, ""), done
    assert "workers on" in done.stdout


@pytest.mark.torch
def test_the_groups_example(tmp_path_factory: pytest.TempPathFactory) -> None:
    started = Player(tmp_path_factory.mktemp("node"), "torch")
    started.start()
    mesh = describe_mesh(plan((ROOT / "examples" / "mesh.yaml").read_text(), "mesh.yaml", 8))
    ends = started.run(started.order(ROOT / "examples" / "groups.py", init="eager", mesh=mesh), 8)
    started.close()
    assert [(end.code, end.err) for end in ends] == [(0, "")] * 8
    assert ends[4].out.splitlines() == [
        "dp: ranks [4, 6]",
        "tp: ranks [4, 5]",
        "dp_tp: ranks [4, 5, 6, 7]",
        "edp: ranks [4, 6]",
        "ep: ranks [4, 5]",
        "moe: ranks [4, 5, 6, 7]",
    ]
