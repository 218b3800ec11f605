"""Owns: everything a user can hand over as input that is wrong, odd or too much: a plan, or exit 2 and a clear place.
Must not: start anything.
Called by: pytest."""

from __future__ import annotations

import errno
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from meshrun.cli.main import main
from meshrun.cli.plan import place
from meshrun.cli.request import read_request
from meshrun.errors import InputError, Place, Problem
from meshrun.spec.argv import split_argv


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty directory, and nothing of ours in the environment."""
    for name in [name for name in os.environ if name.startswith(("MESHRUN_", "CUDA_VISIBLE"))]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PWD", str(tmp_path))
    yield tmp_path


def refused(capfd: pytest.CaptureFixture[str], *words: str) -> str:
    """What is said against a plan as JSON: exit 2, nothing on stdout, no traceback."""
    code = main(["plan", "--format", "json", *words])
    out, err = capfd.readouterr()
    assert (code, out) == (2, ""), (words, out, err)
    assert "Traceback" not in err and "bug in meshrun" not in err
    return err


def planned(capfd: pytest.CaptureFixture[str], *words: str) -> str:
    code = main(["plan", *words])
    out, err = capfd.readouterr()
    assert (code, err) == (0, ""), err
    return out


# ---- patterns of -x that pass nothing on: a remark, in every verb and form ----

IDLE = [
    ("NOSUCH_*", "-x 'NOSUCH_*' passes nothing on: no variable that is set here has such a name"),
    ("CUDA_VISIBLE_*", "a pattern leaves out CUDA_VISIBLE_DEVICES, this machine's own; name it"),
    ("[GN]*_SOCKET_IFNAME", "a pattern leaves out GLOO_SOCKET_IFNAME and 1 more, this machine's own; name it"),
]


@pytest.mark.parametrize(("pattern", "words"), IDLE)
def test_a_pattern_that_passes_nothing_on(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, pattern: str, words: str
) -> None:
    for name in ("CUDA_VISIBLE_DEVICES", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "USED_BY_IT"):
        monkeypatch.setenv(name, "0")
    text = planned(capfd, "--hosts", "a:1", "-x", pattern, "-x", "USED_*", "-x", pattern)
    assert text.count(words) == 1 and "note: " in text and "'USED_*'" not in text
    (remark,) = json.loads(planned(capfd, "--hosts", "a:1", "-x", pattern, "--format", "json"))["remarks"]
    assert words in remark
    for form in (["--format", "commands"], ["--explain", "0"]):
        assert main(["plan", "--hosts", "a:1", "-x", pattern, *form]) == 0
        out, err = capfd.readouterr()
        assert err.count(words) == 1 and err.count("\n") == 1 and words not in out


def test_options_behind_the_script_are_told_in_a_plan(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (here / "t.py").touch()
    text = planned(
        capfd, "--device", "cpu", "t.py", "--hosts", "a:2", "--nproc_per_node=2", "--device", "x", "--lr", "1"
    )
    assert "note: --hosts, --nproc-per-node behind t.py is for the script; options of meshrun stand before it" in text
    assert "note" not in planned(capfd, "--device", "cpu", "t.py", "-H", "a:2", "--", "hosts")


# ---- files that are no such files ----

FILES = {
    "--hostfile": "hostfile",
    "--mesh": "mesh file",
    "--job": "job file",
    "--env-file": "env file",
    "--ssh-config": "ssh config",
    "--identity": "private key",
}
ODD = {
    "./missing": "No such file",
    "./dangling": "No such file",
    "./loop": "symbolic links",
    "./directory": "is a directory, not a file",
    "./fifo": "is a pipe, not a file",
    "./socket": "is a socket, not a file",
    "./zeros": "is not a text file",
    "/dev/zero": "is a device, not a file",
    "./missing/below": "No such file",
    "./file/below": "Not a directory",
}


@pytest.fixture
def odd_files(here: Path) -> Iterator[None]:
    (here / "dangling").symlink_to("nowhere")
    (here / "loop").symlink_to("loop")
    (here / "directory").mkdir()
    os.mkfifo(here / "fifo")
    (here / "zeros").write_bytes(b"a\0b" * 100)
    (here / "file").write_text("x\n")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
        yield


@pytest.mark.usefixtures("odd_files")
@pytest.mark.parametrize("flag", FILES)
@pytest.mark.parametrize("path", ODD)
def test_what_is_no_file_is_refused(flag: str, path: str, capfd: pytest.CaptureFixture[str]) -> None:
    hosts = [] if flag == "--hostfile" else ["--hosts", "a:2"]
    message = refused(capfd, *hosts, flag, path)
    assert f"meshrun: {path}: " in message and FILES[flag] in message and ODD[path] in message


@pytest.mark.parametrize("flag", [flag for flag in FILES if flag != "--mesh"])
def test_stdin_is_no_file(flag: str, capfd: pytest.CaptureFixture[str]) -> None:
    hosts = [] if flag == "--hostfile" else ["--hosts", "a:2"]
    assert f"the {FILES[flag]} is not read from stdin" in refused(capfd, *hosts, flag, "-")
    assert f"{flag}: a value is needed" in refused(capfd, *hosts, flag, "")


@pytest.mark.parametrize("flag", FILES)
def test_a_file_without_permission(
    flag: str, here: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The system's answer is made up: root, as which tests may run, may read everything."""

    def forbid(path: str, *rest: int) -> int:
        if path == "./closed":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return opened(path, *rest)

    opened = os.open
    (here / "closed").write_text("x\n")
    monkeypatch.setattr(os, "open", forbid)
    hosts = [] if flag == "--hostfile" else ["--hosts", "a:2"]
    assert "Permission denied" in refused(capfd, *hosts, flag, "./closed")


def test_a_file_that_is_too_large(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (here / "big").write_bytes(b"gpu slots=4\n" * 900_000)
    for flag, what in list(FILES.items())[:3]:
        hosts = [] if flag == "--hostfile" else ["--hosts", "a:2"]
        assert f"a {what} has at most" in refused(capfd, *hosts, flag, "./big")
    assert "more than 1 MiB" in refused(capfd, "--hosts", "a:2", "--env-file", "big")
    (here / "huge").touch()
    os.truncate(here / "huge", 17 * 2**20)
    assert "the hostfile is larger than 16 MiB" in refused(capfd, "--hostfile", "huge")


def test_a_key_of_which_only_the_public_half_is_here(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (here / "id.pub").write_text("ssh-ed25519 AAAA\n")
    assert planned(capfd, "--hosts", "a:2", "--identity", "id")
    assert planned(capfd, "--hosts", "a:2", "--identity", "%d/.ssh/id")
    assert planned(capfd, "--hosts", "a:2", "--ssh-config", "none")


def test_a_hostfile_given_as_a_list_of_hosts(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """deepspeed's -H is its hostfile; a host that merely has the name of a file is a host."""
    (here / "my-hosts").write_text("gpu01 slots=2\n")
    (here / "gpu01").write_text("notes about it\n")
    for text in ("my-hosts", "./my-hosts"):
        message = refused(capfd, "-H", text)
        assert "this is a file, not a list of hosts" in message and f"--hostfile {text}" in message
    assert "gpu01" in planned(capfd, "-H", "gpu01", "--nproc-per-node", "1")


# ---- job files and variables ----

JOBS = [
    ("num-gpus: 1", "2:1: unknown key 'num-gpus'", "the key is nproc-per-node"),
    ("num_nodes: 1", "2:1: unknown key 'num_nodes'", "the key is nodes"),
    ("no-init: true", "2:1", "write init: off"),
    ("standalone: true", "2:1", "write launcher: local"),
    ("rdzv-endpoint: a", "2:1", "--master-addr"),
    ("launcher_args: x", "2:1", "--ssh-config"),
    ("use-env: true", "2:1", "leave it out"),
    ("x: [A]", "2:1", "the key is env"),
    ("job: other", "2:1", "names no other"),
    ("<<: {grace: 1}", "2:1: unknown key '<<'", "merge keys"),
    ("graec: 1", "2:1", "did you mean grace?"),
    ("grace: 010", "2:8: 010 begins with a zero", "base 8"),
    ("nodes: 01", "2:8", "base 8"),
    ("quiet: 2", "2:8: true or false is needed", ""),
    ("env: {A: ~}", "2:10: an entry of env needs a value", "env: [NAME]"),
    ("env: [A=1, ~]", "2:12: an entry of env needs a value", ""),
    ("env: [A=1, [B]]", "2:12: an entry of env needs a value", ""),
    ("env: {'C=D': 4}", "2:7: '=' cannot stand in a name", ""),
    ("env: [A=1, '']", "a value is needed", ""),
    ("nproc-per-node: gpu", "2:17: a whole number", "--device cuda"),
    ("grace: .nan", "seconds are needed", ""),
    ("grace: 2001-01-01", "seconds are needed", ""),
    ("timeout: 1:30", "seconds are needed", ""),
    ("---\nhosts: b:1", "2:1: a second document", "leave out"),
    ("mesh: *dims", "an alias", "write it out"),
    ("mesh: !!str dp=2", "a tag", "write it out"),
    ("mesh: {dp: 2}", "2:7: mesh needs one value", ""),
    ("? [a]\n: 1", "2:3", ""),
]


@pytest.mark.parametrize(("line", "where", "hint"), JOBS)
def test_a_job_file_is_refused_with_its_place(
    line: str, where: str, hint: str, here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (here / "job.yaml").write_text(f"hosts: a:2\n{line}\n")
    message = refused(capfd, "--job", "job.yaml")
    assert "job.yaml:" in message and where in message and hint in message


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("hosts: a:x", "job file job.yaml:1, --hosts:1:3"),
        ("include: a:9\nhosts: a:2", "job file job.yaml:1, --include:1:1"),
        ("hosts: a:2\nmesh: dp=3", "job file job.yaml:2, --mesh:1:1"),
        ("hosts: a:2\nenv: [NOT_SET_ANYWHERE]", "job file job.yaml:2, --env: NOT_SET_ANYWHERE"),
        ("hosts: a:2\nshow: tpp=1", "job file job.yaml:2, --show"),
    ],
)
def test_a_bad_value_says_which_source_gave_it(
    line: str, words: str, here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (here / "job.yaml").write_text(f"{line}\n")
    assert words in refused(capfd, "--job", "job.yaml")


VARIABLES = [
    ("MESHRUN_NUM_NODES", "1", "the variable is MESHRUN_NODES"),
    ("MESHRUN_NO_INIT", "1", "MESHRUN_INIT=off"),
    ("MESHRUN_STANDALONE", "1", "MESHRUN_LAUNCHER=local"),
    ("MESHRUN_RDZV_ENDPOINT", "x", "--master-addr"),
    ("MESHRUN_HOST", "x", "did you mean MESHRUN_HOSTS?"),
    ("MESHRUN_GRACE", "x", "MESHRUN_GRACE: seconds are needed"),
    ("MESHRUN_HOSTS", "a:x", "environment MESHRUN_HOSTS, --hosts:1:3"),
    ("MESHRUN_JOB", "none.yaml", "none.yaml: cannot read the job file"),
    ("MESHRUN_ENV_FILE", "none.env", "none.env: cannot read the env file"),
    ("MESHRUN_SSH_PORT", "0", "1 to 65535"),
]


@pytest.mark.parametrize(("name", "value", "words"), VARIABLES)
def test_a_variable_is_refused_by_name(
    name: str, value: str, words: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(name, value)
    assert words in refused(capfd, *([] if name == "MESHRUN_HOSTS" else ["--hosts", "a:2"]))


def test_a_variable_of_somebody_elses_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in ("MESHRUN_SITE", "MESHRUN_TIME", "MESHRUN_DEBUG", "MESHRUN_HOSTS_DIR_OF_MINE"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("MESHRUN_GRACE", "")  # as if it were not set
    assert "grace" not in planned(capfd, "--hosts", "a:2")


# ---- values ----


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ("--launcher slurm", "SLURM_JOB_NODELIST"),
        ("--launcher PDSH", "--launcher ssh"),
        ("--device gpu", "cuda"),
        ("--start-method forkserver", "fork is that"),
        ("--host-key-policy ask", "nothing is ever asked"),
        ("--nproc-per-node cpu", "$(nproc)"),
        ("--init egaer", "did you mean eager?"),
        ("--mesh dp=04", "begins with a zero"),
        ("--include b*", "no wildcards"),
        ("--include a:0,x%", "--include:1:5"),
        ("--include A1", "the hosts are a"),
        ("--show dpp=0", "did you mean dp=?"),
    ],
)
def test_a_value_is_refused_with_the_way_to_say_it(words: str, part: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert part in refused(capfd, "--hosts", "a:4", *words.split())


def test_a_long_line_is_quoted_around_the_place() -> None:
    text = "x" * 5000 + "!" + "y" * 5000
    shown = str(Problem("bad", Place("--include", 1, 5001), text)).splitlines()
    assert max(map(len, shown)) < 200
    assert shown[1][shown[2].index("^")] == "!"
    assert str(Problem("bad", Place("f", 1, 3), "abc")).splitlines()[1:] == ["    abc", "      ^"]


LARGE = [
    "--hosts a[1-999999999]",
    "--hosts " + "a" + "[1-9]" * 7,
    "--hosts " + "a" + "[1-2]" * 9,
    "--hosts a[1-60000],b[1-60000]",
    "--hosts " + "[" * 5000,
    "--hosts " + "a[1-3]," * 2000 + "b",
    "--include a[1-999999999]",
    "--include a[1-9][1-9][1-9][1-9][1-9]",
    "--include " + "x@" * 20_000 + "x",
    "--include a:" + ",".join(map(str, range(9999))),
    "--mesh " + ",".join(f"d{n}=1" for n in range(5000)),
    "--mesh dp=" + "9" * 5000,
    "--show " + "9" * 5000,
    "--nproc-per-node " + "9" * 5000,
    "--grace " + "9" * 5000,
    "--nproc-per-node 1000000",
    "--" + "x" * 5000,
    "--quiet=" + "x" * 5000,
    "--fsdp-" + "x" * 5000,
    "-x " + "x" * 5000,
    "--env-remote " + "x" * 5000,
    "--master-addr " + "!" * 5000,
    "--backend " + "!" * 5000,
    "--preload " + "!" * 5000,
    "--launcher " + "x" * 5000,
    "--signal-workers " + "x" * 5000,
    "--node-rank " + "x" * 5000,
]


@pytest.mark.parametrize("words", LARGE, ids=range(len(LARGE)))
def test_too_much_is_refused_in_a_few_lines(words: str, capfd: pytest.CaptureFixture[str]) -> None:
    hosts = [] if words.startswith("--hosts") else ["--hosts", "a"]
    message = refused(capfd, *hosts, *words.split())
    assert len(message) < 60_000 and max(map(len, message.splitlines())) < 400


@pytest.mark.parametrize("size", [131_000, 131_073, 1_000_000])
def test_a_variable_that_no_program_can_be_started_with(
    size: int, here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (here / "big.env").write_text("BIG=" + "v" * (size - 5))
    words = ["--hosts", "a:2", "--env-file", "big.env"]
    if size <= 131_072:
        assert "BIG" in planned(capfd, *words)
    else:
        assert f"the variable BIG takes {size} bytes" in refused(capfd, *words)


def test_more_variables_than_any_program_can_be_started_with(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["--hosts", "a:2"]
    for number in range(7):
        (here / f"{number}.env").write_text("".join(f"V{number}{n}={'v' * 9990}\n" for n in range(100)))
        words += ["--env-file", f"{number}.env"]
    assert "the exported variables take" in refused(capfd, *words)


def test_a_variable_that_is_meshruns_to_set_is_refused_by_whoever_names_it(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (here / "hosts").write_text("a[1-2] slots=2 env.RANK=1\n")
    (here / "prod.env").write_text("MASTER_ADDR=10.0.0.1\nOMP_NUM_THREADS=2\n")
    words = ["--hostfile", "hosts", "--env-file", "prod.env", "-x", "MASTER_PORT=1", "--env-remote", "WORLD_SIZE=$X"]
    said = refused(capfd, *words)
    assert "hosts:1" in said and said.count("RANK is set by meshrun itself") == 1
    assert "env file prod.env: MASTER_ADDR" in said and "--master-addr pins it" in said
    assert "-x, command line: MASTER_PORT" in said and "--env-remote: WORLD_SIZE" in said
    assert "OMP_NUM_THREADS" not in said
    planned(capfd, "--hosts", "a:1", "-x", "MASTER_*")  # what fits a glob is left out, as all that is a run's own


def test_more_hosts_without_a_label_than_are_named_are_counted(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (here / "mesh.yaml").write_text("mesh: {dims: {dp: auto}, within_label: {dp: rack}}\n")
    said = refused(capfd, "--hosts", "a[1-100]:1", "--mesh", "mesh.yaml")
    assert "a[1-64] and 36 more have no such label" in said


def test_a_mesh_or_job_file_in_the_scripts_place(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (here / "mesh.yaml").write_text("mesh: {dims: {dp: 2}}\n")
    assert "--mesh mesh.yaml SCRIPT, or --job mesh.yaml" in refused(capfd, "--hosts", "a:2", "mesh.yaml")


def test_only_one_form_of_a_plan_at_a_time(capfd: pytest.CaptureFixture[str]) -> None:
    assert "--explain and --format json exclude each other" in refused(capfd, "--hosts", "a:2", "--explain", "0")
    words = ["--hosts", "a:2", "--explain", "0", "--diff", "p.json"]
    assert "--explain and --diff and --format json" in refused(capfd, *words)
    assert "rank 0 of 2" in planned(capfd, "--hosts", "a:2", "--explain", "0", "--format", "text")


def test_python_in_the_scripts_place(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for word in ("python", "python3", "python3.11"):
        assert f"leave out `{word}`" in refused(capfd, "--hosts", "a:2", word, "train.py")
    assert "--no-python runs the program" in refused(capfd, "--hosts", "a:2", "ls")


# ---- where each value came from ----


def test_the_plan_says_where_each_value_and_each_variable_came_from(
    here: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (here / "hosts").write_text("a slots=2 env.IFACE=hidden\nb slots=2 env.IFACE=hidden\n")
    (here / "job.yaml").write_text("mesh: dp=2\ninclude: a\nenv-file: [one.env, two.env]\n")
    (here / "one.env").write_text("A=hidden\nB=hidden\n")
    (here / "two.env").write_text("B=hidden\n")
    monkeypatch.setenv("MESHRUN_GRACE", "7")
    monkeypatch.setenv("LATER", "hidden")
    words = ["--job", "job.yaml", "--hostfile", "hosts", "-x", "LATER", "--env-remote", "R=hidden$X"]
    out = planned(capfd, *words, "--format", "json")
    told = json.loads(out)
    assert told["options"]["include"] == {"value": "a", "from": "job file job.yaml:2"}
    assert told["options"]["grace"] == {"value": "7", "from": "environment MESHRUN_GRACE"}
    assert told["options"]["hostfile"] == {"value": "hosts", "from": "command line"}
    assert told["variables"] == {
        "A": "env file one.env",
        "B": "env file two.env",
        "LATER": "-x, command line",
        "R": "--env-remote, command line",
        "IFACE": "hostfile hosts:1",
    }
    text = planned(capfd, *words)
    assert "hidden" not in text + out
    rows = [line.split(maxsplit=1) for line in text.splitlines()]
    assert ["IFACE", "hostfile hosts:1"] in rows and ["B", "env file two.env"] in rows
    assert "every other option has its default" in text


# ---- anything at all ----

PIECES = st.sampled_from(
    [
        *("a", "gpu[1-3]", "[1-999999999]", "[1-9]", "u@", ":", "22", "[::1]", " ", "\t", "\n", "slots", "=", "4"),
        *("devices=0,2-3", "auto", "env.X=", "\\", "[", "]", "-", ",", "0", "\u0664", "\r", "\x07", "'", '"', "#", "@"),
        *("mesh:", "dims:", "{", "}", "dp", "tp", "&a", "*a", "<<:", "!!int", "---", "?", "|", ">", "%", "~", "\xff"),
        *("hosts:", "a:2", "env:", "export ", "A=1", "all", "yes", "1e9", "0x1", ".nan", "\u202e", "\ud800"),
    ]
)
ANY = st.one_of(st.text(), st.lists(PIECES, max_size=40).map("".join))
QUICK = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def ask(*words: str) -> None:
    """A plan, or problems that each say something; any other exception fails the test."""
    try:
        place(read_request(split_argv(list(words)), dry_run=True).job)
    except InputError as error:
        assert error.problems and all(problem.message for problem in error.problems)
        assert all(line.isprintable() for line in str(error).split("\n"))


@QUICK
@given(st.sampled_from(["--hosts", "--mesh", "--include", "--exclude", "--show", "-x", "--env-remote"]), ANY)
@example("--show", "\u0664")
def test_any_text_as_a_value(flag: str, text: str) -> None:
    word = os.fsdecode(text.replace("\0", "").encode("utf-8", "surrogatepass"))  # what an argument can hold
    ask(*([] if flag == "--hosts" else ["--hosts", "gpu[1-3]:4"]), flag, word)


@QUICK
@given(
    st.sampled_from([["--hostfile"], *(["--hosts", "a:4", flag] for flag in ("--mesh", "--job", "--env-file"))]),
    st.one_of(st.binary(), ANY.map(lambda text: text.encode("utf-8", "surrogatepass"))),
)
@example(["--hosts", "a:4", "--job"], b"? a\n")
@example(["--hosts", "a:4", "--job"], b'env: ["\\ud800"]')
@example(["--hosts", "a:4", "--mesh"], b"mesh: {dims: {dp: 4}}\n\x85")
def test_any_bytes_as_a_file(here: Path, words: list[str], data: bytes) -> None:
    (here / "input").write_bytes(data)
    ask(*words, "./input")


@QUICK
@given(st.sampled_from(["GRACE", "HOSTS", "MESH", "ENV", "NODES", "QUIET", "INIT", "TIMEOUT", "WORKDIR", "SHOW"]), ANY)
def test_any_text_as_a_variable(name: str, text: str) -> None:
    encoded = text.replace("\0", "").encode("utf-8", "surrogatepass")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(f"MESHRUN_{name}", os.fsdecode(encoded))
        ask(*([] if name == "HOSTS" else ["--hosts", "a:4"]))
