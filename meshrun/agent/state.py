"""Owns: the value that an agent's state machine carries from event to event.
Must not: decide or do I/O.
Called by: agent.supervisor and its neighbours, tests."""

from __future__ import annotations

from enum import Enum
from typing import Any

from meshrun.agent.events import Action, Reaped, Said
from meshrun.dataclass import dataclass, replace
from meshrun.wire import Assign, Brief, OpenStore, Start

# Before the Brief has said how long the launcher may be silent.
FIRST_SILENCE_S = 10.0  # until the Brief says how long; the launcher sends it as soon as it hears of us
# How long a process may take to go after SIGKILL before it is named and left behind.
GIVE_UP_S = 1.0
# After SIGKILL, look again this often: what a dying parent had just forked is found and ended too.
LOOK_AGAIN_S = 0.05


class Phase(Enum):
    """Where the agent is in the life of a run."""

    WAITING = "waiting"  # for the Brief
    GREETED = "greeted"
    ASSIGNED = "assigned"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"  # workers were told to end
    CLEARING = "clearing"  # the workers have ended; their descendants or output not yet
    DRAINED = "drained"
    LEAVING = "leaving"  # ending whatever is left, then gone
    GONE = "gone"


_END = "Stop, Leave, a signal, or the line ends or falls silent"
_LEAVE = "Leave, a signal, or the line ends or falls silent"
_OUT = "every worker has ended"

# What may follow what, and why; `turn` refuses anything else, and ARCHITECTURE.md shows it.
TURNS: dict[Phase, dict[Phase, str]] = {
    Phase.WAITING: {Phase.GREETED: "Brief: answer with Facts", Phase.LEAVING: _LEAVE},
    Phase.GREETED: {Phase.ASSIGNED: "Assign", Phase.LEAVING: _LEAVE},
    Phase.ASSIGNED: {Phase.ASSIGNED: "Assign again", Phase.STARTING: "Start", Phase.LEAVING: _LEAVE},
    Phase.STARTING: {Phase.RUNNING: "every worker has a pid", Phase.STOPPING: _END, Phase.CLEARING: _OUT},
    Phase.RUNNING: {Phase.STOPPING: _END, Phase.CLEARING: _OUT},
    Phase.STOPPING: {Phase.CLEARING: _OUT},
    Phase.CLEARING: {Phase.DRAINED: "no descendant is left and all output is out: Drained"},
    Phase.DRAINED: {
        Phase.ASSIGNED: "Assign again",
        Phase.STARTING: "Start of the next attempt",
        Phase.LEAVING: _LEAVE,
    },
    Phase.LEAVING: {Phase.GONE: "no process of the run is left: Bye"},
    Phase.GONE: {},
}


class Server(Enum):
    """The fork server."""

    NONE = "none"  # not wanted: fresh interpreters, or programs
    IMPORTING = "importing"
    READY = "ready"
    UNSAFE = "unsafe"
    GONE = "gone"


class Store(Enum):
    """The rendezvous store of this attempt (node 0)."""

    NONE = "none"
    HELD = "held"  # the port is bound, nobody serves it yet; early clients wait in the backlog
    HANDED = "handed"  # to the fork server, whose answer is due
    SERVED = "served"  # by a process, or by the agent that waits for a first client to start one


class Stage(Enum):
    """One worker."""

    WAITING = "waiting"  # for the fork server
    LAUNCHED = "launched"  # asked for, pid not known yet
    RUNNING = "running"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Worker:
    """One worker of this attempt."""

    rank: int
    stage: Stage = Stage.WAITING
    pid: int = 0
    stopped: bool = False  # our SIGTERM or SIGKILL was sent
    recorded: bool = False  # it has told its exception
    open: bool = False  # its output pipes
    kill_at: float | None = None  # it has ended, what it left gets SIGKILL then


@dataclass(frozen=True, slots=True)
class State:
    """Everything the agent's decisions depend on. Times are seconds of the agent's monotonic clock."""

    heard_at: float
    phase: Phase = Phase.WAITING
    brief: Brief | None = None
    assign: Assign | None = None
    start: Start | None = None
    attempt: int = 0
    server: Server = Server.NONE
    unsafe: str = ""  # why workers cannot be forked, until that has been said
    how: str = ""  # how this attempt's workers are started: "fork" | "exec" | "program"
    store: Store = Store.NONE
    store_pid: int = 0
    store_request: OpenStore | None = None
    workers: tuple[Worker, ...] = ()
    early: tuple[Reaped | Said, ...] = ()  # ends and words of children whose pid we have not been told yet
    line_open: bool = True
    leaving: bool = False
    signalled: bool = False
    killed: bool = False
    kill_at: float | None = None
    look_at: float | None = None
    give_up_at: float | None = None
    left: tuple[str, ...] | None = None  # what the last look found; None: not looked since

    @property
    def grace_s(self) -> float:
        """Seconds between SIGTERM and SIGKILL where nothing else was said."""
        return self.brief.grace_s if self.brief else 0.0

    def has(self, stage: Stage) -> bool:
        """True if any worker is in `stage`."""
        return any(worker.stage is stage for worker in self.workers)


Step = tuple[State, list[Action]]


def turn(state: State, phase: Phase, /, **values: Any) -> State:
    """The state in another phase, with `values` set. AssertionError: TURNS has no such step, a bug."""
    if phase not in TURNS[state.phase]:
        raise AssertionError(f"the agent went from {state.phase} to {phase}")
    return replace(state, phase=phase, **values)


def change_workers(state: State, stage: Stage, /, **values: Any) -> State:
    """The state with `values` set on every worker in `stage`."""
    changed = (replace(w, **values) if w.stage is stage else w for w in state.workers)
    return replace(state, workers=tuple(changed))


def change_worker(state: State, rank: int, /, **values: Any) -> State:
    """The state with `values` set on the worker of `rank`."""
    return replace(state, workers=tuple(replace(w, **values) if w.rank == rank else w for w in state.workers))


def next_deadline(state: State) -> float | None:
    """When `advance` wants a `Tick` at the latest; None: whenever something happens."""
    due = [state.kill_at, state.look_at, state.give_up_at, silence_deadline(state), *(w.kill_at for w in state.workers)]
    return min((at for at in due if at is not None), default=None)


def silence_deadline(state: State) -> float | None:
    """When the launcher counts as gone if nothing comes from it."""
    if not state.line_open or state.phase is Phase.GONE:
        return None
    return state.heard_at + (state.brief.silence_s if state.brief else FIRST_SILENCE_S)
