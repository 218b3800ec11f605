"""Owns: the means to write a run as a list of events: a job, messages with defaults, and a driver.
Must not: know what is expected.
Called by: the tests of watch."""

from __future__ import annotations

from meshrun import wire
from meshrun.launch.channel import Closed, Opened, Received, Unreachable
from meshrun.spec.values import Host, Job
from meshrun.watch.state import advance, begin, next_deadline
from meshrun.watch.values import Began, Close, Finish, Note, Open, Record, Send, Tick


def make_job(nodes=2, slots=2, **changes):
    hosts = changes.pop("hosts", tuple(Host(f"h{n}", slots=slots) for n in range(nodes)))
    values = {
        "run_id": "r",
        "form": "script",
        "argv": ("/w/train.py",),
        "hosts": hosts,
        "local": (False,) * len(hosts),
        "workdir": "/w",
        "python": "/usr/bin/python3",
        "log_dir": "/w/runs/r",
    }
    return Job(**{**values, **changes})


def facts(node=0, **changes):
    values = {
        "protocol": wire.PROTOCOL,
        "hostname": f"h{node}",
        "user": "u",
        "pid": 1,
        "python": "3.11.7",
        "executable": "/usr/bin/python3",
        "torch": "2.13.0",
        "cores": 4,
        "memory_bytes": 1 << 33,
        "device": "cpu",
        "devices": (),
        "mask": "",
        "slots": 2,
        "addresses": (f"10.0.0.{node + 1}", "127.0.0.1"),
        "offer_port": 4000,
        "workdir_error": "",
        "script_hash": "",
        "script_error": "",
        "script_file": "",
        "script_line": 0,
        "tmp": "/tmp/x",
        "free_bytes": 1 << 33,
        "omp_threads": "",
    }
    return wire.Facts(**{**values, **changes})


def raised(rank, message="boom", type="ValueError", age_s=0.0, exit_code=1, phase="script", traceback="", attempt=0):
    return wire.Raised(rank, attempt, age_s, phase, type, message, "train.py", 3, (), traceback, exit_code)


def exited(rank, exit_code=0, signal=0, stopped=False, age_s=0.0, oom="", said="", attempt=0):
    return wire.Exited(rank, attempt, age_s, exit_code, signal, oom, stopped, said=said)


def gloo(rank, age_s=0.0):
    text = "[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.1]:33211"
    return raised(rank, text, "RuntimeError", age_s)


def said(node, *messages):
    return [Received(node, message) for message in messages]


class Run:
    """Drives a machine by hand. `at(1.5, events...)` feeds events at that time and returns the actions they caused."""

    def __init__(self, job):
        self.state = begin(job)
        self.now = 0.0
        self.all = []
        self.size = len(job.hosts)

    def at(self, now, *events):
        self.now = now
        new = []
        for event in events:
            self.state, actions = advance(self.state, event, now)
            new += actions
        self.all += new
        return new

    def tick(self, until=None):
        """Go to the next deadline (or tick at `until`)."""
        at = next_deadline(self.state) if until is None else until
        return self.at(max(at, self.now), Tick())

    def ticks(self, until, alive=()):
        """Every deadline up to `until`; the nodes in `alive` say Beat before each."""
        new = []
        while (at := next_deadline(self.state)) is not None and at <= until:
            new += self.at(max(at, self.now), *(Received(node, wire.Beat()) for node in alive), Tick())
        self.now = until
        return new

    @property
    def phase(self):
        return self.state.phase.value

    @property
    def result(self):
        found = [action.result for action in self.all if isinstance(action, Finish)]
        assert len(found) == 1, found
        return found[0]

    # ---- whole stretches of a good run ----

    def greet(self, now=0.0, **changes):
        new = self.at(now, Began(), *map(Opened, range(self.size)))
        return new + self.at(now, *(Received(n, facts(n, **changes)) for n in range(self.size)))

    def start(self, now=0.0):
        new = self.greet(now)
        for node in range(1, self.size):
            new += self.at(now, Received(node, wire.Reached({"10.0.0.1": "eth0"}, {})))
        return new + self.open_store(now)

    def open_store(self, now):
        return self.at(now, Received(0, wire.StoreOpened(self.state.attempt, "10.0.0.1", 29500)))

    def run(self, now=0.0):
        return self.start(now) + self.ready(now)

    def ready(self, now):
        new = []
        for node, view in enumerate(self.state.nodes):
            ready = (wire.Ready(rank, self.state.attempt, 0.0) for rank in view.ranks)
            new += self.at(now, *said(node, *ready))
        return new

    def end_node(self, node, now, **how):
        ranks, attempt = sorted(self.state.nodes[node].alive), self.state.attempt
        ends = (exited(rank, attempt=attempt, **how) for rank in ranks)
        return self.at(now, *said(node, *ends, wire.Drained(attempt)))

    def end(self, now, **how):
        for node in range(self.size):
            self.end_node(node, now, **how)

    def bye(self, now):
        return self.at(now, *(Received(node, wire.Bye(())) for node in range(self.size)))


def brief(action):
    """An action in a few words, for tables."""
    if isinstance(action, Send):
        return f"{type(action.message).__name__}>{action.node}"
    if isinstance(action, Open):
        return f"Open {action.node}" + (f" +{action.after_s:g}" if action.after_s else "")
    if isinstance(action, Close):
        return f"Close {action.node}"
    return type(action).__name__


def words(actions, records=False):
    """The actions in a few words each, without notes and (unless asked) records."""
    skip = (Note,) if records else (Note, Record)
    return [brief(action) for action in actions if not isinstance(action, skip)]


def sends(actions, kind):
    """The messages of one kind among the actions, with their nodes."""
    return [
        (action.node, action.message)
        for action in actions
        if isinstance(action, Send) and isinstance(action.message, kind)
    ]


__all__ = ["Closed", "Opened", "Run", "Unreachable"]
