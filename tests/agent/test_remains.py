"""Owns: that nothing stays on a node whoever is killed: the run's control group, the lock of its directory, sweeping.
Must not: need a control group where the kernel gives none; those tests are skipped, and the fall-backs are tested.
Called by: pytest."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from meshrun import wire
from meshrun.agent import cgroup, group, home, oom, procs, remains
from tests.agent.driver import LIMIT_S, Driver, start_shell
from tests.agent.test_parts import make_files
from tests.agent.test_programs import FAMILY, MEMBERS, is_alive, read_pids, wait_until_gone

NOBODY = 65534
PARENT = group.find_parent()


def can_make_groups() -> bool:
    path = f"{PARENT}/meshrun-test-{os.getpid()}"
    try:
        os.mkdir(path)
        os.rmdir(path)
    except OSError:
        return False
    return os.getuid() == 0


needs_groups = pytest.mark.skipif(not can_make_groups(), reason="needs a cgroup2 that root may write")


def wait_until(check: object, what: str) -> None:
    assert callable(check)
    until = time.monotonic() + LIMIT_S
    while not check():
        assert time.monotonic() < until, what
        time.sleep(0.01)


def group_of(pid: int) -> str:
    lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    return next(line[3:] for line in lines if line.startswith("0::"))


def token_of(driver: Driver) -> str:
    (path,) = driver.homes
    return path.name.rpartition(".")[2]


# ---- the group of a run ----


@needs_groups
def test_all_but_the_guard_is_in_a_group_of_its_own_and_the_group_goes_with_the_run(tmp_path: Path) -> None:
    driver = Driver(tmp_path)
    start_shell(driver, tmp_path, FAMILY + "wait")
    name = group.make_name(token_of(driver))
    agent = driver.all_of(wire.Facts)[0].pid
    for pid in (agent, *read_pids(tmp_path, *MEMBERS)):
        assert group_of(pid).endswith(f"/{name}")
    assert name not in group_of(driver.process.pid)
    driver.close()
    driver.process.wait(LIMIT_S)
    assert not os.path.exists(f"{PARENT}/{name}") and not driver.homes


# As root a worker may make groups below its own. One that left the tree of processes as well: a stand-in, moved there.
@needs_groups
def test_a_member_that_neither_descends_nor_has_the_mark_is_found_also_in_a_group_below(tmp_path: Path) -> None:
    driver = Driver(tmp_path)
    start_shell(driver, tmp_path, "exec sleep 1000")
    path = f"{PARENT}/{group.make_name(token_of(driver))}"
    os.mkdir(f"{path}/below")
    with subprocess.Popen(["sleep", "1000"]) as stranger:
        Path(f"{path}/below/cgroup.procs").write_text(str(stranger.pid))
        driver.send(wire.Stop(0.2, "test"))
        driver.expect(wire.Drained)
        assert stranger.wait(LIMIT_S) == -signal.SIGTERM, "it was left, and could not say that it was asked to end"
    driver.close()
    driver.process.wait(LIMIT_S)
    assert not os.path.exists(path)


WAYS = {
    "agent": ("agent",),
    "guard": ("guard",),
    "agent, guard": ("agent", "guard"),
    "guard, agent": ("guard", "agent"),
}


def kill(driver: Driver, who: str, number: int = signal.SIGKILL) -> None:
    os.kill(driver.process.pid if who == "guard" else driver.all_of(wire.Facts)[0].pid, number)


@pytest.mark.parametrize("way", WAYS)
def test_whoever_is_killed_nothing_stays_once_the_next_agent_has_started(tmp_path: Path, way: str) -> None:
    """What two kills at once leave has nobody on its side who is alive: the next agent ends it."""
    with subprocess.Popen(["sleep", "1000"], env={"MESHRUN_MARK": "other.123"}) as neighbour:
        driver = Driver(tmp_path)
        start_shell(driver, tmp_path, FAMILY + "wait", grace_s=1.0)
        pids = read_pids(tmp_path, *MEMBERS)
        path = f"{PARENT}/{group.make_name(token_of(driver))}"
        for who in WAYS[way]:
            kill(driver, who)
        driver.read_to_end()
        if len(WAYS[way]) == 1:
            wait_until_gone(*pids)
            wait_until(lambda: not (driver.homes or os.path.exists(path)), "the directory or the group stayed")
        driver.close()
        driver.process.wait(LIMIT_S)
        after = Driver(tmp_path)
        after.send(wire.Leave(0, {}, ""))
        after.process.wait(LIMIT_S)
        gone = pids if can_make_groups() else [pid for pid, name in zip(pids, MEMBERS, strict=True) if name != "bare"]
        wait_until_gone(*gone)
        assert not after.homes and not os.path.exists(path)
        assert neighbour.poll() is None
        neighbour.kill()
        for pid in pids:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)


def test_a_stopped_agent_whose_guard_is_killed_ends(tmp_path: Path) -> None:
    driver = Driver(tmp_path)
    start_shell(driver, tmp_path, FAMILY + "wait", grace_s=0.5)
    pids = read_pids(tmp_path, *MEMBERS)
    kill(driver, "agent", signal.SIGSTOP)
    kill(driver, "guard")
    wait_until_gone(*pids, driver.all_of(wire.Facts)[0].pid)
    assert not driver.homes
    driver.close()


def test_the_continuation_of_an_agent_is_no_reason_to_end(tmp_path: Path) -> None:
    driver = Driver(tmp_path)
    start_shell(driver, tmp_path, "exec sleep 1000")
    kill(driver, "agent", signal.SIGSTOP)
    kill(driver, "agent", signal.SIGCONT)
    seen = len(driver.all_of(wire.Beat))
    until = time.monotonic() + LIMIT_S
    while len(driver.all_of(wire.Beat)) == seen:
        driver._receive(until)
    assert not driver.all_of(wire.Exited)
    driver.close()
    driver.process.wait(LIMIT_S)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user may write in; pytest's own are closed to others."""
    folder = Path(tempfile.mkdtemp(dir="/var/tmp"))
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def delegated() -> Iterator[str]:
    path = f"{PARENT}/test-delegated-{os.getpid()}"
    os.mkdir(path)
    for name in ("", "cgroup.procs", "cgroup.subtree_control", "cgroup.threads"):
        os.chown(f"{path}/{name}", NOBODY, NOBODY)
    yield path
    group.kill(path)
    wait_until(lambda: group.remove(path), path)


AS_NOBODY = f'exec setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups "$@"'


@needs_groups
@pytest.mark.parametrize("killed", ["", "agent"])
def test_an_ordinary_user_has_it_where_it_is_delegated(open_folder: Path, delegated: str, killed: str) -> None:
    enter = f"echo 0 > {delegated}/cgroup.procs; {AS_NOBODY}"
    driver = Driver(open_folder, prefix=("sh", "-c", f"umask 0; chmod 777 {open_folder}/private; {enter}", "sh"))
    start_shell(driver, open_folder, FAMILY + "wait")
    pids = read_pids(open_folder, *MEMBERS)
    assert {group_of(pid).rpartition("/")[0] for pid in pids} == {delegated.removeprefix(PARENT.rstrip("/"))}
    if killed:
        kill(driver, killed)
    driver.close()
    driver.process.wait(LIMIT_S)
    wait_until_gone(*pids)
    assert [entry.name for entry in os.scandir(delegated) if entry.is_dir()] == [] and not driver.homes


READ_ONLY = f'mount -o remount,bind,ro "{PARENT or "/"}" && exec "$@"'
FALL_BACKS = {
    "of another user": ("sh", "-c", AS_NOBODY, "sh"),
    "read-only": ("unshare", "-m", "sh", "-c", READ_ONLY, "sh"),
    "absent": ("unshare", "-m", "sh", "-c", f'umount -l "{PARENT or "/"}" && exec "$@"', "sh"),
}


@needs_groups
@pytest.mark.parametrize("why", FALL_BACKS)
def test_without_one_descent_and_mark_do_it_and_nobody_complains(open_folder: Path, why: str) -> None:
    (open_folder / "private").mkdir(0o777)
    (open_folder / "private").chmod(0o777)
    driver = Driver(open_folder, prefix=FALL_BACKS[why])
    start_shell(driver, open_folder, FAMILY + "wait")
    pids = read_pids(open_folder, *MEMBERS)
    assert not any("meshrun-" in group_of(pid) for pid in pids)
    driver.send(wire.Leave(0, {}, ""))
    assert driver.expect(wire.Bye).left == ()
    assert not any(map(is_alive, pids)) and driver.process.wait(LIMIT_S) == 0
    assert driver.errors() == "" and not driver.all_of(wire.Trouble)


MOUNT = "31 23 0:28 {part} {place} rw,relatime shared:9 - {kind} x rw\n"


@pytest.mark.parametrize(
    ("own", "mounts", "folder"),
    [
        ("0::/a/b", [("/", "/sys/fs/cgroup", "cgroup2")], "/sys/fs/cgroup/a/b"),
        ("0::/", [("/", "/sys/fs/cgroup", "cgroup2")], "/sys/fs/cgroup"),
        ("5:memory:/x\n0::/a", [("/", "/sys/fs/cgroup/unified", "cgroup2")], "/sys/fs/cgroup/unified/a"),
        ("0::/docker/1/a", [("/docker/1", "/sys/fs/cgroup", "cgroup2")], "/sys/fs/cgroup/a"),
        ("0::/docker/12", [("/docker/1", "/sys/fs/cgroup", "cgroup2")], ""),
        ("0::/../other", [("/", "/sys/fs/cgroup", "cgroup2")], ""),
        ("5:memory:/x", [("/", "/sys/fs/cgroup/memory", "cgroup")], ""),
        ("0::/a", [("/", "/sys/fs/cgroup", "tmpfs")], ""),
        ("0::/a", [("/", "/with\\040blank", "cgroup2")], "/with blank/a"),
        ("", [], ""),
    ],
)
def test_our_own_group_is_found_through_the_mounts(
    tmp_path: Path, own: str, mounts: list[tuple[str, str, str]], folder: str
) -> None:
    lines = "".join(MOUNT.format(part=part, place=place, kind=kind) for part, place, kind in mounts)
    root = make_files(tmp_path, proc__self__cgroup=own + "\n", proc__self__mountinfo=lines)
    for name in ("a", "a/b", "", "other", "docker/12"):
        for place in ("sys/fs/cgroup", "sys/fs/cgroup/unified", "with blank"):
            make_files(tmp_path, f"{place}/{name}/cgroup.procs".replace("//", "/"))
    assert group.find_parent(root) == (folder and root + folder)


def test_counters_and_limits_are_those_of_the_nearest_group_that_has_them(tmp_path: Path) -> None:
    base = "sys__fs__cgroup"
    texts = {
        "proc__self__cgroup": "0::/job/meshrun-1234\n",
        f"{base}__job__memory.events": "oom 1\noom_kill 2\n",
        f"{base}__job__memory.max": "268435456\n",
        f"{base}__job__meshrun-1234__cgroup.controllers": "\n",
        f"{base}__memory.events": "oom_kill 9\n",
    }
    root = make_files(tmp_path, **texts)
    assert cgroup.find_cgroup("memory.events", root) == f"{root}/sys/fs/cgroup/job"
    assert cgroup.find_cgroup("cpu.max", root) == f"{root}/sys/fs/cgroup"
    watch = oom.OomWatch(root)
    assert watch.judge(1) == "no"
    (tmp_path / "sys/fs/cgroup/job/memory.events").write_text("oom 2\noom_kill 3\n")
    assert watch.judge(1) == "yes" and watch.judge(1) == "no"
    assert watch.describe() == "the limit of 256 MiB of the cgroup /job"


# ---- a process that SIGKILL does not end ----

FREEZER = Path("/sys/fs/cgroup/freezer")


@pytest.mark.skipif(os.getuid() != 0 or not (FREEZER / "tasks").exists(), reason="needs the freezer of cgroup v1")
def test_one_that_cannot_be_ended_is_named_and_not_waited_for(tmp_path: Path) -> None:
    """Frozen by cgroup v1 a process is in state D and deaf to SIGKILL until it is thawed."""
    driver, frozen = Driver(tmp_path), FREEZER / f"meshrun-test-{os.getpid()}"
    start_shell(driver, tmp_path, "sleep 1000 & echo $! > child; wait")
    (child,) = read_pids(tmp_path, "child")
    frozen.mkdir()
    try:
        (frozen / "cgroup.procs").write_text(str(child))
        (frozen / "freezer.state").write_text("FROZEN")
        wait_until(lambda: (frozen / "freezer.state").read_text() == "FROZEN\n", "it does not freeze")
        driver.send(wire.Stop(0.1, "test"))
        driver.expect(wire.Drained)
        assert f"{child} sleep D (uninterruptible sleep)" in driver.all_of(wire.Trouble)[0].message
        driver.send(wire.Leave(0, {}, ""))
        assert driver.expect(wire.Bye).left == (f"{child} sleep D (uninterruptible sleep)",)
        assert driver.process.wait(LIMIT_S) == 0 and not driver.homes
    finally:
        (frozen / "freezer.state").write_text("THAWED")
        wait_until_gone(child)
        wait_until(lambda: not (frozen / "tasks").read_text(), "it is still a member")
        frozen.rmdir()
        group.remove_empty(PARENT)


# ---- the directory and its lock ----


def make_old(base: Path, token: str, path: str = "") -> Path:
    folder = base / remains.make_name(token)
    folder.mkdir()
    (folder / remains.GROUP).write_text(path)
    (folder / "bundle.zip").touch()
    return folder


TOKEN = "0123456789abcde"


def beside(base: Path) -> home.Home:
    """A home of ours in `base`, as far as a sweep looks at it."""
    return home.Home(f"{base}/ours", "", f"{PARENT}/ours" if PARENT else "", -1)


def test_a_sweep_takes_what_nobody_holds_and_nothing_else(tmp_path: Path) -> None:
    ours = make_old(tmp_path, TOKEN + "0")
    dead, held = make_old(tmp_path, TOKEN + "1"), make_old(tmp_path, TOKEN + "2")
    others = [tmp_path / name for name in (f"meshrun-{os.getuid()}-{TOKEN}0", "meshrun-x", "else")]
    for folder in others:
        folder.mkdir()
    (tmp_path / remains.make_name(TOKEN + "3")).symlink_to(others[0])
    locks = [os.open(folder, os.O_RDONLY) for folder in (ours, held)]
    for lock in locks:
        fcntl.flock(lock, fcntl.LOCK_EX)
    marks = {"dead": f"run.{TOKEN}1", "held": f"run.{TOKEN}2"}
    left = {name: subprocess.Popen(["sleep", "60"], env={"MESHRUN_MARK": mark}) for name, mark in marks.items()}
    try:
        wait_until(lambda: all(list(procs.find_marked(mark[4:])) for mark in marks.values()), "no mark")
        home.sweep(beside(tmp_path))
        assert left["dead"].wait(LIMIT_S) == -signal.SIGKILL and left["held"].poll() is None
        assert not dead.exists() and all(folder.exists() for folder in (ours, held, *others))
    finally:
        for process in left.values():
            process.kill()
            process.wait()
        for lock in locks:
            os.close(lock)


def test_a_sweep_leaves_a_shared_file_system_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = [make_old(tmp_path, TOKEN + digit) for digit in "12"]
    monkeypatch.setattr(home, "read_file_system", lambda path: "nfs4")
    home.sweep(beside(tmp_path))
    assert all(folder.exists() for folder in folders)


@pytest.mark.skipif(os.getuid() != 0, reason="needs root")
def test_a_sweep_leaves_other_users_alone(tmp_path: Path) -> None:
    folders = [make_old(tmp_path, TOKEN + digit) for digit in "12"]
    for folder in folders:
        os.chown(folder, NOBODY, NOBODY)
    home.sweep(beside(tmp_path))
    assert all(folder.exists() for folder in folders)


@needs_groups
def test_a_sweep_ends_the_group_that_a_directory_names_and_no_other(tmp_path: Path) -> None:
    make_old(tmp_path, TOKEN + "0")
    paths = [f"{PARENT}/{group.make_name(TOKEN + '1')}", f"{PARENT}/test-{os.getpid()}"]
    for digit, path in zip("12", paths, strict=True):
        os.mkdir(path)
        make_old(tmp_path, TOKEN + digit, path)
    members = [subprocess.Popen(["sleep", "60"]) for _ in paths]
    for member, path in zip(members, paths, strict=True):
        Path(f"{path}/cgroup.procs").write_text(str(member.pid))
    home.sweep(beside(tmp_path))
    assert members[0].wait(LIMIT_S) == -signal.SIGKILL and members[1].poll() is None
    assert not os.path.exists(paths[0])
    members[1].kill()
    members[1].wait()
    wait_until(lambda: group.remove(paths[1]), paths[1])


def test_a_directory_that_a_sweep_takes_before_it_is_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    real, taken = os.mkdir, []

    def make(path: str, mode: int = 0o777) -> None:
        real(path, mode)
        if len(taken) < 3:
            taken.append(path)
            os.rmdir(path)

    monkeypatch.setattr(os, "mkdir", make)
    made = home.make(TOKEN + "1", str(Path(__file__)))
    assert len(taken) == 3 and Path(made.path).stat().st_mode & 0o777 == 0o700
    assert Path(made.bundle).read_bytes() == Path(__file__).read_bytes()
    os.close(made.lock)


def test_a_place_that_cannot_be_used_gives_way_to_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = tmp_path / "good"
    good.mkdir()
    monkeypatch.setattr(remains, "list_bases", lambda: [str(tmp_path / "nope"), str(good)])
    made = home.make(TOKEN + "1", "/")
    assert made.path.startswith(str(good)) and made.bundle == "/"
    os.close(made.lock)
    monkeypatch.setattr(remains, "list_bases", lambda: [str(tmp_path / "nope")])
    with pytest.raises(home.NoPlaceError, match="nope: No such file"):
        home.make(TOKEN + "1", "/")


def test_no_place_at_all_is_said_as_the_launcher_reads_it(tmp_path: Path) -> None:
    shut = "mount --bind $place $place && mount -o remount,bind,ro $place"
    script = f'for place in /tmp /dev/shm /var/tmp; do {shut} || exit 9; done; exec "$@"'
    if os.getuid() != 0:
        pytest.skip("needs root")
    base = Path.home() / f".meshrun-test-{os.getpid()}"
    base.mkdir()
    try:
        env = {"HOME": "/nope", "TMPDIR": "/nope"}
        command = ["unshare", "-m", "sh", "-c", script, "sh"]
        driver = Driver(base, env, prefix=tuple(command))
        assert driver.process.wait(LIMIT_S) == 125
        assert driver.errors().startswith("meshrun-boot: no-tmp /nope: No such file or directory; /tmp: Read-only")
    finally:
        shutil.rmtree(base)
