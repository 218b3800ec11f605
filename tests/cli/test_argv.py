"""Owns: where meshrun's options end and the script's begin.
Must not: need anything but the pure splitter.
Called by: pytest."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshrun.spec.argv import split_argv
from meshrun.spec.foreign import ALL, REFUSED
from meshrun.spec.options import ALWAYS, BY_FLAG, FIXED, Kind

CASES = [
    (["t.py"], (), "t.py", ()),
    (["t.py", "--mesh", "x", "--", "-m"], (), "t.py", ("--mesh", "x", "--", "-m")),
    (["--mesh", "dp=2", "t.py"], (("mesh", "dp=2"),), "t.py", ()),
    (["--mesh=dp=2", "t.py", ""], (("mesh", "dp=2"),), "t.py", ("",)),
    (["--nproc_per_node=4", "t.py"], (("nproc-per-node", "4"),), "t.py", ()),
    (["--no_python", "ls"], (("no-python", "true"),), "ls", ()),
    (["-m", "pkg.mod", "-m"], (("module", "true"),), "pkg.mod", ("-m",)),
    (["-xA", "-x", "B=1=2", "-x=C", "t.py"], (("env", "A"), ("env", "B=1=2"), ("env", "C")), "t.py", ()),
    (["-Ha:4", "-H", "b:4", "t.py"], (("hosts", "a:4"), ("hosts", "b:4")), "t.py", ()),
    (["--quiet", "--", "--weird.py", "x"], (("quiet", "true"),), "--weird.py", ("x",)),
    (["--no-init", "--standalone", "t.py"], (("init", "off"), ("launcher", "local")), "t.py", ()),
    (["--num_nodes", "2", "--num_gpus", "8", "t.py"], (("nodes", "2"), ("nproc-per-node", "8")), "t.py", ()),
    (["--prelude", "--", "t.py"], (("prelude", "--"),), "t.py", ()),
    (["--use_env", "--no_local_rank", "--force_multi", "--no-ssh-check", "t.py"], (), "t.py", ()),
    (["-"], (), "-", ()),
    ([], (), "", ()),
    (["t.py", "\udcff"], (), "t.py", ("\udcff",)),
]


@pytest.mark.parametrize(("argv", "given_", "script", "args"), CASES)
def test_split(argv: list[str], given_: object, script: str, args: object) -> None:
    split = split_argv(argv)
    assert (split.given, split.script, split.args) == (given_, script, args)


@given(st.lists(st.text()))
def test_what_stands_behind_the_script_is_untouched(args: list[str]) -> None:
    assert split_argv(["--quiet", "t.py", *args]).args == tuple(args)


@pytest.mark.parametrize("flag", sorted(REFUSED))
def test_what_cannot_be_honoured_is_refused_by_name_with_a_way(flag: str) -> None:
    words = [flag, *["1"] * REFUSED[flag].values, "t.py"]
    (problem,) = split_argv(words).problems
    assert flag in problem.message
    assert problem.hint


def test_no_flag_has_two_meanings() -> None:
    tables = [*BY_FLAG, *FIXED, *ALWAYS, *(entry.flag for entry in ALL)]
    assert len(tables) == len(set(tables))


@pytest.mark.parametrize("flag", [flag for flag in BY_FLAG if flag.startswith("--")])
def test_long_flags_work_with_underscores(flag: str) -> None:
    words = [flag.replace("-", "_").replace("__", "--", 1)]
    words += [] if BY_FLAG[flag].kind is Kind.FLAG else ["1"]
    assert split_argv([*words, "t.py"]).given[0][0] == BY_FLAG[flag].name


def test_no_prefix_matching() -> None:
    (problem,) = split_argv(["--hostfil", "hosts", "t.py"]).problems
    assert problem.message == "unknown option --hostfil"


def test_all_problems_at_once_with_the_nearest_names() -> None:
    split = split_argv(["--hots", "a", "--rdzv_endpoint", "x:1", "--quiet=1", "--mesh"])
    messages = [str(problem) for problem in split.problems]
    assert len(messages) == 4
    assert "--hots" in messages[0] and "did you mean --hosts?" in messages[0]
    assert "--rdzv_endpoint" in messages[1] and "--master-addr" in messages[1]
    assert "takes no value" in messages[2]
    assert "--mesh needs a value" in messages[3]


def test_help_is_asked_only_before_the_script() -> None:
    assert split_argv(["--mesh", "dp=2", "--help"]).asked == "--help"
    assert split_argv(["t.py", "--help"]).asked == ""
