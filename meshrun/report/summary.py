"""Owns: what is said about a run that has ended: summary.json for programs, the last block for people.
Must not: do I/O; decide what happened (the result says it).
Called by: report.report, cli."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

from meshrun.dataclass import dataclass
from meshrun.errors import CauseKind
from meshrun.plan.values import Plan, WorkerPlan
from meshrun.report.causes import indent, render_causes
from meshrun.report.collectives import render_disagreements
from meshrun.report.show import render_ranks
from meshrun.report.stacks import describe_groups, render_groups
from meshrun.spec.signals import signal_name
from meshrun.watch.collectives import describe_disagreement
from meshrun.watch.values import Again, Failure, NodeCause, Outcome, RunResult

MESSAGE_LINES = 20

_OOM = {
    "yes": "by the kernel's out-of-memory killer (OOM killer: yes); the memory of the host or the cgroup was used up",
    "no": "not by the kernel's out-of-memory killer (OOM killer: no)",
    "unknown": "whether by the kernel's out-of-memory killer could not be found out (OOM killer: unknown)",
}


@dataclass(frozen=True, slots=True)
class Tail:
    """The last lines that a rank wrote, from its files."""

    stdout: Sequence[str] = ()
    stderr: Sequence[str] = ()


def find_worker(plan: Plan | None, rank: int) -> WorkerPlan | None:
    """The worker of `rank`, if there is a plan and it has it."""
    return next((worker for worker in plan.workers if worker.rank == rank), None) if plan else None


# ---- summary.json ----


def make_summary(result: RunResult, plan: Plan | None, run_id: str) -> dict[str, Any]:
    """The content of summary.json, version 1."""
    return {
        "summary_version": 1,
        "run_id": run_id,
        "outcome": result.outcome.value,
        "exit_code": result.exit_code,
        "attempt": result.attempt,
        "first_failure": _describe_failure(result.first, plan) if result.first else None,
        "followed": sorted(result.followed),
        "reason": result.reason or None,
        "world_size": plan.world_size if plan else None,
        "causes": [_describe_cause(item) for item in result.causes],
        "stacks": [{"rank": rank, "text": text} for rank, text in result.stacks],
        "stack_groups": describe_groups(result.stacks),
        "collectives": [describe_disagreement(one) for one in result.disagreements],
        "earlier": [_describe_attempt(item, plan) for item in result.earlier],
        "left": [{"node_rank": node, "process": process} for node, process in result.left],
    }


def _describe_attempt(result: RunResult, plan: Plan | None) -> dict[str, Any]:
    """An attempt that was followed by another one."""
    return {
        "attempt": result.attempt,
        "exit_code": result.exit_code,
        "first_failure": _describe_failure(result.first, plan) if result.first else None,
        "followed": sorted(result.followed),
        "lived_s": round(result.lived_s, 3),
    }


def _describe_failure(failure: Failure, plan: Plan | None) -> dict[str, Any]:
    worker = find_worker(plan, failure.rank)
    raised = failure.exception
    exception = raised and {"type": raised.type, "message": raised.message, "file": raised.file, "line": raised.line}
    return {
        "rank": failure.rank,
        "node_rank": worker.node_rank if worker else failure.node_rank,
        "host": worker.host if worker else None,
        "local_rank": worker.local_rank if worker else None,
        "device": worker.device if worker and failure.device != "cpu" else None,
        "coords": dict(worker.coords) if worker else {},
        "kind": failure.kind,
        "exit_code": failure.exit_code,
        "signal": failure.signal or None,
        "signal_name": signal_name(failure.signal) if failure.signal else None,
        "oom": failure.oom or None,
        "oom_where": failure.oom_where or None,
        "exception": exception,
        "said": failure.said or None,
        "cause": failure.cause or None,
        "hint": failure.hint or None,
    }


def _describe_cause(item: NodeCause) -> dict[str, Any]:
    cause = item.cause
    return {
        "node_rank": item.node,
        "host": item.host,
        "kind": cause.kind.value,
        "message": cause.message,
        "hint": cause.hint,
        "noise": item.noise,
    }


# ---- the last block ----


def render_summary(
    result: RunResult, plan: Plan | None, run_id: str, log_dir: str, tails: Mapping[int, Tail] | None = None
) -> str:
    """The last block on the screen, lines ended by a newline; "" for a run that succeeded and left nothing.

    `tails` has the ranks whose files are in `log_dir` (by hand: this node's). The first rank named is the one that
    failed first; quoted lines are unchanged but for indentation."""
    lines: list[str] = []
    if result.outcome is Outcome.FAILED and result.first:
        lines += _render_failure(result, result.first, plan, tails or {})
    elif result.outcome is not Outcome.SUCCEEDED:
        lines += _render_end(result, plan)
    if result.left:
        lines += _render_left(result, plan)
    if not lines:
        return ""
    lines += _render_logs(result, log_dir, run_id, tails or {})
    return "".join(f"{line}\n" for line in lines)


def render_restart(again: Again, plan: Plan | None, files_in: str) -> str:
    """The block after an attempt that another one follows: its culprit, where its files are, what comes next."""
    result = again.result
    lines = _render_failure(result, result.first, plan, {}) if result.first else []
    lines += [_field("logs", files_in)] if files_in else []
    pause = f" in {again.pause_s:g} s" if again.pause_s else ""
    # Its number is the one of its files and variables (attempt1/, TORCHELASTIC_RESTART_COUNT=1): one count, one number.
    lines.append(f"meshrun: restart {again.attempt} of {again.attempts - 1}{pause}")
    return "".join(f"{line}\n" for line in lines)


def _render_ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {render_ranks(ranks)}"


def _field(name: str, text: str) -> str:
    return f"  {name + ':':<11}{text}"


def _render_failure(result: RunResult, first: Failure, plan: Plan | None, tails: Mapping[int, Tail]) -> list[str]:
    lines = [f"meshrun: rank {first.rank} failed first: {_render_how(first)}"]
    lines += _render_place(first, plan)
    if first.signal == 9:
        lines.append(_field("killed", _OOM.get(first.oom, _OOM["unknown"])))
    lines += _render_exception(first)
    tail = tails.get(first.rank, Tail())
    said = first.said if first.said not in "\n".join(tail.stderr) else ""
    lines += ["  it said:", *indent([said], 4)] if said else []
    lines += [_field("cause", first.cause)] if first.cause else []
    lines += [_field("hint", first.hint)] if first.hint else []
    lines += _render_tail(Tail(tail.stdout, _leave_out(said, tail.stderr)))
    followed = [rank for rank in result.followed if rank != first.rank]
    if followed:
        lines.append(_field("followed", f"{_render_ranks(followed)} (failed or stopped after it)"))
    if result.reason:
        lines.append(_field("restarts", result.reason))
    if result.causes:
        lines += ["  hosts with a problem of their own:", *render_causes(result.causes)]
    return lines


def _render_how(first: Failure) -> str:
    phase = first.exception.phase if first.exception else ""
    where = " while the process groups and the mesh were built" if "init" in (first.kind, phase) else ""
    if first.signal:
        return f"killed by {signal_name(first.signal)} (exit code {first.exit_code}){where}"
    return f"exit code {first.exit_code}{where}"


def _render_place(first: Failure, plan: Plan | None) -> list[str]:
    worker = find_worker(plan, first.rank)
    if not worker:
        return [_field("where", f"node {first.node_rank}")]
    coords = ",".join(f"{name}={value}" for name, value in worker.coords)
    place = f"{worker.host} (node {worker.node_rank}), local rank {worker.local_rank}"
    if first.device != "cpu":  # there a slot's number is no device's
        place += f", device {worker.device}"
    return [*([_field("mesh", coords)] if coords else []), _field("where", place)]


def _render_exception(first: Failure) -> list[str]:
    raised = first.exception
    if not raised:
        return []
    message = raised.message.split("\n")
    hidden = len(message) - MESSAGE_LINES
    if hidden > 0:
        message = [*message[:MESSAGE_LINES], f"... and {hidden} more lines"]
    head = f"{raised.type}: {message[0]}" if message[0] else raised.type
    lines = [_field("exception", head), *indent(message[1:], 13)]
    if raised.file:
        lines.append(_field("at", f"{raised.file}:{raised.line}"))
    return [*lines, *indent(raised.lines, 4)]


def _leave_out(said: str, lines: Sequence[str]) -> Sequence[str]:
    """The lines without those that `said` has shown; behind a crash's own report there are only more of its threads."""
    shown = set(said.split("\n")) if said else set()
    left = [line for line in lines if line not in shown]
    if "Fatal Python error: " in said:
        left = list(takewhile(lambda line: line not in shown, lines))
    return left if any(map(str.strip, left)) else ()


def _render_tail(tail: Tail) -> list[str]:
    lines = []
    for name, texts in (("stdout", tail.stdout), ("stderr", tail.stderr)):
        if texts:
            lines += [f"  last lines on {name}:", *indent(texts, 4)]
    return lines


def _render_end(result: RunResult, plan: Plan | None) -> list[str]:
    """A run that was stopped or lost: the reason, the hosts with their causes, the stacks of ranks that hang."""
    lines = []
    if result.reason:
        lines.append(
            f"meshrun: the run {'was stopped' if result.outcome is Outcome.STOPPED else 'failed'}: {result.reason}"
        )
    if result.causes:
        lines += [*([] if lines else [_render_headline(result, plan)]), *render_causes(result.causes)]
    if result.first:
        lines += [f"  rank {result.first.rank} had failed: {_render_how(result.first)}"]
        lines += indent([*_render_place(result.first, plan), *_render_exception(result.first)], 2)
    lines = lines or [f"meshrun: the run failed (exit code {result.exit_code})"]
    return lines + render_groups(result.stacks, plan, render_disagreements(result.disagreements, plan))


def _render_headline(result: RunResult, plan: Plan | None) -> str:
    count = len({item.node for item in result.causes})
    lost = {item.cause.kind for item in result.causes} == {CauseKind.LOST}
    hosts = f"{count} of {len(plan.nodes)} hosts" if plan else f"{count} host{'s' if count > 1 else ''}"
    if not result.started:
        return f"meshrun: the run did not start: {hosts} {'lost' if lost else 'cannot take part'}"
    return f"meshrun: the run was stopped: {hosts} lost" if lost else f"meshrun: the run failed: a problem on {hosts}"


def _render_left(result: RunResult, plan: Plan | None) -> list[str]:
    hosts = {node.node_rank: node.host.name for node in plan.nodes} if plan else {}
    head = "meshrun: these processes could not be ended (pid, name, state); look for them on their host:"
    return [head, *(f"  {hosts.get(node, f'node {node}')}: {process}" for node, process in result.left)]


def _render_logs(result: RunResult, log_dir: str, run_id: str, tails: Mapping[int, Tail]) -> list[str]:
    if not log_dir:
        return [_field("run", run_id)]
    first = result.first
    files = f" (rank{first.rank}.out, rank{first.rank}.err)" if first and first.rank in tails else ""
    return [_field("logs", f"{log_dir}{files}")]
