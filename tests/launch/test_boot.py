"""Owns: tests of the one command and what is sent to it, with real shells.
Must not: use SSH.
Called by: pytest."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshrun import wire
from meshrun.agent import procs
from meshrun.errors import CauseKind
from meshrun.launch import boot
from meshrun.launch.boot import COMMAND, UNKNOWN_SIGNAL, explain, make_prologue
from meshrun.launch.channel import Scanner
from tests.launch.standin import make_standin_bundle, make_start

# Whatever login shells there are here; tcsh and fish only where they are installed.
_SHELLS = [name for name in ("sh", "dash", "bash", "zsh", "ksh", "csh", "tcsh", "fish") if shutil.which(name)]
_INNER = [text for name in ("dash", "bash --posix", "busybox sh") if (text := shutil.which(name.split()[0]) and name)]


class Ended:
    """One start that ran until its stdin was used up."""

    def __init__(self, done: subprocess.CompletedProcess[bytes]) -> None:
        scanner = Scanner()
        self.messages = list(scanner.feed(done.stdout))
        self.opened = scanner.opened
        self.stderr = done.stderr.decode()
        self.cause = explain(scanner.noise + self.stderr, done.returncode)

    @property
    def answer(self) -> str:
        return str(self.messages[1].text)


def _start(start: bytes, *words: str, argv: list[str] | None = None, **env: str) -> Ended:
    frames = b"".join(wire.encode(wire.Stacks(0, word)) for word in words)
    whole = {**os.environ, **env}
    return Ended(
        subprocess.run([*(argv or ["/bin/sh", "-c"]), COMMAND], input=start + frames, capture_output=True, env=whole)
    )


def test_the_command_has_nothing_that_a_shell_may_read_otherwise() -> None:
    assert COMMAND.count("'") == 2 and COMMAND.endswith("'")
    assert not set(COMMAND) & set("!\\\n`")


@pytest.mark.parametrize("shell", _SHELLS)
def test_login_shells(shell: str) -> None:
    ended = _start(make_start(sys.executable)(), "hello", argv=[shell, "-c"])
    assert ended.answer == "hello", ended.stderr


@pytest.mark.parametrize("shell", _INNER)
def test_shells_that_may_be_bin_sh(shell: str) -> None:
    command = COMMAND.replace("/bin/sh", shell)
    start = make_start(sys.executable, prelude="A='x\ny'; false; . /dev/null")()
    frame = wire.encode(wire.Stacks(0, "env A"))
    done = subprocess.run(["/bin/sh", "-c", command], input=start + frame, capture_output=True)
    assert Ended(done).answer == "x\ny", done.stderr


def test_a_force_command_wrapper() -> None:
    argv = ["/bin/sh", "-c", 'exec /bin/bash -c "$0"']
    assert _start(make_start(sys.executable)(), "hello", argv=argv).answer == "hello"


def test_a_restricted_shell_is_an_agent_that_did_not_start() -> None:
    ended = _start(make_start(sys.executable)(), argv=["/bin/rbash", "-c"])
    assert ended.cause.kind is CauseKind.AGENT and "restricted" in ended.cause.message


@pytest.mark.parametrize(
    "prelude, name, value",
    [
        ("FOO=bar", "FOO", "bar"),
        ("export FOO='it'\\''s'", "FOO", "it's"),
        ('FOO=1\nFOO="$FOO\n2"', "FOO", "1\n2"),
        ("cd /; set -eu; FOO=$PWD", "FOO", "/"),
        ("echo meshrun-end-0\nFOO=x", "FOO", "x"),
        ("meshrun-end-0 2>/dev/null || true\nmeshrun-end-1 2>/dev/null || FOO=y", "FOO", "y"),
        ("IFS=:; set -f; FOO='a:b  c'", "FOO", "a:b  c"),
        ("FOO=grün", "FOO", "grün"),
        ("read FOO || FOO=nothing", "FOO", "nothing"),
        (":", "meshrun_c", "unset"),
        (":", "meshrun_s", "unset"),
    ],
)
def test_a_prelude_reaches_the_agent(prelude: str, name: str, value: str) -> None:
    ended = _start(make_start(sys.executable, prelude=prelude)(), f"env {name}")
    assert ended.answer == value, ended.stderr


def test_a_prelude_whose_output_looks_like_anything_never_reaches_the_frames() -> None:
    ended = _start(make_start(sys.executable, prelude="printf '\\000meshrun:frames:1\\000\\nx'; echo y >&2")(), "hello")
    assert ended.answer == "hello" and "xy" in ended.stderr


@pytest.mark.parametrize(
    "prelude, code", [("exit 3", "3"), ("false", "1"), ("set -e; false; true", "1"), ("if fi", "2"), ("nope", "127")]
)
def test_a_prelude_that_fails_stops_the_start(prelude: str, code: str) -> None:
    ended = _start(make_start(sys.executable, prelude=f"echo said\n{prelude}")())
    assert not ended.opened and ended.cause.kind is CauseKind.PRELUDE
    assert f"exit code {code}" in ended.cause.message and "  said" in ended.cause.message


def test_a_prelude_that_leaves_says_so() -> None:
    cause = _start(make_start(sys.executable, prelude="exit 0")()).cause
    assert cause.kind is CauseKind.PRELUDE and "leave out `exit`" in cause.hint


def test_no_python_names_every_path() -> None:
    ended = _start(make_start("/nope/it's", "~/nope", "nope-python", "/tmp")())
    assert ended.cause.kind is CauseKind.NO_PYTHON
    assert "/nope/it's, ~/nope, nope-python, /tmp" in ended.cause.message


def test_a_python_that_is_there_and_cannot_be_run_says_why(tmp_path: Path) -> None:
    link, file = tmp_path / "link", tmp_path / "file"
    link.symlink_to(tmp_path / "gone")
    file.write_text("#!/bin/sh\n")
    message = _start(make_start(str(link), str(file), "/nope")()).cause.message
    assert f"; {link} is a link to what is not there" in message and f"; {file} may not be executed" in message
    assert message.count(";") == 3, "nothing more is known of a path that is not there"


def test_pythons_are_tried_in_order(tmp_path: Path) -> None:
    (tmp_path / "a b").symlink_to(sys.executable)
    for start in (
        make_start("/nope", str(tmp_path / "a b")),
        make_start("~/a b"),
        make_start("nope-python", "mypython", prelude=f"ln -s {sys.executable} ~/mypython; PATH=$HOME:$PATH"),
    ):
        assert _start(start(), "hello", HOME=str(tmp_path)).answer == "hello"


def test_a_python_that_is_too_old(tmp_path: Path) -> None:
    old = tmp_path / "python"
    old.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S -c "import sys; sys.version_info = (3, 9, 1); $4"\n')
    old.chmod(0o755)
    cause = _start(make_start(str(old))()).cause
    assert cause.kind is CauseKind.PYTHON_TOO_OLD and "Python 3.9" in cause.message
    old.write_text("#!/bin/sh\necho Unknown option: $1 >&2\nexit 2\n")
    assert _start(make_start(str(old))()).cause.kind is CauseKind.PYTHON_TOO_OLD


def test_a_start_that_is_cut_off_leaves_nothing(tmp_path: Path) -> None:
    start = make_start(sys.executable)()
    for size in (10, 300, len(start) - 1):
        env = {**os.environ, "TMPDIR": str(tmp_path)}
        done = subprocess.run(["/bin/sh", "-c", COMMAND], input=start[:size], capture_output=True, env=env)
        assert done.stdout == b"" and list(tmp_path.iterdir()) == []


def test_a_bundle_that_does_not_import_leaves_nothing(tmp_path: Path) -> None:
    ended = _start(make_prologue([sys.executable], "", b"not a zip"), TMPDIR=str(tmp_path))
    assert ended.cause.kind is CauseKind.AGENT and "No module named" in ended.cause.message
    assert list(tmp_path.iterdir()) == []


@settings(max_examples=8, deadline=None)
@given(st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=30))
def test_any_text_can_be_a_value_in_a_prelude(text: str) -> None:
    ended = _start(make_start(sys.executable, prelude=f"FOO={shlex.quote(text)}")(), "env FOO")
    assert ended.answer == text


@pytest.mark.parametrize(
    "noise, code, kind, word",
    [
        ("", None, CauseKind.DROPPED, "broke"),
        ("last words", None, CauseKind.DROPPED, "last words"),
        ("This account is currently not available.", 1, CauseKind.AGENT, "not available"),
        ("", UNKNOWN_SIGNAL, CauseKind.AGENT, "ended by a signal"),
        ("", -9, CauseKind.AGENT, "signal 9"),
        ("banner\nmeshrun-boot: prelude 7", 125, CauseKind.PRELUDE, "banner"),
        ("meshrun-boot: no-tmp /tmp: No space left on device", 125, CauseKind.AGENT, "No space left"),
        ("meshrun-boot: no-process Resource temporarily unavailable", 125, CauseKind.AGENT, "no process can be had"),
        ("welcome to meshrun-boot: prelude 7", 3, CauseKind.AGENT, "exit code 3"),
    ],
)
def test_explain(noise: str, code: int | None, kind: CauseKind, word: str) -> None:
    cause = explain(noise, code)
    assert cause.kind is kind and word in cause.message


def test_explain_shows_the_last_lines_only() -> None:
    message = explain("\n".join(f"line {n}" for n in range(1000)), 1).message
    assert "line 999" in message and "line 900" not in message


def test_the_bundle_stays_small() -> None:
    assert len(make_prologue(["python"], "", b"")) < 4000
    assert len(make_standin_bundle()) < 100_000


# ---- killed or stopped before an agent stands ----


def _begin(tmp_path: Path, start: bytes, **env: str) -> subprocess.Popen[bytes]:
    """A start in a session of its own, with the first bytes of what it is to read."""
    whole = {**os.environ, "TMPDIR": str(tmp_path), **env}
    process = subprocess.Popen(
        ["/bin/sh", "-c", COMMAND],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=whole,
        start_new_session=True,
    )
    assert process.stdin
    process.stdin.write(start)
    process.stdin.flush()
    return process


def _wait_for_watcher(boot: int) -> int:
    """The child of a start that reads its bundle; it is in a group of its own once it watches."""
    found = 0
    while not (found and os.getpgid(found) == found):
        children = procs.read_children(boot)
        found = children[0] if children else 0
    return found


def _wait_until(check: Callable[[], bool]) -> None:
    until = time.monotonic() + 30.0
    while not check():
        assert time.monotonic() < until
        time.sleep(0.01)


def _is_gone(pid: int) -> bool:
    process = procs.read_process(pid)
    return process is None or process.dead


@pytest.mark.parametrize("stopped", [False, True])
def test_a_start_that_is_killed_leaves_nothing(tmp_path: Path, stopped: bool) -> None:
    """Also its watcher goes if that is stopped itself."""
    process = _begin(tmp_path, make_start(sys.executable)()[:-1])
    watcher = _wait_for_watcher(process.pid)
    if stopped:
        os.kill(watcher, signal.SIGSTOP)
        _wait_until(lambda: (found := procs.read_process(watcher)) is not None and found.state == "T")
    process.kill()
    process.communicate()
    _wait_until(lambda: _is_gone(watcher))
    assert list(tmp_path.iterdir()) == []


def test_a_start_that_is_stopped_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boot, "_BOOT", boot._BOOT.replace("== 10", "== 1").replace("stopped < 10", "stopped < 1"))
    process = _begin(tmp_path, make_start(sys.executable)()[:-1])
    _wait_for_watcher(process.pid)
    os.kill(process.pid, signal.SIGSTOP)
    assert process.wait(30) == -signal.SIGKILL and list(tmp_path.iterdir()) == []
    process.communicate()


def test_a_start_whose_line_falls_silent_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A network that is cut while the bundle travels: sshd may hold such a session for hours."""
    assert "[], [], 10)" in boot._BOOT
    monkeypatch.setattr(boot, "_BOOT", boot._BOOT.replace("[], [], 10)", "[], [], 0.5)"))
    process = _begin(tmp_path, make_start(sys.executable)()[:-1])
    watcher = _wait_for_watcher(process.pid)
    assert process.wait(30) == 0 and list(tmp_path.iterdir()) == []
    _wait_until(lambda: _is_gone(watcher))
    process.communicate()


def test_a_start_that_is_slow_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped for less than the limit; the bundle comes after that."""
    start = make_start(sys.executable)()
    process = _begin(tmp_path, start[:-1])
    watcher = _wait_for_watcher(process.pid)
    os.kill(process.pid, signal.SIGSTOP)
    os.kill(process.pid, signal.SIGCONT)
    out, _ = process.communicate(start[-1:])
    assert wire.MARKER in out and process.returncode == 0 and _is_gone(watcher)


def test_a_python_that_cannot_make_a_file_in_memory(tmp_path: Path) -> None:
    old = tmp_path / "python"
    old.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S -c "import os; del os.memfd_create; $4"\n')
    old.chmod(0o755)
    (tmp_path / "tmp").mkdir()
    start = make_start(str(old))()
    process = _begin(tmp_path / "tmp", start[:-1])
    _wait_for_watcher(process.pid)
    out, _ = process.communicate(start[-1:])
    assert wire.MARKER in out and list((tmp_path / "tmp").iterdir()) == []
