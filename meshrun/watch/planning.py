"""Owns: the moment when every node has greeted: are they fit, what is the plan, and who gets which part of it.
Must not: do I/O or read a clock.
Called by: watch.greeting."""

from __future__ import annotations

from collections.abc import Sequence

from meshrun import wire
from meshrun.dataclass import replace
from meshrun.errors import EXIT_USAGE, Cause, CauseKind, InputError
from meshrun.plan.advice import advise
from meshrun.plan.checks import check_facts, check_script, check_shares, check_store, needs_torch
from meshrun.plan.orders import make_assign
from meshrun.plan.placement import devices_of, known_slots, make_plan, with_shares
from meshrun.plan.rehearsal import make_fake_plan
from meshrun.plan.values import Plan
from meshrun.spec.values import Host, Job
from meshrun.watch.address import seek_address
from meshrun.watch.ending import add_cause, halt_run
from meshrun.watch.model import Halt, Step
from meshrun.watch.nodes import Nodes
from meshrun.watch.phases import Turn
from meshrun.watch.values import Note, Outcome, Planned, Send


def make_run_plan(job: Job, hosts: Sequence[Host], slots: Sequence[int], found: Sequence[tuple[str, ...]]) -> Plan:
    """The plan for these slots and the accelerators found. Raises InputError."""
    if job.rehearsal and job.rehearsal.fake:
        return make_fake_plan(job, job.rehearsal.fake)
    devices = [devices_of(*node) for node in zip(hosts, slots, found, strict=True)]
    return make_plan(hosts, slots, devices, job.mesh)


def _name_hosts(job: Job, facts: Sequence[wire.Facts]) -> Sequence[Host]:
    # By hand nobody named the others' hosts: they are what they call themselves.
    if job.by_hand is None:
        return job.hosts
    return [replace(host, name=fact.hostname or host.name) for host, fact in zip(job.hosts, facts, strict=True)]


def settle(step: Step) -> None:
    """All have greeted: check them together, make the plan final, tell each its part."""
    job = step.state.job
    facts = [view.facts for view in step.state.nodes if view.facts is not None]
    problem = check_script(job, facts[0])
    if _refuse(step, check_facts(job, dict(enumerate(facts)))):
        return
    if problem is not None:
        halt_run(step, "the script cannot run", Halt(Outcome.FAILED, EXIT_USAGE, str(problem)))
    elif not _refuse(step, _check_devices(job, facts)):
        _assign(step, facts)


def _refuse(step: Step, findings: Sequence[tuple[int, Cause]]) -> bool:
    for node, cause in findings:
        add_cause(step, node, cause)
    if findings:
        halt_run(step, f"{step.host(findings[0][0])}: {findings[0][1].message}")
    return bool(findings)


def _slots(job: Job, node: int, facts: wire.Facts) -> int:
    return known_slots(job.hosts[node], job.nproc_per_node) or facts.slots


def _check_devices(job: Job, facts: Sequence[wire.Facts]) -> list[tuple[int, Cause]]:
    findings = []
    for node, fact in enumerate(facts):
        try:
            devices_of(job.hosts[node], _slots(job, node, fact), fact.devices)
        except InputError as error:
            findings.append((node, Cause(CauseKind.SLOTS, error.problems[0].message, error.problems[0].hint)))
    return findings


def _assign(step: Step, facts: Sequence[wire.Facts]) -> None:
    job = step.state.job
    slots = [_slots(job, node, fact) for node, fact in enumerate(facts)]
    try:
        plan = make_run_plan(job, _name_hosts(job, facts), slots, [fact.devices for fact in facts])
    except InputError as error:
        halt_run(step, "bad input", Halt(Outcome.FAILED, EXIT_USAGE, str(error)))
        return
    plan = with_shares(plan, {node: fact.shares for node, fact in enumerate(facts)})
    step.turn(Turn.GREETED)
    _take_plan(step, plan)
    _tell_notes(step, facts)
    if job.by_hand:
        _tell_whole(step, plan)
    for node, fact in enumerate(facts):
        step.do(Send(node, make_assign(job, plan, node, fact)))
        if remark := check_shares(job, fact):
            step.do(Note("warning", f"{step.host(node)}: {remark}"))
    seek_address(step)


def _tell_whole(step: Step, plan: Plan) -> None:
    """By hand the other nodes report for themselves: all get the whole plan, in one message, which is encoded once."""
    from meshrun.launch.handshake import Whole
    from meshrun.plan.packed import pack_plan

    whole = Whole(pack_plan(plan))
    step.do(*(Send(node, whole) for node in range(1, len(plan.nodes))))


def _tell_notes(step: Step, facts: Sequence[wire.Facts]) -> None:
    """What nodes say about their devices, each remark once with the hosts that make it."""
    said: dict[str, list[str]] = {}
    for node, fact in enumerate(facts):
        for text in fact.device_notes:
            said.setdefault(text, []).append(step.host(node))
    store = None if needs_torch(step.state.job) else check_store(dict(enumerate(facts)))
    if store is not None and step.state.job.form != "program":
        said[f"{store.message} (a script that opens no store does not mind); {store.hint}"] = [step.host(0)]
    for text, hosts in said.items():
        more = f" and {len(hosts) - 1} more" if len(hosts) > 1 else ""
        step.do(Note("warning", f"{hosts[0]}{more}: {text}"))


def _take_plan(step: Step, plan: Plan) -> None:
    # Planned was said before if the slots were known; again if the nodes gave other device names, or shares.
    if plan != step.state.plan:
        step.do(Planned(plan))
    nodes = [
        replace(view, ranks=own, alive=frozenset(own), unready=frozenset(own))
        for view, own in zip(step.state.nodes, plan.shares, strict=True)
    ]
    step.set(plan=plan, nodes=Nodes(nodes))
    for text in advise(plan):
        step.do(Note("warning", text))
    step.record("planned", world_size=plan.world_size, fingerprint=plan.fingerprint)
