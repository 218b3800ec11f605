"""Owns: the option table as data: names, spellings, kinds, defaults, groups, help; and what is refused by name.
Must not: parse values or do I/O.
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
    Option("hostfile", T, "where", "a host a line, `name slots=4`; Open MPI's and DeepSpeed's forms too", None, "FILE"),
    Option("hosts", T, "where", "hosts and their slots without a file: a:4,b:4 or gpu[01-16]:8", None, "LIST", ("-H",)),
    Option("include", T, "where", "only these: host or host:0,2 (device ids), joined by @; ranges", None, "HOSTS"),
    Option("exclude", T, "where", "all but these, same form; after --include", None, "HOSTS"),
    Option("nodes", N, "where", "use the first N hosts", None, "N", ("--num-nodes",)),
    Option("nproc-per-node", N, "where", "workers a node", None, "N", ("--num-gpus",)),
    Option("launcher", C, "where", "how nodes are reached", "auto", "WAY", (), ("auto", "local", "ssh")),
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
    Option("device", C, "what", "the accelerator to use", "auto", "KIND", (), DEVICES),
    Option("backend", T, "what", "process group backend; by device when not said", "", "NAME"),
    Option("timeout", S, "what", "time-out of collective operations; else the mesh file's, else 600", None, "SECONDS"),
    Option("start-method", C, "what", "fork after one import a node, or a fresh interpreter each", "fork", "HOW", (),
           ("fork", "spawn")),
    Option("preload", T, "what", "modules to import once a node, before the fork", "", "MOD,..."),
    Option("env", M, "environment", "pass NAME on, or set NAME=VALUE, on every node; globs without =", (),
           "NAME[=VALUE]", ("-x",)),
    Option("env-file", M, "environment", "KEY=VALUE lines to set on every node", (), "FILE"),
    Option("env-remote", M, "environment", "set from the node's own variables: DATA='$SCRATCH/data'", (), "NAME=EXPR"),
    Option("python", T, "environment", "interpreter on the nodes; else the one that runs meshrun", None, "PATH"),
    Option("workdir", T, "environment", "directory on the nodes; this one when not said", None, "DIR"),
    Option("prelude", T, "environment", "sh commands on each node before anything else", "", "CMD"),
    Option("ssh-client", C, "ssh", "what logs in; openssh: the system's ssh, for Kerberos, FIDO keys and the like",
           "paramiko", "CLIENT", (), ("paramiko", "openssh")),
    Option("ssh-config", T, "ssh", "instead of ~/.ssh/config; none: no file", None, "FILE"),
    Option("ssh-user", T, "ssh", "login name where the hostfile says none", None, "NAME"),
    Option("ssh-port", N, "ssh", "port where the hostfile says none", None, "PORT", (), (), 1, PORT),
    Option("identity", T, "ssh", "private key file", None, "FILE"),
    Option("host-key-policy", C, "ssh", "unknown host keys; when not said, as the ssh config says, else strict", None,
           "POLICY", (), ("strict", "accept-new")),
    Option("connect-timeout", S, "ssh", "how long to try to reach a node", 30.0, "SECONDS"),
    Option("master-addr", T, "rendezvous", "address of node 0; measured when not said", None, "ADDR"),
    Option("master-port", N, "rendezvous", "port on node 0; else the kernel picks", 0, "PORT", (), (), 0, PORT),
    Option("start-timeout", S, "rendezvous", "from connected to all ranks in the script", 300.0, "SECONDS"),
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
    Option("job", T, "rehearsal", "a YAML file with any of these options as keys", None, "FILE"),
)  # fmt: skip

BY_NAME: dict[str, Option] = {option.name: option for option in OPTIONS}
BY_FLAG: dict[str, Option] = {flag: option for option in OPTIONS for flag in option.spellings}

# A flag that stands for an option with a value.
FIXED: dict[str, tuple[str, str]] = {"--no-init": ("init", "off"), "--standalone": ("launcher", "local")}

_RENDEZVOUS = "node 0 is found by itself; to pin it, --master-addr and --master-port"
_LOGS = "every rank's output is shown and kept in the run directory; choose with --show and --log-dir"
_SHOW = "--show 0,4-7 or --show tp=0 chooses whose lines are shown"
_BIND = "binding to cores is not part of this version; leave it out"
_ELASTIC = "the number of nodes is fixed for a run: --nodes N, or --nnodes N by hand"

# Options of torchrun, deepspeed and mpirun that cannot be honoured: flag → (takes a value, the meshrun way).
REFUSED: dict[str, tuple[bool, str]] = {
    "--rdzv-endpoint": (True, _RENDEZVOUS),
    "--rdzv-backend": (True, _RENDEZVOUS),
    "--rdzv-id": (True, "each run gets an id of its own; leave it out"),
    "--rdzv-conf": (True, "--start-timeout and --timeout set the bounds"),
    "--local-addr": (True, "write addr=IP on the host's line of the hostfile"),
    "--monitor-interval": (True, "workers are watched without polling; leave it out"),
    "--role": (True, "all workers have the role \"default\"; leave it out"),
    "--tee": (True, _LOGS),
    "--redirects": (True, _LOGS),
    "-t": (True, _LOGS),
    "-r": (True, _LOGS),
    "--local-ranks-filter": (True, _SHOW),
    "--log-line-prefix-template": (True, "lines are prefixed [host:rank dp=0,tp=1]; leave it out"),
    "--logs-specs": (True, _LOGS),
    "--event-log-handler": (True, "events.jsonl in the run directory has the events"),
    "--numa-binding": (True, _BIND),
    "--signals-to-handle": (True, "SIGINT, SIGTERM and SIGHUP stop the run in order; leave it out"),
    "--virtual-local-rank": (False, "export the device mask with -x CUDA_VISIBLE_DEVICES=... instead"),
    "--use-env": (False, "it is always so; leave it out"),
    "--run-path": (False, "--no-python runs a program; a script's path needs no option"),
    "--autotp-size": (True, "say it in the mesh: --mesh dp=auto,tp=N"),
    "--launcher-args": (True, "put options of ssh into ~/.ssh/config or --ssh-config FILE"),
    "--no-ssh": (False, "by hand on each node: --nnodes N --node-rank R --master-addr A --master-port P"),
    "--no-ssh-check": (False, "nodes are connected once, by the run itself; leave it out"),
    "--save-pid": (False, "summary.json and events.jsonl in the run directory have the ids"),
    "--enable-each-rank-log": (True, _LOGS),
    "--autotuning": (True, "tuning is not meshrun's; run `deepspeed` for it"),
    "--elastic-training": (False, _ELASTIC),
    "--min-elastic-nodes": (True, _ELASTIC),
    "--max-elastic-nodes": (True, _ELASTIC),
    "--bind-cores-to-rank": (False, _BIND),
    "--bind-core-list": (True, _BIND),
    "--bind-to": (True, _BIND),
    "--bind": (True, _BIND),
    "--no-local-rank": (False, "--local_rank is never added to your arguments; leave it out"),
    "--force-multi": (False, "a single remote host in the hostfile is remote without it; leave it out"),
    "--venv-script": (True, "--prelude '. /path/to/venv/bin/activate'"),
    "--map-by": (True, "ranks go to hosts in hostfile order; order the hostfile"),
    "-n": (True, "--nproc-per-node N for each node, or slots= in the hostfile"),
    "-np": (True, "--nproc-per-node N for each node, or slots= in the hostfile"),
    "--spares": (True, "spare nodes are not part of this version; leave it out"),
    "--fake": (False, "not part of this version; `meshrun plan` shows the placement without starting anything"),
    "--ranks": (True, "not part of this version; `meshrun plan` shows the placement without starting anything"),
    "--local": (False, "not part of this version; leave out the hostfile to run on this machine"),
}  # fmt: skip
