"""Owns: a run's result as plain JSON and back, for the nodes of a run started by hand.
Must not: render words for people (report does) or do I/O.
Called by: watch.ending (for `Leave.summary`), watch.relay (reads it)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from meshrun.dataclass import asdict
from meshrun.errors import Cause, CauseKind, WireError
from meshrun.plan.placement import MAX_WORKERS
from meshrun.plan.values import Plan
from meshrun.watch.collectives import describe_disagreement, read_disagreement
from meshrun.watch.values import Failure, NodeCause, Outcome, RaisedException, RunResult

COUNT_LIMIT = 32  # of disagreements
TEXT_LIMIT = 16 * 1024  # of a traceback, a node's noise, or all stacks together: the frame has a limit


def describe_result(result: RunResult, plan: Plan | None) -> dict[str, Any]:
    """`result` as JSON types, without `earlier`; with a plan, also where the first failing rank ran (`worker`)."""
    first = result.first
    worker = plan.workers[first.rank] if plan and first else None
    return {
        "outcome": result.outcome.value,
        "exit_code": result.exit_code,
        "attempt": result.attempt,
        "first": _describe_failure(first) if first else None,
        "worker": {**asdict(worker), "coords": dict(worker.coords)} if worker else None,
        "followed": _runs(result.followed),
        "causes": [_describe_cause(entry) for entry in result.causes],
        "reason": result.reason,
        "stacks": [[rank, text] for rank, text in _bound(result.stacks)],
        "collectives": [describe_disagreement(one) for one in result.disagreements[:COUNT_LIMIT]],
        "left": [[node, text] for node, text in result.left],
        "lived_s": result.lived_s,
        "started": result.started,
    }


def _runs(ranks: tuple[int, ...]) -> list[list[int]]:
    """First and last of each run. Most often these are all ranks but one, and every node is told."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return runs


def _read_runs(runs: list[list[int]]) -> Iterator[int]:
    room = MAX_WORKERS
    for first, last in runs:
        room -= max(0, last - first + 1)
        if room < 0:
            raise ValueError("more ranks than one run takes")
        yield from range(first, last + 1)


def _describe_failure(failure: Failure) -> dict[str, Any]:
    plain = asdict(failure)
    if failure.exception is not None:
        plain["exception"]["lines"] = list(failure.exception.lines)
        plain["exception"]["traceback"] = failure.exception.traceback[-TEXT_LIMIT:]
    return plain


def _describe_cause(entry: NodeCause) -> dict[str, Any]:
    return {
        "node": entry.node,
        "host": entry.host,
        "kind": entry.cause.kind.value,
        "message": entry.cause.message,
        "hint": entry.cause.hint,
        "noise": entry.noise[-TEXT_LIMIT:],
    }


def _bound(stacks: tuple[tuple[int, str], ...]) -> list[tuple[int, str]]:
    room = TEXT_LIMIT
    kept = []
    for rank, text in stacks:
        if len(text) > room:
            break
        room -= len(text)
        kept.append((rank, text))
    return kept


def read_result(plain: dict[str, Any]) -> RunResult:
    """What `describe_result` wrote. Raises WireError if it is anything else."""
    try:
        return RunResult(
            outcome=Outcome(plain["outcome"]),
            exit_code=int(plain["exit_code"]),
            attempt=int(plain["attempt"]),
            first=_read_failure(plain["first"]) if plain["first"] else None,
            followed=tuple(_read_runs(plain["followed"])),
            causes=tuple(_read_cause(entry) for entry in plain["causes"]),
            reason=str(plain["reason"]),
            stacks=tuple((int(rank), str(text)) for rank, text in plain["stacks"]),
            disagreements=tuple(map(read_disagreement, plain["collectives"])),
            left=tuple((int(node), str(text)) for node, text in plain["left"]),
            lived_s=float(plain["lived_s"]),
            started=bool(plain["started"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise WireError(f"the run's result from node 0 cannot be read: {error}") from None


def _read_failure(plain: dict[str, Any]) -> Failure:
    exception = plain["exception"]
    if exception is not None:
        exception = RaisedException(**{**exception, "lines": tuple(exception["lines"])})
    return Failure(**{**plain, "exception": exception})


def _read_cause(plain: dict[str, Any]) -> NodeCause:
    cause = Cause(CauseKind(plain["kind"]), str(plain["message"]), str(plain["hint"]))
    return NodeCause(int(plain["node"]), str(plain["host"]), cause, str(plain["noise"]))
