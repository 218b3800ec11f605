"""Owns: the messages between launcher, agent and worker, as frozen values of plain JSON types.
Must not: do I/O, read a clock, or import anything; it travels to every node, so standard library only.
Called by: `wire.codec`, and through `meshrun.wire` launch (channels), watch (states), agent, worker."""

from __future__ import annotations

from typing import Any, TypeVar

from meshrun.dataclass import dataclass

PROTOCOL = 1
STDOUT, STDERR = 1, 2

M = TypeVar("M")
MESSAGES: dict[str, type[Any]] = {}


def message(cls: type[M]) -> type[M]:
    """Class decorator: the class's name is its tag on the wire."""
    MESSAGES[cls.__name__] = cls
    return cls


# ---- launcher → agent ------------------------------------------------------------------------------------------------


@message
@dataclass(frozen=True, slots=True)
class Brief:
    """All that a node needs to know before there is a plan. The first frame on every channel.

    Strings that came from the operating system carry undecodable bytes as surrogate escapes, both ways."""

    protocol: int
    run_id: str
    form: str  # "script" | "module" | "program"
    argv: tuple[str, ...]  # the script (absolute path), module name or program, then its own arguments
    init: str  # "eager" | "lazy" | "off"
    start_method: str  # "fork" | "spawn"
    preload: tuple[str, ...]
    workdir: str
    env: dict[str, str]  # exported by the user: command line, env files, then per-host values; literal
    env_remote: dict[str, str]  # NAME → expression with $NAME/${NAME} from the node's login environment
    slots: int  # workers wanted here; 0: as many as there are accelerators (1 on a CPU-only host)
    device: str  # "auto" | "cpu" | "cuda" | ...
    devices: tuple[str, ...]  # devices= of the hostfile line
    log_dir: str  # run directory on the launcher, for MESHRUN_LOG_DIR
    offers: bool  # node 0: listen so that the others can try its addresses
    offer_port: int  # the pinned port, or 0
    check_script: bool  # compile the script and report a SyntaxError (node 0 only)
    grace_s: float
    silence_s: float  # leave when nothing came from the launcher for so long
    window_bytes: int  # output that may be under way without an Ack
    typed: str = ""  # the script as the user wrote it, for sys.argv[0]
    agents_here: int = 1  # so many agents of this run share the machine's cores (a rehearsal)
    tensors: str = ""  # --fake: "fake" (shapes only) | "real"; "" in any other run
    steps: int = 0  # --fake: end the script after so many steps of an optimizer; 0: where it ends
    bind: str = "none"  # "none" | "numa" | "cores"
    pass_local_rank: bool = False  # each worker gets --local_rank=N before the script's own arguments


@message
@dataclass(frozen=True, slots=True)
class Share:
    """What one worker gets of its node's processor with `--bind`."""

    cpus: str = ""  # as `taskset -c` takes them; "": not bound
    threads: int = 0  # compute threads: its physical cores, or its part of a container's quota


@message
@dataclass(frozen=True, slots=True)
class WorkerSlot:
    """One worker of this node, as numbers and names only (it may cross the manual-mode line)."""

    rank: int
    local_rank: int
    device: str
    coords: dict[str, int]  # in mesh order
    node_rank: int = -1  # --fake: the node that the worker stands for; -1: this node
    local_world_size: int = 0  # and how many that node has; 0: as many as are here
    share: Share = Share()


@message
@dataclass(frozen=True, slots=True)
class Assign:
    """This node's part of the plan. Comes after every node has greeted; carries no command."""

    node_rank: int
    nnodes: int
    world_size: int
    fingerprint: str
    device: str  # resolved: "cpu" | "cuda" | ...
    backend: str  # "" = by device
    timeout_s: float
    mesh: dict[str, Any]  # the plan's `mesh` object plus views, factorings, backend, timeout_s (see plan/describe)
    workers: tuple[WorkerSlot, ...]
    max_restarts: int
    progress_s: float = 0.0  # say `Progress` so often; 0: never


@message
@dataclass(frozen=True, slots=True)
class TryAddresses:
    """Try to reach node 0 at each address, in order, on `port`; answered by `Reached`."""

    addresses: tuple[str, ...]
    port: int
    timeout_s: float


@message
@dataclass(frozen=True, slots=True)
class OpenStore:
    """Node 0: bind the store to `address` (port 0: the kernel picks); answered by `StoreOpened` or `Trouble`."""

    address: str
    port: int
    attempt: int
    bind: bool  # False (`--no-python`): only find a free port, nothing listens


@message
@dataclass(frozen=True, slots=True)
class Start:
    """Start all workers of this node. Sent to all nodes or to none."""

    attempt: int
    master_addr: str
    master_port: int


@message
@dataclass(frozen=True, slots=True)
class Stop:
    """End all workers: SIGTERM once, `grace_s`, SIGKILL. `grace_s` 0: at once. The agent stays."""

    grace_s: float
    why: str


@message
@dataclass(frozen=True, slots=True)
class SignalWorkers:
    """Give every running worker's main process this signal, once: its cue to write a checkpoint."""

    signal: int


@message
@dataclass(frozen=True, slots=True)
class Restart:
    """By hand, to the other nodes' commands: the attempt before `attempt` failed, all its workers are gone, and
    `Start` follows. `summary` is that attempt's result, for the node's own report. No agent gets this."""

    attempt: int
    attempts: int  # that there can be in all
    pause_s: float
    summary: dict[str, Any]


@message
@dataclass(frozen=True, slots=True)
class Ack:
    """`count` bytes of output have been stored and shown; the window opens by as much."""

    count: int


@message
@dataclass(frozen=True, slots=True)
class Leave:
    """The run is over: stop whatever is left, say `Bye`, go. `summary` is summary.json's content (by hand)."""

    exit_code: int
    summary: dict[str, Any]
    text: str  # the last block, as rendered by the launcher


# ---- both ways -------------------------------------------------------------------------------------------------------


@message
@dataclass(frozen=True, slots=True)
class Beat:
    """Nothing to say, but alive. Sent every 2 s when nothing else was."""


# ---- agent → launcher ------------------------------------------------------------------------------------------------


@message
@dataclass(frozen=True, slots=True)
class Facts:
    """The agent's greeting: what this node is. Found without importing torch."""

    protocol: int
    hostname: str
    user: str
    pid: int
    python: str  # "3.11.7"
    executable: str
    torch: str  # version, "" if not found
    cores: int  # physical ones usable by this process
    memory_bytes: int
    device: str  # "cuda" | ... | "cpu": the accelerator found (or asked for)
    devices: tuple[str, ...]  # ids in visible order; masks respected
    mask: str  # NAME=VALUE of the device mask in force, "" if none
    slots: int  # Brief.slots, or what was found
    addresses: tuple[str, ...]  # best first, loopback last
    offer_port: int  # where node 0 listens for TryAddresses
    workdir_error: str  # "" if the directory is there
    script_hash: str  # sha256 of the script's bytes, "" if there is none
    script_error: str  # "missing", "unreadable: ..." or "" ; for a SyntaxError its message
    script_file: str  # of the SyntaxError
    script_line: int
    tmp: str  # where the agent keeps its temporary files
    free_bytes: int  # there
    omp_threads: str  # OMP_NUM_THREADS of the login environment, "" if unset
    files: int = 0  # how many an agent may have open there (`ulimit -n`), 0: unknown or without a limit
    files_most: int = 0  # as far as the store may raise that (`ulimit -Hn`), 0 as above
    device_problem: str = ""  # why the devices cannot be used, with `device_hint`
    device_hint: str = ""
    device_notes: tuple[str, ...] = ()  # what the user should know about them
    shares: tuple[Share, ...] = ()  # with `Brief.bind`: of each of `slots` workers, by local rank


@message
@dataclass(frozen=True, slots=True)
class Reached:
    """Answer to `TryAddresses`: which addresses answered (and through which interface), which did not and why."""

    interfaces: dict[str, str]  # address → interface
    refused: dict[str, str]  # address → reason


@message
@dataclass(frozen=True, slots=True)
class StoreOpened:
    attempt: int
    address: str
    port: int


@message
@dataclass(frozen=True, slots=True)
class Spawned:
    """A worker process exists. `age_s` here and below: how long ago, by the agent's own clock, when this was sent."""

    rank: int
    pid: int
    attempt: int
    age_s: float


@message
@dataclass(frozen=True, slots=True)
class Ready:
    """A worker reached its script (eager: with the mesh built). Until all did, the start deadline runs."""

    rank: int
    attempt: int
    age_s: float


@message
@dataclass(frozen=True, slots=True)
class Raised:
    """A worker's uncaught exception, recorded before anything else happens in that process."""

    rank: int
    attempt: int
    age_s: float
    phase: str  # "init" (groups, mesh) | "script"
    type: str  # qualified name, builtins without module
    message: str
    file: str
    line: int
    lines: tuple[str, ...]  # a few source lines around, "N| text" with the failing one marked
    traceback: str  # bounded
    exit_code: int  # what the worker will return


@message
@dataclass(frozen=True, slots=True)
class Exited:
    """A worker is gone. `signal` 0: it ended with `exit_code`; else the exit code is 128 + signal."""

    rank: int
    attempt: int
    age_s: float
    exit_code: int
    signal: int
    oom: str  # for SIGKILL: "yes" | "no" | "unknown"; "" otherwise
    stopped: bool  # our own SIGTERM or SIGKILL had been sent before
    oom_where: str = ""  # with oom "yes": which limit was reached
    said: str = ""  # the end of its stderr, if it failed on its own (bounded)


@message
@dataclass(frozen=True, slots=True)
class Output:
    """Bytes that a worker wrote, in order per rank and stream. Travels as a binary frame."""

    rank: int
    stream: int  # STDOUT | STDERR
    data: bytes


@message
@dataclass(frozen=True, slots=True)
class Drained:
    """All workers of this attempt and all their processes are gone, and every byte they wrote has been sent."""

    attempt: int


@message
@dataclass(frozen=True, slots=True)
class Trouble:
    """The agent cannot do what was asked, or something of ours broke. `kind` is a `CauseKind` value."""

    kind: str
    message: str
    hint: str
    fatal: bool  # False: a remark for the user, the run goes on


@message
@dataclass(frozen=True, slots=True)
class Bye:
    """Nothing of the run is left on this node; the connection may close."""

    left: tuple[str, ...]  # processes that could not be ended, "pid name state"


@message
@dataclass(frozen=True, slots=True)
class Interrupted:
    """By hand: the user of that node pressed Ctrl-C (or sent SIGTERM, SIGHUP)."""

    signal: int
