"""Owns: asking this machine how many accelerators it has, by the same agent that a run would start here.
Must not: start a worker, or ask another machine.
Called by: cli.plan."""

from __future__ import annotations

import queue
import time

from meshrun.dataclass import replace
from meshrun.errors import ClusterError
from meshrun.launch.channel import ChannelEvent, Closed, Opened, Received, Unreachable
from meshrun.launch.fleet import Fleet
from meshrun.launch.openers import make_openers
from meshrun.plan.orders import make_brief
from meshrun.spec.values import Job
from meshrun.wire import Brief, Facts, Trouble


def ask_this_machine(job: Job, node: int, slots: int = 0) -> Facts:
    """What an agent on this machine, as node `node` of the job with `slots` workers (0: as many as there are
    accelerators), finds. Raises ClusterError."""
    brief = replace(make_brief(job, node, slots), check_script=False, offers=False)
    inbox: queue.SimpleQueue[ChannelEvent] = queue.SimpleQueue()
    fleet = Fleet(make_openers(job), inbox.put)
    fleet.open(node)
    try:
        return _listen(fleet, inbox, node, brief, job.connect_timeout_s)
    finally:
        fleet.close_all()


def _listen(fleet: Fleet, inbox: queue.SimpleQueue[ChannelEvent], node: int, brief: Brief, limit_s: float) -> Facts:
    until = time.monotonic() + limit_s
    while True:
        try:
            event = inbox.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            raise ClusterError(f"the agent here has not greeted within {limit_s:g} s") from None
        if isinstance(event, Opened):
            fleet.send(node, brief)
        elif isinstance(event, Received) and isinstance(event.message, Facts):
            return event.message
        elif isinstance(event, Received) and isinstance(event.message, Trouble) and event.message.fatal:
            raise ClusterError(f"cannot look at this machine: {event.message.message}\n    hint: {event.message.hint}")
        elif isinstance(event, Unreachable):
            raise ClusterError(f"cannot look at this machine: {event.cause.message}\n    hint: {event.cause.hint}")
        elif isinstance(event, Closed):
            raise ClusterError(f"cannot look at this machine: {event.reason}\n{event.noise}")
