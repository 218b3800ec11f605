"""Owns: what happens to an agent (events) and what it is to do (actions), as frozen values.
Must not: decide or do I/O.
Called by: agent.supervisor (pure) and agent.loop."""

from __future__ import annotations

from typing import Any, NamedTuple

from meshrun.wire import Brief, Exited, OpenStore, TryAddresses

# Tuples: an agent imports this on its way to its greeting.

STORE = -1  # the store's place where a rank stands, as in wire.Forked

# ---- events ----


class Heard(NamedTuple):
    """One message from the launcher."""

    message: Any


class LineLost(NamedTuple):
    """End-of-file, an error or nonsense on the line to the launcher."""


class Signalled(NamedTuple):
    """The agent itself got SIGTERM, SIGHUP or SIGINT."""

    signal: int


class FromServer(NamedTuple):
    """`Imported` from the fork server."""

    message: Any


class ServerLost(NamedTuple):
    """The fork server is gone, or could not be started; `reason` is for the user."""

    reason: str


class Started(NamedTuple):
    """A worker (or the store) exists as a child of the agent."""

    rank: int
    pid: int
    at: float


class StartFailed(NamedTuple):
    """No process could be made for this worker."""

    rank: int
    reason: str


class Said(NamedTuple):
    """`Ready` or `Raised` from a worker's own socket."""

    rank: int
    message: Any
    at: float


class Reaped(NamedTuple):
    """A child of the agent ended: a worker, the store, or an orphan of a worker."""

    pid: int
    exit_code: int
    signal: int
    oom: str
    at: float


class StreamsClosed(NamedTuple):
    """Both output pipes of this worker are at end-of-file and have been read."""

    rank: int


class StoreBound(NamedTuple):
    """The rendezvous port is ours (or, without `bind`, was free a moment ago)."""

    port: int


class StoreRefused(NamedTuple):
    """The rendezvous port could not be had."""

    reason: str


class Left(NamedTuple):
    """Answer to `Look`: processes that are still there, "pid name state" each."""

    processes: tuple[str, ...]


class Tick(NamedTuple):
    """The deadline that `next_deadline` named has passed."""


# ---- actions ----


class Send(NamedTuple):
    """Send `message`; with `at`, its age is filled in when it is really sent. `last`: after all queued output."""

    message: Any
    at: float | None = None
    last: bool = False


class StartServer(NamedTuple):
    """Start the fork server; it imports torch while the rest goes on."""

    brief: Brief


class Greet(NamedTuple):
    """Probe this node and send `Facts`; with `brief.offers` listen for the other nodes."""

    brief: Brief


class Reach(NamedTuple):
    """Try node 0's addresses and send `Reached`."""

    request: TryAddresses


class BindStore(NamedTuple):
    """Stop listening for the other nodes, take the rendezvous port; answered by StoreBound or StoreRefused."""

    request: OpenStore


class ServeStore(NamedTuple):
    """Hand the listening socket to a store process: "fork", "exec" (a fresh interpreter), or "wait": one as soon as
    somebody connects, which a script without torch never does."""

    how: str
    world_size: int
    timeout_s: float


class StoreStarted(NamedTuple):
    """The store process `pid` has the socket: close our copy."""

    pid: int


class CloseStore(NamedTuple):
    """End the store process of this attempt and close the listening socket."""


class Launch(NamedTuple):
    """Start all workers: "fork", "exec" (fresh interpreters) or "program". Answered by `Started` for each."""

    how: str


class TellEnd(NamedTuple):
    """Send `exited` (a failure of the worker's own) with its last words; first what it left in its error file."""

    exited: Exited
    at: float
    recorded: bool  # it has told its exception itself: the error file says nothing new


class SignalMain(NamedTuple):
    """Signal a worker's main process alone."""

    pid: int
    signal: int


class SignalWorker(NamedTuple):
    """Send a signal to a worker's process group."""

    pid: int
    signal: int


class EndTree(NamedTuple):
    """Signal what is left of a worker that has ended: its session, its descendants, what carries its rank."""

    rank: int
    pid: int
    signal: int


class EndAll(NamedTuple):
    """Signal everything that descends from the agent but its fork server and store (`all`: these too, and the mark)."""

    signal: int
    all: bool = False


class Look(NamedTuple):
    """See what is left of what `EndAll` would signal; answered by `Left`."""

    all: bool = False


class CloseStreams(NamedTuple):
    """Give up on the workers' output pipes: somebody outside of our reach holds them."""


class KillServer(NamedTuple):
    """End the fork server now."""


class CollectStacks(NamedTuple):
    """Signal these workers (rank → pid) and send what they write as `Stacks`."""

    workers: tuple[tuple[int, int], ...]


class CloseLine(NamedTuple):
    """Nobody listens any more: drop queued output, send nothing."""


class Depart(NamedTuple):
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
