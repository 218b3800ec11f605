"""Owns: a line that is opened before anybody watches it.
Must not: start a process.
Called by: pytest."""

from __future__ import annotations

from meshrun.launch.ahead import Ahead
from meshrun.launch.channel import ChannelEvent, Deliver, Opened, Remark


class Line:
    """A channel that can be made to say something."""

    def __init__(self, deliver: Deliver) -> None:
        self.say = deliver

    def send(self, data: bytes) -> None: ...

    def close(self) -> None: ...


def test_what_was_said_before_is_told_first_and_once() -> None:
    lines: list[Line] = []

    def opener(node: int, deliver: Deliver) -> Line:
        lines.append(Line(deliver))
        return lines[-1]

    ahead = Ahead(opener, 0)
    lines[0].say(Opened(0))
    heard: list[ChannelEvent] = []
    assert ahead(0, heard.append) is lines[0]
    assert heard == [Opened(0)]
    lines[0].say(Remark(0, "more"))
    assert heard == [Opened(0), Remark(0, "more")]


def test_asked_again_it_opens_anew() -> None:
    """As after an agent that died before it greeted."""
    lines: list[Line] = []

    def opener(node: int, deliver: Deliver) -> Line:
        lines.append(Line(deliver))
        return lines[-1]

    ahead = Ahead(opener, 0)
    heard: list[ChannelEvent] = []
    ahead(0, heard.append)
    assert ahead(0, heard.append) is lines[1]
    lines[1].say(Opened(0))
    assert heard == [Opened(0)]
