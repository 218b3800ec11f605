"""Owns: opening a line before anybody watches it: an agent here starts while the launcher still imports its own parts.
Must not: open a line to another machine: nothing is told yet about why it would fail.
Called by: cli.run."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from meshrun.launch.channel import Channel, ChannelEvent, Deliver, Opener
from meshrun.spec.values import Job


class Ahead:
    """An opener whose first channel is open already; what that one has said is told as soon as it is asked for."""

    def __init__(self, opener: Opener, node: int) -> None:
        self._opener = opener
        self._lock = threading.Lock()
        self._heard: list[ChannelEvent] = []
        self._deliver: Deliver = self._heard.append
        self._channel: Channel | None = opener(node, self._hear)

    def __call__(self, node: int, deliver: Deliver) -> Channel:
        """The channel that is open, or a new one from the second time on."""
        with self._lock:
            channel, self._channel = self._channel, None
            if channel is None:
                return self._opener(node, deliver)
            for event in self._heard:
                deliver(event)
            self._deliver = deliver
        return channel

    def _hear(self, event: ChannelEvent) -> None:
        with self._lock:
            self._deliver(event)


def open_ahead(job: Job, openers: Sequence[Opener]) -> tuple[Opener, ...]:
    """The same openers, with node 0's agent on its way if it runs here. By hand an agent waits for its peers first.

    If nobody asks for it, it sees end-of-file when this process ends, and leaves."""
    if job.by_hand is not None or not job.local[0]:
        return tuple(openers)
    return (Ahead(openers[0], 0), *openers[1:])
