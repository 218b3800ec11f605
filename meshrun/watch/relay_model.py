"""Owns: what a by-hand node's command knows of the run, as frozen values, and the draft of it during one event.
Must not: decide or do I/O.
Called by: watch.relay, watch.relay_ending, watch.relay_orders."""

from __future__ import annotations

from enum import Enum
from math import inf
from typing import Any

from meshrun.dataclass import dataclass, replace
from meshrun.plan.orders import host_of
from meshrun.plan.values import Plan
from meshrun.spec.values import ByHand, Job
from meshrun.watch.values import Action, Close, NodeCause, Open, Record, RunResult, Send

OWN, UPSTREAM = 0, 1  # the two "nodes" of this command's fleet
BEAT_S = 2.0


class Link(Enum):
    """Where one of the two lines is."""

    UNOPENED = "unopened"
    OPENING = "opening"
    OPEN = "open"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class End:
    """One of the two lines. Times are seconds on our own clock."""

    link: Link = Link.UNOPENED
    heard: float = inf
    sent: float = inf


@dataclass(frozen=True, slots=True)
class RelayState:
    """All that a by-hand node's command knows of the run."""

    job: Job
    ends: tuple[End, End] = (End(), End())
    run_id: str = ""  # node 0's, once it has let us in
    told: Plan | None = None  # node 0's plan, before it is known to fit this node
    plan: Plan | None = None
    attempt: int = 0
    past: tuple[RunResult, ...] = ()  # the attempts before this one, shortened
    signals: tuple[int, ...] = ()
    trouble: NodeCause | None = None  # what broke here; node 0 was told
    result: RunResult | None = None  # decided; the agent here is leaving
    until: float = inf  # when the present wait is over
    left: tuple[str, ...] = ()
    over: bool = False

    @property
    def doing(self) -> str:
        """What this node's part of the run does, for `meshrun ps`."""
        return "leaving" if self.result else "running" if self.plan else "joining"

    @property
    def hand(self) -> ByHand:
        """The options of manual mode."""
        assert self.job.by_hand is not None
        return self.job.by_hand

    @property
    def host(self) -> str:
        """This host's name, for messages."""
        return host_of(self.job, self.hand.node_rank).name


class RelayStep:
    """The draft of the next state, and the actions as they gather. Lives for one `advance`."""

    def __init__(self, state: RelayState, now: float) -> None:
        self.state, self.now = state, now
        self.actions: list[Action] = []

    def set(self, **changes: Any) -> None:
        """Change fields of the state."""
        self.state = replace(self.state, **changes)

    def set_end(self, which: int, **changes: Any) -> None:
        """Change fields of one line."""
        ends = list(self.state.ends)
        ends[which] = replace(ends[which], **changes)
        self.set(ends=tuple(ends))

    def link(self, which: int) -> Link:
        """Where that line is."""
        return self.state.ends[which].link

    def send(self, which: int, message: Any) -> None:
        """Send if that line is open; what is said to a line that is gone is lost with it."""
        if self.link(which) is Link.OPEN:
            self.actions.append(Send(which, message))
            self.set_end(which, sent=self.now)

    def open(self, which: int) -> None:
        """Have that line opened."""
        self.actions.append(Open(which))
        self.set_end(which, link=Link.OPENING)

    def close(self, which: int) -> None:
        """Close that line if it is not gone already."""
        if self.link(which) in (Link.OPENING, Link.OPEN):
            self.actions.append(Close(which))
        self.set_end(which, link=Link.GONE)

    def record(self, kind: str, **fields: Any) -> None:
        """Add a line of events.jsonl."""
        self.actions.append(Record(kind, fields))
