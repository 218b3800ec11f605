"""Owns: how a launcher's costs grow: with real SSH connections, with in-memory agents, with store clients.
Must not: need more than this machine; leave a process behind.
Called by: bench.parts."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.core import CASES
from bench.measure import MESHRUN, ROOT, SCRIPTS, Asked, Broken, Found, environ
from bench.result import OURS, Curve, Row
from tests.cluster import SSHD
from tests.cluster_parts import find_port, make_key

SIZES = (1, 16, 64, 128, 256)
CORE_SIZES = (256, 512, 1024, 2048)
_HELD = 'touch "$0/held$RANK"; '
PROGRAMS = {
    "stream": "i=0; while [ $i -lt 20 ]; do echo line $i; i=$((i+1)); done",
    "fail": _HELD + 'while [ $RANK = 0 ]; do [ -e "$0/go" ] && exit 3; sleep 0.05; done; exec sleep 600',
    "stop": _HELD + "exec sleep 600",
}
CLIENTS, FILES = 256, 1024

_CONFIG = {
    "ListenAddress": "0.0.0.0",
    "StrictModes": "no",
    "UseDNS": "no",
    "PermitRootLogin": "prohibit-password",
    "PasswordAuthentication": "no",
    "MaxStartups": "1000",
    "MaxSessions": "1000",
    "PidFile": "none",
}


@dataclass(frozen=True)
class Spent:
    """What one launcher needed."""

    wall_s: float
    cpu_ms: float
    mib: float
    threads: int
    descriptors: int
    start_s: float  # from its beginning to the last worker's process
    end_s: float  # from the failure or the signal to its return


@contextlib.contextmanager
def _sshd() -> Iterator[Path]:
    """One sshd on all of 127/8; the directory has `ssh_config` and `known_hosts` for it."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as base:
        here = Path(base)
        if os.getuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        for name in ("host", "user"):
            make_key(here / name)
        port = find_port("127.0.0.1")
        config = {**_CONFIG, "Port": port, "HostKey": here / "host", "AuthorizedKeysFile": here / "user.pub"}
        config["UsePAM"] = "no" if os.getuid() == 0 else "yes"
        (here / "config").write_text("".join(f"{name} {value}\n" for name, value in config.items()))
        (here / "known").write_text(f"[127.0.*]:{port} {(here / 'host.pub').read_text()}")
        (here / "ssh_config").write_text(
            f"Host *\n Port {port}\n IdentityFile {base}/user\n IdentitiesOnly yes\n UserKnownHostsFile {base}/known\n"
        )
        server = subprocess.Popen([SSHD, "-D", "-E", f"{base}/log", "-f", f"{base}/config"])
        try:
            yield here
        finally:
            server.terminate()
            server.wait(10)


def part_scale(asked: Asked) -> Found:
    """1 to 256 hosts that are addresses of one sshd, agents without torch: stream and end, fail, be stopped."""
    sizes = [size for size in SIZES if size <= max(asked.most * 16, 16)]
    spent: dict[str, dict[int, Spent]] = {}
    with _sshd() as ssh:
        for case in PROGRAMS:
            spent[case] = {size: _spend(ssh, case, size) for size in sizes}
    return Found(_rows(spent), _curves(spent))


def _rows(spent: dict[str, dict[int, Spent]]) -> list[Row]:
    most = max(spent["stream"])
    slopes = {
        "CPU": ("ms", "cpu_ms"),
        "memory": ("MiB", "mib"),
        "descriptors": ("", "descriptors"),
        "threads": ("", "threads"),
    }
    rows = []
    for what, (unit, field) in slopes.items():
        slope = tuple(_curve(what, field, {case: found}).fit(case)[0] for case, found in spent.items())
        rows.append(Row(f"launcher {what} per SSH host", unit, {OURS: slope}))
    ends = {"stream": "start_s", "fail": "end_s", "stop": "end_s"}
    words = {"stream": "all workers started", "fail": "one rank failed to all gone", "stop": "interrupt to all gone"}
    return rows + [
        Row(f"{most} SSH hosts: {words[case]}", "s", {OURS: (getattr(spent[case][most], ends[case]),)}) for case in ends
    ]


def _curves(spent: dict[str, dict[int, Spent]]) -> list[Curve]:
    fields = {"cpu_ms": "CPU, ms", "mib": "memory, MiB", "threads": "threads", "descriptors": "descriptors"}
    seconds = {"start_s": "seconds to start", "end_s": "seconds to end"}
    return [_curve(y, field, spent) for field, y in {**fields, **seconds}.items()]


def _curve(what: str, field: str, spent: dict[str, dict[int, Spent]]) -> Curve:
    points = {
        case: tuple((float(n), float(getattr(s, field))) for n, s in found.items()) for case, found in spent.items()
    }
    return Curve(f"launcher: {what}", "SSH hosts", what, points)


def _spend(ssh: Path, case: str, hosts: int) -> Spent:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as cwd:
        here = Path(cwd)
        (here / "hosts").write_text("".join(f"127.0.{1 + n // 200}.{1 + n % 200} slots=1\n" for n in range(hosts)))
        options = ["--hostfile", "hosts", "--ssh-config", str(ssh / "ssh_config"), "--connect-timeout", "240"]
        argv = [*MESHRUN, *options, "--log-dir", "runs", "--no-python", "sh", "-c", PROGRAMS[case], cwd]
        began, clock = time.perf_counter(), time.time()
        with (here / "said").open("wb") as said:
            process = subprocess.Popen(argv, cwd=cwd, env=environ(), stdin=subprocess.DEVNULL, stdout=said, stderr=said)
        threads, descriptors, turned, usage, code = _follow(process, partial(_turn, here, case, hosts, process))
        ended = time.perf_counter()
        wanted = {"stream": 0, "fail": 3, "stop": 130}[case]
        if code != wanted:
            raise Broken(f"{case} on {hosts} hosts ended with {code}:\n{(here / 'said').read_text()[-3000:]}")
        cpu_ms = 1000 * (usage.ru_utime + usage.ru_stime)
        mib = usage.ru_maxrss / 1024
        start = _last_spawned(here) - clock
        return Spent(ended - began, cpu_ms, mib, threads, descriptors, start, ended - turned if turned else 0.0)


def _turn(here: Path, case: str, hosts: int, process: subprocess.Popen[bytes]) -> bool:
    """Once all ranks are there: the failure or the interrupt. True if it was now."""
    if case == "stream" or len(list(here.glob("held*"))) < hosts:
        return False
    if case == "fail":
        (here / "go").touch()
    else:
        process.send_signal(signal.SIGINT)
    return True


def _follow(
    process: subprocess.Popen[bytes], turn: Callable[[], bool]
) -> tuple[int, int, float, resource.struct_rusage, int]:
    """Look at a process until it ends: most threads, most descriptors, when `turn` did something, usage, exit code."""
    threads = descriptors = 0
    turned = 0.0
    while True:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            process.returncode = os.waitstatus_to_exitcode(status)
            return threads, descriptors, turned, usage, process.returncode
        with contextlib.suppress(OSError):
            threads = max(threads, len(os.listdir(f"/proc/{process.pid}/task")))
            descriptors = max(descriptors, len(os.listdir(f"/proc/{process.pid}/fd")))
        if not turned and turn():
            turned = time.perf_counter()
        time.sleep(0.05)


def _last_spawned(here: Path) -> float:
    (events,) = here.glob("runs/*/events.jsonl")
    records = map(json.loads, events.read_text().splitlines())
    return max(float(record["t"]) for record in records if record["kind"] == "spawned")


# ---- without processes -----------------------------------------------------------------------------------------------


def part_core(asked: Asked) -> Found:
    """256 to 2,048 in-memory agents of 8 ranks against the launcher's state machine, through the codec."""
    told = {case: [_core(case, size) for size in CORE_SIZES] for case in CASES}
    most = CORE_SIZES[-1]
    rows = []
    for case, found in told.items():
        last = found[-1]
        rows.append(Row(f"core, {most} nodes x 8: {case}: start", "s", {OURS: (last["start_s"],)}))
        rows.append(Row(f"core, {most} nodes x 8: {case}: to its end", "s", {OURS: (last["end_s"],)}))
        rate: dict[str, tuple[float, ...]] = {OURS: (last["events_per_s"],)}
        rows.append(Row(f"core, {most} nodes x 8: {case}: events", "1/s", rate, more_is_better=True))
    ways = {"start_s": "core: seconds to start", "end_s": "core: seconds to end", "mib": "core: memory, MiB"}
    curves = []
    for field, what in ways.items():
        points = {case: tuple((float(one["nodes"]), one[field]) for one in found) for case, found in told.items()}
        curves.append(Curve(what, "nodes", what.partition(": ")[2], points))
    return Found(rows, curves)


def _core(case: str, nodes: int) -> dict[str, float]:
    argv = [sys.executable, "-m", "bench.core", case, str(nodes)]
    done = subprocess.run(argv, cwd=ROOT, env=environ(), capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))


# ---- the store -------------------------------------------------------------------------------------------------------


def part_store(asked: Asked) -> Found:
    """256 and 1,500 clients of one store, where 1,024 files may be open unless the limit is raised."""
    rows = []
    for clients in (CLIENTS, 1500):
        samples = tuple(_join(clients) for _ in range(asked.times))
        rows.append(Row(f"{clients} clients join one store (ulimit -n {FILES})", "s", {OURS: samples}))
    return Found(rows)


def _join(clients: int) -> float:
    with tempfile.TemporaryDirectory() as cwd:
        argv = [
            *MESHRUN,
            "--no-init",
            "--nproc-per-node=1",
            "--time-limit=240",
            str(SCRIPTS / "store.py"),
            str(clients),
        ]
        limit = f'ulimit -Sn {FILES} && exec "$@"'
        done = subprocess.run(["sh", "-c", limit, "sh", *argv], cwd=cwd, env=environ(), capture_output=True, text=True)
        if done.returncode:
            raise Broken(f"{clients} clients: {done.returncode}\n{done.stdout}{done.stderr}")
        return float(done.stdout.split()[-1])
