"""Owns: the events that come to a launcher state machine, the actions it answers with, and the result of a run.
Must not: decide or do I/O.
Called by: watch.state, watch.relay (pure), watch.loop, report, cli."""

from __future__ import annotations

from enum import Enum
from typing import Any

from meshrun.dataclass import dataclass
from meshrun.errors import Cause
from meshrun.launch.channel import ChannelEvent
from meshrun.plan.values import Plan
from meshrun.watch.collectives import Disagreement

# ---- events (besides launch.channel's) ----


@dataclass(frozen=True, slots=True)
class Began:
    """The first event of every run."""


@dataclass(frozen=True, slots=True)
class Signalled:
    """SIGINT, SIGTERM or SIGHUP reached the launcher."""

    signal: int


@dataclass(frozen=True, slots=True)
class Consumed:
    """`count` bytes of `node`'s output have been stored and written to stdout/stderr."""

    node: int
    count: int


@dataclass(frozen=True, slots=True)
class ReaderGone:
    """The reader of our stdout closed it (`| head`)."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The user wants to see where every rank is (`meshrun stacks`); answered by `Answer`."""


@dataclass(frozen=True, slots=True)
class Tick:
    """The deadline that `next_deadline` named has passed (or nothing happened for a second)."""


Event = Began | Signalled | Consumed | ReaderGone | Asked | Tick | ChannelEvent

# ---- actions ----


@dataclass(frozen=True, slots=True)
class Open:
    """Open (again) the channel of `node`, `after_s` from now; the edge adds jitter."""

    node: int
    after_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Send:
    node: int
    message: Any


@dataclass(frozen=True, slots=True)
class Close:
    node: int


@dataclass(frozen=True, slots=True)
class Planned:
    """The plan is known (at once, or after the nodes have said how many slots they have)."""

    plan: Plan


@dataclass(frozen=True, slots=True)
class Emit:
    """Worker output to store and to show."""

    node: int
    rank: int
    stream: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Note:
    """A line for the user on stderr now ("meshrun: ..."); `level` is "info" (hidden by --quiet) or "warning"."""

    level: str
    text: str


@dataclass(frozen=True, slots=True)
class Record:
    """A line of events.jsonl: a kind and plain JSON fields (the edge adds the time)."""

    kind: str
    fields: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """To `Asked`: the stacks that came, or in `why` that there are none to come."""

    plan: Plan | None
    stacks: tuple[tuple[int, str], ...] = ()
    why: str = ""
    disagreements: tuple[Disagreement, ...] = ()


@dataclass(frozen=True, slots=True)
class Finish:
    """The run is over; the loop ends with this result."""

    result: RunResult


# ---- what happened to workers and to the run ----


class Outcome(Enum):
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"  # by the user or a time limit
    LOST = "lost"  # meshrun or the cluster failed


@dataclass(frozen=True, slots=True)
class RaisedException:
    type: str
    message: str
    file: str
    line: int
    lines: tuple[str, ...] = ()
    traceback: str = ""
    phase: str = "script"


@dataclass(frozen=True, slots=True)
class Failure:
    """One worker's failure. `when` is on the launcher's clock: arrival minus the age that the agent reported."""

    rank: int
    node_rank: int
    when: float
    kind: str  # "exception" | "exit" | "signal" | "init"
    exit_code: int
    signal: int = 0
    oom: str = ""
    exception: RaisedException | None = None
    follower: bool = False  # a broken connection to a peer: ranks below any other failure
    oom_where: str = ""  # with oom "yes": which limit was reached
    said: str = ""  # of an end without a record: the stack or traceback that stands at the end of its stderr
    cause: str = ""  # in a few words, if it is one that we know
    hint: str = ""
    device: str = ""  # the kind that its node uses ("cpu", "cuda", ...), if that is known


@dataclass(frozen=True, slots=True)
class NodeCause:
    """Why a node could not take part or was lost."""

    node: int
    host: str
    cause: Cause
    noise: str = ""


@dataclass(frozen=True, slots=True)
class RunResult:
    """How a run ended. `first` is the earliest failure; `followed` the ranks that failed or were stopped after it."""

    outcome: Outcome
    exit_code: int
    attempt: int = 0
    first: Failure | None = None
    followed: tuple[int, ...] = ()
    causes: tuple[NodeCause, ...] = ()  # nodes that were unfit, unreachable or lost
    reason: str = ""  # one line: "interrupted", "time limit of 60 s", "start deadline ..."; failed: why no restart
    stacks: tuple[tuple[int, str], ...] = ()
    disagreements: tuple[Disagreement, ...] = ()  # about collectives, of a run that ended because nothing moved
    left: tuple[tuple[int, str], ...] = ()  # processes that could not be ended, by node
    lived_s: float = 0.0  # from all workers in their script to the first failure
    started: bool = True  # workers were told to start, in this attempt or an earlier one
    earlier: tuple[RunResult, ...] = ()  # the attempts before this one, without tracebacks; none has `earlier` itself


@dataclass(frozen=True, slots=True)
class Again:
    """An attempt has failed and all its output is here; attempt `attempt` (from 0) follows it, of `attempts`
    that there can be in all: restart `attempt` of `attempts - 1`."""

    result: RunResult
    attempt: int
    attempts: int
    pause_s: float


Action = Open | Send | Close | Planned | Emit | Note | Record | Again | Answer | Finish
