"""Owns: a job → the same job on this machine instead of its hosts (`--local`); what a rehearsal cannot be asked for.
Must not: change what the plan is made of: the plan and its fingerprint are those of the real run.
Called by: spec.job; plan.orders (as_gloo)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from meshrun.dataclass import replace
from meshrun.errors import Place, Problem
from meshrun.spec.settings import Settings
from meshrun.spec.values import Host, Job, Rehearsal

LOOPBACK = "127.0.0.1"
# Back ends that need an accelerator; any other name (gloo, mpi, one's own) is left to torch.
ACCELERATOR_BACKENDS = ("nccl", "rccl", "hccl", "xccl", "cncl", "mccl", "tccl", "eccl")
# Names of the nodes' interfaces: here the rendezvous is on loopback, and agents set its interface by themselves.
INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "HCCL_SOCKET_IFNAME")

Env = tuple[tuple[str, str], ...]


def check_rehearsal(settings: Settings, hosts: tuple[Host, ...], count: int | None) -> Iterator[Problem]:
    """What does not go together with a rehearsal. `count`: workers on each host that says none, if that is known."""
    if not settings["local"]:
        return
    place = Place("--local")
    if (settings["nnodes"] or 1) > 1:
        hint = "rehearse it with a list of hosts: --hosts a:4,b:4"
        yield Problem("by hand, other nodes take part: they cannot be rehearsed here", place, hint=hint)
    if settings["launcher"] == "ssh":
        yield Problem("--launcher ssh connects to hosts, a rehearsal to none", place, hint="leave one of the two out")
    if settings["format"] == "commands":
        hint = "leave out --local: `plan` starts nothing anyway"
        yield Problem("--format commands is about the real nodes", place, hint=hint)
    yield from _check_slots(hosts, count, place)


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
        backend=as_gloo(job.backend),
        env=_without_interfaces(job.env),
        master_addr=None,
        rehearsal=Rehearsal((first, *_list_replaced(job, hosts))),
    )


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


def _list_replaced(job: Job, hosts: tuple[Host, ...]) -> Iterator[str]:
    """In words, what the command line, the mesh file and the hostfile say that is not so here."""
    said = [f"--device {job.device}"] if job.device not in ("auto", "cpu") else []
    if job.mesh and job.mesh.device not in ("auto", "cpu"):
        said.append(f"device {job.mesh.device} of the mesh")
    if as_gloo(job.backend) != job.backend:
        said.append(f"--backend {job.backend}")
    dims = job.mesh.backend if job.mesh else ()
    said += [f"backend {name} of {dim}" for dim, name in dims if as_gloo(name) != name]
    if said:
        yield f"rehearsal: replaced by CPU and gloo: {', '.join(said)}"
    dropped = [f"--master-addr {job.master_addr}"] if job.master_addr else []
    envs = [job.env, *(host.env for host in job.hosts)]
    dropped += dict.fromkeys(name for env in envs for name, _ in env if name in INTERFACES)
    if dropped:
        yield f"rehearsal: left out, since it is about the nodes' networks: {', '.join(dropped)}"
