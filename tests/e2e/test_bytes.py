"""Owns: the promise that bytes arrive as given: arguments, values, names of scripts and directories, here and by ssh.
Must not: import torch.
Called by: pytest."""

from __future__ import annotations

import ast
import hashlib
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.cluster import Cluster
from tests.e2e.command import Command, Ended, on, run

SCRIPT = b"""
import os, sys
seen = [os.fsencode(word) for word in sys.argv], dict(os.environb), os.getcwdb(), os.fsencode(__file__)
with open(os.environb[b"SEEN"], "wb") as file:
    file.write(repr(seen).encode())
print("done")
"""


@dataclass(frozen=True)
class Given:
    """What one command hands over; any byte but zero, and what the system forbids in a name."""

    args: tuple[bytes, ...] = ()
    values: dict[bytes, bytes] = field(default_factory=dict)
    in_prelude: bytes = b""
    workdir: bytes = b"w"
    script: bytes = b"s"
    log_dir: bytes = b"l"


TEXT = st.binary(max_size=80).map(lambda data: data.replace(b"\0", b"\n"))
# A name that meshrun or the system gives a meaning to is no test of bytes: they all begin alike. `*?[` make it a glob.
NAME = st.binary(max_size=20).map(lambda data: b"V" + data.translate(None, b"\0=*?["))
FILE = st.binary(min_size=1, max_size=40).map(lambda data: data.translate(None, b"\0/").strip(b".") or b"-")
ALL = st.builds(
    Given,
    args=st.lists(TEXT, max_size=40).map(tuple),
    values=st.dictionaries(NAME, TEXT, max_size=12),
    in_prelude=TEXT,
    workdir=FILE,
    script=FILE,
    log_dir=FILE,
)
EVERY = bytes(range(1, 256))
NAMES = EVERY.replace(b"/", b"")
FEW = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=4)


def quoted(data: bytes) -> bytes:
    """One word of a POSIX shell."""
    return b"'" + data.replace(b"'", b"'\\''") + b"'"


def options_of(given_: Given) -> list[bytes]:
    chosen = [word for name in given_.values for word in (b"-x", name)]
    prelude = b"echo noise; FROM_PRELUDE=%s; export FROM_PRELUDE" % quoted(given_.in_prelude)
    return [*chosen, b"--prelude", prelude]


def check(where: Path, given_: Given, *options: str) -> None:
    """Run it, and compare what the worker saw with what was given."""
    base = os.fsencode(where)
    workdir, logs, seen = (
        os.path.join(base, *parts) for parts in ([b"w", given_.workdir], [b"l", given_.log_dir], [b"seen"])
    )
    os.makedirs(workdir, exist_ok=True)
    script = os.path.join(workdir, given_.script)
    Path(os.fsdecode(script)).write_bytes(SCRIPT)
    words = [b"-x", b"SEEN", b"--workdir", workdir, b"--log-dir", logs, *options_of(given_)]
    ended = start(where, [*options, "--no-init"], [*words, b"--", given_.script, *given_.args], given_, seen)
    assert ended.code == 0, ended
    argv, environ, cwd, file = ast.literal_eval(Path(os.fsdecode(seen)).read_text())
    assert argv[1:] == list(given_.args)
    assert {name: environ.get(name) for name in given_.values} == given_.values
    assert environ[b"FROM_PRELUDE"] == given_.in_prelude
    assert (cwd, file) == (workdir, script)
    assert b"noise" not in ended.raw_out
    check_run_directory(logs, given_)


def start(where: Path, options: Sequence[str], words: Sequence[bytes], given_: Given, seen: bytes) -> Ended:
    environ = {os.fsdecode(name): os.fsdecode(value) for name, value in given_.values.items()} | {
        "SEEN": os.fsdecode(seen)
    }
    return run(where, *options, *map(os.fsdecode, words), env=environ)


def check_run_directory(logs: bytes, given_: Given) -> None:
    """The latest run is where it was asked for; no value is in anything that meshrun itself writes."""
    latest = Path(os.fsdecode(logs)) / max(os.listdir(os.fsdecode(logs)))
    assert (latest / "rank0.out").read_bytes() == b"done\n"
    for name in ("plan.json", "events.jsonl", "summary.json"):
        text = (latest / name).read_bytes()
        assert not any(value in text for value in given_.values.values() if len(value) > 8)


@FEW
@given(ALL)
def test_any_bytes_arrive_here(tmp_path: Path, given_: Given) -> None:
    check(tmp_path, given_, "--nproc-per-node", "1")


@FEW
@given(ALL)
def test_any_bytes_arrive_over_ssh(cluster: Cluster, tmp_path: Path, given_: Given) -> None:
    check(tmp_path, given_, *on(cluster, tmp_path, hostfile="n0 slots=1\n"))


HARD = Given(
    args=(EVERY, b"", b" ", b"--", b"-c", b"--mesh", b"\n\n", b"~", b"$(id)", b"a" * 100_000),
    values={
        b"BIG": EVERY * 500,
        b"EMPTY": b"",
        b"EQUALS": b"a=b=c",
        b"BASH_FUNC_x%%": b"() { echo hi\n}",
        b"\xff\xfe": b"\xff",
        b"a b-c.d": b"\n",
    },
    in_prelude=EVERY,
    workdir=NAMES[:120],
    script=NAMES[120:] + b".py",
    log_dir=b"-rf $HOME `id` '\"\n\xff",
)


def test_the_hardest_arrive_here(tmp_path: Path) -> None:
    check(tmp_path, HARD, "--nproc-per-node", "1")


def test_the_hardest_arrive_over_ssh(cluster: Cluster, tmp_path: Path) -> None:
    check(tmp_path, HARD, *on(cluster, tmp_path, hostfile="n0 slots=1\n"))


def test_what_the_node_expands_and_what_the_hostfile_says(cluster: Cluster, tmp_path: Path) -> None:
    """--env-remote knows the node's variables alone; per-host values win over exported ones, as bytes."""
    (tmp_path / "odd dir").mkdir()
    (tmp_path / "odd dir" / "s.py").write_bytes(SCRIPT)
    line = b"n0 slots=1 workdir='%s/odd dir' env.A='\xff # b' env.B=\n" % os.fsencode(tmp_path)
    (tmp_path / "hosts").write_bytes(line)
    words = [
        "-x",
        "A=no",
        "-x",
        "B=no",
        "-x",
        "SEEN",
        "-x",
        "C=",
        "--env-remote",
        "R=$HOME:${HOME}:$HERE:$1$:\udcff`id`",
    ]
    seen = tmp_path / "seen"
    options = [*cluster.options, "--hostfile", str(tmp_path / "hosts"), "--no-init"]
    ended = run(tmp_path, *options, *words, "odd dir/s.py", env={"SEEN": str(seen), "HERE": "here"})
    assert ended.code == 0, ended
    environ = ast.literal_eval(seen.read_text())[1]
    home = environ[b"HOME"]
    assert (environ[b"A"], environ[b"B"], environ[b"C"]) == (b"\xff # b", b"", b"")
    assert environ[b"R"] == b"%s:%s::$1$:\xff`id`" % (home, home) and b"HERE" not in environ


WRITER = """
import hashlib, os, random, sys
dice = random.Random(int(os.environ["RANK"]))
said = hashlib.sha256()
for _ in range(60):
    data = dice.randbytes(dice.choice([1, 4095, 4097, 65_536, 300_000, 1 << 20]))
    said.update(data)
    view = memoryview(data)
    while view:
        view = view[os.write(1, view):]
    if dice.random() < 0.2:
        os.write(2, b"a line\\n")
print(said.hexdigest(), file=sys.stderr)
"""


def check_large_output(tmp_path: Path, *where: str, stdout: int = subprocess.DEVNULL) -> None:
    (tmp_path / "write.py").write_text(WRITER)
    ended = Command(tmp_path, *where, "--no-init", str(tmp_path / "write.py"), stdout=stdout).end()
    assert ended.code == 0, ended.err[-2000:]
    for rank in range(2):
        digest = hashlib.sha256((ended.run_dir / f"rank{rank}.out").read_bytes()).hexdigest()
        assert (ended.run_dir / f"rank{rank}.err").read_text().splitlines()[-1] == digest


@pytest.mark.parametrize("stdout", [subprocess.DEVNULL, subprocess.PIPE])
def test_much_output_is_in_the_files_bit_for_bit(tmp_path: Path, stdout: int) -> None:
    check_large_output(tmp_path, "--nproc-per-node", "2", stdout=stdout)


def test_much_output_through_ssh_is_in_the_files_bit_for_bit(cluster: Cluster, tmp_path: Path) -> None:
    check_large_output(tmp_path, *on(cluster, tmp_path, hostfile="n0 slots=1\nn1 slots=1\n"))
