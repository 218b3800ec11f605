"""Owns: the launcher machine's state as frozen values, and `Step`, the draft of the next state during one event.
Must not: decide or do I/O.
Called by: the stages (greeting, planning, address, running, ending) and watch.state."""

from __future__ import annotations

from enum import Enum
from math import inf
from typing import Any

from meshrun.dataclass import dataclass, replace
from meshrun.plan.values import Plan
from meshrun.spec.values import Job
from meshrun.watch.collectives import Disagreement
from meshrun.watch.nodes import Node, Nodes
from meshrun.watch.phases import LINKS, PHASE_TIMERS, TURNS, Link, Phase, Timer, Turn
from meshrun.watch.values import Action, Failure, NodeCause, Outcome, Record, RunResult, Send

BEAT_S = 2.0
FLOW_STEP_S = 0.5  # how exactly the time of the last output is kept: most outputs change no state at all


@dataclass(frozen=True, slots=True)
class Halt:
    """An end that is neither a worker's failure nor a lost node; it decides the result."""

    outcome: Outcome
    exit_code: int
    reason: str


class Purpose(Enum):
    """Why stacks are asked for."""

    START = "the start deadline"
    HANG = "--hang-timeout"
    ASK = "the user's `meshrun stacks`"


@dataclass(frozen=True, slots=True)
class State:
    """All that the launcher knows of a run. A new one for every event that changes something."""

    job: Job
    nodes: Nodes
    phase: Phase = Phase.CONNECTING
    timers: tuple[tuple[Timer, float], ...] = ()
    began: float = -inf
    attempt: int = 0  # rises with every restart; messages of other attempts are old news
    plan: Plan | None = None
    address: str = ""
    first: Failure | None = None  # the earliest so far, of this attempt
    causes: tuple[NodeCause, ...] = ()
    lost_at: float = inf  # when the first of `causes` was seen
    stop_at: float = inf  # when Stop was sent
    started: bool = False  # workers were told to
    ready_at: float = inf  # when every worker was in its script
    past: tuple[RunResult, ...] = ()  # the attempts before this one, shortened
    warned: bool = False  # the time of --signal-workers has come
    halt: Halt | None = None
    signals: int = 0
    purposes: frozenset[Purpose] = frozenset()  # of the stacks that are being gathered (in `Node`), once for all
    stacks: tuple[tuple[int, str], ...] = ()  # of a run that ends because nothing moved
    disagreements: tuple[Disagreement, ...] = ()  # about collectives, then
    left: tuple[tuple[int, str], ...] = ()
    result: RunResult | None = None

    @property
    def doing(self) -> str:
        """What the run does, for `meshrun ps`."""
        return self.phase.value


class Step:
    """The work on one event: the state as it becomes, the actions as they gather. Lives for one `advance`."""

    def __init__(self, state: State, now: float) -> None:
        self.state = state
        self.now = now
        self.actions: list[Action] = []

    def do(self, *actions: Action) -> None:
        """Add actions, to be performed in this order."""
        self.actions += actions

    def record(self, kind: str, **fields: Any) -> None:
        """Add a line of events.jsonl."""
        self.do(Record(kind, fields))

    def set(self, **changes: Any) -> None:
        """Change fields of the state."""
        self.state = replace(self.state, **changes)

    def set_node(self, node: int, **changes: Any) -> Node:
        """Change fields of one node; a new `link` must be one that LINKS allows. Returns the node as it is now."""
        nodes = self.state.nodes
        old = nodes[node]
        new = replace(old, **changes)
        if new.link is not old.link and new.link not in LINKS[old.link].values():
            raise AssertionError(f"a node went from {old.link} to {new.link}")
        self.set(nodes=nodes.put(node, new))
        return new

    def turn(self, turn: Turn) -> None:
        """Go to the phase that TURNS names, without the old phase's timers. KeyError: no such turn here, a bug."""
        phase = TURNS[self.state.phase][turn]
        kept = tuple(item for item in self.state.timers if item[0] not in PHASE_TIMERS)
        self.set(phase=phase, timers=kept)

    def set_timer(self, timer: Timer, at: float) -> None:
        """Let `timer` fire at `at`, in place of any earlier setting."""
        others = tuple(item for item in self.state.timers if item[0] is not timer)
        self.set(timers=(*others, (timer, at)))

    def drop_timer(self, timer: Timer) -> None:
        """Let `timer` not fire."""
        self.set(timers=tuple(item for item in self.state.timers if item[0] is not timer))

    def has_timer(self, timer: Timer) -> bool:
        """True if `timer` is running."""
        return any(name is timer for name, _ in self.state.timers)

    def host(self, node: int) -> str:
        """The host's name as the hostfile spells it; by hand, what the node calls itself once it has joined."""
        job, facts = self.state.job, self.state.nodes[node].facts
        if job.by_hand and facts:
            return f"node {node} ({facts.hostname})"
        return job.hosts[node].name

    def send_all(self, message: Any, *links: Link) -> None:
        """Send one message to every node whose line is in one of `links` (greeted, if none is given)."""
        wanted = links or (Link.GREETED,)
        self.do(*(Send(rank, message) for rank, node in enumerate(self.state.nodes) if node.link in wanted))


def name_worker(plan: Plan, rank: int) -> str:
    """`rank 3 (dp=1,tp=1) on b`: how every message names a worker."""
    worker = plan.workers[rank]
    coords = ",".join(f"{dim}={at}" for dim, at in worker.coords)
    return f"rank {rank} ({coords}) on {worker.host}" if coords else f"rank {rank} on {worker.host}"


def name_some(names: list[str], limit: int = 8) -> str:
    """The first `limit` names joined by commas, and how many more there are."""
    more = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {more} more" if more > 0 else "")
