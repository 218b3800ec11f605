"""Owns: playing one trial on real processes: start, wait for the moment, put the fault in, wait for the end.
Must not: judge (tests/chaos/check.py), or take a fixed time for a moment.
Called by: tests/chaos/test_chaos.py, tests/chaos/__main__.py."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.chaos import expect, processes, worker
from tests.chaos.check import check
from tests.chaos.expect import After
from tests.chaos.trials import Layout, Moment, Target, Trial
from tests.cluster import NamespaceCluster, Process
from tests.cluster_parts import list_processes
from tests.e2e.command import COMMAND, ENVIRON

MOMENT_S = 40.0  # an undisturbed run reaches every moment long before
TARGET_S = 10.0


@dataclass(slots=True)
class Ground:
    """Where trials take place: a directory that every host sees, and hosts that are made when first needed."""

    root: Path
    _cluster: NamespaceCluster | None = None
    count: int = 0

    def cluster(self) -> NamespaceCluster:
        if self._cluster is None:
            self._cluster = NamespaceCluster(4, shared=[self.root])
        return self._cluster

    def close(self) -> None:
        if self._cluster:
            self._cluster.close()
        self._cluster = None


@dataclass(slots=True)
class Run:
    """One run under way; by hand it has a launcher on each node."""

    trial: Trial
    where: Path
    tag: str
    cluster: NamespaceCluster | None
    before: frozenset[processes.Key] = frozenset()
    before_dirs: frozenset[Path] = frozenset()
    launchers: list[subprocess.Popen[bytes]] = field(default_factory=list)
    marks: frozenset[str] = frozenset()
    others: frozenset[str] = frozenset()  # the marks of a neighbour
    hit: bool = False
    codes: list[int | None] = field(default_factory=list)  # None: it hung
    took_s: float = 0.0
    stuck: list[str] = field(default_factory=list)  # what a stopped launcher did not lose

    def events(self) -> list[dict[str, Any]]:
        """What the first launcher has recorded so far, whole lines only."""
        found = list(self.where.glob("runs0/*/events.jsonl"))
        lines = found[0].read_text().split("\n")[:-1] if found else []
        return [json.loads(line) for line in lines]

    def seen(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events() if event["kind"] == kind]

    def ready(self) -> list[Path]:
        return [path for path in (self.where / "ready").iterdir() if path.suffix not in (".t", ".child")]

    def on(self, node: int) -> list[Process]:
        """The run's processes on a node, by their pids here."""
        if self.cluster is None:
            return processes.list_local(self.tag)
        return processes.list_host(self.cluster, node, self.before, self.others)

    def everywhere(self) -> list[Process]:
        found = {p.pid: p for node in range(self.trial.nodes) for p in self.on(node)}
        marked = processes.list_marked(self.marks) if self.marks else []
        return list((found | {p.pid: p for p in marked}).values())

    def dirs(self) -> frozenset[Path]:
        """Temporary directories of meshrun on every node that is left, and here."""
        nodes = range(self.trial.nodes) if self.cluster else ()
        places = [self.where / "tmp", *(self.cluster.path(i, "/tmp") for i in nodes if self.cluster)]
        return frozenset(path for place in places for path in place.glob("meshrun-*"))

    def launcher_pid(self, i: int) -> int:
        """By hand the process that we started is `nsenter`, which passes no signal on."""
        if self.trial.layout is not Layout.HAND:
            return self.launchers[i].pid
        with contextlib.suppress(OSError):
            pid = self.launchers[i].pid
            for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
                return int(word)
        return 0

    @property
    def over(self) -> bool:
        return all(launcher.poll() is not None for launcher in self.launchers)


@dataclass(frozen=True, slots=True)
class Played:
    """What came of a trial; no violations if all is well."""

    trial: Trial
    hit: bool
    codes: tuple[int | None, ...]
    took_s: float
    violations: tuple[str, ...]


def play(trial: Trial, ground: Ground) -> Played:
    """Play a trial and look at it; what it left is ended."""
    neighbour = _start_neighbour(trial, ground) if trial.neighbour else None
    run = start(trial, ground, others=neighbour.marks if neighbour else frozenset())
    expected = expect.expect(trial)
    try:
        _bring_to(run, trial.moment)
        run.marks = processes.collect_marks(run.everywhere())
        time.sleep(trial.delay_s)  # not to wait for anything: it makes the moment another one each time
        run.hit = _put_in(run)
        _follow_up(run, expected.after)
        _await_end(run, expected.within_s)
        violations = check(run, expected)
    finally:
        _clean(run, ground)
    if neighbour:
        violations += _end_neighbour(neighbour, ground)
    if not violations:
        shutil.rmtree(run.where, ignore_errors=True)
    return Played(trial, run.hit, tuple(run.codes), run.took_s, tuple(violations))


def start(trial: Trial, ground: Ground, port: int = 29400, others: frozenset[str] = frozenset()) -> Run:
    """Start the run of a trial, whatever its fault."""
    ground.count += 1
    where = ground.root / f"trial{trial.number}.{ground.count}"
    for name in ("ready", "tmp"):
        (where / name).mkdir(parents=True)
    shutil.copy(worker.__file__, where / "worker.py")
    cluster = None if trial.layout is Layout.LOCAL else ground.cluster()
    run = Run(trial, where, f"{os.getpid()}.{ground.count}", cluster, others=others)
    run.before = frozenset(processes.read_key(p.pid) for p in list_processes()) if cluster else frozenset()
    run.before_dirs = run.dirs()
    for i in range(trial.nodes if trial.layout is Layout.HAND else 1):
        run.launchers.append(_start_launcher(run, i, port))
    return run


def _start_launcher(run: Run, i: int, port: int) -> subprocess.Popen[bytes]:
    trial, cluster = run.trial, run.cluster
    prefix, options = [], ["--nproc-per-node", str(trial.slots)]
    own = {processes.TAG: run.tag, "CHAOS_DIR": str(run.where), "TMPDIR": str(run.where / "tmp")}
    if cluster and trial.layout is Layout.HAND:
        prefix = [*cluster._enter(i), "env", "-C", str(run.where)]
        options += ["--nnodes", str(trial.nodes), "--node-rank", str(i)]
        options += ["--master-addr", cluster.hosts[0].address, "--master-port", str(port)]
        del own["TMPDIR"]
    elif cluster:
        hosts = "".join(f"{host.name} slots={trial.slots}\n" for host in cluster.hosts[: trial.nodes])
        (run.where / "hosts").write_text(hosts)
        options = [*cluster.options, "--hostfile", str(run.where / "hosts")]
    options += ["--grace", f"{expect.grace_s(trial)}", "--start-timeout", f"{expect.START_S}"]
    options += ["--connect-timeout", f"{expect.CONNECT_S}", "--log-dir", str(run.where / f"runs{i}")]
    options += ["--max-restarts", "2"] if trial.moment is Moment.PAUSE else []
    own |= {"STUBBORN": "1" if trial.moment is Moment.GRACE else "", "FAILURES": _count_failures(trial)}
    for name in ("CHAOS_DIR", "STUBBORN", "FAILURES"):
        options += ["-x", name]
    what = ["--no-python", "sh", "-c", worker.TEXT] if trial.program else ["--no-init", "worker.py"]
    with open(run.where / f"out{i}", "wb") as out, open(run.where / f"err{i}", "wb") as err:
        argv = [*prefix, *COMMAND, *options, *what]
        return subprocess.Popen(
            argv, cwd=run.where, env=ENVIRON | own, stdin=subprocess.DEVNULL, stdout=out, stderr=err
        )


def _count_failures(trial: Trial) -> str:
    return "2" if trial.moment is Moment.PAUSE else "0"


def _wait(run: Run, check: Callable[[], Any], within_s: float) -> bool:
    """Until `check` holds; False when the run is over or the time is."""
    deadline = time.monotonic() + within_s
    while not (found := check()) and not run.over and time.monotonic() < deadline:
        time.sleep(0.003)
    return bool(found)


def _bring_to(run: Run, moment: Moment) -> None:
    """Wait until the run is where the fault is to meet it; a run that does not get there is no trial."""
    world = run.trial.nodes * run.trial.slots
    kinds = {Moment.CONNECTING: "began", Moment.GREETING: "opened", Moment.STARTING: "start", Moment.SPAWNED: "spawned"}
    if moment in kinds:
        reached = _wait(run, lambda: run.seen(kinds[moment]), MOMENT_S)
    elif moment is Moment.PAUSE:
        reached = _wait(run, lambda: len(run.seen("restart")) == 2, MOMENT_S)
    else:
        reached = _wait(run, lambda: len(run.ready()) == world, MOMENT_S)
    if reached and moment is Moment.GRACE:
        run.marks = processes.collect_marks(run.everywhere())
        os.kill(run.launcher_pid(0), signal.SIGTERM)
        reached = _wait(run, lambda: run.seen("stop"), MOMENT_S)
    if reached and moment is Moment.EXITING:
        run.marks = processes.collect_marks(run.everywhere())
        (run.where / "finish").touch()
        _wait(run, lambda: run.seen("exited"), MOMENT_S)
    if not reached:
        run.stuck.append(f"the run never came to {moment.value}")


def _put_in(run: Run) -> bool:
    """The fault itself; False if its target was gone already."""
    trial, fault = run.trial, run.trial.fault
    if fault.target is Target.LINK and run.cluster:
        run.cluster.cut(trial.node, fault.how)
        return True
    if fault.target is Target.HOST and run.cluster:
        run.cluster.crash(trial.node)
        return True
    if not _wait(run, lambda: _find(run), TARGET_S) or not (pid := _find(run)):
        return False
    try:
        for k, name in enumerate(fault.how.split("+")):
            time.sleep(trial.gap_s if k else 0.0)
            os.kill(pid, expect.SIGNALS[name])
    except ProcessLookupError:
        return k > 0  # it did not live to see the second
    return True


def _find(run: Run) -> int:
    trial, target = run.trial, run.trial.fault.target
    if target is Target.LAUNCHER:
        return run.launcher_pid(trial.node if trial.layout is Layout.HAND else 0)
    there = run.on(trial.node)
    if target is Target.CHILD:
        return processes.find_inside(there, int((run.where / "ready" / f"0.{trial.rank}.child").read_text()))
    if target is Target.WORKER:
        spawned = [event["pid"] for event in run.seen("spawned") if event["rank"] == trial.rank]
        return processes.find_inside(there, spawned[-1]) if spawned else 0
    return processes.find(there, target)


def _follow_up(run: Run, after: After) -> None:
    """What lets the run end where the fault does not end it."""
    if after is After.FINISH or not run.hit or run.trial.moment in expect.EARLY:
        (run.where / "finish").touch()
    if not run.hit:
        return
    if after is After.INTERRUPT:
        with contextlib.suppress(OSError):
            os.kill(run.launcher_pid(0), signal.SIGINT)
    if after is After.RESUME:
        _resume(run)


def _resume(run: Run) -> None:
    """All that hears nothing of its launcher has to end, while it is stopped; then it may go on."""
    pid = run.launcher_pid(run.trial.node if run.trial.layout is Layout.HAND else 0)
    within_s = expect.SILENCE_S + 4 * expect.grace_s(run.trial)
    within_s += expect.CONNECT_S if run.trial.moment in expect.EARLY else 0
    deadline = time.monotonic() + within_s
    while (left := [p for p in run.everywhere() if p.pid != pid]) and time.monotonic() < deadline:
        time.sleep(0.02)
    run.stuck += [f"left beside a stopped launcher: {p.command[:80]} ({p.state})" for p in left]
    with contextlib.suppress(OSError):
        os.kill(pid, signal.SIGCONT)
    for launcher in run.launchers:  # `nsenter` stops itself when its child is stopped
        with contextlib.suppress(OSError):
            os.kill(launcher.pid, signal.SIGCONT)


def _await_end(run: Run, within_s: float) -> None:
    began = time.monotonic()
    for i, launcher in enumerate(run.launchers):
        try:
            run.codes.append(launcher.wait(max(0.1, began + within_s + 10.0 - time.monotonic())))
        except subprocess.TimeoutExpired:
            run.codes.append(None)
            with contextlib.suppress(OSError):
                os.kill(run.launcher_pid(i), signal.SIGKILL)
            launcher.kill()
            launcher.wait()
    run.took_s = time.monotonic() - began


def _clean(run: Run, ground: Ground) -> None:
    """Leave the ground as it was for the next trial, whatever happened in this one."""
    for process in run.everywhere():
        with contextlib.suppress(OSError):
            os.kill(process.pid, signal.SIGKILL)
    for launcher in run.launchers:
        launcher.kill()
        launcher.wait()
    fault = run.trial.fault
    if fault.target is Target.LINK and run.cluster and run.hit:
        run.cluster.heal(run.trial.node, fault.how)
    if fault.target is Target.HOST and run.hit:
        ground.close()


def _start_neighbour(trial: Trial, ground: Ground) -> Run:
    """A run like the trial's own, under way before it starts."""
    run = start(replace(trial, moment=Moment.RUNNING), ground, port=29500)
    _bring_to(run, Moment.RUNNING)
    run.marks = processes.collect_marks(run.everywhere())
    return run


def _end_neighbour(run: Run, ground: Ground) -> list[str]:
    """It has to come to its own end, with every worker."""
    (run.where / "finish").touch()
    _await_end(run, 8.0)
    bad = list(run.stuck)
    if set(run.codes) != {0}:
        bad.append(f"the neighbour run ended with {run.codes}")
    if len({event["rank"] for event in run.seen("exited")}) != run.trial.nodes * run.trial.slots:
        bad.append("the neighbour run lost a worker")
    _clean(replace(run, hit=False), ground)
    if not bad:
        shutil.rmtree(run.where, ignore_errors=True)
    return bad
