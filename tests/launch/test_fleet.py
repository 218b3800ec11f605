"""Owns: tests of the fleet with channels that are only recorded.
Must not: open anything.
Called by: pytest."""

from __future__ import annotations

import threading

from meshrun import wire
from meshrun.launch.channel import ChannelEvent, Deliver, Opened
from meshrun.launch.fleet import Fleet


class Recorder:
    """An opener and all channels it made."""

    def __init__(self) -> None:
        self.channels: list[Recorded] = []
        self.dialled = threading.Event()

    def __call__(self, node: int, deliver: Deliver) -> Recorded:
        self.channels.append(Recorded(deliver))
        self.dialled.set()
        return self.channels[-1]


class Recorded:
    def __init__(self, deliver: Deliver) -> None:
        self.deliver = deliver
        self.sent: list[bytes] = []
        self.closed = 0

    def send(self, data: bytes) -> None:
        self.sent.append(data)

    def close(self) -> None:
        self.closed += 1


def test_events_of_replaced_and_closed_channels_are_silent() -> None:
    events: list[ChannelEvent] = []
    opener = Recorder()
    fleet = Fleet([opener], events.append)
    fleet.open(0)
    fleet.open(0)
    old, new = opener.channels
    old.deliver(Opened(0))
    assert events == [] and old.closed == 1
    new.deliver(Opened(0))
    assert events == [Opened(0)]
    fleet.close(0)
    fleet.close(0)
    new.deliver(Opened(0))
    assert len(events) == 1 and new.closed == 1


def test_one_message_to_many_is_encoded_once() -> None:
    openers = [Recorder(), Recorder()]
    fleet = Fleet(openers, lambda _: None)
    stop = wire.Stop(5.0, "because")
    for node in range(2):
        fleet.open(node)
        fleet.send(node, stop)
    first, second = (opener.channels[0].sent[0] for opener in openers)
    assert first == wire.encode(stop) and first is second


def test_send_without_a_channel_is_dropped() -> None:
    opener = Recorder()
    fleet = Fleet([opener], lambda _: None)
    fleet.send(0, wire.Beat())
    fleet.open(0, after_s=3600)
    fleet.send(0, wire.Beat())
    fleet.close_all()
    assert opener.channels == []


def test_a_later_opening_happens_and_can_be_called_off() -> None:
    opener, other = Recorder(), Recorder()
    fleet = Fleet([opener, other], lambda _: None)
    fleet.open(0, after_s=0.01)
    fleet.open(1, after_s=0.01)
    fleet.close(1)
    assert opener.dialled.wait(30)
    assert len(opener.channels) == 1 and other.channels == []
    fleet.open(0)
    assert opener.channels[0].closed == 1 and len(opener.channels) == 2
