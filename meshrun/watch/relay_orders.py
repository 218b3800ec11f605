"""Owns: what a by-hand node takes from node 0, and the check that it fits this node's own command line.
Must not: do I/O, or pass anything to the agent here that carries a command.
Called by: watch.relay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshrun import wire
from meshrun.dataclass import replace
from meshrun.errors import EXIT_CLUSTER, Cause, CauseKind, WireError
from meshrun.launch import handshake
from meshrun.plan.orders import PROGRESS_MOST_S, host_of
from meshrun.plan.packed import unpack_plan
from meshrun.plan.placement import known_slots
from meshrun.plan.values import Plan
from meshrun.spec.values import Job
from meshrun.watch.relay_ending import finish, give_up, lose_upstream
from meshrun.watch.relay_model import OWN, UPSTREAM, Link, RelayStep
from meshrun.watch.restarts import shorten
from meshrun.watch.values import Again, NodeCause, Outcome, Planned, RunResult
from meshrun.watch.verdict import read_result

MAX_ADDRESSES = 64
MAX_SIGNAL = 64


def on_order(step: RelayStep, message: Any) -> None:
    """One message from node 0; whatever a node does not take from it ends the run here."""
    handler = _ORDERS.get(type(message))
    if handler is None:
        _refuse_order(step, f"node 0 sent a {type(message).__name__}, which a node takes from nobody")
    else:
        handler(step, message)


def _forward_down(step: RelayStep, message: Any) -> None:
    step.send(OWN, message)


def _refuse_order(step: RelayStep, text: str) -> None:
    """Node 0 asks for what does not fit this node's own command line: tell it, and end."""
    cause = Cause(CauseKind.MISMATCH, text, "run the same meshrun and the same command on every node")
    if step.state.trouble is None:
        step.set(trouble=NodeCause(step.state.hand.node_rank, step.state.host, cause))
    step.send(UPSTREAM, wire.Trouble(cause.kind.value, cause.message, cause.hint, True))
    give_up(step)


def _on_welcome(step: RelayStep, message: handshake.Welcome) -> None:
    if step.link(OWN) is Link.UNOPENED:
        step.set(run_id=message.run_id)
        step.record("joined", node=step.state.hand.node_rank, run_id=message.run_id)
        step.open(OWN)


def _on_refusal(step: RelayStep, message: handshake.Refusal) -> None:
    refused = handshake.read_refusal(message)
    lose_upstream(step, Cause(refused.kind, refused.message, refused.hint))


def _on_whole(step: RelayStep, message: handshake.Whole) -> None:
    try:
        step.set(told=unpack_plan(message.plan))
    except WireError as error:
        _refuse_order(step, f"node 0 sent {error}")


def _on_assign(step: RelayStep, message: wire.Assign) -> None:
    plan = step.state.told
    problem = "it came without one" if plan is None else check_assign(step.state.job, message, plan)
    if plan is None or problem:
        _refuse_order(step, f"node 0's plan does not fit this node: {problem}")
        return
    step.set(plan=plan)
    step.actions.append(Planned(plan))
    step.send(OWN, message)


def check_assign(job: Job, message: wire.Assign, plan: Plan) -> str:
    """Why node 0's order cannot be meant for this node and its command line; "" if it can."""
    assert job.by_hand is not None
    if (message.node_rank, message.nnodes) != (job.by_hand.node_rank, job.by_hand.nnodes):
        return f"it is for node rank {message.node_rank} of {message.nnodes}"
    if len(plan.nodes) != message.nnodes or plan.world_size != message.world_size:
        return f"{len(plan.nodes)} nodes and {plan.world_size} ranks, where {message.world_size} ranks are announced"
    here = [w for w in plan.workers if w.node_rank == message.node_rank]
    mine = [(w.rank, w.local_rank, dict(w.coords), w.share) for w in here]
    if mine != [(w.rank, w.local_rank, w.coords, w.share) for w in message.workers]:
        return "its list of this node's workers is not the plan's"
    if not 0.0 <= message.progress_s <= PROGRESS_MOST_S:
        return f"it wants to hear of progress every {message.progress_s:g} s"
    wanted = known_slots(host_of(job, message.node_rank), job.nproc_per_node)
    if wanted and len(mine) != wanted:
        return f"it has {len(mine)} workers here, --nproc-per-node says {wanted}"
    return _check_mesh(job, message, plan)


def _check_mesh(job: Job, message: wire.Assign, plan: Plan) -> str:
    theirs = ",".join(f"{name}={size}" for name, size in plan.mesh.dims)
    if message.fingerprint != plan.fingerprint or message.mesh.get("dims") != dict(plan.mesh.dims):
        return f"its mesh and fingerprint are not those of the plan ({theirs})"
    if job.mesh is None:
        return ""
    pairs = zip(job.mesh.dims, plan.mesh.dims, strict=False)
    fits = all(name == other and size in (None, given) for (name, size), (other, given) in pairs)
    if len(job.mesh.dims) != len(plan.mesh.dims) or not fits:
        return f"its mesh is {theirs}, --mesh here is {handshake.render_mesh(job.mesh)}"
    return ""


def _on_try_addresses(step: RelayStep, message: wire.TryAddresses) -> None:
    if len(message.addresses) > MAX_ADDRESSES or not 0 < message.port < 65536:
        _refuse_order(step, f"node 0 asks to try {len(message.addresses)} addresses on port {message.port}")
    else:
        step.send(OWN, message)


def _on_start(step: RelayStep, message: wire.Start) -> None:
    if step.state.plan is None or not 0 < message.master_port < 65536:
        _refuse_order(step, f"node 0 asks to start without a plan, or with port {message.master_port}")
    elif message.attempt != step.state.attempt:
        _refuse_order(step, f"node 0 asks to start attempt {message.attempt}, due is {step.state.attempt}")
    else:
        step.record("start", attempt=message.attempt, address=message.master_addr, port=message.master_port)
        step.send(OWN, message)


def _on_restart(step: RelayStep, message: wire.Restart) -> None:
    """An attempt has failed everywhere; the report here turns to the next one's files."""
    if message.attempt != step.state.attempt + 1:
        _refuse_order(step, f"node 0 announces attempt {message.attempt} after attempt {step.state.attempt}")
        return
    try:
        result = read_result(message.summary)
    except WireError as error:
        _refuse_order(step, str(error))
        return
    again = Again(replace(result, earlier=step.state.past), message.attempt, message.attempts, message.pause_s)
    known = {"attempt": again.attempt, "attempts": again.attempts, "pause_s": again.pause_s}
    step.record("restart", **known, failed=message.summary)
    step.actions.append(again)
    step.set(attempt=message.attempt, past=(*step.state.past, shorten(result)))


def _on_signal_workers(step: RelayStep, message: wire.SignalWorkers) -> None:
    if 0 < message.signal <= MAX_SIGNAL:
        step.send(OWN, message)
    else:
        _refuse_order(step, f"node 0 asks for signal {message.signal}")


def _on_stop(step: RelayStep, message: wire.Stop) -> None:
    step.send(OWN, replace(message, grace_s=max(0.0, message.grace_s)))


def _on_leave(step: RelayStep, message: wire.Leave) -> None:
    code = message.exit_code if 0 <= message.exit_code <= 255 else EXIT_CLUSTER
    try:
        result = replace(read_result(message.summary), exit_code=code)
    except WireError as error:
        outcome = Outcome.SUCCEEDED if code == 0 else Outcome.FAILED
        result = RunResult(outcome, code, reason=f"node 0 ended the run with exit code {code} ({error})")
    finish(step, result)


def _ignore(step: RelayStep, what: Any) -> None:
    """Alive is all that it says; the time it came is noted already."""


_ORDERS: dict[type[Any], Callable[[RelayStep, Any], None]] = {
    handshake.Welcome: _on_welcome,
    handshake.Refusal: _on_refusal,
    handshake.Whole: _on_whole,
    wire.Assign: _on_assign,
    wire.TryAddresses: _on_try_addresses,
    wire.Start: _on_start,
    wire.Stop: _on_stop,
    wire.Restart: _on_restart,
    wire.SignalWorkers: _on_signal_workers,
    wire.Dump: _forward_down,
    wire.Leave: _on_leave,
    wire.Beat: _ignore,
}
