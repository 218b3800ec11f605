"""Owns: what happens to an agent (events) and what it is to do (actions), as frozen values.
Must not: decide or do I/O.
Called by: agent.supervisor (pure) and agent.loop."""

from __future__ import annotations

from typing import Any

from meshrun.dataclass import dataclass
from meshrun.wire import Brief, Exited, OpenStore, TryAddresses

STORE = -1  # the store's place where a rank stands, as in wire.Forked

# ---- events ----


@dataclass(frozen=True, slots=True)
class Heard:
    """One message from the launcher."""

    message: Any


@dataclass(frozen=True, slots=True)
class LineLost:
    """End-of-file, an error or nonsense on the line to the launcher."""


@dataclass(frozen=True, slots=True)
class Signalled:
    """The agent itself got SIGTERM, SIGHUP or SIGINT."""

    signal: int


@dataclass(frozen=True, slots=True)
class FromServer:
    """`Imported` from the fork server."""

    message: Any


@dataclass(frozen=True, slots=True)
class ServerLost:
    """The fork server is gone, or could not be started; `reason` is for the user."""

    reason: str


@dataclass(frozen=True, slots=True)
class Started:
    """A worker (or the store) exists as a child of the agent."""

    rank: int
    pid: int
    at: float


@dataclass(frozen=True, slots=True)
class StartFailed:
    """No process could be made for this worker."""

    rank: int
    reason: str


@dataclass(frozen=True, slots=True)
class Said:
    """`Ready` or `Raised` from a worker's own socket."""

    rank: int
    message: Any
    at: float


@dataclass(frozen=True, slots=True)
class Reaped:
    """A child of the agent ended: a worker, the store, or an orphan of a worker."""

    pid: int
    exit_code: int
    signal: int
    oom: str
    at: float


@dataclass(frozen=True, slots=True)
class StreamsClosed:
    """Both output pipes of this worker are at end-of-file and have been read."""

    rank: int


@dataclass(frozen=True, slots=True)
class StoreBound:
    """The rendezvous port is ours (or, without `bind`, was free a moment ago)."""

    port: int


@dataclass(frozen=True, slots=True)
class StoreRefused:
    """The rendezvous port could not be had."""

    reason: str


@dataclass(frozen=True, slots=True)
class Left:
    """Answer to `Look`: processes that are still there, "pid name state" each."""

    processes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Tick:
    """The deadline that `next_deadline` named has passed."""


# ---- actions ----


@dataclass(frozen=True, slots=True)
class Send:
    """Send `message`; with `at`, its age is filled in when it is really sent. `last`: after all queued output."""

    message: Any
    at: float | None = None
    last: bool = False


@dataclass(frozen=True, slots=True)
class StartServer:
    """Start the fork server; it imports torch while the rest goes on."""

    brief: Brief


@dataclass(frozen=True, slots=True)
class Greet:
    """Probe this node and send `Facts`; with `brief.offers` listen for the other nodes."""

    brief: Brief


@dataclass(frozen=True, slots=True)
class Reach:
    """Try node 0's addresses and send `Reached`."""

    request: TryAddresses


@dataclass(frozen=True, slots=True)
class BindStore:
    """Stop listening for the other nodes, take the rendezvous port; answered by StoreBound or StoreRefused."""

    request: OpenStore


@dataclass(frozen=True, slots=True)
class ServeStore:
    """Hand the listening socket to a store process: "fork", "exec" (a fresh interpreter), or "wait": one as soon as
    somebody connects, which a script without torch never does."""

    how: str
    world_size: int
    timeout_s: float


@dataclass(frozen=True, slots=True)
class StoreStarted:
    """The store process `pid` has the socket: close our copy."""

    pid: int


@dataclass(frozen=True, slots=True)
class CloseStore:
    """End the store process of this attempt and close the listening socket."""


@dataclass(frozen=True, slots=True)
class Launch:
    """Start all workers: "fork", "exec" (fresh interpreters) or "program". Answered by `Started` for each."""

    how: str


@dataclass(frozen=True, slots=True)
class TellEnd:
    """Send `exited` (a failure of the worker's own) with its last words; first what it left in its error file."""

    exited: Exited
    at: float
    recorded: bool  # it has told its exception itself: the error file says nothing new


@dataclass(frozen=True, slots=True)
class SignalMain:
    """Signal a worker's main process alone."""

    pid: int
    signal: int


@dataclass(frozen=True, slots=True)
class SignalWorker:
    """Send a signal to a worker's process group."""

    pid: int
    signal: int


@dataclass(frozen=True, slots=True)
class EndTree:
    """Signal what is left of a worker that has ended: its session, its descendants, what carries its rank."""

    rank: int
    pid: int
    signal: int


@dataclass(frozen=True, slots=True)
class EndAll:
    """Signal everything that descends from the agent but its fork server and store (`all`: these too, and the mark)."""

    signal: int
    all: bool = False


@dataclass(frozen=True, slots=True)
class Look:
    """See what is left of what `EndAll` would signal; answered by `Left`."""

    all: bool = False


@dataclass(frozen=True, slots=True)
class CloseStreams:
    """Give up on the workers' output pipes: somebody outside of our reach holds them."""


@dataclass(frozen=True, slots=True)
class KillServer:
    """End the fork server now."""


@dataclass(frozen=True, slots=True)
class CollectStacks:
    """Signal these workers (rank → pid) and send what they write as `Stacks`."""

    workers: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class CloseLine:
    """Nobody listens any more: drop queued output, send nothing."""


@dataclass(frozen=True, slots=True)
class Depart:
    """Remove the private directory, let the last message go out, exit."""

    bye: Any | None = None


Event = (
    Heard
    | LineLost
    | Signalled
    | FromServer
    | ServerLost
    | Started
    | StartFailed
    | Said
    | Reaped
    | StreamsClosed
    | StoreBound
    | StoreRefused
    | Left
    | Tick
)
Action = (
    Send
    | StartServer
    | Greet
    | Reach
    | BindStore
    | ServeStore
    | StoreStarted
    | CloseStore
    | Launch
    | TellEnd
    | SignalMain
    | SignalWorker
    | EndTree
    | EndAll
    | Look
    | CloseStreams
    | KillServer
    | CollectStacks
    | CloseLine
    | Depart
)
