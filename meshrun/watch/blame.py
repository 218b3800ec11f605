"""Owns: which failure came first: what a worker's end means, and whether it only followed another's.
Must not: do I/O or read a clock; times come in as numbers.
Called by: watch.running, watch.ending, watch.relay."""

from __future__ import annotations

import re
from collections.abc import Iterable

from meshrun.watch.values import Failure, RaisedException
from meshrun.watch.words import find_place, read_words
from meshrun.wire import Exited, Raised

_BROKEN = r"connection closed|connection reset|broken pipe|connection refused|connectFullMesh|socket closed"

# A broken connection between ranks, as the layers below torch say it. Each alone names its layer, so that a user's own
# ConnectionResetError from a web service is never taken for one (texts: torch 2.5 to 2.13, NCCL 2.2x, gloo).
# Text, not compiled: only a failure needs these, and each start would pay 4 ms.
_BETWEEN_RANKS = (
    r"(?i)gloo[/\\:.\w]*[^\n]*(?:" + _BROKEN + r")"
    r"|(?:" + _BROKEN + r")[^\n]*\bgloo\b"
    r"|gloo::IoException"
    r"|Gloo connectFullMesh failed"
    r"|remote process exit"
    r"|ncclRemoteError"
    r"|NCCL communicator was aborted"
    r"|connection closed by remote peer"
    r"|store->get\([^\n]*got error"
    r"|reached monitoredBarrier, but received errors"
)

# What torch's own network exceptions say about a peer or a store that went away.
_STORE_GONE = r"(?i)" + _BROKEN + r"|failed to recv|recvValue|sendBytes failed|remote server shutdown"
_TORCH_NETWORK = frozenset({"DistNetworkError", "DistBackendError", "DistStoreError", "DistError"})


# An abort by an exception of torch's network code, in a thread that nobody could catch it in.
_TERMINATED = (
    r"(?i)instance of '(?:c10d?::Dist\w*Error|gloo::\w+)'[\s\S]*(?:"
    + _BROKEN
    + r"|failed to recv|sendBytes failed|remote)"
)
SIGABRT = 6


def _is_torch_network(type_name: str) -> bool:
    module, _, name = type_name.rpartition(".")
    return name in _TORCH_NETWORK and module.startswith("torch")


def is_follower(exception: RaisedException) -> bool:
    """True if this exception is a broken connection to another rank: some other rank failed first (DESIGN §7).

    A time-out is none: nobody else need have failed. The traceback counts too, since frameworks wrap the error."""
    if _is_torch_network(exception.type) and re.search(_STORE_GONE, exception.message):
        return True
    return any(re.search(_BETWEEN_RANKS, text) for text in (exception.message, exception.traceback))


def make_raised_failure(node: int, message: Raised, now: float) -> Failure:
    """The failure that an exception record tells of. `now`: when it came, on the launcher's clock."""
    file, line = (message.file, message.line) if message.file else find_place(message.traceback)
    exception = RaisedException(
        type=message.type,
        message=message.message,
        file=file,
        line=line,
        lines=message.lines,
        traceback=message.traceback,
        phase=message.phase,
    )
    return Failure(
        rank=message.rank,
        node_rank=node,
        when=now - message.age_s,
        kind="init" if message.phase == "init" else "exception",
        exit_code=message.exit_code or 1,
        exception=exception,
        follower=is_follower(exception),
    )


def make_exit_failure(node: int, message: Exited, now: float) -> Failure | None:
    """The failure that a worker's end is; None for exit code 0 and for an end that our own Stop brought about."""
    if message.stopped or not (message.exit_code or message.signal):
        return None
    words = read_words(message.said)
    # Exit code 1 is what Python returns for an uncaught exception; any other, and a signal, is the program's own.
    exception = words.exception if message.exit_code == 1 and not message.signal else None
    return Failure(
        rank=message.rank,
        node_rank=node,
        when=now - message.age_s,
        kind="signal" if message.signal else "exit",
        exit_code=128 + message.signal if message.signal else message.exit_code,
        signal=message.signal,
        oom=message.oom,
        oom_where=message.oom_where,
        exception=exception,
        said="" if exception else words.lifted,
        follower=_is_following_end(message.signal, words.lifted),
    )


def _is_following_end(signal: int, lifted: str) -> bool:
    # C++ threads of gloo and torch abort on a broken connection; any other signal says something of its own.
    return signal in (0, SIGABRT) and any(re.search(pattern, lifted) for pattern in (_BETWEEN_RANKS, _TERMINATED))


def find_first(failures: Iterable[Failure]) -> Failure | None:
    """The earliest failure; broken connections to a peer rank below any other (DESIGN §7, fine print of endings)."""
    return min(failures, key=lambda f: (f.follower, f.when, f.rank), default=None)


def describe_failure(failure: Failure) -> str:
    """A few words for a live remark: `failed with exit code 3`, `was killed by signal 9`, `failed: ValueError: x`."""
    if failure.exception is not None:
        message = f": {failure.exception.message}" if failure.exception.message else ""
        text = f"{failure.exception.type}{message}".splitlines()[0]
        return f"failed: {text[:200]}"
    return f"was killed by signal {failure.signal}" if failure.signal else f"failed with exit code {failure.exit_code}"
