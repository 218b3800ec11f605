"""Owns: the messages on a node: agent ↔ fork server and worker, over Unix sockets.
Must not: do I/O or read a clock; it travels to every node, so standard library only.
Called by: through `meshrun.wire`, agent and worker."""

from __future__ import annotations

from typing import Any

from meshrun.dataclass import dataclass
from meshrun.wire.messages import message

# A worker registers faulthandler for SIGRTMIN + this (free for users: Slurm and Lightning use USR1/USR2).
STACKS_SIGNAL_OFFSET = 7
# In the agent's directory, each followed by the rank: a pipe whose opening is the question which collectives a worker
# has issued, and the file with the answer.
CALLS_ASKED, CALLS_TOLD = "ask", "calls"

# ---- agent ↔ fork server and worker (a Unix socket on the node) -----------------------------------------------------


@message
@dataclass(frozen=True, slots=True)
class Order:
    """What to run: the same for all workers of an attempt on a node. To the fork server and to each spawned worker."""

    form: str
    argv: tuple[str, ...]
    init: str
    device: str
    backend: str
    timeout_s: float
    mesh: dict[str, Any]
    fingerprint: str
    workdir: str
    attempt: int
    tmp: str  # the agent's private directory: stack dumps go to <tmp>/stacks<rank>
    exit_bound_s: float  # how long excepthook/atexit may take after a failure, destroy after a success
    typed: str = ""  # the script as the user wrote it, for sys.argv[0]
    tensors: str = ""  # as in Brief
    steps: int = 0
    rehearsed: tuple[int, ...] = ()  # --fake: the ranks that run here
    pass_local_rank: bool = False

    def argv_of(self, local_rank: str) -> tuple[str, ...]:
        """The command of one worker: with `--local_rank=N` right behind the script, as torch.distributed.launch and
        deepspeed put it, if it was asked for."""
        added = (f"--local_rank={local_rank}",) if self.pass_local_rank else ()
        return (*self.argv[:1], *added, *self.argv[1:])


@message
@dataclass(frozen=True, slots=True)
class Fork:
    """Fork one worker. With the frame travel three descriptors: stdout, stderr, its own socket."""

    rank: int
    env: dict[str, str]  # complete
    cpus: str = ""  # to run on; "": wherever


@message
@dataclass(frozen=True, slots=True)
class ForkStore:
    """Fork the process that serves the store on the listening socket that travels with this frame."""

    world_size: int
    timeout_s: float


@message
@dataclass(frozen=True, slots=True)
class Forked:
    """The child's pid (rank -1: the store). It is a child of the agent by now."""

    rank: int
    pid: int


@message
@dataclass(frozen=True, slots=True)
class Imported:
    """The fork server is ready. `problem`: why forking is not safe here ("" = safe); then the agent spawns instead."""

    torch: str
    seconds: float
    threads: int
    problem: str
