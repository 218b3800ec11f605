"""Owns: which lines a run has and which machine watches them: a list of hosts, or by hand node 0 or one of the others.
Must not: open anything but node 0's port.
Called by: cli.run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from meshrun.launch.channel import Opener
from meshrun.spec.values import ByHand, Job
from meshrun.watch import state
from meshrun.watch.loop import Machine

Ways = tuple[Sequence[Opener], Machine[Any]]


@contextmanager
def open_ways(job: Job, openers: Sequence[Opener]) -> Iterator[Ways]:
    """Openers in node order, and the machine. Raises ClusterError if by hand node 0 cannot listen."""
    if job.by_hand is None:
        yield openers, _launcher(job)
    elif job.by_hand.node_rank > 0:
        yield _relay_ways(job, job.by_hand, openers[0])
    else:
        from meshrun.launch.handshake import make_claim
        from meshrun.launch.manual import Gate

        hand = job.by_hand
        gate = Gate(
            hand.master_addr,
            hand.master_port,
            make_claim(job, job.hosts[0].name),
            run_id=job.run_id,
            token=hand.token,
            start_timeout_s=job.start_timeout_s,
        )
        try:
            others = [gate.opener(node) for node in range(1, hand.nnodes)]
            yield [openers[0], *others], _launcher(job)
        finally:
            gate.close()


def _launcher(job: Job) -> Machine[Any]:
    return Machine(state.begin(job), state.advance, state.next_deadline)


def _relay_ways(job: Job, hand: ByHand, own: Opener) -> Ways:
    """The agent here first, then the line to node 0: the order of relay's OWN and UPSTREAM."""
    from meshrun.launch.dial import dial
    from meshrun.launch.handshake import make_claim
    from meshrun.watch import relay

    upstream = dial(
        hand.master_addr, hand.master_port, make_claim(job, job.hosts[0].name), hand.token, job.connect_timeout_s
    )
    machine = Machine(relay.begin_relay(job), relay.advance, relay.next_deadline)
    return [own, upstream], machine
