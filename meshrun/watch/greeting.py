"""Owns: CONNECTING: a line to every node and a greeting from each, or one report that names all that failed.
Must not: do I/O or read a clock.
Called by: watch.state, watch.lost."""

from __future__ import annotations

from meshrun import wire
from meshrun.dataclass import asdict
from meshrun.errors import EXIT_USAGE, Cause, CauseKind, InputError
from meshrun.plan.checks import check_facts
from meshrun.plan.orders import make_brief
from meshrun.plan.placement import known_slots
from meshrun.spec.values import Job
from meshrun.watch.ending import add_cause, halt_run
from meshrun.watch.model import BEAT_S, Halt, Step, name_some
from meshrun.watch.nodes import Node, Sign
from meshrun.watch.phases import Link, Phase, Timer
from meshrun.watch.planning import make_run_plan, settle
from meshrun.watch.values import Close, Note, Open, Outcome, Planned, Send

FIRST_RETRY_S = 0.25
LAST_RETRY_S = 4.0
SLOW_S = 5.0  # so long nobody wonders what is going on
REPORT_S = 10.0  # after the first cause that cannot heal (DESIGN §7)
OPENER_SLACK_S = 1.0  # an opener's own time-out says better why than ours
DEATHS_LIMIT = 3  # an agent that dies so often before its greeting does so for a reason

_SHORT_FACTS = ("hostname", "python", "torch", "device", "slots", "cores", "addresses")


def connect_limit_s(job: Job) -> float:
    """How long the nodes may take to greet; by hand, people start them, so the start deadline counts (DESIGN §7)."""
    return job.start_timeout_s if job.by_hand else job.connect_timeout_s


# ---- the beginning ---------------------------------------------------------------------------------------------------


def on_began(step: Step) -> None:
    """Plan if the slots are known, then open every line at once."""
    state = step.state
    job = state.job
    step.set(began=step.now)
    step.record("began", run_id=job.run_id, hosts=[host.name for host in job.hosts])
    step.do(*(Note("info", remark) for remark in (job.rehearsal.remarks if job.rehearsal else ())))
    step.set_timer(Timer.CONNECT, step.now + connect_limit_s(job) + OPENER_SLACK_S)
    step.set_timer(Timer.BEAT, step.now + BEAT_S)
    if job.time_limit_s is not None:
        step.set_timer(Timer.LIMIT, step.now + job.time_limit_s)
        if job.signal_workers is not None:
            step.set_timer(Timer.SIGNAL, step.now + job.time_limit_s - job.signal_workers.before_s)
    if _plan_early(step):
        step.do(*(Open(node) for node in range(len(state.nodes))))


def _plan_early(step: Step) -> bool:
    job = step.state.job
    known = [known_slots(host, job.nproc_per_node) for host in job.hosts]
    slots = [count for count in known if count is not None]
    if len(slots) < len(known):
        return True
    try:
        plan = make_run_plan(job, job.hosts, slots, [()] * len(slots))
    except InputError as error:
        halt_run(step, "bad input", Halt(Outcome.FAILED, EXIT_USAGE, str(error)))
        return False
    step.set(plan=plan)
    step.do(Planned(plan))
    return True


# ---- one node's line -------------------------------------------------------------------------------------------------


def on_opened(step: Step, node: int) -> None:
    """The agent is there: it gets its Brief."""
    if step.state.nodes[node].link is not Link.OPENING or step.state.phase is not Phase.CONNECTING:
        return
    job = step.state.job
    step.set_node(node, link=Link.OPENED, heard=step.now)
    step.record("opened", node=node, host=step.host(node))
    slots = known_slots(job.hosts[node], job.nproc_per_node) or 0
    step.do(Send(node, make_brief(job, node, slots)))


def on_unreachable(step: Step, node: int, cause: Cause) -> None:
    """An attempt failed. It is made again while it may heal, there is time, and no other host has failed for good."""
    view = step.state.nodes[node]
    if view.link is not Link.OPENING or step.state.phase is not Phase.CONNECTING:
        return
    step.record("unreachable", node=node, host=step.host(node), cause=cause.kind.value, message=cause.message)
    if cause.heals and _reopen(step, node, cause, tries=view.tries + 1):
        _consider(step)
    else:
        fail_node(step, node, cause)


def on_death(step: Step, node: int, reason: str, noise: str) -> None:
    """An agent ended before it greeted."""
    view = step.state.nodes[node]
    text = f"the agent ended before it greeted: {reason}" if reason else "the agent ended before it greeted"
    cause = Cause(CauseKind.AGENT, text)
    deaths = view.deaths + 1
    step.record("unreachable", node=node, host=step.host(node), cause=cause.kind.value, message=cause.message)
    if deaths < DEATHS_LIMIT and _reopen(step, node, cause, tries=view.tries + 1, deaths=deaths, noise=noise):
        _consider(step)
    else:
        fail_node(step, node, cause, noise)


def _reopen(step: Step, node: int, cause: Cause, **changes: object) -> bool:
    tries = step.set_node(node, link=Link.OPENING, answered=True, cause=cause, **changes).tries
    delay = min(FIRST_RETRY_S * 2 ** min(tries - 1, 8), LAST_RETRY_S)
    deadline = step.state.began + connect_limit_s(step.state.job)
    if step.has_timer(Timer.REPORT) or step.now + delay >= deadline:
        return False
    step.do(Open(node, delay))
    if not step.has_timer(Timer.SLOW) and step.now < step.state.began + SLOW_S and not step.state.job.by_hand:
        step.set_timer(Timer.SLOW, step.state.began + SLOW_S)
    return True


def on_slow_timer(step: Step) -> None:
    """Somebody who waits for hosts that do not answer is told which, and why the first does not."""
    late = [rank for rank, view in enumerate(step.state.nodes) if view.link is Link.OPENING and view.cause]
    if late:
        cause = step.state.nodes[late[0]].cause
        text = f"still trying to reach {name_some([step.host(rank) for rank in late])}"
        limit = f"up to {step.state.job.connect_timeout_s:g} s (--connect-timeout)"
        step.do(Note("info", f"{text}: {cause.message.splitlines()[0] if cause else ''}; {limit}"))


def fail_node(step: Step, node: int, cause: Cause, noise: str = "") -> None:
    """`cause` keeps this node out for good: its line closes, and the report is due."""
    step.set_node(node, link=Link.GONE, answered=True, final=True, cause=cause, noise=noise)
    step.do(Close(node))
    _expect_report(step)
    _consider(step)


def _expect_report(step: Step) -> None:
    if not step.has_timer(Timer.REPORT):
        step.set_timer(Timer.REPORT, step.now + REPORT_S)


def on_facts(step: Step, node: int, facts: wire.Facts) -> None:
    """A greeting. What is wrong with this node alone is known at once; the rest when all are here."""
    if step.state.nodes[node].link is not Link.OPENED or step.state.phase is not Phase.CONNECTING:
        return
    step.set_node(node, link=Link.GREETED, answered=True, cause=None, noise="", facts=facts, heard=step.now)
    if not step.has_timer(Timer.SILENCE):
        step.set_timer(Timer.SILENCE, step.now + step.state.job.silence_s)
    plain = asdict(facts)
    step.record("facts", node=node, host=step.host(node), **{name: plain[name] for name in _SHORT_FACTS})
    first = step.state.nodes[0].facts
    known = {node: facts} if first is None else {0: first, node: facts}
    if first is not None and any(rank == node for rank, _ in check_facts(step.state.job, known)):
        step.set_node(node, final=True)
        _expect_report(step)
    _consider(step)


# ---- all nodes together ----------------------------------------------------------------------------------------------


def _consider(step: Step) -> None:
    if step.has_timer(Timer.REPORT):
        if step.state.nodes.all(Sign.ANSWERED):
            report(step)
    elif step.state.nodes.all(Sign.GREETED):
        settle(step)


def report(step: Step) -> None:
    """End the run with one cause for every node that cannot take part."""
    facts = {rank: view.facts for rank, view in enumerate(step.state.nodes) if view.facts is not None}
    unfit: dict[int, list[Cause]] = {}
    for rank, finding in check_facts(step.state.job, facts):
        unfit.setdefault(rank, []).append(finding)
    for rank, view in enumerate(step.state.nodes):
        cause = view.cause or _missing_cause(step, rank, view)
        for one in [cause] if cause else unfit.get(rank, []):
            add_cause(step, rank, one, view.noise)
    names = dict.fromkeys(entry.host for entry in step.state.causes)
    halt_run(step, f"{name_some(list(names))} cannot take part")


def _missing_cause(step: Step, rank: int, view: Node) -> Cause | None:
    waited = f"{step.now - step.state.began:.0f} s"
    if view.link is Link.GREETED:
        return None
    if view.link is Link.OPENED:
        return Cause(CauseKind.AGENT, f"its agent started but did not greet within {waited}")
    if step.state.job.by_hand:
        hint = f"start meshrun there with --node-rank {rank}"
        return Cause(CauseKind.MISSING, f"node rank {rank} did not call within {waited}", hint)
    return Cause(CauseKind.TIMED_OUT, f"no answer within {waited}", "is it up, and does `ssh` to it work?")
