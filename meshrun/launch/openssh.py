"""Owns: a node's agent over the system's `ssh`: what its config leads to, one process a host, and the end of both.
Must not: prompt, ever; know what ssh's messages mean (openssh_causes does) or which options it needs (openssh_args).
Called by: launch.openers."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import lru_cache

from meshrun.dataclass import replace
from meshrun.errors import Cause, CauseKind, InputError, Problem
from meshrun.launch.boot import COMMAND, UNKNOWN_EXIT
from meshrun.launch.channel import Channel, Deliver, Opener, Remark, Unreachable
from meshrun.launch.intake import Intake, MakeStart, Outbox, feed_safely
from meshrun.launch.openssh_args import Hop, Way, find_jumps, make_arguments, make_query, read_answers
from meshrun.launch.openssh_causes import (
    FAILED,
    explain_failure,
    explain_query,
    explain_unrun,
    find_exit,
    say_added_key,
)
from meshrun.launch.openssh_ears import Ears
from meshrun.launch.pipes import TOO_SLOW, read_both, read_rest, signal_session, start_process, wait_for, write_all
from meshrun.launch.ssh_connect import Failed, take_turn
from meshrun.launch.ssh_files import end_last_line
from meshrun.launch.ssh_jump import Asked
from meshrun.spec.values import Host, SshSettings

_EXIT_WAIT_S = 5.0
_LEAVE_S = 1.0  # how long ssh may take after end-of-file, and then after SIGTERM
_REST_S = 0.2  # what stood before the end of the far side's command is in this ssh already
_MOST_HOPS = 16
_QUERY_S = 30.0


def open_openssh(host: Host, settings: SshSettings, connect_timeout_s: float, make_start: MakeStart) -> Opener:
    """As `ssh.open_ssh`, by the system's `ssh`. Raises InputError if there is none."""
    if shutil.which("ssh") is None:
        hint = "install OpenSSH's client, or leave --ssh-client out"
        raise InputError(Problem("--ssh-client openssh: there is no ssh in PATH", hint=hint))

    def open_one(node: int, deliver: Deliver) -> Channel:
        return _OpensshChannel(node, deliver, host, settings, connect_timeout_s, make_start)

    return open_one


class _Gone(Exception):
    """The channel was closed while it was being opened."""


class _OpensshChannel:
    def __init__(
        self, node: int, deliver: Deliver, host: Host, settings: SshSettings, timeout_s: float, make_start: MakeStart
    ) -> None:
        self._intake = Intake(node, deliver)
        self._outbox = Outbox()
        self._ears = Ears()
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False
        self._over = threading.Event()
        args = (Asked(host.name, host.user, host.port), settings, timeout_s, make_start)
        threading.Thread(target=self._run, args=args, name=f"openssh-{node}", daemon=True).start()

    def send(self, data: bytes) -> None:
        self._outbox.put(data)

    def close(self) -> None:
        # What is queued still goes out; then ssh sees end-of-file, and so does the agent, also if we are killed here.
        self._intake.mute()
        self._outbox.stop()
        with self._lock:
            first, self._closed = not self._closed, True
            process = self._process
        if first and process:
            patience_s = _LEAVE_S if self._intake.opened else 0
            threading.Thread(target=self._see_off, args=(process, patience_s), daemon=True).start()

    def _see_off(self, process: subprocess.Popen[bytes], patience_s: float) -> None:
        for number, wait_s in ((signal.SIGTERM, patience_s), (signal.SIGKILL, _LEAVE_S)):
            if self._over.wait(wait_s):
                return
            signal_session(process, number)

    def _run(self, asked: Asked, settings: SshSettings, timeout_s: float, make_start: MakeStart) -> None:
        try:
            way = _read_way(asked, settings)
            with take_turn(way[0].server) as turn:
                self._attempt(way, timeout_s, make_start, turn)
        except Failed as failed:
            self._intake.deliver(Unreachable(self._intake.node, failed.cause))
        except InputError as error:
            cause = Cause(CauseKind.CONFIG, "; ".join(problem.message for problem in error.problems))
            self._intake.deliver(Unreachable(self._intake.node, cause))
        except OSError as error:
            cause = Cause(CauseKind.AGENT, f"cannot start ssh: {error.strerror}")
            self._intake.deliver(Unreachable(self._intake.node, cause))
        except _Gone:
            pass
        finally:
            self._outbox.stop()
            self._over.set()

    def _attempt(self, way: Way, timeout_s: float, make_start: MakeStart, turn: ExitStack) -> None:
        deadline = time.monotonic() + timeout_s
        for hop in way:
            if hop.policy == "accept-new":
                with suppress(OSError):  # ssh says itself what it cannot write
                    end_last_line(hop.known_hosts[0])
        process = self._start(make_arguments(way, timeout_s, COMMAND))
        assert process.stdin
        stdin = process.stdin
        self._outbox.start(make_start(), lambda data: write_all(stdin, data), stdin.close, f"{process.pid}-out")

        def feed(data: bytes) -> str:
            turn.close()
            self._ears.logged_in = True
            return feed_safely(self._intake, data)

        def hear(data: bytes) -> None:
            self._hear(data, way)
            if self._ears.logged_in:
                turn.close()

        reason = read_both(process, feed, hear, lambda: self._time_left(deadline))
        self._finish(process, way, reason)

    def _time_left(self, deadline: float) -> float | None:
        if self._ears.ended:
            return _REST_S
        return None if self._ears.logged_in else max(0.0, deadline - time.monotonic())

    def _start(self, argv: Sequence[str]) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._closed:
                raise _Gone
            self._process = start_process(argv, _make_environ())
            return self._process

    def _hear(self, data: bytes, way: Way) -> None:
        known = len(self._ears.added)
        self._intake.hear(self._ears.hear(data))
        for name, key_type in self._ears.added[known:]:
            self._intake.deliver(Remark(self._intake.node, say_added_key(way, name, key_type)))

    def _finish(self, process: subprocess.Popen[bytes], way: Way, reason: str) -> None:
        self._outbox.stop()
        if reason:  # also TOO_SLOW to follow the command that it ran
            signal_session(process, signal.SIGTERM)
        code = self._reap(process)
        assert process.stdout and process.stderr
        process.stdout.close()
        read_rest(process.stderr, lambda data: self._hear(data, way))
        self._intake.hear(self._ears.end())
        if self._ears.logged_in or 0 <= code != FAILED:
            self._end_line(way, code, reason)
        elif reason == TOO_SLOW:
            raise Failed(Cause(CauseKind.TIMED_OUT, f"{way[-1].asked.name} was too slow to log in to"))
        else:
            raise Failed(explain_failure(way, self._ears, code))

    def _end_line(self, way: Way, code: int, reason: str) -> None:
        if not self._intake.opened and (cause := explain_unrun(way, self._ears)):
            raise Failed(cause)
        told = find_exit(self._ears, code)
        garbled = reason if reason != TOO_SLOW else ""
        self._intake.end(told, garbled or _describe(told, code))

    def _reap(self, process: subprocess.Popen[bytes]) -> int:
        """It has closed its stdout, or was told to leave; a stopped or stuck one is killed."""
        code = wait_for(process, _EXIT_WAIT_S)
        if code is None:
            signal_session(process, signal.SIGKILL)
            code = process.wait()
        return code


def _describe(told: int | None, code: int) -> str:
    if told == UNKNOWN_EXIT:
        return "the agent ended (exit code unknown)"
    if code < 0:
        return f"its ssh was ended by signal {-code}"
    if told is None:
        return "the connection broke"
    return "the agent was ended by a signal" if told < 0 else f"the agent ended (exit code {told})"


def _make_environ() -> Mapping[str, str]:
    """Ours, but nothing that could ask: BatchMode does not hold for what a user's ProxyCommand starts."""
    kept = {name: value for name, value in os.environ.items() if name != "SSH_ASKPASS"}
    return kept | {"SSH_ASKPASS_REQUIRE": "never"}


def _read_way(asked: Asked, settings: SshSettings) -> Way:
    """The servers on the way, nearest first: ProxyJump's, and those that the nearest one's own config names.

    Raises Failed, or InputError for jumps that lead in a circle."""
    way: Way = (_ask(asked, settings),)
    plain = replace(settings, user=None, port=None)  # the line's and the command line's are the last host's
    while jumps := find_jumps(way[0].answers):
        way = (*(_ask(jump, plain) for jump in jumps), *way)
        if len(way) > _MOST_HOPS:
            raise InputError(f"{asked.name}: ProxyJump leads in a circle, or over more than {_MOST_HOPS} hosts")
    return way


@lru_cache(maxsize=4096)
def _ask(asked: Asked, settings: SshSettings) -> Hop:
    query = make_query(asked, settings)
    pipe, null = subprocess.PIPE, subprocess.DEVNULL
    try:
        done = subprocess.run(
            query, stdin=null, stdout=pipe, stderr=pipe, env=_make_environ(), timeout=_QUERY_S, start_new_session=True
        )
    except subprocess.TimeoutExpired:
        message = f"`ssh -G {asked.name}` did not end within {_QUERY_S:g} s"
        raise Failed(
            Cause(CauseKind.CONFIG, message, "see Match exec and CanonicalizeHostname in ssh config")
        ) from None
    hop = Hop(asked, settings, read_answers(done.stdout.decode("utf-8", "surrogateescape")))
    if done.returncode != 0:
        ears = Ears()
        ears.hear(done.stderr + b"\n")
        raise Failed(explain_query(hop, ears, done.returncode))
    return hop
