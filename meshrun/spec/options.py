"""Owns: the option table as data: names, spellings, kinds, defaults, groups, help.
Must not: parse values or do I/O, or hold what is refused (spec.foreign does).
Called by: spec.argv, spec.settings, spec.job_file, and cli, which makes click options and the help page of it."""

from __future__ import annotations

from enum import Enum

from meshrun.dataclass import dataclass


class Kind(Enum):
    """What a value is, however it was given."""

    TEXT = "text"
    COUNT = "count"  # a whole number, ASCII digits only
    SECONDS = "seconds"
    FLAG = "flag"
    CHOICE = "choice"
    MULTI = "multi"  # may be given several times; a list in a job file, one a line in the environment


@dataclass(frozen=True, slots=True)
class Option:
    """One option. Its command-line flags, `MESHRUN_<NAME>` and job-file key all come from `name`."""

    name: str
    kind: Kind
    group: str
    help: str
    default: object = None
    metavar: str = ""
    flags: tuple[str, ...] = ()  # short and foreign spellings, besides --name
    choices: tuple[str, ...] = ()
    least: float = 1  # COUNT and SECONDS
    most: float = 1_000_000  # COUNT

    @property
    def spellings(self) -> tuple[str, ...]:
        """Every flag that means this option, short ones first, long ones with `-`."""
        return (*sorted(self.flags, key=len), f"--{self.name}")

    @property
    def variable(self) -> str:
        """The environment variable of this option."""
        return "MESHRUN_" + self.name.upper().replace("-", "_")


GROUPS = ("where", "mesh", "what", "environment", "ssh", "rendezvous", "by hand", "output", "lifecycle", "rehearsal")
T, N, S, F, C, M = Kind.TEXT, Kind.COUNT, Kind.SECONDS, Kind.FLAG, Kind.CHOICE, Kind.MULTI
PORT = 65535
DEVICES = ("auto", "cpu", "cuda", "xpu", "npu", "hpu", "mps")

OPTIONS: tuple[Option, ...] = (
    Option("hostfile", T, "where", "a host a line, `name slots=4`, in rank order; Open MPI's and DeepSpeed's forms too",
           None, "FILE"),
    Option("hosts", T, "where", "hosts and their slots without a file: a:4,b:4 or gpu[01-16]:8", None, "LIST", ("-H",)),
    Option("include", T, "where", "only these: host or host:0,2 (device ids), joined by @; ranges", None, "HOSTS"),
    Option("exclude", T, "where", "all but these, same form; applied after --include", None, "HOSTS"),
    Option("nodes", N, "where", "use the first N hosts", None, "N", ("--num-nodes",)),
    Option("nproc-per-node", N, "where", "workers on a host that says no slots; else one for each accelerator, or one",
           None, "N", ("--num-gpus", "--num-accelerators")),
    Option("launcher", C, "where", "auto: this machine directly, others by ssh; local: this machine; ssh: all by ssh",
           "auto", "WAY", (), ("auto", "local", "ssh")),
    Option("mesh", T, "mesh", "dp=2,tp=4 (one size may be auto) or a mesh.yaml; without it: one dim, dp", None, "MESH"),
    Option("module", F, "what", "SCRIPT is a module name, as with python -m", False, "", ("-m",)),
    Option("no-python", F, "what", "SCRIPT is a program of its own, run without python", False),
    Option(
        "init",
        C,
        "what",
        "eager: groups and mesh before the script; lazy: at its first init_process_group; off (--no-init): "
        "variables only; auto: eager with --mesh, else lazy",
        "auto",
        "WHEN",
        (),
        ("auto", "eager", "lazy", "off"),
    ),
    Option("device", C, "what", "the accelerator to use; auto: what the node has", "auto", "KIND", (), DEVICES),
    Option("backend", T, "what", "process group backend; by device when not said", "", "NAME"),
    Option("timeout", S, "what", "time-out of collective operations; else the mesh file's, else 600", None, "SECONDS"),
    Option("start-method", C, "what", "fork after one import a node, or a fresh interpreter each", "fork", "HOW", (),
           ("fork", "spawn")),
    Option("pass-local-rank", F, "what", "add --local_rank=N to the script's arguments, for scripts that insist on it",
           False),
    Option("preload", T, "what", "modules to import once a node, before the workers are forked; auto: those that the "
           "script opens with", "", "MOD,..."),
    Option("bind", C, "what", "CPUs of a worker: its part of its accelerator's NUMA node, or equally many whole cores "
           "near it; OMP_NUM_THREADS follows", "none", "HOW", (), ("none", "numa", "cores")),
    Option("env", M, "environment", "pass NAME on, or set NAME=VALUE, on every node; globs without =", (),
           "NAME[=VALUE]", ("-x",)),
    Option("env-file", M, "environment", "KEY=VALUE lines to set on every node; -x wins over them", (), "FILE"),
    Option("env-remote", M, "environment", "set from the node's own variables: DATA='$SCRATCH/data'", (), "NAME=EXPR"),
    Option("python", T, "environment", "interpreter on the nodes; else the one that runs meshrun", None, "PATH"),
    Option("workdir", T, "environment", "directory on the nodes; this one when not said", None, "DIR"),
    Option("prelude", T, "environment", "sh commands on each node before all else; what they set reaches the workers",
           "", "CMD"),
    Option("ssh-client", C, "ssh", "what logs in; openssh: the system's ssh, for Kerberos, FIDO keys and the like",
           "paramiko", "CLIENT", (), ("paramiko", "openssh")),
    Option("ssh-config", T, "ssh", "instead of ~/.ssh/config; none: no file", None, "FILE"),
    Option("ssh-user", T, "ssh", "login name where the hostfile says none", None, "NAME"),
    Option("ssh-port", N, "ssh", "port where the hostfile says none", None, "PORT", (), (), 1, PORT),
    Option("identity", T, "ssh", "private key file to try first", None, "FILE"),
    Option("host-key-policy", C, "ssh", "unknown host keys; when not said, as the ssh config says, else strict", None,
           "POLICY", (), ("strict", "accept-new")),
    Option("connect-timeout", S, "ssh", "how long to try to reach a node", 30.0, "SECONDS"),
    Option("master-addr", T, "rendezvous", "address of node 0; measured when not said", None, "ADDR"),
    Option("master-port", N, "rendezvous", "port on node 0; 0: the kernel picks", 0, "PORT", (), (), 0, PORT),
    Option("start-timeout", S, "rendezvous", "from the connections to all ranks in the script", 300.0, "SECONDS"),
    Option("nnodes", N, "by hand", "how many nodes run this command, each with its --node-rank", None, "N"),
    Option("node-rank", T, "by hand", "this node's number, or auto (from Slurm or MPI variables)", None, "R|auto"),
    Option("token-file", T, "by hand", "a secret that all nodes share; peers without it are refused", None, "FILE"),
    Option("log-dir", T, "output", "where the run's directory is made", "meshrun-runs", "DIR"),
    Option("show", T, "output", "whose lines to show: all, 0,4-7 or tp=0", "all", "WHICH"),
    Option("quiet", F, "output", "no words of meshrun's own while all is well", False, "", ("-q",)),
    Option("format", C, "output", "of the plan: text, json, commands to run by hand, or a picture: svg, html", "text",
           "FORM", (), ("text", "json", "commands", "svg", "html")),
    Option("explain", N, "output", "of the plan: this rank in words: its host, coordinates and groups", None, "RANK",
           (), (), 0),
    Option("diff", T, "output", "of two plans, which ranks move: --diff A.json B.json, or A.json and the options",
           None, "PLAN"),
    Option("grace", S, "lifecycle", "from SIGTERM to SIGKILL", 5.0, "SECONDS", (), (), 0),
    Option("time-limit", S, "lifecycle", "end the run after so long, with exit code 124", None, "SECONDS"),
    Option("signal-workers", T, "lifecycle", "signal to each worker before --time-limit ends, as USR1@60", None,
           "SIG@SECONDS"),
    Option("hang-timeout", S, "lifecycle", "when no rank has moved for so long: say where each is, exit code 124",
           None, "SECONDS"),
    Option("max-restarts", N, "lifecycle", "start all workers again after a failure, so often at most", 0, "N", (), (),
           0),
    Option("dry-run", F, "rehearsal", "show the plan, start nothing (= meshrun plan)", False),
    Option("local", F, "rehearsal", "every node of the plan as an agent on this machine, on CPU with gloo", False),
    Option("fake", F, "rehearsal", "a few ranks of the plan, each alone: no communication, tensors without numbers",
           False),
    Option("ranks", T, "rehearsal", "of --fake, which: 0,4-7, or classes: first, middle and last of each dim", None,
           "RANKS"),
    Option("tensors", C, "rehearsal", "of --fake: fake, with shapes only, or real ones on the CPU", None, "KIND", (),
           ("fake", "real")),
    Option("steps", N, "rehearsal", "of --fake: end the script after so many steps of an optimizer", None, "N"),
    Option("job", T, "rehearsal", "a YAML file with any of these options as keys", None, "FILE"),
)  # fmt: skip

BY_NAME: dict[str, Option] = {option.name: option for option in OPTIONS}
BY_FLAG: dict[str, Option] = {flag: option for option in OPTIONS for flag in option.spellings}

# Verbs that take a few options only; the others take all of them.
FEW: dict[str, tuple[str, ...]] = dict.fromkeys(("ps", "stacks", "stop"), ("log-dir", "job"))

# A flag that stands for an option with a value.
FIXED: dict[str, tuple[str, str]] = {"--no-init": ("init", "off"), "--standalone": ("launcher", "local")}

# Flags of torchrun and deepspeed that ask for what is always so here: they are taken and change nothing.
ALWAYS: dict[str, str] = {
    "--use-env": "LOCAL_RANK is a variable; an argument only with --pass-local-rank",
    "--no-local-rank": "--local_rank is added to the script's arguments only with --pass-local-rank",
    "--no-ssh-check": "nodes are connected once, by the run itself",
    "--force-multi": "a single remote host is remote",
}
