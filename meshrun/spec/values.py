"""Owns: the values that the parsers of this package return: what was asked, before it is placed.
Must not: parse, check or do I/O.
Called by: spec's parsers, plan, cli, worker."""

from __future__ import annotations

from meshrun.dataclass import dataclass, field
from meshrun.errors import Place

Options = tuple[tuple[str, int | str], ...]  # of a process group: (name, value), in the order given


@dataclass(frozen=True, slots=True)
class Host:
    """One hostfile entry (a range gives several). `None` means "not said"."""

    name: str  # as spelled, without user, port and brackets
    user: str | None = None
    port: int | None = None
    addr: str | None = None  # offered for rendezvous, never the ssh address
    slots: int | None = None  # None: as many as the node has accelerators
    devices: tuple[str, ...] | None = None
    python: str | None = None
    workdir: str | None = None
    env: tuple[tuple[str, str], ...] = ()
    label: str | None = None  # as spelled; `spec.labels` reads it
    place: Place | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class MeshSpec:
    """A mesh as asked: dims outermost first, the last varies fastest; a size of None is `auto` (one at most)."""

    dims: tuple[tuple[str, int | None], ...]
    within_node: tuple[str, ...] = ()
    views: tuple[tuple[str, tuple[str, ...]], ...] = ()
    factorings: tuple[tuple[str, tuple[tuple[str, int | None], ...]], ...] = ()
    backend: tuple[tuple[str, str], ...] = ()
    timeout_s: tuple[tuple[str, float], ...] = ()  # the key "default" is for every other dim
    device: str = "auto"
    across_nodes: tuple[str, ...] = ()
    within_label: tuple[tuple[str, str], ...] = ()  # (dim, name of a label of the hostfile)
    options: tuple[tuple[str, Options], ...] = ()  # of NCCL, by dim
    preset: str = ""  # what wrote `dims`, `factorings` and `views` out
    place: Place | None = field(default=None, compare=False)
    places: tuple[tuple[tuple[str, ...], Place], ...] = field(default=(), compare=False)  # of keys in a mesh file

    def place_of(self, *path: str) -> Place | None:
        """Where in the mesh file `path` stands, or the nearest thing around it."""
        known = dict(self.places)
        shorter = (known.get(path[:length]) for length in range(len(path), 0, -1))
        return next((place for place in shorter if place), self.place)


@dataclass(frozen=True, slots=True)
class SshSettings:
    """How this job logs in, where the hostfile line does not say (host line > command line > ssh config)."""

    config: str | None = None  # None: ~/.ssh/config; "none": no file, as with `ssh -F none`
    user: str | None = None
    port: int | None = None
    identity: str | None = None
    client: str = "paramiko"  # or "openssh": the system's `ssh`
    host_key_policy: str = ""  # "strict" | "accept-new"; "": what ssh config says, else strict


@dataclass(frozen=True, slots=True)
class ByHand:
    """Manual mode: this command is one of `nnodes`, started by hand; node 0 listens at the master address."""

    nnodes: int
    node_rank: int
    master_addr: str
    master_port: int
    token: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class EarlySignal:
    """`--signal-workers`: this signal to every worker, so many seconds before the time limit."""

    signal: int
    before_s: float


@dataclass(frozen=True, slots=True)
class Fake:
    """`--fake`: some ranks of a plan, each alone, with a backend that sends nothing."""

    hosts: tuple[Host, ...]  # of the plan, each with its slots; the run itself has one host, this machine
    ranks: str  # as said: 0,4-7 or classes
    tensors: str  # "fake" | "real"
    steps: int = 0  # 0: as many as the script does


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """The run stands for one on other machines: its agents are all here."""

    remarks: tuple[str, ...] = ()  # what is not as it would be there, for the first lines on the screen
    fake: Fake | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """What was asked, fully resolved but not placed: the input of everything after the command line."""

    run_id: str
    form: str  # "script" | "module" | "program"
    argv: tuple[str, ...]  # absolute script path, module or program, then its arguments
    hosts: tuple[Host, ...]  # after filters, in node order; this machine alone: one Host with its hostname
    local: tuple[bool, ...]  # per host: started directly, without SSH
    workdir: str
    python: str
    log_dir: str  # the run directory of this run
    typed: str = ""  # the script as the user wrote it, for sys.argv[0]
    script_hash: str = ""  # sha256 of the script as the launcher sees it, "" if it does not
    mesh: MeshSpec | None = None
    nproc_per_node: int | None = None
    init: str = "lazy"  # "eager" | "lazy" | "off", `auto` resolved
    device: str = "auto"
    backend: str = ""
    timeout_s: float | None = None  # None: the mesh file's default, else 600
    start_method: str = "fork"
    pass_local_rank: bool = False
    preload: tuple[str, ...] = ()
    bind: str = "none"  # "none" | "numa" | "cores"
    env: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    env_remote: tuple[tuple[str, str], ...] = ()
    prelude: str = ""
    ssh: SshSettings = SshSettings()
    by_hand: ByHand | None = None
    rehearsal: Rehearsal | None = None
    master_addr: str | None = None
    master_port: int = 0
    connect_timeout_s: float = 30.0
    start_timeout_s: float = 300.0
    grace_s: float = 5.0
    time_limit_s: float | None = None
    signal_workers: EarlySignal | None = None
    hang_timeout_s: float | None = None
    max_restarts: int = 0
    silence_s: float = 10.0
    show: str = "all"
    quiet: bool = False
