"""Owns: the agent's decisions as one table: state, event and time in; new state and actions out.
Must not: do I/O or read a clock.
Called by: agent.loop; tests play whole histories through it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshrun.agent import ending
from meshrun.agent import events as ev
from meshrun.agent.state import (
    Phase,
    Server,
    Stage,
    State,
    Step,
    Store,
    Worker,
    change_worker,
    change_workers,
    silence_deadline,
    turn,
)
from meshrun.dataclass import replace
from meshrun.errors import CauseKind
from meshrun.wire import (
    PROTOCOL,
    Ack,
    Assign,
    Beat,
    Brief,
    Drained,
    Dump,
    Exited,
    Leave,
    OpenStore,
    Raised,
    SignalWorkers,
    Spawned,
    Start,
    Stop,
    StoreOpened,
    Trouble,
    TryAddresses,
)


def begin(now: float) -> State:
    """An agent that has just started."""
    return State(heard_at=now)


def advance(state: State, event: ev.Event, now: float) -> Step:
    """The one step of the machine. After `Phase.GONE` nothing happens any more."""
    if state.phase is Phase.GONE:
        return state, []
    state, actions = _EVENTS[type(event)](state, event, now)
    state, more = ending.settle(state, now)
    return state, actions + more


def _trouble(message: str, fatal: bool, kind: CauseKind = CauseKind.AGENT, hint: str = "") -> ev.Send:
    return ev.Send(Trouble(kind.value, message, hint, fatal))


# ---- from the launcher ----


def _heard(state: State, event: ev.Heard, now: float) -> Step:
    state = replace(state, heard_at=now)
    phases, act = _MESSAGES.get(type(event.message), ((), None))
    if act and state.phase in phases:
        return act(state, event.message, now)
    if state.leaving or (act and state.phase in (Phase.STOPPING, Phase.CLEARING)):
        return state, []  # it crossed with our own end
    name = type(event.message).__name__
    return state, [_trouble(f"the agent got {name} while it was {state.phase.value}", fatal=True)]


def _nothing(state: State, message: Any, now: float) -> Step:
    return state, []


def _brief(state: State, message: Brief, now: float) -> Step:
    if message.protocol != PROTOCOL:
        told = _trouble(f"the launcher speaks protocol {message.protocol}, this agent {PROTOCOL}", fatal=True)
        return replace(state, leaving=True), [told]
    state = turn(state, Phase.GREETED, brief=message)
    if message.form == "program" or message.start_method != "fork":
        return state, [ev.Greet(message)]
    return replace(state, server=Server.IMPORTING), [ev.StartServer(message), ev.Greet(message)]


def _assign(state: State, message: Assign, now: float) -> Step:
    return turn(state, Phase.ASSIGNED, assign=message), []


def _reach(state: State, message: TryAddresses, now: float) -> Step:
    return state, [ev.Reach(message)]


def _open_store(state: State, message: OpenStore, now: float) -> Step:
    state, actions = ending.close_store(state)
    return replace(state, store_request=message), [*actions, ev.BindStore(message)]


def _start(state: State, message: Start, now: float) -> Step:
    assert state.assign is not None
    workers = tuple(Worker(slot.rank) for slot in state.assign.workers)
    state = turn(state, Phase.STARTING, attempt=message.attempt, start=message, workers=workers, early=())
    return _launch(state)


def _launch(state: State) -> Step:
    """Start the workers, unless the fork server is still importing: `Imported` comes back here."""
    assert state.brief is not None
    if state.server is Server.IMPORTING or not state.has(Stage.WAITING):
        return state, []
    program = state.brief.form == "program"
    how = "program" if program else "fork" if state.server is Server.READY else "exec"
    state = change_workers(state, Stage.WAITING, stage=Stage.LAUNCHED, open=True)
    # Said now and not at `Imported`: a node that lacks torch is refused before it comes to this.
    why = f"workers are started as fresh interpreters: {state.unsafe}"
    told = [_trouble(why, fatal=False)] if state.unsafe else []
    return replace(state, how=how, unsafe=""), [*told, ev.Launch(how)]


def _stop(state: State, message: Stop, now: float) -> Step:
    if state.phase in (Phase.WAITING, Phase.GREETED, Phase.ASSIGNED):
        state, actions = ending.close_store(state)
        return state, [*actions, ev.Send(Drained(state.attempt), last=True)]
    return ending.stop(state, message.grace_s, now)


def _signal_workers(state: State, message: SignalWorkers, now: float) -> Step:
    alive = state.phase in ending.ALIVE
    running = [worker for worker in state.workers if alive and worker.stage is Stage.RUNNING]
    return state, [ev.SignalMain(worker.pid, message.signal) for worker in running]


def _dump(state: State, message: Dump, now: float) -> Step:
    wanted = [w for w in state.workers if w.stage is Stage.RUNNING and (not message.ranks or w.rank in message.ranks)]
    return state, [ev.CollectStacks(tuple((worker.rank, worker.pid) for worker in wanted))] if wanted else []


def _leave(state: State, message: Leave, now: float) -> Step:
    return ending.leave(state, now)


# ---- from the node ----


def _line_lost(state: State, event: ev.LineLost, now: float) -> Step:
    state, actions = ending.leave(replace(state, line_open=False), now)
    return state, [ev.CloseLine(), *actions]


def _signalled(state: State, event: ev.Signalled, now: float) -> Step:
    if state.signalled:
        return ending.stop(state, 0.0, now)
    told = _trouble(f"the agent on this node was told to end (signal {event.signal})", fatal=True)
    state, actions = ending.leave(replace(state, signalled=True), now)
    return state, [told, *actions]


def _from_server(state: State, event: ev.FromServer, now: float) -> Step:
    if state.server is not Server.IMPORTING:
        return state, []
    if not event.message.problem:
        return _go_on(replace(state, server=Server.READY))
    state, actions = _go_on(replace(state, server=Server.UNSAFE, unsafe=event.message.problem))
    return state, [ev.KillServer(), *actions]


def _go_on(state: State) -> Step:
    """The fork server's fate is known: what waited for it proceeds, the store first: the workers need it."""
    state, actions = _serve_store(state)
    state, more = _launch(state)
    return state, actions + more


def _server_lost(state: State, event: ev.ServerLost, now: float) -> Step:
    if state.server not in (Server.IMPORTING, Server.READY):
        return state, []
    state = replace(state, server=Server.GONE)
    if state.store is Store.HANDED:
        state = replace(state, store=Store.HELD)
    if state.how == "fork" and state.has(Stage.LAUNCHED):
        told = _trouble(f"the fork server ended while it started workers: {event.reason}", fatal=True)
        state = change_workers(state, Stage.LAUNCHED, stage=Stage.ENDED)
        state, actions = ending.stop(state, state.grace_s, now)
        return state, [told, *actions]
    needed = state.phase in (Phase.GREETED, Phase.ASSIGNED, Phase.STARTING, Phase.DRAINED)
    told = _trouble(f"workers are started as fresh interpreters: the fork server ended: {event.reason}", fatal=False)
    state, actions = _go_on(state)
    return state, [told, *actions] if needed and not state.leaving else actions


def _started(state: State, event: ev.Started, now: float) -> Step:
    early = next((e for e in state.early if isinstance(e, ev.Reaped) and e.pid == event.pid), None)
    if event.rank == ev.STORE:
        return _store_started(state, event.pid, early)
    if not any(w.rank == event.rank and w.stage is Stage.LAUNCHED for w in state.workers):
        return state, [ev.SignalWorker(event.pid, ending.SIGKILL)]
    state = change_worker(state, event.rank, stage=Stage.RUNNING, pid=event.pid)
    actions: list[ev.Action] = [ev.Send(Spawned(event.rank, event.pid, state.attempt, 0.0), event.at)]
    if state.phase is Phase.STOPPING:
        actions.append(ev.SignalWorker(event.pid, ending.SIGKILL if state.killed else ending.SIGTERM))
        state = change_worker(state, event.rank, stopped=True)
    for said in [e for e in state.early if isinstance(e, ev.Said) and e.rank == event.rank]:
        state, more = _said(state, said, now)
        actions += more
    if early:
        state, more = _worker_ended(state, event.rank, early, now)
        actions += more
    if state.phase is Phase.STARTING and not state.has(Stage.LAUNCHED):
        state = turn(state, Phase.RUNNING, early=())
    return state, actions


def _start_failed(state: State, event: ev.StartFailed, now: float) -> Step:
    told = [_trouble(f"rank {event.rank} could not be started: {event.reason}", fatal=True)]
    told = told if state.phase is Phase.STARTING else []  # the others fail for the same reason
    state, actions = ending.stop(change_worker(state, event.rank, stage=Stage.ENDED, open=False), state.grace_s, now)
    return state, [*told, *actions]


def _said(state: State, event: ev.Said, now: float) -> Step:
    """A worker's words wait until it is `Spawned`: the fork server says that on another socket, maybe later."""
    if any(w.rank == event.rank and w.stage is Stage.LAUNCHED for w in state.workers):
        return replace(state, early=(*state.early, event)), []
    if isinstance(event.message, Raised):
        state = change_worker(state, event.rank, recorded=True)
    return state, [ev.Send(replace(event.message, rank=event.rank, attempt=state.attempt), event.at)]


def _reaped(state: State, event: ev.Reaped, now: float) -> Step:
    running = [w.rank for w in state.workers if w.pid == event.pid and w.stage is Stage.RUNNING]
    if running:
        return _worker_ended(state, running[0], event, now)
    if event.pid == state.store_pid:
        return _store_ended(state, event)
    if state.has(Stage.LAUNCHED) or state.store is Store.HANDED:
        state = replace(state, early=(*state.early, event))
    return state, ending.look(state)


def _worker_ended(state: State, rank: int, event: ev.Reaped, now: float) -> Step:
    worker = next(w for w in state.workers if w.rank == rank)
    number = ending.SIGKILL if state.killed else ending.SIGTERM
    state = change_worker(state, rank, stage=Stage.ENDED, kill_at=None if state.killed else now + state.grace_s)
    exited = Exited(rank, state.attempt, 0.0, event.exit_code, event.signal, event.oom, worker.stopped)
    failed = event.exit_code != 0 and not worker.stopped
    told = ev.TellEnd(exited, event.at, worker.recorded) if failed else ev.Send(exited, event.at)
    return state, [told, ev.EndTree(rank, event.pid, number)]


def _store_started(state: State, pid: int, early: ev.Reaped | None) -> Step:
    if state.store is Store.NONE:
        return state, [ev.SignalWorker(pid, ending.SIGKILL)]
    state = replace(state, store=Store.SERVED, store_pid=pid)
    state, actions = _store_ended(state, early) if early else (state, [])
    return state, [ev.StoreStarted(pid), *actions]


def _store_ended(state: State, event: ev.Reaped) -> Step:
    """Harmless once all have met; with `--init off` a node without torch has no use for a store anyway."""
    state = replace(state, store_pid=0)
    wanted = state.brief is not None and state.brief.init != "off"
    if not wanted or state.phase not in (Phase.ASSIGNED, Phase.STARTING, Phase.RUNNING):
        return state, []
    how = f"signal {event.signal}" if event.signal else f"exit code {event.exit_code}"
    return state, [_trouble(f"the store process ended ({how})", fatal=False, kind=CauseKind.STORE)]


def _streams_closed(state: State, event: ev.StreamsClosed, now: float) -> Step:
    return change_worker(state, event.rank, open=False), []


def _store_bound(state: State, event: ev.StoreBound, now: float) -> Step:
    request = state.store_request
    if request is None:
        return state, []
    told = ev.Send(StoreOpened(request.attempt, request.address, event.port))
    if not request.bind:
        return state, [told]
    state, actions = _serve_store(replace(state, store=Store.HELD))
    return state, [told, *actions]


def _serve_store(state: State) -> Step:
    """Forked where the fork server has torch, else an interpreter: a lazy one where nobody asked for torch."""
    assign, has_torch = state.assign, bool(state.brief and state.brief.init != "off")
    if state.store is not Store.HELD or assign is None or (has_torch and state.server is Server.IMPORTING):
        return state, []
    how = "wait" if not has_torch else "fork" if state.server is Server.READY else "exec"
    store = Store.SERVED if how == "wait" else Store.HANDED
    return replace(state, store=store), [ev.ServeStore(how, assign.world_size, assign.timeout_s)]


def _store_refused(state: State, event: ev.StoreRefused, now: float) -> Step:
    hint = "--master-addr and --master-port choose them; left out, both are found"
    return replace(state, store_request=None), [_trouble(event.reason, True, CauseKind.STORE, hint)]


def _left(state: State, event: ev.Left, now: float) -> Step:
    return replace(state, left=event.processes), []


def _tick(state: State, event: ev.Tick, now: float) -> Step:
    state, actions = ending.tick(state, now)
    silent_at = silence_deadline(state)
    if silent_at is not None and silent_at <= now:
        state, more = _line_lost(state, ev.LineLost(), now)
        actions += more
    return state, actions


_EVENTS: dict[type[Any], Callable[[State, Any, float], Step]] = {
    ev.Heard: _heard,
    ev.LineLost: _line_lost,
    ev.Signalled: _signalled,
    ev.Tick: _tick,
    ev.FromServer: _from_server,
    ev.ServerLost: _server_lost,
    ev.Started: _started,
    ev.StartFailed: _start_failed,
    ev.Said: _said,
    ev.Reaped: _reaped,
    ev.StreamsClosed: _streams_closed,
    ev.Left: _left,
    ev.StoreBound: _store_bound,
    ev.StoreRefused: _store_refused,
}
_ANY = tuple(Phase)
_WORKING = (Phase.STARTING, Phase.RUNNING, Phase.STOPPING, Phase.CLEARING)
_BETWEEN = (Phase.ASSIGNED, Phase.DRAINED)
_MESSAGES: dict[type[Any], tuple[tuple[Phase, ...], Callable[[State, Any, float], Step]]] = {
    **dict.fromkeys((Ack, Beat), (_ANY, _nothing)),
    Brief: ((Phase.WAITING,), _brief),
    Assign: ((Phase.GREETED, *_BETWEEN), _assign),
    TryAddresses: ((Phase.GREETED, *_BETWEEN), _reach),
    OpenStore: (_BETWEEN, _open_store),
    Start: (_BETWEEN, _start),
    Stop: (_ANY, _stop),
    Dump: (_ANY, _dump),
    SignalWorkers: (_ANY, _signal_workers),
    Leave: (_ANY, _leave),
}
