"""Owns: `meshrun plan` with --format svg|html, --explain and --diff, as a user meets it.
Must not: start workers.
Called by: pytest."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.cli.test_main import meshrun, refused

TWO = ("--hosts", "a:4,b:4", "--mesh", "dp=2,tp=4")


def test_pictures_are_whole_documents(tmp_path: Path) -> None:
    svg = meshrun("plan", *TWO, "--format", "svg", cwd=tmp_path)
    assert (svg.returncode, svg.stderr) == (0, "")
    assert ElementTree.fromstring(svg.stdout).tag.endswith("svg")
    page = meshrun("plan", *TWO, "--format", "html", cwd=tmp_path).stdout
    assert page.startswith("<!DOCTYPE html>") and page.endswith("</html>\n")


def test_one_rank_in_words(tmp_path: Path) -> None:
    done = meshrun("plan", *TWO, "--explain", "5", cwd=tmp_path)
    assert done.stdout.splitlines()[:2] == ["rank 5 of 8: dp=1 tp=1", "on b, node 1 of 2, device 1"]
    assert "the ranks of this plan are 0 to 7" in refused("plan", *TWO, "--explain", "8", cwd=tmp_path)


def test_two_plans_or_a_plan_and_the_options(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(meshrun("plan", *TWO, "--format", "json", cwd=tmp_path).stdout)
    other = ("--hosts", "a:4,c:4", "--mesh", "dp=2,tp=4")
    (tmp_path / "b.json").write_text(meshrun("plan", *other, "--format", "json", cwd=tmp_path).stdout)
    two = meshrun("plan", "--diff", "a.json", "b.json", cwd=tmp_path)
    assert (two.returncode, two.stderr) == (0, "")
    assert "hosts gone: b" in two.stdout and "ranks 4-7  b device 0-3  c device 0-3" in two.stdout
    assert meshrun("plan", *other, "--diff", "a.json", cwd=tmp_path).stdout == two.stdout
    assert meshrun("plan", *TWO, "--diff", "a.json", cwd=tmp_path).stdout == "no rank moves, nothing changes\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "No such file"),
        ("{", "the plan is not JSON"),
        ("[]", "a plan that cannot be read"),
        (json.dumps({"mesh": {}}), "a plan that cannot be read"),
        ("[" * 100_000, "the plan is not JSON"),
    ],
)
def test_a_file_that_is_no_plan_is_refused(tmp_path: Path, text: str | None, words: str) -> None:
    if text is not None:
        (tmp_path / "a.json").write_text(text)
    message = refused("plan", *TWO, "--diff", "a.json", cwd=tmp_path)
    assert "a.json: " in message and words in message


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("a.json", "b.svg", "b.svg: a picture is no plan"),
        ("b.svg", "a.json", "b.svg: a picture is no plan"),
        ("t.py", "a.json", "t.py: a script is no plan"),
        ("a.json", "mesh.yaml", "mesh.yaml: the plan is not JSON"),
        ("a.json", "gone.json", "gone.json"),
    ],
)
def test_what_stands_for_a_plan_and_is_none_is_not_taken_for_a_script(
    tmp_path: Path, before: str, after: str, words: str
) -> None:
    (tmp_path / "a.json").write_text(meshrun("plan", *TWO, "--format", "json", cwd=tmp_path).stdout)
    (tmp_path / "b.svg").write_text(meshrun("plan", *TWO, "--format", "svg", cwd=tmp_path).stdout)
    (tmp_path / "mesh.yaml").write_text("mesh: {dims: {dp: 8}}\n")
    message = refused("plan", "--diff", before, after, cwd=tmp_path)
    assert words in message and ("--format json" in message or "No such file" in message)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["plan", "--diff", "a.json", "--hosts", "a:2", "b.json"], "--hosts has no say"),
        (["plan", "--diff", "a.json", "b.json", "c.json"], "c.json has no say"),
        (["--explain", "3", "-m", "http.server"], "meshrun plan --explain 3"),
        (["--diff", "a.json", "-m", "http.server"], "meshrun plan --diff a.json"),
        (["plan", *TWO, "--explain", "-1"], "--explain"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, words: list[str], expected: str) -> None:
    assert expected in refused(*words, cwd=tmp_path)


def test_a_rule_that_is_broken_names_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("a slots=2 label=r1\nb slots=2 label=r2\nc slots=2 label=r1\nd slots=2 label=r2\n")
    (tmp_path / "mesh.yaml").write_text("mesh:\n  dims: {dp: 2, tp: 4}\n  within_label: {tp: rack}\n")
    message = refused("plan", "--hostfile", "hosts", "--mesh", "mesh.yaml", cwd=tmp_path)
    assert "mesh.yaml:3:18: tp must stay within one rack" in message and "it fits: a,c,b,d" in message
