"""Owns: the reference pages: the one that is written from the code, and the examples of the one that is not.
Must not: start anything.
Called by: pytest."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from meshrun.cli.main import VERBS
from meshrun.errors import InputError
from meshrun.spec import hostkeys
from meshrun.spec.argv import split_argv
from meshrun.spec.filters import filter_hosts
from meshrun.spec.foreign import ALL
from meshrun.spec.hostfile import parse_hostfile, parse_hosts
from meshrun.spec.job_file import parse_job_file
from meshrun.spec.notes import EXAMPLES, INSTEAD, MORE
from meshrun.spec.options import ALWAYS, BY_FLAG, BY_NAME, FIXED

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = ROOT / "docs" / "reference"
HOSTFILE = (REFERENCE / "hostfile.md").read_text("utf-8-sig")
CLI = (REFERENCE / "cli.md").read_text()


def blocks(page: str, kind: str) -> list[str]:
    """The fenced blocks of that kind."""
    return re.findall(rf"^```{kind}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


# ---- cli.md ----


def test_the_page_is_what_the_code_makes() -> None:
    spec = importlib.util.spec_from_file_location("reference", ROOT / "tools" / "reference.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.render_page() == CLI, "write it anew: python tools/reference.py"


def test_the_page_has_every_name() -> None:
    verbs = [f"`meshrun {verb}" for verb in VERBS if verb != "run"]
    variables = [f"`{option.variable}`" for option in BY_NAME.values()]
    for word in [*verbs, *variables, *BY_FLAG, *FIXED, *ALWAYS, *(f"`{entry.flag}`" for entry in ALL)]:
        assert word in CLI, word


def test_notes_are_about_options_that_exist() -> None:
    assert set(MORE) | set(EXAMPLES) | set(INSTEAD) <= set(BY_NAME)


@pytest.mark.parametrize("example", EXAMPLES.values())
def test_every_example_is_a_command_line(example: str) -> None:
    import shlex

    split = split_argv([*shlex.split(example), "t.py"])
    assert split.given and not split.problems


def test_the_job_file_of_the_page_is_one() -> None:
    for block in blocks(CLI, "yaml"):
        assert "hostfile" in parse_job_file(block.encode(), "job.yaml")


# ---- hostfile.md ----


@pytest.mark.parametrize("text", blocks(HOSTFILE, "hostfile"))
def test_a_block_of_the_page_is_a_hostfile(text: str) -> None:
    assert parse_hostfile(text.encode(), "hosts")


@pytest.mark.parametrize("path", sorted((ROOT / "hostfiles").iterdir()), ids=lambda path: path.name)
def test_every_example_file_stands_on_the_page(path: Path) -> None:
    text = path.read_text("utf-8-sig").replace("\r\n", "\n")
    assert text.strip() in HOSTFILE.replace("\r\n", "\n")


@pytest.mark.parametrize("line", "".join(blocks(HOSTFILE, "refused")).splitlines())
def test_a_line_that_the_page_calls_refused_is(line: str) -> None:
    said, _, why = line.partition("  #")
    with pytest.raises(InputError) as caught:
        parse_hostfile(said.rstrip().encode(), "hosts")
    assert caught.value.problems[0].place and why


@pytest.mark.parametrize("text", "".join(blocks(HOSTFILE, "hosts")).splitlines())
def test_a_list_of_the_page_is_one(text: str) -> None:
    assert parse_hosts(text)


@pytest.mark.parametrize("text", "".join(blocks(HOSTFILE, "include")).splitlines())
def test_a_choice_of_the_page_is_one(text: str) -> None:
    assert filter_hosts(parse_hosts("gpu[01-16]:8"), text, "", None)


def test_the_page_has_every_key() -> None:
    for key in (*hostkeys.KNOWN, "env.NAME"):
        assert f"`{key}=" in HOSTFILE
