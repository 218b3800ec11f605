"""Owns: option values from four sources: precedence, sources, bad values.
Must not: read real files or the real environment.
Called by: pytest."""

from __future__ import annotations

import pytest

from meshrun.errors import InputError
from meshrun.spec.job_file import parse_job_file
from meshrun.spec.options import GROUPS, OPTIONS, Kind
from meshrun.spec.settings import from_command_line, from_environ, merge_settings


def merge(
    *pairs: tuple[str, str], job: bytes = b"", environ: dict[str, str] | None = None
) -> tuple[dict[str, object], dict[str, str]]:
    job_file = parse_job_file(job, "job.yaml") if job else {}
    merged = merge_settings(from_command_line(pairs), job_file, environ or {})
    if merged.problems:
        raise InputError(merged.problems)
    return merged.values, merged.sources


def test_defaults() -> None:
    values, sources = merge()
    assert (values["grace"], values["connect-timeout"], values["start-timeout"]) == (5, 30, 300)
    assert set(sources.values()) == {"default"}


def test_command_line_beats_job_file_beats_environment() -> None:
    environ = {"MESHRUN_MESH": "a=1", "MESHRUN_NODES": "1", "MESHRUN_GRACE": "1"}
    values, sources = merge(("mesh", "c=3"), job=b"mesh: b=2\nnodes: 2\n", environ=environ)
    assert (values["mesh"], values["nodes"], values["grace"]) == ("c=3", 2, 1.0)
    assert sources["mesh"] == "command line"
    assert sources["nodes"] == "job file job.yaml:2"
    assert sources["grace"] == "environment MESHRUN_GRACE"


@pytest.mark.parametrize(("pair", "kept", "dropped"), [
    (("hosts", "b:1"), "hosts", "hostfile"), (("hostfile", "f"), "hostfile", "hosts")
])  # fmt: skip
def test_a_list_of_hosts_takes_the_place_of_a_weaker_source_s(pair: tuple[str, str], kept: str, dropped: str) -> None:
    values, sources = merge(pair, job=f"{dropped}: a\n".encode(), environ={f"MESHRUN_{kept.upper()}": "c"})
    assert (values[kept], values[dropped], sources[dropped]) == (pair[1], None, "default")
    values, _ = merge(("hosts", "b:1"), ("hostfile", "f"), environ={"MESHRUN_HOSTS": "c"})
    assert (values["hosts"], values["hostfile"]) == ("b:1", "f"), "of one source, both stand, to be refused"


def test_inside_a_run_its_variables_are_ignored() -> None:
    values, sources = merge(environ={"MESHRUN_RUN_ID": "x", "MESHRUN_MESH": "{}", "MESHRUN_NODES": "bad"})
    assert (values["mesh"], sources["mesh"]) == (None, "default")


def test_repeatable_options_collect_and_others_keep_the_last() -> None:
    values, _ = merge(("env", "A"), ("grace", "1"), ("env", "B=2"), ("grace", "2"))
    assert (values["env"], values["grace"]) == (("A", "B=2"), 2.0)


def test_every_option_can_stand_everywhere() -> None:
    for option in OPTIONS:
        text = {Kind.COUNT: "7", Kind.SECONDS: "7", Kind.FLAG: "on"}.get(option.kind, "some")
        text = option.choices[-1] if option.choices else text
        by_variable = from_environ({option.variable: text})
        assert by_variable[option.name].texts == (text,)
        if option.name != "job":
            by_file = parse_job_file(f"{option.name.replace('-', '_')}: {text}".encode(), "j")
            assert by_file[option.name].texts == (text,)
        assert merge((option.name, text))[1][option.name] == "command line"
        assert option.group in GROUPS


BAD = [
    ("nodes", "0"),
    ("nodes", "two"),
    ("nodes", "\u0662"),
    ("nodes", "1_0"),
    ("nodes", "-1"),
    ("nodes", "9" * 5000),
    ("ssh-port", "65536"),
    ("grace", "-1"),
    ("grace", "nan"),
    ("time-limit", "inf"),
    ("time-limit", "0"),
    ("timeout", ""),
    ("init", "Eager"),
    ("hosts", ""),
    ("mesh", "a\0b"),
    ("nproc-per-node", "gpu"),
    ("nproc-per-node", "cpu"),
    ("nnodes", "1:4"),
]


@pytest.mark.parametrize(("name", "text"), BAD)
def test_bad_values_name_the_option(name: str, text: str) -> None:
    with pytest.raises(InputError, match=f"--{name}"):
        merge((name, text))


def test_nproc_auto_is_the_default() -> None:
    assert merge(("nproc-per-node", "auto"))[0]["nproc-per-node"] is None


def test_all_bad_values_of_all_sources_at_once() -> None:
    with pytest.raises(InputError) as caught:
        merge(("nodes", "x"), ("init", "lasy"), job=b"grace: y\n", environ={"MESHRUN_TIMEOUT": "z"})
    text = str(caught.value)
    assert len(caught.value.problems) == 4
    assert "MESHRUN_TIMEOUT" in text and "job.yaml:1:8" in text and "did you mean lazy?" in text


def test_a_nearly_right_variable_is_no_silence() -> None:
    with pytest.raises(InputError, match="MESHRUN_HOSTFILE"):
        merge(environ={"MESHRUN_HOSTFLE": "x"})
    merge(environ={"MESHRUN_SOMETHING_ELSE": "x", "MESHRUN_DEBUG": "1", "MESHRUN_HOSTS": ""})


JOB = b"""
hosts: a:4
env: {A: 1, B: two}
env-file: [x, y]
init: off
quiet: yes
"""


def test_job_file_forms() -> None:
    values, _ = merge(job=JOB)
    assert values["env"] == ("A=1", "B=two")
    assert values["env-file"] == ("x", "y")
    assert values["init"] == "off"
    assert values["quiet"] is True


BAD_JOBS = [
    (b"hostfle: x", "job.yaml:1:1.*hostfile"),
    (b"mesh: {dp: 2}", "job.yaml:1:7"),
    (b"mesh: a\nmesh: b", "job.yaml:2"),
    (b"- a", "job.yaml:1:1"),
    (b"job: other", "unknown key 'job'"),
    (b"mesh:", "needs one value"),
    (b"env: [[a]]", "job.yaml:1:7: an entry of env needs a value"),
    (b"a: &x 1\nb: *x", "job.yaml"),
    (b"mesh: !!python/object:os.system x", "job.yaml"),
    (b"\xff\xfe\xfa", "job.yaml"),
    (b"mesh: 'x", "job.yaml"),
    (b"[" * 10000, "job.yaml"),
]


@pytest.mark.parametrize(("data", "message"), BAD_JOBS)
def test_bad_job_files(data: bytes, message: str) -> None:
    with pytest.raises(InputError, match=f"(?s){message}"):
        merge(job=data)
