"""Owns: the launcher's states and the tables of what may follow what, as data.
Must not: decide or do I/O.
Called by: watch.model (which refuses any other step), watch.table (which draws them)."""

from __future__ import annotations

from enum import Enum


class Phase(Enum):
    """Where a run is. Each name says what is being waited for."""

    CONNECTING = "connecting"  # a greeting from every node
    ADDRESSING = "addressing"  # an address of node 0 that every node reaches
    STORING = "storing"  # the store's port
    STARTING = "starting"  # every worker in its script
    RUNNING = "running"  # the workers' ends
    STOPPING = "stopping"  # every worker gone after our Stop
    PAUSING = "pausing"  # the time of the next attempt
    LEAVING = "leaving"  # every agent's Bye
    ENDED = "ended"


class Turn(Enum):
    """What moves a run on. The value is what the table shows."""

    GREETED = "every node has greeted and fits"
    ADDRESSED = "an address that every node reaches"
    STORED = "the store is open: Start to all"
    READY = "every worker is in its script"
    HALT = "a failure, a lost node, a signal or a limit"
    OVER = "no worker is left on any node"
    AGAIN = "no worker is left, a restart follows a failure"
    RESUMED = "the pause is over: OpenStore"
    GONE = "every agent has left, or its time is over"


TURNS: dict[Phase, dict[Turn, Phase]] = {
    Phase.CONNECTING: {Turn.GREETED: Phase.ADDRESSING, Turn.HALT: Phase.LEAVING},
    Phase.ADDRESSING: {Turn.ADDRESSED: Phase.STORING, Turn.HALT: Phase.LEAVING},
    Phase.STORING: {Turn.STORED: Phase.STARTING, Turn.HALT: Phase.LEAVING},
    Phase.STARTING: {
        Turn.READY: Phase.RUNNING,
        Turn.HALT: Phase.STOPPING,
        Turn.AGAIN: Phase.PAUSING,
        Turn.OVER: Phase.LEAVING,
    },
    Phase.RUNNING: {Turn.HALT: Phase.STOPPING, Turn.AGAIN: Phase.PAUSING, Turn.OVER: Phase.LEAVING},
    Phase.STOPPING: {Turn.AGAIN: Phase.PAUSING, Turn.OVER: Phase.LEAVING},
    Phase.PAUSING: {Turn.RESUMED: Phase.STORING, Turn.HALT: Phase.LEAVING},
    Phase.LEAVING: {Turn.GONE: Phase.ENDED},
    Phase.ENDED: {},
}


class Link(Enum):
    """Where the line to one node is."""

    OPENING = "opening"  # a connection is being made, or waits for its next try
    OPENED = "opened"  # the agent runs and has its Brief
    GREETED = "greeted"  # its Facts are here
    GONE = "gone"  # closed for good


LINKS: dict[Link, dict[str, Link]] = {
    Link.OPENING: {
        "Opened: send Brief": Link.OPENED,
        "Unreachable, may heal: open again": Link.OPENING,
        "Unreachable for good, or the run ends": Link.GONE,
    },
    Link.OPENED: {
        "Facts": Link.GREETED,
        "Closed: open again": Link.OPENING,
        "Closed too often, or the run ends": Link.GONE,
    },
    Link.GREETED: {"Bye, Closed or silence": Link.GONE},
    Link.GONE: {},
}


class Timer(Enum):
    """What may be waited for with a limit. At most one of each runs."""

    CONNECT = "connect"  # every node has greeted
    SLOW = "slow"  # hosts that may still come are worth a word
    REPORT = "report"  # every host has answered once after one that cannot heal
    ADDRESS = "address"
    STORE = "store"
    START = "start"
    HANG = "hang"  # --hang-timeout: since a rank last moved
    DUMP = "dump"  # the stacks that were asked for
    CAUSE = "cause"  # what broke a connection that a worker complains about
    STOP = "stop"
    PAUSE = "pause"  # before the next attempt
    LEAVE = "leave"
    LIMIT = "limit"  # --time-limit
    SIGNAL = "signal"  # --signal-workers
    KILL = "kill"  # after a second signal
    BEAT = "beat"
    SILENCE = "silence"


# Timers that mean nothing once the phase that set them is left.
PHASE_TIMERS = frozenset(Timer) - {Timer.DUMP, Timer.LIMIT, Timer.SIGNAL, Timer.KILL, Timer.BEAT, Timer.SILENCE}
