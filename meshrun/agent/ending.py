"""Owns: how an attempt and the agent itself end: SIGTERM, grace, SIGKILL, looking, giving up, leaving.
Must not: do I/O or read a clock; it is the second half of agent.supervisor.
Called by: agent.supervisor."""

from __future__ import annotations

from meshrun.agent.events import (
    Action,
    CloseStore,
    CloseStreams,
    Depart,
    EndAll,
    EndTree,
    KillServer,
    Look,
    Send,
    SignalWorker,
)
from meshrun.agent.state import (
    GIVE_UP_S,
    LOOK_AGAIN_S,
    Phase,
    Server,
    Stage,
    State,
    Step,
    Store,
    change_worker,
    change_workers,
    turn,
)
from meshrun.dataclass import replace
from meshrun.errors import CauseKind
from meshrun.wire import Bye, Drained, Trouble

SIGTERM, SIGKILL = 15, 9
ALIVE = (Phase.STARTING, Phase.RUNNING)


def stop(state: State, grace_s: float, now: float) -> Step:
    """End all workers: SIGTERM once, SIGKILL after `grace_s`. Called again, it can only shorten."""
    if grace_s <= 0 and state.phase in (*ALIVE, Phase.STOPPING, Phase.CLEARING):
        return kill(state, now)
    if state.phase in ALIVE:
        running = [worker for worker in state.workers if worker.stage is Stage.RUNNING]
        state = change_workers(state, Stage.WAITING, stage=Stage.ENDED)
        state = change_workers(state, Stage.RUNNING, stopped=True)
        state = turn(state, Phase.STOPPING, kill_at=now + grace_s)
        return state, [SignalWorker(worker.pid, SIGTERM) for worker in running]
    if state.phase in (Phase.STOPPING, Phase.CLEARING) and state.kill_at is not None:
        state = replace(state, kill_at=min(state.kill_at, now + grace_s))
    return state, []


def kill(state: State, now: float) -> Step:
    """SIGKILL to every worker and all that descends from one. A worker whose pid is not known dies with the server."""
    actions: list[Action] = [EndAll(SIGKILL)]
    if state.how == "fork" and state.has(Stage.LAUNCHED):
        actions = [KillServer(), EndAll(SIGKILL)]
        state = replace(change_workers(state, Stage.LAUNCHED, stage=Stage.ENDED), server=Server.GONE)
    state = change_workers(state, Stage.WAITING, stage=Stage.ENDED)
    state = change_workers(state, Stage.RUNNING, stopped=True)
    if state.phase in ALIVE:
        state = turn(state, Phase.STOPPING)
    state = replace(state, killed=True, kill_at=None, look_at=now + LOOK_AGAIN_S)
    if state.give_up_at is None:
        state = replace(state, give_up_at=now + GIVE_UP_S)
    return (state, [*actions, Look()]) if state.phase is Phase.CLEARING else (state, actions)


def leave(state: State, now: float) -> Step:
    """Stop what runs, then go; what does not run is left at once (`settle` does that)."""
    state = replace(state, leaving=True)
    return stop(state, state.grace_s, now) if state.phase in ALIVE else (state, [])


def settle(state: State, now: float) -> Step:
    """The transitions that need no event of their own, one after the other until nothing more follows."""
    actions: list[Action] = []
    while True:
        before = state.phase
        for ready, enter in _TRANSITIONS:
            if ready(state):
                state, more = enter(state, now)
                actions += more
        if state.phase is before:
            return state, actions


def _is_out(state: State) -> bool:
    return state.phase in (*ALIVE, Phase.STOPPING) and all(w.stage is Stage.ENDED for w in state.workers)


def _clear(state: State, now: float) -> Step:
    number = SIGKILL if state.killed else SIGTERM
    state = turn(state, Phase.CLEARING, left=None)
    if not state.killed and state.kill_at is None:
        state = replace(state, kill_at=now + state.grace_s)
    return state, [EndAll(number), Look()]


def _is_clear(state: State) -> bool:
    return state.phase is Phase.CLEARING and state.left == () and not any(worker.open for worker in state.workers)


def _drain(state: State, now: float) -> Step:
    drained = Send(Drained(state.attempt), last=True)
    state = turn(state, Phase.DRAINED, workers=(), early=(), killed=False, left=None)
    state = replace(state, kill_at=None, look_at=None, give_up_at=None)
    state, closing = close_store(state)
    return state, [*closing, drained]


def close_store(state: State) -> Step:
    """The store of this attempt ends; the next attempt gets a fresh one."""
    if state.store is Store.NONE:
        return state, []
    return replace(state, store=Store.NONE, store_pid=0, store_request=None), [CloseStore()]


def _may_leave(state: State) -> bool:
    at_rest = (Phase.WAITING, Phase.GREETED, Phase.ASSIGNED, Phase.DRAINED)
    return state.leaving and state.phase in at_rest


def _sweep(state: State, now: float) -> Step:
    state = turn(state, Phase.LEAVING, server=Server.GONE, left=None)
    state = replace(state, look_at=now + LOOK_AGAIN_S, give_up_at=now + GIVE_UP_S)
    return state, [KillServer(), CloseStore(), EndAll(SIGKILL, all=True), Look(all=True)]


def _is_swept(state: State) -> bool:
    return state.phase is Phase.LEAVING and state.left == ()


def _go(state: State, now: float) -> Step:
    bye = Bye(state.left or ()) if state.line_open else None
    gone = turn(state, Phase.GONE, kill_at=None, look_at=None, give_up_at=None)
    return gone, [Depart(bye)]


_TRANSITIONS = ((_is_out, _clear), (_is_clear, _drain), (_may_leave, _sweep), (_is_swept, _go))


def tick(state: State, now: float) -> Step:
    """What is due by the clock, the launcher's silence aside."""
    actions: list[Action] = []
    for worker in state.workers:
        if worker.kill_at is not None and worker.kill_at <= now:
            actions.append(EndTree(worker.rank, worker.pid, SIGKILL))
            state = change_worker(state, worker.rank, kill_at=None)
    if state.kill_at is not None and state.kill_at <= now:
        state, more = kill(state, now)
        actions += more
    if state.give_up_at is not None and state.give_up_at <= now:
        state, more = _give_up(state, now)
    else:
        state, more = _look_again(state, now)
    return state, actions + more


def _look_again(state: State, now: float) -> Step:
    if state.look_at is None or state.look_at > now:
        return state, []
    whole = state.phase is Phase.LEAVING
    state = replace(state, look_at=now + LOOK_AGAIN_S)
    return state, [EndAll(SIGKILL, all=whole), *look(state)]


def look(state: State) -> list[Action]:
    """See what is left, in the phases that wait for it."""
    if state.phase in (Phase.CLEARING, Phase.LEAVING):
        return [Look(all=state.phase is Phase.LEAVING)]
    return []


def _give_up(state: State, now: float) -> Step:
    """SIGKILL did not help (a process in an uninterruptible wait, a pipe in foreign hands): name it and go on."""
    if state.phase is Phase.LEAVING:
        return _go(state, now)
    if state.phase is Phase.STOPPING:
        state = change_workers(state, Stage.RUNNING, stage=Stage.ENDED)
        state = change_workers(state, Stage.LAUNCHED, stage=Stage.ENDED)
        state, actions = _clear(state, now)
        return replace(state, give_up_at=now + LOOK_AGAIN_S), actions
    names = ", ".join(state.left or ()) or "something that holds the workers' output open"
    remark = Trouble(CauseKind.AGENT.value, f"could not be ended within {GIVE_UP_S:g} s: {names}", "", False)
    for worker in state.workers:
        state = change_worker(state, worker.rank, open=False)
    return replace(state, left=()), [CloseStreams(), Send(remark)]
