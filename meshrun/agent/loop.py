"""Owns: the agent's one loop: events in, `supervisor.advance`, actions out.
Must not: decide (supervisor), or import at its top what can wait until the fork server is on its way.
Called by: agent.__main__."""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from meshrun import wire
from meshrun.agent import error_file, procs, supervisor, variables
from meshrun.agent import events as ev
from meshrun.agent.group import Membership
from meshrun.agent.home import Home, sweep
from meshrun.agent.line import Line
from meshrun.agent.oom import OomWatch
from meshrun.agent.progress import Progress
from meshrun.agent.reactor import Reactor
from meshrun.agent.services import ForkServer, StoreHolder
from meshrun.agent.spawn import to_text
from meshrun.agent.stacks import StackDump
from meshrun.agent.state import Stage, next_deadline
from meshrun.agent.trees import Trees
from meshrun.agent.variables import NodeValues
from meshrun.agent.workers import Workers
from meshrun.dataclass import replace
from meshrun.errors import CauseKind
from meshrun.wire import Brief, Fork, ForkStore, Order, Start, Trouble

if TYPE_CHECKING:
    from meshrun.agent.reach import Offer

_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGCHLD, signal.SIGCONT)
_DEPART_S = 1.0  # for the last messages to leave
_MIN_EXIT_BOUND_S = 1.0


class Agent:
    """One node's agent, from its marker to its last message."""

    def __init__(self, home: Home, membership: Membership, token: str, guard: int, reading: int, writing: int) -> None:
        self._home, self._tmp, self._token, self._guard = home, home.path, token, guard
        tmp, bundle = home.path, home.bundle
        self._membership = membership
        self._reactor = Reactor()
        self._reactor.watch_signals(_SIGNALS, self._got_signals)
        self._line = Line(self._reactor, reading, writing, tmp)
        self._line.listen(self._heard, lambda: self._post(ev.LineLost()))
        self._events: deque[ev.Event] = deque()
        self._state = supervisor.begin(self._reactor.now())
        self._server = ForkServer(self._reactor, self._post, bundle, tmp)
        self._store = StoreHolder(self._reactor, self._post, bundle, tmp)
        self._workers = Workers(self._reactor, self._line, self._post, bundle, tmp)
        self._trees = Trees(token, membership)
        self._oom: OomWatch | None = None
        self._offer: Offer | None = None
        self._login = {to_text(name): to_text(value) for name, value in os.environb.items()}
        self._base: dict[str, str] = {}
        self._mask_name = ""
        self._progress: Progress | None = None
        self._depart_at: float | None = None

    def run(self) -> None:
        """Serve until everything is gone and the last message has left."""
        self._line.flush()
        sweep(self._home)  # while the launcher takes in that we are here
        while True:
            self._work_off()
            self._line.flush()
            now = self._reactor.now()
            if self._depart_at is not None and (self._line.idle or now >= self._depart_at):
                return
            due = [next_deadline(self._state), self._line.next_beat(), self._depart_at]
            nearest = min((at for at in due if at is not None), default=None)
            self._reactor.wait(now if self._events else nearest)
            deadline = next_deadline(self._state)
            if not self._events and deadline is not None and deadline <= self._reactor.now():
                self._post(ev.Tick())

    def _post(self, event: ev.Event) -> None:
        self._events.append(event)

    def _work_off(self) -> None:
        while self._events:
            self._state, actions = supervisor.advance(self._state, self._events.popleft(), self._reactor.now())
            for action in actions:
                _PERFORM[type(action)](self, action)

    # ---- where events come from ----

    def _heard(self, message: Any) -> None:
        if isinstance(message, Brief):
            message = self._take_brief(message)
        self._post(ev.Heard(message))

    def _take_brief(self, brief: Brief) -> Brief:
        if brief.workdir == "~" or brief.workdir.startswith("~/"):
            brief = replace(brief, workdir=self._login.get("HOME", "/") + brief.workdir[1:])
        self._base = variables.make_base(self._login, brief)
        self._mark = f"{brief.run_id}.{self._token}"
        self._line.open_window(brief.window_bytes)
        self._membership.wait()  # whatever is started from now on is in the group
        self._oom = OomWatch()
        return self._choose_start(brief)

    def _choose_start(self, brief: Brief) -> Brief:
        """OpenMP places its threads as it is loaded: in the fork server, that would be on all CPUs of the node."""
        if brief.bind == "none" or brief.start_method != "fork" or brief.form == "program":
            return brief
        from meshrun.agent.shares import find_placing

        said = find_placing(self._base)
        if not said:
            return brief
        why = f"workers are started as fresh interpreters: {said} must be read on the CPUs that --bind gives each"
        self._line.send(Trouble(CauseKind.AGENT.value, why, "", False))
        return replace(brief, start_method="spawn")

    def _got_signals(self, numbers: set[int]) -> None:
        if signal.SIGCHLD in numbers:
            self._reap()
        if signal.SIGCONT in numbers and os.getppid() != self._guard:
            self._post(ev.Signalled(signal.SIGTERM))  # without it nobody would end what we leave
        for number in numbers - {signal.SIGCHLD, signal.SIGCONT}:
            self._post(ev.Signalled(number))

    def _reap(self) -> None:
        """Collect every child that has ended. What it said on its socket is told first."""
        ended = list(_wait_for_children())
        self._workers.drain_sockets()
        self._server.drain()
        for pid, code, number in ended:
            if pid == self._server.pid:
                self._server.ended(f"signal {number}" if number else f"exit code {code}")
            self._store.reaped(pid)
            oom = self._oom.judge(pid) if self._oom and number == signal.SIGKILL else ""
            self._post(ev.Reaped(pid, code, number, oom, self._reactor.now()))

    # ---- actions ----

    def _send(self, action: ev.Send) -> None:
        if not self._line.open:
            return
        if action.last:
            self._line.send_last(action.message)
        else:
            self._line.send(action.message, action.at)

    def _tell_end(self, action: ev.TellEnd) -> None:
        exited = action.exited
        said = self._workers.last_words(exited.rank)
        raised = None if action.recorded else error_file.read(self._tmp, exited)
        if raised is not None:
            self._send(ev.Send(raised, action.at))
        where = self._oom.describe() if self._oom and exited.oom == "yes" else ""
        self._send(ev.Send(replace(exited, said=said, oom_where=where), action.at))

    def _start_server(self, action: ev.StartServer) -> None:
        self._server.start(action.brief, self._server_env(action.brief))

    def _server_env(self, brief: Brief) -> dict[str, str]:
        return variables.make_server_env(self._base, brief, self._mark)

    def _greet(self, action: ev.Greet) -> None:
        from meshrun.agent import probe, reach  # 10 ms, in which the fork server starts
        from meshrun.agent.shares import cannot_bind

        brief = action.brief
        if brief.offers:
            try:
                self._offer = reach.Offer(self._reactor, brief.offer_port)
            except OSError as error:
                reason = f"port {brief.offer_port} on this node: {error.strerror or error}"
                self._line.send(Trouble(CauseKind.STORE.value, reason, "pick another --master-port", True))
        if brief.bind != "none" and (reason := cannot_bind()):
            self._line.send(Trouble(CauseKind.AGENT.value, reason, "leave out --bind", True))
            return
        port = self._offer.port if self._offer else 0
        parts = probe.look(brief, self._base)
        self._mask_name = parts.found.mask_name
        self._line.send(probe.make_facts(brief, self._login, self._base, self._tmp, port, parts))

    def _reach(self, action: ev.Reach) -> None:
        from meshrun.agent import reach

        reach.Try(self._reactor, action.request, self._line.send)

    def _bind_store(self, action: ev.BindStore) -> None:
        if self._offer is not None:
            self._offer.close()
            self._offer = None
        self._store.bind(action.request)

    def _serve_store(self, action: ev.ServeStore) -> None:
        assert self._state.brief is not None
        message = ForkStore(action.world_size, action.timeout_s)
        if action.how == "fork":
            self._store.serve_forked(message, self._server)
        else:
            self._store.serve_afresh(message, self._server_env(self._state.brief), at_once=action.how == "exec")

    def _launch(self, action: ev.Launch) -> None:
        self._workers.close()
        self._trees.forget()
        self._watch_progress()
        order, forks = self._make_order(), self._make_forks()
        if action.how == "fork":
            self._workers.fork(self._server, order, forks)
        elif action.how == "exec":
            self._workers.spawn(order, forks)
        else:
            self._workers.run_program(order, forks)

    def _watch_progress(self) -> None:
        assert self._state.assign
        if self._progress:
            self._progress.stop()
            self._progress = None
        if every_s := self._state.assign.progress_s:
            self._progress = Progress(
                self._reactor, every_s, self._running, self._workers.take_writers, self._tell_progress
            )

    def _running(self) -> dict[int, int]:
        return {worker.rank: worker.pid for worker in self._state.workers if worker.stage is Stage.RUNNING}

    def _tell_progress(self, ranks: tuple[int, ...]) -> None:
        self._line.send(wire.Progress(self._state.attempt, ranks))

    def _make_order(self) -> Order:
        brief, assign, start = self._state.brief, self._state.assign, self._state.start
        assert brief and assign and start
        return Order(
            form=brief.form,
            argv=brief.argv,
            typed=brief.typed,
            tensors=brief.tensors,
            steps=brief.steps,
            rehearsed=tuple(slot.rank for slot in assign.workers) if brief.tensors else (),
            pass_local_rank=brief.pass_local_rank,
            init=brief.init,
            device=assign.device,
            backend=assign.backend,
            timeout_s=assign.timeout_s,
            mesh=assign.mesh,
            fingerprint=assign.fingerprint,
            workdir=brief.workdir,
            attempt=start.attempt,
            tmp=self._tmp,
            exit_bound_s=max(brief.grace_s, _MIN_EXIT_BOUND_S),
        )

    def _make_forks(self) -> list[Fork]:
        brief, assign, start = self._state.brief, self._state.assign, self._state.start
        assert brief and assign and start
        node = self._make_node_values(start, brief.agents_here)
        envs = (variables.make_worker_env(self._base, brief, assign, slot, start, node) for slot in assign.workers)
        return [Fork(slot.rank, env, slot.share.cpus) for slot, env in zip(assign.workers, envs, strict=True)]

    def _make_node_values(self, start: Start, agents: int) -> NodeValues:
        from meshrun.agent import netlink, probe

        return NodeValues(
            cores=probe.count_cores() // agents,
            interface=netlink.find_interface_towards(start.master_addr, start.master_port),
            mask_name=self._mask_name,
            tmp=self._tmp,
            mark=self._mark,
        )

    def _keep(self, all_: bool) -> list[int]:
        """Processes whose subtrees are not meant when a worker's or an attempt's leftovers are."""
        if all_:
            return []
        return [pid for pid in (self._server.pid, self._store.pid, self._store.ending) if pid]

    def _end_tree(self, action: ev.EndTree) -> None:
        self._trees.end_tree(action.rank, action.pid, action.signal, [*self._keep(False), *self._running().values()])

    def _look(self, action: ev.Look) -> None:
        self._post(ev.Left(self._trees.look(self._keep(action.all), action.all)))

    def _collect_stacks(self, action: ev.CollectStacks) -> None:
        for rank, pid in action.workers:
            StackDump(self._reactor, self._tmp, rank, pid, self._line.send)

    def _depart(self, action: ev.Depart) -> None:
        self._workers.close()
        if os.getppid() != self._guard:
            self._membership.leave()
        procs.remove_tree(self._tmp)
        if action.bye is not None and self._line.open:
            self._line.send_last(action.bye)
        self._depart_at = self._reactor.now() + _DEPART_S


def _wait_for_children() -> list[tuple[int, int, int]]:
    """Pid, exit code and signal of each child that has ended; the code for a signal is 128 + its number."""
    found = []
    try:
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
            found.append((pid, 128 + number if number else os.WEXITSTATUS(status), number))
    except ChildProcessError:
        pass
    return found


_PERFORM: dict[type[Any], Callable[[Agent, Any], None]] = {
    ev.Send: Agent._send,
    ev.StartServer: Agent._start_server,
    ev.Greet: Agent._greet,
    ev.Reach: Agent._reach,
    ev.BindStore: Agent._bind_store,
    ev.ServeStore: Agent._serve_store,
    ev.StoreStarted: lambda agent, action: agent._store.started(action.pid),
    ev.CloseStore: lambda agent, action: agent._store.close(),
    ev.Launch: Agent._launch,
    ev.TellEnd: Agent._tell_end,
    ev.SignalMain: lambda agent, action: procs.send_signal(action.pid, action.signal),
    ev.SignalWorker: lambda agent, action: agent._trees.signal_worker(action.pid, action.signal),
    ev.EndTree: Agent._end_tree,
    ev.EndAll: lambda agent, action: agent._trees.end_all(action.signal, agent._keep(action.all), action.all),
    ev.Look: Agent._look,
    ev.CloseStreams: lambda agent, action: agent._workers.close(),
    ev.KillServer: lambda agent, action: agent._server.kill(),
    ev.CollectStacks: Agent._collect_stacks,
    ev.CloseLine: lambda agent, action: agent._line.shut(),
    ev.Depart: Agent._depart,
}
