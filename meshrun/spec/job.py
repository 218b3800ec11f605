"""Owns: settings, hosts and what was read at the edge → one `Job`; the checks that need several of them.
Must not: read files, the clock or the environment: all that comes in `Context`.
Called by: cli.request."""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import prod

from meshrun.dataclass import dataclass, field, replace
from meshrun.errors import InputError, Place, Problem
from meshrun.spec.backends import check_backend, find_misfit, needed_device
from meshrun.spec.rehearsal import as_fake, as_local, check_rehearsal
from meshrun.spec.settings import Settings
from meshrun.spec.signals import parse_early_signal
from meshrun.spec.values import ByHand, Host, Job, MeshSpec, SshSettings

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
MAX_VARIABLE = 131_072  # of one name and value with its `=` and end, on Linux with pages of 4 KiB
MAX_VARIABLES = 6 * 2**20  # of all, whatever `ulimit -s` says
HANG_LEAST_S = 1.0  # ranks are looked at every 0.3 s at the most often
_IPV6 = r"\[?[0-9A-Fa-f]*:[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*(%[A-Za-z0-9_.-]+)?\]?"
_ADDRESS = re.compile(rf"([A-Za-z0-9_][A-Za-z0-9_.-]*|{_IPV6})\Z")


@dataclass(frozen=True, slots=True)
class Context:
    """What the edge read for this job."""

    run_id: str
    cwd: str
    python: str  # the interpreter that runs meshrun, symlinks not resolved
    local: tuple[bool, ...]  # per host: this machine
    mesh: MeshSpec | None = None
    script_hash: str = ""
    env: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    node_rank: int | None = None  # `auto` resolved
    token: bytes = field(default=b"", repr=False)


def make_job(settings: Settings, hosts: tuple[Host, ...], words: tuple[str, ...], context: Context) -> Job:
    """The job that `settings` ask for; `words` are the script and its arguments. Raises InputError: all at once."""
    if problems := check_request(settings, hosts, words, context):
        raise InputError(problems)
    workdir = resolve(context.cwd, settings["workdir"] or ".")
    form = form_of(settings)
    job = Job(
        run_id=context.run_id,
        form=form,
        typed=words[0] if words else "",
        argv=(resolve(workdir, words[0]) if form == "script" else words[0], *words[1:]) if words else (),
        hosts=_hosts_of(settings, hosts, context),
        local=context.local if not by_hand(settings) else (True,) * _seats(settings, context),
        workdir=workdir,
        python=_python_of(settings["python"], context),
        log_dir=f"{resolve(context.cwd, settings['log-dir'])}/{context.run_id}",
        script_hash=context.script_hash,
        mesh=context.mesh,
        nproc_per_node=None if by_hand(settings) else _count(settings, hosts, context),
        init=_init_of(settings, context.mesh),
        device=settings["device"],
        backend=settings["backend"],
        timeout_s=settings["timeout"],
        start_method=settings["start-method"],
        pass_local_rank=settings["pass-local-rank"],
        preload=tuple(filter(None, settings["preload"].split(","))),
        bind=settings["bind"],
        env=context.env,
        env_remote=tuple((name, text) for name, _, text in (item.partition("=") for item in settings["env-remote"])),
        prelude=settings["prelude"],
        ssh=ssh_settings(settings),
        by_hand=_by_hand_of(settings, context),
        master_addr=settings["master-addr"],
        master_port=settings["master-port"],
        connect_timeout_s=settings["connect-timeout"],
        start_timeout_s=settings["start-timeout"],
        grace_s=settings["grace"],
        time_limit_s=settings["time-limit"],
        signal_workers=parse_early_signal(settings["signal-workers"]) if settings["signal-workers"] else None,
        hang_timeout_s=settings["hang-timeout"],
        max_restarts=settings["max-restarts"],
        show=settings["show"],
        quiet=settings["quiet"],
    )
    if settings["fake"]:
        return as_fake(job, settings, _count(settings, hosts, context))
    return as_local(job) if settings["local"] else job


def resolve(directory: str, path: str) -> str:
    """`path` as seen from `directory`, which is absolute; `..` is kept, because a symlink may stand before it."""
    whole = path if path.startswith("/") else f"{directory}/{path}"
    return "/" + "/".join(part for part in whole.split("/") if part not in ("", "."))


def _python_of(text: str | None, context: Context) -> str:
    """`.venv/bin/python` is seen from here, as any path on a command line; `~/` and a bare name are the node's."""
    if text is None:
        return context.python
    return resolve(context.cwd, text) if "/" in text and not text.startswith("~/") else text


def form_of(settings: Settings) -> str:
    """How SCRIPT is run: "script", "module" (-m) or "program" (--no-python)."""
    return "module" if settings["module"] else "program" if settings["no-python"] else "script"


def _init_of(settings: Settings, mesh: MeshSpec | None) -> str:
    if settings["no-python"]:
        return "off"
    asked: str = settings["init"]
    return asked if asked != "auto" else "eager" if mesh else "lazy"


def _count(settings: Settings, hosts: tuple[Host, ...], context: Context) -> int | None:
    """Workers on each host whose line says none."""
    return settings["nproc-per-node"] or _count_from_mesh(hosts, context)


def _count_from_mesh(hosts: tuple[Host, ...], context: Context) -> int | None:
    """A mesh of fixed size on a single local host that says no count sets it (DESIGN §4)."""
    sizes = [size for _, size in context.mesh.dims] if context.mesh else []
    alone = context.local == (True,) and hosts[0].slots is None and hosts[0].devices is None
    return prod(size for size in sizes if size) if sizes and alone and None not in sizes else None


def ssh_settings(settings: Settings) -> SshSettings:
    """How this job logs in where the hostfile line does not say."""
    return SshSettings(
        config=settings["ssh-config"],
        user=settings["ssh-user"],
        port=settings["ssh-port"],
        identity=settings["identity"],
        client=settings["ssh-client"],
        host_key_policy=settings["host-key-policy"] or "",
    )


def by_hand(settings: Settings) -> bool:
    """Whether this command is one of several that are started by hand; one node alone is an ordinary local run."""
    return (settings["nnodes"] or 1) > 1


def _by_hand_of(settings: Settings, context: Context) -> ByHand | None:
    if not by_hand(settings) or context.node_rank is None:
        return None
    return ByHand(
        settings["nnodes"], context.node_rank, settings["master-addr"], settings["master-port"], context.token
    )


def _seats(settings: Settings, context: Context) -> int:
    """Hosts that this command speaks of: by hand, node 0 keeps a seat for each of the others."""
    return settings["nnodes"] if context.node_rank == 0 else 1


def _hosts_of(settings: Settings, hosts: tuple[Host, ...], context: Context) -> tuple[Host, ...]:
    """By hand, --nproc-per-node is about this node alone; what the others have, they say when they join."""
    if not by_hand(settings):
        return hosts
    others = (Host(f"node{rank}") for rank in range(1, _seats(settings, context)))
    return (replace(hosts[0], slots=settings["nproc-per-node"]), *others)


# ---- checks: each yields the problems of one rule ----


def check_request(
    settings: Settings, hosts: tuple[Host, ...], words: tuple[str, ...], context: Context
) -> list[Problem]:
    """Everything that is wrong with the whole although each part is right."""
    return [
        *_check_form(settings, words),
        *_check_by_hand(settings, context),
        *_check_launcher(settings, hosts, context.local),
        *_check_master(settings, len(hosts)),
        *_check_words(settings),
        *_check_interfaces(hosts, context.env),
        *_check_env_remote(settings),
        *_check_sizes(hosts, context.env),
        *_check_signal(settings),
        *_check_hang(settings),
        *_check_backends(settings, context.mesh),
        *check_rehearsal(settings, hosts, _count(settings, hosts, context)),
    ]


def _check_form(settings: Settings, words: tuple[str, ...]) -> Iterator[Problem]:
    for name in ("explain", "diff"):
        if settings[name] is not None and not settings["dry-run"]:
            yield Problem(f"--{name} is about a plan", hint=f"meshrun plan --{name} {settings[name]} ...")
    if settings["module"] and settings["no-python"]:
        yield Problem("--module and --no-python exclude each other", hint="a module needs python")
    if settings["no-python"] and settings["init"] not in ("auto", "off"):
        yield Problem(f"--init {settings['init']} needs python", hint="leave out --init, or --no-python")
    if settings["preload"] and (settings["no-python"] or settings["start-method"] == "spawn"):
        yield Problem("--preload needs a process that forks the workers", hint="--start-method fork, with python")
    if not words and not settings["dry-run"]:
        yield Problem("no script given", hint="meshrun [OPTIONS] SCRIPT [ARGS]...; `meshrun --help` has the options")


def _check_by_hand(settings: Settings, context: Context) -> Iterator[Problem]:
    if settings["nnodes"] is None:
        lonely = [name for name in ("node-rank", "token-file") if settings[name] is not None]
        yield from (Problem(f"--{name} belongs to --nnodes", hint=_BY_HAND) for name in lonely)
        return
    if context.node_rank is not None and context.node_rank >= settings["nnodes"]:
        yield Problem(f"--node-rank {context.node_rank} is not below --nnodes {settings['nnodes']}", hint="from 0 on")
    if not by_hand(settings):
        return
    missing = [name for name in ("node-rank", "master-addr", "master-port") if not settings[name]]
    if missing:
        yield Problem(f"--nnodes needs {' and '.join('--' + name for name in missing)} too", hint=_BY_HAND)
    others = [name for name in ("hostfile", "hosts", "include", "exclude", "nodes") if settings[name] is not None]
    if others:
        hint = "with a list of hosts meshrun starts them all: leave out --nnodes"
        yield Problem(f"--nnodes and {' '.join('--' + name for name in others)} exclude each other", hint=hint)


_BY_HAND = "on each node: --nnodes N --node-rank R --master-addr A --master-port P"


def _check_launcher(settings: Settings, hosts: tuple[Host, ...], local: tuple[bool, ...]) -> Iterator[Problem]:
    remote = [host.name for host, here in zip(hosts, local, strict=True) if not here]
    if settings["launcher"] == "local" and remote:
        yield Problem(
            f"--launcher local (--standalone) starts this machine only, not {_some(remote)}",
            hint="leave it out, or leave out the list of hosts",
        )
    if settings["launcher"] == "ssh" and settings["hostfile"] is None and settings["hosts"] is None:
        yield Problem("--launcher ssh needs hosts", hint="--hostfile FILE or --hosts a:4,b:4")


def _check_master(settings: Settings, hosts: int) -> Iterator[Problem]:
    address, nodes = settings["master-addr"], max(hosts, settings["nnodes"] or 1)
    if address and nodes > 1 and is_loopback(address):
        yield Problem(
            f"{nodes} nodes cannot meet at {address}: it is each node's own loopback",
            Place("--master-addr"),
            hint="leave it out: the address is measured"
            if not settings["nnodes"]
            else "an address of node 0's network",
        )


def _check_words(settings: Settings) -> Iterator[Problem]:
    """Texts that have a form, although what they name is only known on the nodes."""
    address = settings["master-addr"] or "a"
    if not _ADDRESS.match(address):
        host, colon, port = address.rpartition(":")
        hint = f"--master-addr {host} --master-port {port}" if colon and port.isdigit() else "an IP address or a name"
        yield Problem(f"{address[:60]!r} is not an address", Place("--master-addr"), hint=hint)
    for name in filter(None, settings["preload"].split(",")):
        module, colon, attribute = name.removesuffix("?").partition(":")
        if not all(part.isidentifier() for part in [*module.split("."), attribute or "a" * (not colon)]):
            yield Problem(f"{name[:60]!r} is not the name of a module", Place("--preload"), hint="a,b.c")


def is_loopback(address: str) -> bool:
    """Whether an address or name stands for the machine that looks it up."""
    import ipaddress  # only a pinned --master-addr needs it

    try:
        return ipaddress.ip_address(address.strip("[]")).is_loopback
    except ValueError:
        return address.rstrip(".").lower() in ("localhost", "ip6-localhost", "localhost.localdomain")


def _check_interfaces(hosts: tuple[Host, ...], env: tuple[tuple[str, str], ...]) -> Iterator[Problem]:
    """gloo takes one interface name; it crashes on the `^` and `=` forms that NCCL knows (measured, DESIGN §12)."""
    named = [(None, env), *((host.place, host.env) for host in hosts)]
    for place, pairs in named:
        for name, value in pairs:
            if name == "GLOO_SOCKET_IFNAME" and (set(value) & set("^=,") or not value):
                yield Problem(
                    f"{name}={value!r}: gloo takes one interface name", place, hint=f"{name}=eth0, or no {name}"
                )


def _check_env_remote(settings: Settings) -> Iterator[Problem]:
    for item in settings["env-remote"]:
        name, equals, _ = item.partition("=")
        if not equals or not _NAME.match(name):
            yield Problem(f"{item[:80]!r} is not NAME=EXPR", Place("--env-remote"), hint="DATA='$SCRATCH/data'")


def _check_sizes(hosts: tuple[Host, ...], env: tuple[tuple[str, str], ...]) -> Iterator[Problem]:
    """Linux starts no program with a larger variable; said here, or each node would say it in fewer words."""
    named = [(None, env), *((host.place, host.env) for host in hosts)]
    for place, pairs in named:
        for name, value in pairs:
            size = sum(len(text.encode("utf-8", "surrogateescape")) for text in (name, value)) + 2
            if size > MAX_VARIABLE:
                message = f"the variable {name[:60]} takes {size} bytes; the system passes on {MAX_VARIABLE} at most"
                yield Problem(message, place, hint="write the value to a file, and pass on its name")
    total = sum(len(name) + len(value) for name, value in env)
    if total > MAX_VARIABLES:
        yield Problem(f"the exported variables take {total} bytes; the system passes on {MAX_VARIABLES} at most")


def _check_hang(settings: Settings) -> Iterator[Problem]:
    limit = settings["hang-timeout"]
    if limit is not None and limit < HANG_LEAST_S:
        text = f"{limit:g} s is shorter than what can be told from a rank that merely waits its turn"
        yield Problem(text, Place("--hang-timeout"), hint=f"{HANG_LEAST_S:g} or more; minutes for real work")


def _check_backends(settings: Settings, mesh: MeshSpec | None) -> Iterator[Problem]:
    """Of --backend; and whether it and a mesh file's suit the device. With --no-python meshrun makes no group."""
    early = _init_of(settings, mesh) == "eager"
    device = settings["device"] if settings["device"] != "auto" or not mesh else mesh.device
    asked = [(Place("--backend"), settings["backend"] or "")]
    wrong = check_backend(asked[0][1], bool(settings["preload"]), early) if asked[0][1] else None
    if wrong is not None:
        yield Problem(wrong[0], asked[0][0], hint=wrong[1])
        asked = []
    asked += [(mesh.place_of("backend", dim) or Place("--mesh"), name) for dim, name in mesh.backend] if mesh else []
    for where, text in asked if device != "auto" else ():
        if name := find_misfit(text, device):
            hint = f"leave it out (by device: gloo on cpu), or say --device {needed_device(name)}"
            yield Problem(f"{name} does not work with device {device}", where, hint=hint)


def _check_signal(settings: Settings) -> Iterator[Problem]:
    text, limit = settings["signal-workers"], settings["time-limit"]
    if text is None:
        return
    try:
        early = parse_early_signal(text)
    except InputError as error:
        yield from error.problems
        return
    if limit is None:
        yield Problem("--signal-workers is about the end of --time-limit", hint="say --time-limit SECONDS too")
    elif early.before_s >= limit:
        text = f"{early.before_s:g} s before the end of --time-limit {limit:g} s is not after its beginning"
        yield Problem(text, Place("--signal-workers"), hint="fewer seconds, or a longer time limit")


def _some(names: list[str], most: int = 8) -> str:
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + rest
