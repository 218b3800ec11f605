"""Owns: who may join by hand: the first words on the TCP line, the token challenge, and the comparison of two jobs.
Must not: do I/O, make a nonce or read a clock; a stranger's bytes may cause a `Refused` here, nothing else.
Called by: launch.manual (both ends of the line), watch.relay (its messages), cli (`make_claim`)."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterator
from enum import Enum
from typing import Any

from meshrun import wire
from meshrun.dataclass import dataclass, field, replace
from meshrun.errors import CauseKind, MeshrunError, WireError
from meshrun.spec.signals import render_early_signal
from meshrun.spec.values import EarlySignal, Job, MeshSpec
from meshrun.wire.messages import message

NONCE_BYTES = 32
MAX_NODE_FRAME = 4 * 1024 * 1024  # what a node may send at once when it has joined: no output crosses, only facts
_VERSION = re.compile(rb"meshrun:by-hand:([0-9]{1,6})\n")
_NONCE = re.compile(r"[0-9a-f]{64}")
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
PREAMBLE = b"meshrun:by-hand:%d\n" % wire.PROTOCOL
_PREAMBLE_LIMIT = 32


@message
@dataclass(frozen=True, slots=True)
class Hello:
    """The first frame of either end. `token`: this end was given a token, and will accept nobody without it."""

    nonce: str
    token: bool


@message
@dataclass(frozen=True, slots=True)
class Claim:
    """What a node says of itself and its job; all but the rank and the hostname must be the same on every node."""

    node_rank: int
    nnodes: int
    hostname: str
    mesh: str
    form: str
    target: str  # module or program name; "" for a script, whose content counts
    script_hash: str
    init: str
    settings: dict[str, str] = field(default_factory=dict)  # options by which a run would go differently
    mac: str = ""


@message
@dataclass(frozen=True, slots=True)
class Welcome:
    """Node 0's answer to a claim that fits; the first message a relay receives. `run_id` is the same on all nodes."""

    run_id: str
    mac: str = ""


@message
@dataclass(frozen=True, slots=True)
class Whole:
    """Before the Assign: the plan as `plan.packed` writes it, for the node's own report. One message for all nodes, so
    that node 0 makes and encodes it once."""

    plan: dict[str, Any]


@message
@dataclass(frozen=True, slots=True)
class Refusal:
    """Node 0's other answer. `kind` is a `CauseKind` value. Also sent later, when another node claims the same rank."""

    kind: str
    message: str
    hint: str


class Refused(MeshrunError):
    """The far side cannot be accepted, or did not accept us."""

    def __init__(self, kind: CauseKind, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.kind, self.message, self.hint = kind, message, hint

    def to_wire(self) -> Refusal:
        """What the far side is told."""
        return Refusal(self.kind.value, self.message, self.hint)


def tame(text: str, limit: int = 200) -> str:
    """A stranger's words, fit for a terminal: printable, no line breaks, at most `limit` characters."""
    shown = text if len(text) <= limit else text[:limit] + "..."
    return "".join(c if c.isprintable() else "?" for c in shown)


def read_refusal(refusal: Refusal) -> Refused:
    """Node 0's refusal as an exception; its words are tamed, since anybody may have sent them."""
    known = {kind.value: kind for kind in CauseKind}
    kind = known.get(refusal.kind, CauseKind.AUTH)
    return Refused(kind, tame(refusal.message, 2000), tame(refusal.hint, 500))


# ---- claims ----------------------------------------------------------------------------------------------------------


def render_mesh(spec: MeshSpec | None) -> str:
    """The canonical text of a mesh as asked, for comparison and for messages. No mesh is "(none)"."""
    if spec is None:
        return "(none)"
    parts = [_sizes(spec.dims)]
    parts += [f"within_node={'+'.join(spec.within_node)}"] if spec.within_node else []
    parts += [f"view {name}={'+'.join(dims)}" for name, dims in spec.views]
    parts += [f"factoring {name}: {_sizes(dims)}" for name, dims in spec.factorings]
    parts += [f"backend {name}={value}" for name, value in sorted(spec.backend)]
    parts += [f"timeout_s {name}={value:g}" for name, value in sorted(spec.timeout_s)]
    parts += [f"device={spec.device}"] if spec.device != "auto" else []
    return "; ".join(parts)


def _sizes(dims: tuple[tuple[str, int | None], ...]) -> str:
    return ",".join(f"{name}={'auto' if size is None else size}" for name, size in dims)


def make_claim(job: Job, hostname: str) -> Claim:
    """What this command says of itself. `job.by_hand` must be set; paths and arguments may differ between nodes."""
    assert job.by_hand is not None
    target = "" if job.form == "script" else job.argv[0].rsplit("/", 1)[-1]
    return Claim(
        node_rank=job.by_hand.node_rank,
        nnodes=job.by_hand.nnodes,
        hostname=hostname,
        mesh=render_mesh(job.mesh),
        form=job.form,
        target=target,
        script_hash=job.script_hash if job.form == "script" else "",
        init=job.init,
        settings={option: _spell(getattr(job, name)) for name, option in _SETTINGS.items()},
    )


# Node 0 decides by its own; another value on another node would silently not count. What is each node's own business
# (how many workers, python, directories, variables, what is shown) may differ.
_SETTINGS = {
    "device": "--device",
    "backend": "--backend",
    "timeout_s": "--timeout",
    "start_timeout_s": "--start-timeout",
    "grace_s": "--grace",
    "time_limit_s": "--time-limit",
    "signal_workers": "--signal-workers",
    "hang_timeout_s": "--hang-timeout",
    "max_restarts": "--max-restarts",
}


def _spell(value: object) -> str:
    """A setting as it is typed; "" if it was not said."""
    if isinstance(value, EarlySignal):
        return render_early_signal(value)
    return f"{value:.15g}" if isinstance(value, float) else "" if value is None else str(value)


_COMPARED = (
    ("nnodes", "--nnodes"),
    ("mesh", "--mesh"),
    ("form", "the kind of program"),
    ("target", "the program"),
    ("script_hash", "the script (sha256)"),
    ("init", "--init"),
)


def find_differences(ours: Claim, theirs: Claim) -> list[str]:
    """What differs between two claims that must agree, one phrase each with both values; empty if they fit."""
    who = f"node {theirs.node_rank} ({tame(theirs.hostname, 64)})"
    found = []
    for name, label in _COMPARED:
        mine, other = getattr(ours, name), getattr(theirs, name)
        if mine != other:
            found.append(f"{label}: node {ours.node_rank} has {_value(mine)}, {who} has {_value(other)}")
    for option, said in ours.settings.items():
        other = theirs.settings.get(option, "")
        if said != other:
            found.append(f"{option}: node {ours.node_rank} has {_value(said)}, {who} has {_value(other)}")
    return found


def _value(value: object) -> str:
    text = tame(str(value), 300)
    return text[:16] if re.fullmatch("[0-9a-f]{64}", text) else text or "(nothing)"


# ---- the challenge ---------------------------------------------------------------------------------------------------


class Ear:
    """A stranger's bytes → messages: the version line, then frames of at most 64 KiB until `trust` is called."""

    def __init__(self) -> None:
        self._head = bytearray()
        self._greeted = False
        self._decoder = wire.Decoder(wire.MAX_UNTRUSTED_FRAME)

    def trust(self, max_frame: int) -> None:
        """The far side has joined: larger frames may come."""
        self._decoder.max_frame = max_frame

    def feed(self, data: bytes) -> Iterator[Any]:
        """Yield each message complete after `data`. Raises Refused for anything that is not meshrun's."""
        if not self._greeted:
            self._head += data
            rest = check_preamble(bytes(self._head))
            if rest is None:
                return
            self._greeted, data = True, rest
        try:
            yield from self._decoder.feed(data)
        except WireError as error:
            raise Refused(CauseKind.AUTH, f"it sent {error}") from None


def check_preamble(head: bytes) -> bytes | None:
    """What follows the version line, or None while it is incomplete. Raises Refused if it is not ours."""
    if head.startswith(PREAMBLE):
        return head[len(PREAMBLE) :]
    other = _VERSION.match(head)
    if other:
        hint = "install the same meshrun version on every node"
        text = f"it speaks version {int(other[1])} of the protocol, this meshrun speaks version {wire.PROTOCOL}"
        raise Refused(CauseKind.MISMATCH, text, hint)
    stem = PREAMBLE[: PREAMBLE.rindex(b":") + 1]
    if len(head) >= _PREAMBLE_LIMIT or not (head.startswith(stem) or stem.startswith(head)):
        raise Refused(CauseKind.AUTH, "it does not speak meshrun's protocol")
    return None


class Stage(Enum):
    """Where an end stands in the handshake: which message must come next."""

    HELLO = "hello"
    ANSWER = "answer"  # the claim at node 0, the welcome at a node
    JOINED = "joined"


@dataclass(frozen=True, slots=True)
class Side:
    """One end of a handshake. `nonce` is fresh for every connection; `peer_nonce` is the far end's."""

    token: bytes
    nonce: str
    claim: Claim  # our own
    stage: Stage = Stage.HELLO
    peer_nonce: str = ""

    @property
    def hello(self) -> Hello:
        """Our first message."""
        return Hello(self.nonce, bool(self.token))


def sign(token: bytes, role: str, dialer: str, gate: str, body: Any) -> str:
    """The proof that `role` knows the token, bound to both nonces and to what it says. "" without a token."""
    if not token:
        return ""
    text = b"\0".join((PREAMBLE, role.encode(), dialer.encode(), gate.encode(), wire.encode(replace(body, mac=""))))
    return hmac.new(token, text, hashlib.sha256).hexdigest()


def _proves(expected: str, given: str) -> bool:
    return hmac.compare_digest(expected.encode(), given.encode("utf-8", "surrogatepass"))


def _take_hello(side: Side, hello: Any, far: str) -> Side:
    if type(hello) is not Hello or not _NONCE.fullmatch(hello.nonce):
        raise Refused(CauseKind.AUTH, "it does not speak meshrun's protocol")
    if side.token and not hello.token:
        raise Refused(CauseKind.AUTH, f"{far} has no token", "give every node the same --token-file")
    if hello.token and not side.token:
        text = f"{far} wants a token, and this end has none"
        raise Refused(CauseKind.AUTH, text, "give every node the same --token-file")
    return replace(side, peer_nonce=hello.nonce, stage=Stage.ANSWER)


def advance_gate(side: Side, heard: Any) -> tuple[Side, Claim | None]:
    """Node 0's end: the state after one message, and the proven claim once there is one. Raises Refused."""
    if side.stage is Stage.HELLO:
        return _take_hello(side, heard, "the node"), None
    if side.stage is not Stage.ANSWER or type(heard) is not Claim:
        raise Refused(CauseKind.AUTH, "it does not speak meshrun's protocol")
    if not _proves(sign(side.token, "node", side.peer_nonce, side.nonce, heard), heard.mac):
        raise Refused(CauseKind.AUTH, "the node has another token", "give every node the same --token-file")
    return replace(side, stage=Stage.JOINED), heard


def advance_node(side: Side, heard: Any) -> tuple[Side, Any]:
    """The dialling end: the state after one message, and what to answer (a Claim) or was won (the Welcome).

    Raises Refused, also for node 0's own refusal."""
    if type(heard) is Refusal:
        raise read_refusal(heard)
    if side.stage is Stage.HELLO:
        side = _take_hello(side, heard, "node 0")
        return side, replace(side.claim, mac=sign(side.token, "node", side.nonce, side.peer_nonce, side.claim))
    if side.stage is not Stage.ANSWER or type(heard) is not Welcome or not _RUN_ID.fullmatch(heard.run_id):
        raise Refused(CauseKind.AUTH, "it does not speak meshrun's protocol")
    if not _proves(sign(side.token, "gate", side.nonce, side.peer_nonce, heard), heard.mac):
        raise Refused(CauseKind.AUTH, "node 0 could not prove that it has the token")
    return replace(side, stage=Stage.JOINED), heard


def make_welcome(side: Side, run_id: str) -> Welcome:
    """Node 0's proof, given only to a node that has proven itself."""
    welcome = Welcome(run_id)
    return replace(welcome, mac=sign(side.token, "gate", side.peer_nonce, side.nonce, welcome))
