"""Owns: the plan as one POSIX shell line a node, to start it by hand.
Must not: show the value of an exported variable, or write a line that is not one line.
Called by: cli.plan."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from meshrun.dataclass import fields
from meshrun.plan.orders import asked_device
from meshrun.plan.values import Mesh, NodePlan, Plan
from meshrun.spec.mesh import spell_dims
from meshrun.spec.signals import render_early_signal
from meshrun.spec.values import Job

DEFAULT_MASTER_PORT = 29400
MASKS = {
    "auto": "CUDA_VISIBLE_DEVICES",
    "cuda": "CUDA_VISIBLE_DEVICES",
    "xpu": "ZE_AFFINITY_MASK",
    "npu": "ASCEND_RT_VISIBLE_DEVICES",
    "hpu": "HABANA_VISIBLE_MODULES",
}
# In a shell a newline inside a word ends the line; this way the line stays one line.
_NEWLINE = "nl=$(printf '\\n.') && nl=${nl%.} && "
# Options whose value is one word and that mean the same on every node, by the `Job` field that holds them.
_PLAIN = {
    "device": "--device",
    "backend": "--backend",
    "timeout_s": "--timeout",
    "start_method": "--start-method",
    "bind": "--bind",
    "prelude": "--prelude",
    "connect_timeout_s": "--connect-timeout",
    "start_timeout_s": "--start-timeout",
    "grace_s": "--grace",
    "time_limit_s": "--time-limit",
    "hang_timeout_s": "--hang-timeout",
    "max_restarts": "--max-restarts",
    "show": "--show",
}


def render_commands(plan: Plan, job: Job, exported_names: Sequence[str] | None = None) -> str:
    """One line per node, in node order, each to be pasted on its node; `#` lines are remarks.

    `exported_names`: what must be set there by other means, names only (None: those of the job)."""
    names = [name for name, _ in job.env] if exported_names is None else list(exported_names)
    lines: list[str] = []
    for node in plan.nodes:
        lines += _remarks(job, node, names)
        lines.append(_command(plan, job, node))
    return "\n".join(lines) + "\n"


def _remarks(job: Job, node: NodePlan, names: Sequence[str]) -> Iterator[str]:
    yield f"# node {node.node_rank}: on {_remark(node.host.name)}"
    wanted = dict.fromkeys([*names, *(name for name, _ in node.host.env), *(name for name, _ in job.env_remote)])
    if wanted:
        yield f"#   must be set there: {' '.join(map(_remark, wanted))}"
    if job.by_hand and job.by_hand.token:
        yield "#   add --token-file FILE with the same token on every node"


def _remark(text: str) -> str:
    # A remark must stay one line, whatever a name holds.
    return "".join(char if char.isprintable() else "?" for char in text)


def _command(plan: Plan, job: Job, node: NodePlan) -> str:
    words = [node.host.python or job.python, "-m", "meshrun", *_place(plan, job, node), *_options(plan, job)]
    words += {"module": ["-m"], "program": ["--no-python"]}.get(job.form, [])
    workdir = node.host.workdir or job.workdir
    line = " ".join([*_mask(job, node), *map(_quote, [*words, *job.argv])])
    line = f"cd {_quote(workdir)} && {line}"
    return _NEWLINE + line if '"$nl"' in line else line


def _place(plan: Plan, job: Job, node: NodePlan) -> Iterator[str]:
    first = plan.nodes[0].host
    yield from ("--nnodes", str(len(plan.nodes)), "--node-rank", str(node.node_rank))
    yield from ("--master-addr", job.master_addr or first.addr or first.name)
    yield from ("--master-port", str(job.master_port or DEFAULT_MASTER_PORT))
    yield from ("--nproc-per-node", str(node.slots))


def _options(plan: Plan, job: Job) -> Iterator[str]:
    if job.mesh is not None:
        yield from ("--mesh", _mesh(plan, job))
    if job.init != ("lazy" if job.mesh is None else "eager") and job.form != "program":
        yield from ("--init", job.init)
    if job.preload:
        yield from ("--preload", ",".join(job.preload))
    defaults = {field.name: field.default for field in fields(Job)}
    for name, option in _PLAIN.items():
        value = getattr(job, name)
        if value != defaults[name]:
            yield from (option, f"{value:.15g}" if isinstance(value, float) else str(value))
    if job.signal_workers:
        yield from ("--signal-workers", render_early_signal(job.signal_workers))
    if job.pass_local_rank:
        yield "--pass-local-rank"
    if job.quiet:
        yield "--quiet"


def _mesh(plan: Plan, job: Job) -> str:
    """The short form, with `auto` solved; a mesh that says more than its dims is named by its file."""
    mesh, spec = plan.mesh, job.mesh
    plain = Mesh(mesh.dims)
    if spec and spec.place and mesh != plain:
        return spec.place.source
    return spell_dims(mesh.dims)


def _mask(job: Job, node: NodePlan) -> Iterator[str]:
    """The device mask, where the hostfile or a filter chose the devices."""
    name = MASKS.get(asked_device(job))
    if node.host.devices is not None and name:
        yield f"{name}={_quote(','.join(node.devices))}"


def _quote(word: str) -> str:
    return '"$nl"'.join(shlex.quote(part) if part or "\n" not in word else "" for part in word.split("\n"))
