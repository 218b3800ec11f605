"""Owns: a job → the same job here instead of on its hosts (`--local`, `--fake`); what cannot be asked of that.
Must not: change what the plan is made of: the plan and its fingerprint are those of the real run.
Called by: spec.job; plan.orders (as_gloo, HIDDEN)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from meshrun.dataclass import replace
from meshrun.errors import Place, Problem
from meshrun.spec.settings import Settings
from meshrun.spec.values import Fake, Host, Job, Rehearsal

LOOPBACK = "127.0.0.1"
# Back ends that need an accelerator; any other name (gloo, mpi, one's own) is left to torch.
ACCELERATOR_BACKENDS = ("nccl", "rccl", "hccl", "xccl", "cncl", "mccl", "tccl", "eccl")
# Names of the nodes' interfaces: here the rendezvous is on loopback, and agents set its interface by themselves.
INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "HCCL_SOCKET_IFNAME")

# A script that asks torch for accelerators finds none: they are not what is rehearsed.
HIDDEN = dict.fromkeys(("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES"), "")

Env = tuple[tuple[str, str], ...]


def check_rehearsal(settings: Settings, hosts: tuple[Host, ...], count: int | None) -> Iterator[Problem]:
    """What does not go together with a rehearsal. `count`: workers on each host that says none, if that is known."""
    kind = "local" if settings["local"] else "fake"
    place = Place(f"--{kind}")
    if not settings["fake"]:
        lonely = [name for name in ("ranks", "tensors", "steps") if settings[name] is not None]
        yield from (Problem(f"--{name} belongs to --fake", hint="add --fake") for name in lonely)
    if not settings[kind]:
        return
    if settings["fake"]:
        yield from _check_fake(settings)
    if (settings["nnodes"] or 1) > 1:
        hint = "rehearse it with a list of hosts: --hosts a:4,b:4"
        yield Problem("by hand, other nodes take part: they cannot be rehearsed here", place, hint=hint)
    if settings["launcher"] == "ssh":
        yield Problem("--launcher ssh connects to hosts, a rehearsal to none", place, hint="leave one of the two out")
    if settings["format"] == "commands":
        hint = f"leave out --{kind}: `plan` starts nothing anyway"
        yield Problem("--format commands is about the real nodes", place, hint=hint)
    yield from _check_slots(hosts, count, place)


def _check_fake(settings: Settings) -> Iterator[Problem]:
    """What needs more than one rank alone."""
    place = Place("--fake")
    if settings["local"]:
        yield Problem("--local and --fake are two ways to rehearse", hint="leave one of the two out")
    if settings["no-python"] or settings["init"] == "off":
        what = "--no-python" if settings["no-python"] else "--init off"
        yield Problem(f"with {what} there is no group that could be a fake one", place, hint="--local runs all ranks")


def _check_slots(hosts: tuple[Host, ...], count: int | None, place: Place) -> Iterator[Problem]:
    """A rehearsal asks no node, and this machine's accelerators say nothing about theirs."""
    unknown = [host.name for host in hosts if host.slots is None and host.devices is None]
    if unknown and count is None:
        names = ", ".join(unknown[:8]) + (f" and {len(unknown) - 8} more" if len(unknown) > 8 else "")
        hint = "slots=N on the line, or --nproc-per-node N"
        yield Problem(f"how many workers on {names}? A rehearsal asks no node", place, hint=hint)


def as_local(job: Job) -> Job:
    """Every node of the plan as an agent of its own here, on CPU and gloo; the plan, its names and numbers stay."""
    hosts = tuple(_bring_here(host) for host in job.hosts)
    nodes = f"{len(hosts)} node{'s' if len(hosts) > 1 else ''}"
    first = f"rehearsal: {nodes} of the plan on this machine, on CPU with gloo; no host is connected"
    return replace(
        job,
        hosts=hosts,
        local=(True,) * len(hosts),
        device="cpu",
        bind="none",
        backend=as_gloo(job.backend),
        env=_without_interfaces(job.env),
        master_addr=None,
        rehearsal=Rehearsal((first, *_list_replaced(job), *_list_left_out(job))),
    )


def as_fake(job: Job, settings: Settings, count: int | None) -> Job:
    """Some ranks of the plan, each alone in a process of one agent here. `count`: as for `check_rehearsal`."""
    hosts = tuple(replace(host, slots=host.slots or len(host.devices or ()) or count) for host in job.hosts)
    fake = Fake(hosts, settings["ranks"] or "0", settings["tensors"] or "fake", settings["steps"] or 0)
    what = "have shapes but no numbers" if fake.tensors == "fake" else "are real, but hold wrong numbers"
    ranks = f"rank {fake.ranks}, alone" if fake.ranks.isdigit() else f"ranks {fake.ranks}, each alone"
    first = f"rehearsal: {ranks} on this machine; nothing is communicated or saved, tensors {what}"
    common = tuple(pair for pair in hosts[0].env if all(pair in host.env for host in hosts))
    return replace(
        job,
        hosts=(Host("localhost", slots=1, env=_without_interfaces(common)),),
        local=(True,),
        nproc_per_node=None,
        device="cpu",
        bind="none",
        backend="fake",
        preload=(*job.preload, *(("meshrun.worker.rehearsal",) if job.start_method == "fork" else ())),
        env=_without_interfaces(job.env),
        master_addr=None,
        rehearsal=Rehearsal((first, *_list_left_out(job, common)), fake),
    )


def name_rehearsal(job: Job) -> str:
    """`local`, `fake`, or "" for a real run."""
    return "" if job.rehearsal is None else "fake" if job.rehearsal.fake else "local"


def _bring_here(host: Host) -> Host:
    """The host without what leads to it; `devices` stay, to be shown, and `addr` is what it is here."""
    env = _without_interfaces(host.env)
    return replace(host, user=None, port=None, addr=LOOPBACK, python=None, workdir=None, env=env)


def _without_interfaces(env: Env) -> Env:
    return tuple((name, value) for name, value in env if name not in INTERFACES)


def as_gloo(backend: str) -> str:
    """A back end's stand-in on a CPU: `nccl` and `cpu:gloo,cuda:nccl` are gloo, `cpu:mpi,cuda:nccl` is mpi."""
    by_device: Mapping[str, str] = dict(item.partition(":")[::2] for item in backend.split(",") if ":" in item)
    wanted = by_device.get("cpu", "gloo") if by_device else backend
    return "gloo" if wanted.lower() in ACCELERATOR_BACKENDS else wanted


def _list_replaced(job: Job) -> Iterator[str]:
    """In words, which devices and back ends of the command line and the mesh file are others here."""
    said = [f"--device {job.device}"] if job.device not in ("auto", "cpu") else []
    if job.mesh and job.mesh.device not in ("auto", "cpu"):
        said.append(f"device {job.mesh.device} of the mesh")
    if as_gloo(job.backend) != job.backend:
        said.append(f"--backend {job.backend}")
    dims = job.mesh.backend if job.mesh else ()
    said += [f"backend {name} of {dim}" for dim, name in dims if as_gloo(name) != name]
    if said:
        yield f"rehearsal: replaced by CPU and gloo: {', '.join(said)}"


def _list_left_out(job: Job, common: Env | None = None) -> Iterator[str]:
    """In words, what is not so here. `common`: of the variables on the hosts' lines, only these are set."""
    dropped = [f"--master-addr {job.master_addr}"] if job.master_addr else []
    envs = [job.env, *(host.env for host in job.hosts)]
    dropped += dict.fromkeys(name for env in envs for name, _ in env if name in INTERFACES)
    if dropped:
        yield f"rehearsal: left out, since it is about the nodes' networks: {', '.join(dropped)}"
    if job.bind != "none":
        yield f"rehearsal: left out, since it is about the nodes' cores: --bind {job.bind}"
    names = dict.fromkeys(name for host in job.hosts for name, value in host.env if (name, value) not in (common or ()))
    if common is not None and (own := [f"env.{name}" for name in names if name not in INTERFACES]):
        yield f"rehearsal: left out, since it is not the same on all hosts: {', '.join(own)}"
