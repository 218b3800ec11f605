"""Owns: the agent's smaller parts: spool, accelerators, torch and script, addresses, OOM counters, processes.
Must not: start an agent.
Called by: pytest."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshrun import wire
from meshrun.agent import error_file, installed, netlink, oom, procs, spool

# ---- spool ----


@given(st.lists(st.one_of(st.binary(min_size=1, max_size=60), st.integers(1, 80)), max_size=60))
def test_a_spool_gives_back_what_it_got_in_order(steps: list[bytes | int]) -> None:
    saved = spool.MEMORY_BYTES, spool.SEGMENT_BYTES
    spool.MEMORY_BYTES, spool.SEGMENT_BYTES = 100, 150
    try:
        check_order(steps)
    finally:
        spool.MEMORY_BYTES, spool.SEGMENT_BYTES = saved


def check_order(steps: list[bytes | int]) -> None:
    queue, pushed, popped = spool.Spool("/tmp"), b"", b""
    for step in steps:
        if isinstance(step, bytes):
            queue.push((0, 1, step))
            pushed += step
        elif chunk := queue.pop(step):
            assert len(chunk[2]) <= step
            popped += chunk[2]
        assert bool(queue) == (popped != pushed)
    while chunk := queue.pop(1000):
        popped += chunk[2]
    assert popped == pushed and not queue
    queue.clear()


def test_a_spool_without_a_disk_keeps_everything_in_memory_and_says_when_it_is_too_much(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(spool, "FULL_BYTES", 1000)
    queue = spool.Spool(str(tmp_path / "gone"))
    monkeypatch.setattr(spool, "MEMORY_BYTES", 10)
    for number in range(30):
        queue.push((0, 1, b"%03d" % number * 20))
    assert queue.full
    data = b"".join(chunk[2] for chunk in iter(lambda: queue.pop(1 << 20), None))
    assert data == b"".join(b"%03d" % number * 20 for number in range(30)) and not queue.full


def test_a_spool_leaves_no_name_behind(tmp_path: Path) -> None:
    queue = spool.Spool(str(tmp_path))
    for _ in range(3):
        queue.push((0, 1, bytes(spool.MEMORY_BYTES)))
    assert list(tmp_path.iterdir()) == []
    queue.clear()


def make_files(root: Path, *names: str, **texts: str) -> str:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    for name, text in texts.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(root)


# ---- torch and script ----


def test_torch_is_found_as_the_interpreter_would(tmp_path: Path) -> None:
    # Not the package's own number, which may lack what torch says of its build ("+cu130").
    code = "import importlib.util as u, runpy; print(runpy.run_path(u.find_spec('torch').submodule_search_locations[0]"
    code += " + '/version.py')['__version__'])"
    real = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False).stdout.strip()
    assert real and installed.find_torch({}).version == real
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/version.py").write_text("cuda = None\n__version__ = '9.9+mine'\n")
    assert installed.find_torch({"PYTHONPATH": f"/nowhere:{tmp_path}"}) == installed.Torch("9.9+mine", ())


def test_a_script_is_hashed_and_compiled(tmp_path: Path) -> None:
    good, bad = tmp_path / "a.py", tmp_path / "b.py"
    good.write_bytes(b"x = 1\n")
    bad.write_bytes(b"x = 1\nif x\n  y\n")
    digest = hashlib.sha256(good.read_bytes()).hexdigest()
    assert installed.read_script(str(good), True) == installed.Script(digest)
    found = installed.read_script(str(bad), True)
    assert (found.file, found.line) == (str(bad), 2) and found.error.startswith("SyntaxError: ")
    assert installed.read_script(str(bad), False).error == ""
    assert installed.read_script(str(tmp_path / "c.py"), True).error == "missing"
    assert installed.read_script(str(tmp_path), True).error.startswith("unreadable: ")


def test_programs_are_looked_for_as_execvp_does(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("")
    assert not installed.find_program("./run", str(tmp_path), {})
    (tmp_path / "run").chmod(0o755)
    assert installed.find_program("./run", str(tmp_path), {})
    assert installed.find_program("run", "/", {"PATH": f"/nowhere:{tmp_path}"})
    assert not installed.find_program("run", "/", {"PATH": "/nowhere"})


# ---- addresses ----


def test_the_kernels_addresses_are_those_we_can_bind() -> None:
    found = netlink.read_addresses()
    assert ("127.0.0.1", "lo") in [(item.address, item.interface) for item in found]
    for address in netlink.order_addresses(found):
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.socket(family) as sock:
            sock.bind((address, 0))


def test_the_best_address_comes_first() -> None:
    def make(address: str, interface: str, scope: int = 0) -> netlink.Address:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        return netlink.Address(address, interface, family, scope)

    found = [
        make("127.0.0.1", "lo", 254),
        make("::1", "lo", 254),
        make("172.17.0.1", "docker0"),
        make("fd00::1", "eth0"),
        make("fe80::1", "eth0", 253),
        make("10.0.0.1", "eth0"),
        make("10.1.0.1", "ib0"),
    ]
    last = ("127.0.0.1", "::1")
    assert netlink.order_addresses(found) == ("10.0.0.1", "10.1.0.1", "fd00::1", "172.17.0.1", *last)
    assert netlink.order_addresses(found, "10.1.0.1")[0] == "10.1.0.1"
    assert netlink.order_addresses(found, "127.0.0.1")[0] == "10.0.0.1"


def test_a_point_to_point_interface_has_its_own_address_not_the_peers() -> None:
    def attribute(kind: int, address: str) -> bytes:
        return struct.pack("=HH4s", 8, kind, socket.inet_aton(address))

    body = struct.pack("=BBBBI", socket.AF_INET, 32, 0, 0, 1) + attribute(1, "10.9.9.9") + attribute(2, "10.0.0.7")
    found = netlink.parse_address(body)
    assert found is not None and found.address == "10.0.0.7"


def test_the_interface_towards_loopback_is_lo() -> None:
    assert netlink.find_interface_towards("127.0.0.1", 1) == "lo"


# ---- out of memory ----


@pytest.mark.parametrize(
    ("machine", "group", "verdict"),
    [((3, 3), (0, 0), "no"), ((3, 4), (0, 1), "yes"), ((3, 4), (0, 0), "no"), ((3, 4), None, "unknown")],
)
def test_the_counters_tell_who_killed(
    tmp_path: Path, machine: tuple[int, int], group: tuple[int, int] | None, verdict: str
) -> None:
    def write(at: int) -> str:
        texts = {"proc__vmstat": f"nr_free 1\noom_kill {machine[at]}\n", "proc__self__cgroup": "0::/job\n"}
        if group:
            texts["sys__fs__cgroup__job__memory.events"] = f"oom 1\noom_kill {group[at]}\n"
            texts["sys__fs__cgroup__job__cgroup.controllers"] = "memory\n"
        return make_files(tmp_path, **texts)

    watch = oom.OomWatch(write(0))
    write(1)
    assert watch.judge(77) == verdict
    if verdict == "yes":
        assert watch.judge(78) == "no", "one kill explains one death"


@pytest.mark.parametrize(
    ("files", "where"),
    [
        (
            {"job__memory.max": "268435456\n", "job__memory.events": "oom 2\noom_kill 1\n"},
            "the limit of 256 MiB of the cgroup /job",
        ),
        ({"job__memory.max": "max\n", "job__memory.events": "oom 2\noom_kill 1\n"}, "the machine's memory of 15.6 GiB"),
        ({"job__memory.max": "268435456\n", "job__memory.events": "oom 0\n"}, "the machine's memory of 15.6 GiB"),
        (
            {
                "memory__slurm__step__memory.limit_in_bytes": "9223372036854771712\n",
                "memory__slurm__step__memory.failcnt": "0\n",
                "memory__slurm__memory.limit_in_bytes": "68719476736\n",
                "memory__slurm__memory.failcnt": "31\n",
            },
            "the limit of 64 GiB of the cgroup /slurm",
        ),
    ],
    ids=["its own", "no limit", "a limit that was not met", "version 1, of an outer one"],
)
def test_which_limit_was_reached(files: dict[str, str], where: str, tmp_path: Path) -> None:
    texts = {f"sys__fs__cgroup__{name}": text for name, text in files.items()}
    texts |= {"sys__fs__cgroup__job__cgroup.controllers": "memory\n", "proc__meminfo": "MemTotal: 16384000 kB\n"}
    texts["proc__self__cgroup"] = "4:memory:/slurm/step\n0::/job\n"
    assert oom.OomWatch(make_files(tmp_path, **texts)).describe() == where


# ---- error files ----

EXITED = wire.Exited(3, 1, 0.0, 5, 0, "", False)


def read_error(folder: Path, text: str) -> wire.Raised | None:
    (folder / "error3-1.json").write_text(text)
    return error_file.read(str(folder), EXITED)


def test_an_error_file_is_read_as_a_record(tmp_path: Path) -> None:
    body = {"message": {"message": "ValueError: a: b", "extraInfo": {"py_callstack": "Traceback", "timestamp": "1"}}}
    raised = read_error(tmp_path, json.dumps(body))
    assert raised is not None
    assert (raised.rank, raised.attempt, raised.exit_code) == (3, 1, 5)
    assert (raised.type, raised.message, raised.traceback) == ("ValueError", "a: b", "Traceback")


def test_an_error_file_may_hold_a_bare_message(tmp_path: Path) -> None:
    raised = read_error(tmp_path, '{"message": "signal 9"}')
    assert raised is not None and (raised.type, raised.message) == ("signal 9", "")


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '{"message": 3}', '{"message": {"message": "x"}}', "[" * 100_000])
def test_anything_else_in_an_error_file_says_nothing(text: str, tmp_path: Path) -> None:
    assert read_error(tmp_path, text) is None


def test_another_attempts_error_file_is_not_read(tmp_path: Path) -> None:
    assert read_error(tmp_path, '{"message": "old"}')
    assert error_file.read(str(tmp_path), replace(EXITED, attempt=2)) is None


# ---- processes ----


def test_names_with_blanks_and_parentheses_are_read(tmp_path: Path) -> None:
    program = tmp_path / "a) b (c"
    program.symlink_to("/bin/sleep")
    child = subprocess.Popen([program, "1000"])
    try:
        while (process := procs.read_process(child.pid)) is None or process.name != "a) b (c":
            pass
        assert (process.parent, process.dead) == (os.getpid(), False)
        assert child.pid in [found.pid for found in procs.find_descendants(os.getpid())]
        assert child.pid not in [found.pid for found in procs.find_descendants(os.getpid(), [child.pid])]
    finally:
        child.kill()
        child.wait()


def test_only_the_exact_mark_is_found() -> None:
    ours, other = [
        subprocess.Popen(["sleep", "1000"], env={"MESHRUN_MARK": mark}) for mark in ("run.0123abcd", "run.x0123abcd")
    ]
    try:
        while not any(found.pid == ours.pid for found in procs.find_marked("0123abcd")):
            assert ours.poll() is None
        assert other.pid not in [found.pid for found in procs.find_marked("0123abcd")]
    finally:
        for child in (ours, other):
            child.kill()
            child.wait()
