"""Owns: `meshrun plan`: the placement as text, JSON, commands or a picture; one rank of it; what differs.
Must not: connect to any host, or start a worker.
Called by: cli.main, and cli.run for `--dry-run` and for its check before anything is made."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from meshrun.cli.files import write_stderr, write_stdout
from meshrun.cli.request import Request, naming_sources, read_request
from meshrun.errors import EXIT_OK, InputError, Problem
from meshrun.plan.masks import masked_devices
from meshrun.plan.orders import asked_device
from meshrun.plan.placement import devices_of, known_slots, make_plan, with_shares
from meshrun.plan.rehearsal import make_fake_plan
from meshrun.plan.values import Plan
from meshrun.spec.argv import Split
from meshrun.spec.settings import Settings
from meshrun.spec.values import Host, Job
from meshrun.wire.masks import check_chosen

_NAMES_ONLY = ("env", "env-remote")


def plan(split: Split) -> int:
    """Print what a run of the same command line would do, or how two plans differ."""
    from meshrun.cli.compare import names_two_plans, show_difference

    if names_two_plans(split):
        return show_difference(split)
    return show_plan(read_request(split, dry_run=True))


def show_plan(request: Request) -> int:
    """Print the plan of a request that has been read."""
    forms = _check_forms(request.settings)
    with naming_sources(request.sources):
        placed = place(request.job)
    if request.settings["diff"] is not None:
        from meshrun.cli.compare import render_difference

        write_stdout(render_difference(request.settings["diff"], placed))
    elif request.settings["explain"] is not None:
        from meshrun.plan.explain import explain_rank

        write_stdout(explain_rank(_with_own_shares(request.job, placed), request.settings["explain"]))
    else:
        write_stdout(_render(placed, request))
    if forms or request.settings["format"] not in ("text", "json"):
        tell_remarks(request)
    return EXIT_OK


def _check_forms(settings: Settings) -> list[str]:
    """One form at a time: none of those that were asked for is left out in silence. Empty: the plan itself."""
    forms = [f"--{name}" for name in ("explain", "diff") if settings[name] is not None]
    if forms and settings["format"] != "text":
        forms.append(f"--format {settings['format']}")
    if len(forms) > 1:
        raise InputError(Problem(f"{' and '.join(forms)} exclude each other", hint="one command for each"))
    return forms


def _render(placed: Plan, request: Request) -> str:
    """The plan in the form that was asked for; each form imports what only it needs."""
    form = request.settings["format"]
    if form == "json":
        import json

        from meshrun.plan.describe import describe_plan

        shared = _with_own_shares(request.job, placed)
        return json.dumps(describe_plan(shared) | describe_sources(request), indent=2) + "\n"
    if form == "commands":
        from meshrun.plan.commands import render_commands

        return render_commands(placed, request.job)
    if form == "svg":
        from meshrun.report.picture import render_svg

        return render_svg(placed)
    if form == "html":
        from meshrun.report.page import render_html

        return render_html(placed)
    from meshrun.plan.text import render_plan

    shared = _with_own_shares(request.job, placed)
    return render_plan(shared, shown_settings(request), shown_variables(request), request.remarks)


def tell_remarks(request: Request) -> None:
    """On stderr, for whatever has no place of its own for them."""
    for remark in request.remarks:
        write_stderr(f"meshrun: {remark}")


def place(job: Job) -> Plan:
    """The plan, as far as it can be known from here: this machine may be asked, others not. Raises InputError."""
    if job.by_hand:
        hint = "meshrun plan --hosts a:4,b:4 --format commands prints the lines to run by hand"
        raise InputError(Problem("by hand, the plan is known when the nodes have met", hint=hint))
    if job.rehearsal and job.rehearsal.fake:
        return make_fake_plan(job, job.rehearsal.fake)
    counts = [known_slots(host, job.nproc_per_node) for host in job.hosts]
    unknown = [
        host for host, count, here in zip(job.hosts, counts, job.local, strict=True) if count is None and not here
    ]
    if unknown:
        names = ", ".join(host.name for host in unknown[:8]) + (f" and {len(unknown) - 8} more" * (len(unknown) > 8))
        hint = "slots=N on the line, or --nproc-per-node N; a run asks the nodes"
        raise InputError(Problem(f"how many workers on {names}? `plan` connects nowhere", hint=hint))
    found = [_look(job, node, count) for node, count in enumerate(counts)]
    return make_plan(job.hosts, [slots for slots, _ in found], [devices for _, devices in found], job.mesh)


def check_plan(request: Request) -> None:
    """Refuse before anything is made what `plan` would refuse, unless a node must be asked. Raises InputError."""
    job = request.job
    if job.by_hand is None and all(known_slots(host, job.nproc_per_node) is not None for host in job.hosts):
        with naming_sources(request.sources):
            place(job)


def _with_own_shares(job: Job, placed: Plan) -> Plan:
    """With `--bind`, what this machine's workers get of it; other nodes say so when a run asks them."""
    if job.bind == "none":
        return placed
    from meshrun.cli.ask import ask_this_machine

    here = [node for node, local in enumerate(job.local) if local]
    return with_shares(placed, {n: ask_this_machine(job, n, placed.nodes[n].slots).shares for n in here})


def _look(job: Job, node: int, count: int | None) -> tuple[int, tuple[str, ...]]:
    """Workers and devices of one node. A mask with a count is taken as it is; without one, this machine is asked."""
    host = job.hosts[node]
    if count is None:
        from meshrun.cli.ask import ask_this_machine

        facts = ask_this_machine(job, node)
        if facts.device_problem:
            raise InputError(Problem(f"{host.name}: {facts.device_problem}", host.place, hint=facts.device_hint))
        if not facts.slots:
            mask = f" ({facts.mask} is in force)" if facts.mask else ""
            hint = "--device cpu plans for the processor; slots= or --nproc-per-node says how many another machine has"
            raise InputError(Problem(f"{host.name}: no {facts.device} device is visible{mask}", host.place, hint=hint))
        return facts.slots, devices_of(host, facts.slots, facts.devices)
    return count, devices_of(host, count, _masked(job, host, count) if job.local[node] else ())


def _masked(job: Job, host: Host, count: int) -> tuple[str, ...]:
    """What the masks in force here leave: enough for the count, and all that `devices=` names. Raises InputError."""
    pool = masked_devices({**os.environ, **dict(job.env), **dict(host.env)}, asked_device(job))
    if pool is None:
        return ()
    hint = f"another {pool.name}, fewer workers, or --device cpu"
    if pool.problem:
        raise InputError(Problem(pool.problem, host.place, hint=hint))
    if host.devices is not None:
        problem = check_chosen(host.devices, pool.ids, None, f"{pool.text} is in force here")
        if problem:
            raise InputError(Problem(f"{host.name}: {problem}", host.place, hint=f"devices that {pool.name} shows"))
    elif len(pool.ids) < count:
        message = f"{host.name} is to run {count} workers, but {pool.text} shows {len(pool.ids)}"
        raise InputError(Problem(message, host.place, hint=hint))
    return pool.ids


def describe_sources(request: Request) -> dict[str, Any]:
    """What was said and by whom, for `--format json`; the rest has its default."""
    said = shown_settings(request)
    return {
        "options": {name: {"value": value, "from": source} for name, (value, source) in said.items()},
        "variables": shown_variables(request),
        "remarks": list(request.remarks),
    }


def shown_variables(request: Request) -> dict[str, str]:
    """The variables that are set on the nodes, by name only, and where each came from."""
    shown = dict(request.variables)
    remote = [item.partition("=")[0] for item in request.settings["env-remote"]]
    shown |= {name: f"--env-remote, {request.sources['env-remote']}" for name in remote if name not in shown}
    lines: dict[str, dict[str, None]] = {}
    for host in request.job.hosts:
        for name, _ in host.env:
            lines.setdefault(name, {})[f"{host.place.source}:{host.place.line}" if host.place else host.name] = None
    for name, places in lines.items():
        first, more = next(iter(places)), f" and {len(places) - 1} more" if len(places) > 1 else ""
        shown[name] = f"hostfile {first}{more}" + (f"; elsewhere {shown[name]}" if name in shown else "")
    return shown


def shown_settings(request: Request) -> Mapping[str, tuple[str, str]]:
    """What was said and by whom, without values of variables, which may be secret."""
    said = {name: source for name, source in request.sources.items() if source != "default" and name != "dry-run"}
    return {name: (_shown(name, request.settings[name]), source) for name, source in said.items()}


def _shown(name: str, value: object) -> str:
    if name == "prelude":
        return "(set)"
    if isinstance(value, tuple):
        return ", ".join(item.partition("=")[0] if name in _NAMES_ONLY else item for item in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.15g}" if isinstance(value, float) else str(value)
