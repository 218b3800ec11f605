"""Owns: what a trial is (a fault at a moment in a layout) and the seeded list of trials, as plain values.
Must not: do anything, or know what a right ending is (tests/chaos/expect.py).
Called by: tests/chaos."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import islice


class Layout(Enum):
    """How the run is started: on this machine, over SSH, or by hand on each of two nodes."""

    LOCAL = "local"
    SSH = "ssh"
    HAND = "hand"


class Moment(Enum):
    """When the fault comes, in the order of a run's life; tests/chaos/play.py knows how each is seen."""

    CONNECTING = "connecting"
    GREETING = "greeting"
    STARTING = "starting"  # before the first Spawned
    SPAWNED = "spawned"  # between the first Spawned and the last Ready
    RUNNING = "running"
    GRACE = "grace"  # SIGTERM was sent, workers ignore it
    EXITING = "exiting"  # the first worker has ended with 0
    PAUSE = "pause"  # two attempts have failed, the third has not begun


class Target(Enum):
    """Whom the fault hits."""

    WORKER = "worker"
    CHILD = "child"  # a worker's double-forked child in a session of its own
    SERVER = "server"  # the fork server
    STORE = "store"
    AGENT = "agent"
    GUARD = "guard"
    SESSION = "session"  # the sshd process of the node's session
    LAUNCHER = "launcher"
    LINK = "link"
    HOST = "host"


@dataclass(frozen=True, slots=True)
class Fault:
    """`how`: a signal's name, given twice as `INT+INT`; for a link the direction that is cut."""

    target: Target
    how: str

    @property
    def name(self) -> str:
        return f"{self.target.value}-{self.how}"


@dataclass(frozen=True, slots=True)
class Trial:
    """Everything that decides a trial. `rank` is the worker that is hit, `node` the host of the fault."""

    number: int
    layout: Layout
    nodes: int
    slots: int
    fault: Fault
    moment: Moment
    delay_s: float
    gap_s: float  # between two signals
    node: int
    rank: int
    program: bool  # --no-python sh -c instead of a script
    neighbour: bool  # another run of the same user beside it, which nothing may touch

    @property
    def place(self) -> str:
        return f"{self.layout.value}{self.nodes if self.layout is not Layout.LOCAL else ''}"

    @property
    def name(self) -> str:
        kind = "sh" if self.program else "py"
        return f"{self.fault.name} while {self.moment.value} on {self.place}x{self.slots} node {self.node} ({kind})"


_KILLABLE = [t for t in Target if t not in (Target.LAUNCHER, Target.LINK, Target.HOST)]
_SIGNALS = ["INT", "TERM", "HUP", "INT+INT", "TERM+TERM", "HUP+INT"]
FAULTS: tuple[Fault, ...] = (
    *(Fault(target, how) for target in _KILLABLE for how in ("KILL", "STOP", "TERM")),
    *(Fault(Target.LAUNCHER, how) for how in ("KILL", "STOP", *_SIGNALS)),
    *(Fault(Target.LINK, how) for how in ("both", "out", "in")),
    Fault(Target.HOST, "crash"),
)
_ALL = tuple(Moment)
# When the target exists. A link to a host that greets late is as good as any: all moments.
MOMENTS: dict[Target, tuple[Moment, ...]] = {
    Target.WORKER: (Moment.SPAWNED, Moment.RUNNING, Moment.GRACE, Moment.EXITING),
    Target.CHILD: (Moment.RUNNING, Moment.GRACE, Moment.EXITING),
    Target.SERVER: _ALL[2:],
    Target.STORE: _ALL[3:7],  # from its first client to the end of the attempt
    Target.AGENT: _ALL[1:],
    Target.GUARD: _ALL[1:],
    Target.SESSION: _ALL[1:],
    Target.LAUNCHER: _ALL,
    Target.LINK: _ALL,
    Target.HOST: _ALL,
}
_REMOTE = {
    Target.SESSION: (Layout.SSH,),
    Target.LINK: (Layout.SSH, Layout.HAND),
    Target.HOST: (Layout.SSH, Layout.HAND),
}


def make_trials(seed: int, count: int) -> list[Trial]:
    """The first `count` trials of a seed; a longer list begins with the shorter one."""
    return list(islice(_make(random.Random(seed)), count))


def _make(rng: random.Random) -> Iterator[Trial]:
    """Round after round of all faults, each round in another order."""
    number = 0
    while True:
        for fault in rng.sample(FAULTS, len(FAULTS)):
            yield _make_one(rng, number, fault)
            number += 1


def _make_one(rng: random.Random, number: int, fault: Fault) -> Trial:
    layout = rng.choice(_REMOTE.get(fault.target, tuple(Layout)))
    nodes = {Layout.LOCAL: 1, Layout.HAND: 2, Layout.SSH: rng.randint(2, 4)}[layout]
    slots = 3 if layout is Layout.LOCAL else rng.randint(1, 2)
    on_first = fault.target is Target.STORE or (fault.target is Target.LAUNCHER and layout is not Layout.HAND)
    node = 0 if on_first else rng.randrange(nodes)
    return Trial(
        number,
        layout,
        nodes,
        slots,
        fault,
        moment=rng.choice(MOMENTS[fault.target]),
        delay_s=round(rng.choice((0.0, rng.uniform(0.0, 0.02), rng.uniform(0.0, 0.3))), 4),
        gap_s=round(rng.uniform(0.0, 0.4), 4),
        node=node,
        rank=node * slots + rng.randrange(slots),
        # A program has neither a fork server nor a store of ours.
        program=rng.random() < 0.25 and fault.target not in (Target.SERVER, Target.STORE),
        neighbour=rng.random() < 0.2 and fault.target not in (Target.LINK, Target.HOST),
    )
