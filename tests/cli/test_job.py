"""Owns: from settings to a job: what is resolved, and what does not go together.
Must not: touch files or the network.
Called by: pytest."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshrun.errors import InputError
from meshrun.spec.guess import looks_like_hostfile
from meshrun.spec.job import Context, is_loopback, make_job, resolve
from meshrun.spec.options import OPTIONS
from meshrun.spec.values import EarlySignal, Host, Job, MeshSpec

HERE = Host("here")
THERE = (Host("a", slots=2), Host("b", slots=2))
MESH = MeshSpec((("dp", 2), ("tp", 2)))


def job(hosts: tuple[Host, ...] = (HERE,), words: tuple[str, ...] = ("t.py", "-x"), **said: Any) -> Job:
    settings = {option.name: option.default for option in OPTIONS}
    context = {"run_id": "id", "cwd": "/w", "python": "/py", "local": tuple(host is HERE for host in hosts)}
    for name, value in said.items():
        option = name.replace("_", "-")
        if option in settings and name not in ("env", "mesh"):
            settings[option] = value
        else:
            context[name] = value
    return make_job(settings, hosts, words, Context(**context))  # type: ignore[arg-type]


def test_paths_are_absolute_and_the_rest_is_untouched() -> None:
    made = job(workdir="sub/../x", log_dir="logs")
    assert (made.argv, made.workdir, made.log_dir) == (("/w/sub/../x/t.py", "-x"), "/w/sub/../x", "/w/logs/id")
    assert job(workdir="/abs", words=("/s.py",)).argv == ("/s.py",)
    assert job(module=True, words=("pkg.mod",)).argv == ("pkg.mod",)
    assert job(no_python=True, words=("./prog",)).argv == ("./prog",)


@pytest.mark.parametrize(
    ("said", "python"),
    [
        (None, "/py"),
        ("/abs/../py", "/abs/../py"),
        (".venv/bin/python", "/w/.venv/bin/python"),
        ("~/py", "~/py"),
        ("python3.12", "python3.12"),
    ],
)
def test_a_relative_python_is_seen_from_here(said: str | None, python: str) -> None:
    assert job(python=said).python == python


@pytest.mark.parametrize("address", ["node-0.cluster", "10.0.0.1", "fd00::1", "[fe80::1%eth0]", "::1"])
def test_an_address_is_one(address: str) -> None:
    assert job(master_addr=address).master_addr == address


@pytest.mark.parametrize(
    ("said", "init"),
    [({}, "lazy"), ({"mesh": MESH}, "eager"), ({"mesh": MESH, "init": "lazy"}, "lazy"), ({"no_python": True}, "off")],
)
def test_init(said: dict[str, Any], init: str) -> None:
    assert job(**said).init == init


PATHS = st.lists(st.sampled_from(["a", "b c", ".", "..", "", "\udc80"]), max_size=5).map("/".join)


@given(PATHS, PATHS)
def test_paths_are_seen_as_the_standard_library_sees_them(directory: str, path: str) -> None:
    expected = PurePosixPath(f"/d/{directory}") / path
    assert resolve(f"/d/{directory}", path) == str(expected).replace("//", "/")


def test_a_fixed_mesh_on_this_machine_sets_the_count() -> None:
    assert job(mesh=MESH).nproc_per_node == 4
    assert job(mesh=MESH, nproc_per_node=2).nproc_per_node == 2
    assert job(mesh=MeshSpec((("dp", None), ("tp", 2)))).nproc_per_node is None
    assert job(THERE, mesh=MESH).nproc_per_node is None


def test_one_node_by_hand_is_a_local_run() -> None:
    made = job(nnodes=1, node_rank="0", master_addr="127.0.0.1", master_port=29500)
    assert made.by_hand is None
    assert (made.master_addr, made.master_port) == ("127.0.0.1", 29500)


def test_by_hand() -> None:
    said = {"nnodes": 2, "node_rank": 1, "master_addr": "10.0.0.1", "master_port": 29500, "token": b"t"}
    settings = {**said, "node_rank": "1"}
    context_rank = said["node_rank"]
    made = _by_hand(settings, context_rank)
    assert made.by_hand is not None
    assert (made.by_hand.nnodes, made.by_hand.node_rank, made.by_hand.token) == (2, 1, b"t")


def _by_hand(said: dict[str, Any], rank: object) -> Job:
    settings = {option.name: option.default for option in OPTIONS}
    settings |= {name.replace("_", "-"): value for name, value in said.items() if name != "token"}
    context = Context("id", "/w", "/py", (True,), node_rank=rank, token=said.get("token", b""))  # type: ignore[arg-type]
    return make_job(settings, (HERE,), ("t.py",), context)


WRONG = [
    ({"module": True, "no_python": True}, "exclude each other"),
    ({"no_python": True, "init": "eager"}, "needs python"),
    ({"preload": "x", "start_method": "spawn"}, "--preload"),
    ({"words": ()}, "no script given"),
    ({"node_rank": "0"}, "belongs to --nnodes"),
    ({"nnodes": 2}, "--node-rank and --master-addr and --master-port"),
    ({"nnodes": 2, "hostfile": "h"}, "--hostfile exclude each other"),
    ({"nnodes": 2, "master_addr": "localhost"}, "cannot meet at localhost"),
    ({"hosts": THERE, "master_addr": "127.0.0.1"}, "cannot meet at 127.0.0.1"),
    ({"hosts": THERE, "launcher": "local"}, "not a, b"),
    ({"launcher": "ssh"}, "needs hosts"),
    ({"env": (("GLOO_SOCKET_IFNAME", "^lo"),)}, "one interface name"),
    ({"hosts": (Host("a", env=(("GLOO_SOCKET_IFNAME", "eth0,eth1"),)),)}, "one interface name"),
    ({"env_remote": ("1A=x",)}, "NAME=EXPR"),
    ({"env_remote": ("A",)}, "NAME=EXPR"),
    ({"backend": "ncll"}, "did you mean nccl"),
    ({"backend": "nccl:"}, "is not a backend"),
    ({"backend": "nccl", "device": "cpu"}, "nccl does not work with device cpu"),
]


@pytest.mark.parametrize(("said", "message"), WRONG)
def test_what_does_not_go_together(said: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        job(**said)


def test_all_at_once() -> None:
    with pytest.raises(InputError) as caught:
        job(THERE, words=(), master_addr="::1", launcher="local", env_remote=("A",))
    assert len(caught.value.problems) == 4


def test_rank_beyond_the_nodes() -> None:
    with pytest.raises(InputError, match="--node-rank 2 is not below --nnodes 2"):
        _by_hand({"nnodes": 2, "node_rank": "2", "master_addr": "10.0.0.1", "master_port": 1}, 2)


@pytest.mark.parametrize(
    ("address", "answer"), [("127.3.2.1", True), ("[::1]", True), ("LOCALHOST.", True), ("a", False)]
)
def test_loopback(address: str, answer: bool) -> None:
    assert is_loopback(address) is answer


@pytest.mark.parametrize(
    ("name", "data", "answer"),
    [
        ("hosts", b"a slots=4\nb slots=4\n", True),
        ("x", b"# c\na slots = 4\n", True),
        ("hostfile", b"a\nb\n", True),
        ("train", b"main\n", False),
        ("hosts.py", b"a\nb\n", False),
        ("t", b"import os\nprint(os.name)\n", False),
        ("t", b"", False),
    ],
)
def test_hostfile_in_place_of_a_script(name: str, data: bytes, answer: bool) -> None:
    assert looks_like_hostfile(name, data) is answer


def test_a_signal_before_the_time_limit() -> None:
    assert job(signal_workers="USR1@60", time_limit=3600.0).signal_workers == EarlySignal(10, 60.0)
    assert job(time_limit=3600.0).signal_workers is None


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"signal_workers": "USR1@60"}, "--time-limit"),
        ({"signal_workers": "USR1@60", "time_limit": 60.0}, "60 s before the end of --time-limit 60 s"),
        ({"signal_workers": "USR9@60", "time_limit": 90.0}, "unknown signal USR9"),
    ],
)
def test_a_signal_that_cannot_come_is_refused(said: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        job(**said)


def test_restarts() -> None:
    assert (job().max_restarts, job(max_restarts=3).max_restarts) == (0, 3)
