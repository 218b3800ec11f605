"""Owns: ADDRESSING and STORING: an address of node 0 that every node reaches, measured, and the store behind it.
Must not: do I/O or read a clock.
Called by: watch.planning (seek_address), watch.state (messages and timers)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from meshrun import wire
from meshrun.errors import Cause, CauseKind
from meshrun.watch.ending import add_cause, halt_run
from meshrun.watch.model import Step
from meshrun.watch.nodes import Node, Sign
from meshrun.watch.phases import Phase, Timer, Turn
from meshrun.watch.running import start_workers
from meshrun.watch.values import Note, Send

LOOPBACK = "127.0.0.1"
TRY_S = 5.0  # for a node to try all addresses
ANSWER_SLACK_S = 2.0
SLACK_OF_NODE_S = 0.002  # all are asked at once and answer at once; the launcher hears one after another
STORE_S = 10.0


def seek_address(step: Step) -> None:
    """One node: loopback does. Several: every other node tries node 0's addresses."""
    candidates = list_candidates(step)
    if len(step.state.nodes) == 1:
        _take_address(step, candidates[0])
        return
    facts = step.state.nodes[0].facts
    port = facts.offer_port if facts else 0
    message = wire.TryAddresses(tuple(candidates), port, TRY_S)
    step.do(*(Send(node, message) for node in range(1, len(step.state.nodes))))
    step.set_timer(Timer.ADDRESS, step.now + _limit_s(step))


def _limit_s(step: Step) -> float:
    return TRY_S + ANSWER_SLACK_S + SLACK_OF_NODE_S * len(step.state.nodes)


def pinned_address(step: Step) -> str:
    """The address that the user named: --master-addr, or addr= on node 0's line; "" if none."""
    job = step.state.job
    by_hand = job.by_hand.master_addr if job.by_hand else ""
    return job.master_addr or job.hosts[0].addr or by_hand


def list_candidates(step: Step) -> list[str]:
    """Addresses of node 0 in the order in which they are preferred, each once; loopback only if there is no other."""
    facts = step.state.nodes[0].facts
    found = facts.addresses if facts else ()
    pinned = pinned_address(step)
    if len(step.state.nodes) == 1:
        return [pinned or LOOPBACK]
    outward = [address for address in found if not is_loopback(address)] or list(found)
    return list(dict.fromkeys([pinned, *outward] if pinned else outward)) or [LOOPBACK]


def is_loopback(address: str) -> bool:
    """True for an address that means another machine on another machine."""
    return address.startswith("127.") or address in ("::1", "localhost")


def on_reached(step: Step, node: int, message: wire.Reached) -> None:
    """One node's answer. The last one decides."""
    if step.state.phase is not Phase.ADDRESSING:
        return
    step.set_node(node, reached=message)
    if step.state.nodes.count(Sign.REACHED) == len(step.state.nodes) - 1:
        _choose(step)


def _choose(step: Step) -> None:
    candidates = list_candidates(step)
    for address in candidates:
        if all(view.reached and address in view.reached.interfaces for view in _others(step)):
            if address != candidates[0] and pinned_address(step):
                step.do(Note("warning", f"not every node reaches {candidates[0]}; using {address} instead"))
            _take_address(step, address)
            return
    _report_unreached(step, candidates)


def _others(step: Step) -> Iterator[Node]:
    return islice(step.state.nodes, 1, None)


def on_address_timer(step: Step) -> None:
    """Some node gave no answer in time."""
    _report_unreached(step, list_candidates(step))


def _report_unreached(step: Step, candidates: list[str]) -> None:
    for node, view in enumerate(_others(step), 1):
        text = _describe_unreached(view, candidates, _limit_s(step))
        if text:
            hint = "name an address that all nodes reach: --master-addr, or addr= on node 0's line; check firewalls"
            message = f"cannot reach {step.host(0)} (node 0) at {text}"
            add_cause(step, node, Cause(CauseKind.ADDRESS, message, hint))
    halt_run(step, f"no address of {step.host(0)} can be reached by all nodes")


def _describe_unreached(view: Node, candidates: list[str], limit_s: float) -> str:
    if view.reached is None:
        return f"{', '.join(candidates)}: no answer within {limit_s:.0f} s"
    refused = view.reached.refused
    missed = [address for address in candidates if address not in view.reached.interfaces]
    return "; ".join(f"{address}: {refused.get(address, 'not tried')}" for address in missed)


def _take_address(step: Step, address: str) -> None:
    step.turn(Turn.ADDRESSED)
    step.set(address=address)
    step.record("address", address=address)
    _open_store(step)


def on_pause_timer(step: Step) -> None:
    """The next attempt begins. The address stays; the store is a fresh one, so that nobody reads old keys."""
    step.turn(Turn.RESUMED)
    _open_store(step)


def _open_store(step: Step) -> None:
    job, address = step.state.job, step.state.address
    port = 0 if job.by_hand else job.master_port
    step.do(Send(0, wire.OpenStore(address, port, step.state.attempt, job.form != "program")))
    step.set_timer(Timer.STORE, step.now + STORE_S)


def on_store_opened(step: Step, node: int, message: wire.StoreOpened) -> None:
    """The port is known: everybody starts."""
    if step.state.phase is Phase.STORING and node == 0 and message.attempt == step.state.attempt:
        step.record("store", address=message.address, port=message.port)
        start_workers(step, message.port)


def on_store_timer(step: Step) -> None:
    """Node 0 never said where the store is."""
    text = f"node 0 did not open the store at {step.state.address} within {STORE_S:g} s"
    add_cause(step, 0, Cause(CauseKind.STORE, text))
    halt_run(step, text)
