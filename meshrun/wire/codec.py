"""Owns: the codec: one message is one frame (kind, length, body); a marker stands before the first.
Must not: do I/O or read a clock; it travels to every node, so standard library only.
Called by: whoever holds an end of a line: launch, agent, worker."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from meshrun.dataclass import fields
from meshrun.errors import WireError
from meshrun.wire.messages import MESSAGES, Output, Share, WorkerSlot

# An agent writes this once, before its first frame: whatever a login shell or rc file printed stands before it.
MARKER = b"\x00meshrun:frames:1\x00\n"
MAX_FRAME = 64 * 1024 * 1024
MAX_UNTRUSTED_FRAME = 64 * 1024
_HEAD = struct.Struct("!BI")
_OUTPUT_HEAD = struct.Struct("!IB")
_JSON, _OUTPUT = 1, 2

M = TypeVar("M")
_DECODERS: dict[type[Any], tuple[tuple[str, Callable[[Any], Any]], ...]] = {}


def _fail(value: Any) -> Any:
    raise WireError(f"unexpected value of type {type(value).__name__}")


def _number(value: Any) -> float:
    if type(value) not in (int, float) or value != value:  # not a number: it would compare as nothing with any time
        _fail(value)
    try:
        return float(value)
    except OverflowError:
        return float(_fail(value))


def _exactly(kind: type[Any]) -> Callable[[Any], Any]:
    return lambda value: value if type(value) is kind else _fail(value)


def _strings(value: Any) -> tuple[str, ...]:
    return tuple(map(_exactly(str), _exactly(list)(value)))


def _ints(value: Any) -> tuple[int, ...]:
    return tuple(map(_exactly(int), _exactly(list)(value)))


def _mapping(kind: type[Any]) -> Callable[[Any], dict[str, Any]]:
    check = _exactly(kind)
    return lambda value: {key: check(item) for key, item in _exactly(dict)(value).items()}


_BY_ANNOTATION: dict[str, Callable[[Any], Any]] = {
    "int": _exactly(int),
    "str": _exactly(str),
    "bool": _exactly(bool),
    "float": _number,
    "tuple[str, ...]": _strings,
    "tuple[int, ...]": _ints,
    "dict[str, str]": _mapping(str),
    "dict[str, int]": _mapping(int),
    "dict[str, Any]": _exactly(dict),
    "Share": lambda value: _build(Share, value),
    "tuple[Share, ...]": lambda value: tuple(_build(Share, item) for item in _exactly(list)(value)),
    "tuple[WorkerSlot, ...]": lambda value: tuple(_build(WorkerSlot, item) for item in _exactly(list)(value)),
}


def _decoders(cls: type[Any]) -> tuple[tuple[str, Callable[[Any], Any]], ...]:
    if cls not in _DECODERS:
        _DECODERS[cls] = tuple((f.name, _BY_ANNOTATION[str(f.type)]) for f in fields(cls))
    return _DECODERS[cls]


def _build(cls: type[M], body: Any) -> M:
    known = _decoders(cls)
    if type(body) is not dict or len(body) != len(known):
        raise WireError(f"a {cls.__name__} with missing or unknown fields")
    try:
        return cls(**{name: check(body[name]) for name, check in known})
    except (KeyError, WireError) as error:
        raise WireError(f"a malformed {cls.__name__}: {error}") from None


def _plain(value: Any) -> dict[str, Any]:
    return {f.name: getattr(value, f.name) for f in fields(value)}


def encode(msg: Any) -> bytes:
    """One message as one frame. Raises WireError if it is over MAX_FRAME bytes."""
    if type(msg) is Output:
        head, body = encode_head(msg.rank, msg.stream, len(msg.data)), msg.data
    else:
        text = json.dumps([type(msg).__name__, _plain(msg)], separators=(",", ":"), default=_plain)
        body = text.encode("ascii")
        head = _HEAD.pack(_JSON, len(body))
    if len(body) > MAX_FRAME:
        raise WireError(f"a {type(msg).__name__} of {len(body)} bytes is over the limit of {MAX_FRAME}")
    return head + body


def encode_head(rank: int, stream: int, size: int) -> bytes:
    """What stands before the `size` bytes of an `Output`."""
    return _HEAD.pack(_OUTPUT, _OUTPUT_HEAD.size + size) + _OUTPUT_HEAD.pack(rank, stream)


def decode(kind: int, body: bytes | memoryview) -> Any:
    """The message in one frame's body. Raises WireError for anything that `encode` cannot have made."""
    if kind == _OUTPUT and len(body) >= _OUTPUT_HEAD.size:
        rank, stream = _OUTPUT_HEAD.unpack_from(body)
        return Output(rank, stream, bytes(body[_OUTPUT_HEAD.size :]))
    if kind != _JSON:
        raise WireError(f"a frame of unknown kind {kind}")
    try:
        name, fields_ = json.loads(bytes(body))
        cls = MESSAGES[name]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise WireError("a frame that is not a message") from None
    if cls is Output:
        raise WireError("an Output that is not a binary frame")
    return _build(cls, fields_)


class Decoder:
    """Bytes in any pieces → messages. `feed` yields what is complete; WireError ends the stream for good."""

    def __init__(self, max_frame: int = MAX_FRAME) -> None:
        self.max_frame = max_frame
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Any]:
        """Yield each message that is complete after `data`. Raises WireError.

        Who stops in between gets the rest from the next call."""
        if 0 < self._size(self._buffer) <= len(self._buffer):
            data, self._buffer = bytes(self._buffer) + data, bytearray()
        view, start = memoryview(data), 0
        try:
            if self._buffer:
                start = self._complete(view)
                if len(self._buffer) < (self._size(self._buffer) or _HEAD.size):
                    return
                frame, self._buffer = memoryview(self._buffer), bytearray()
                yield _decode_frame(frame)
            # Mostly whole frames, of which each byte is copied once.
            while (size := self._size(view[start:])) and size <= len(view) - start:
                start += size
                yield _decode_frame(view[start - size : start])
        finally:
            self._buffer += view[start:]

    def _complete(self, view: memoryview) -> int:
        """Add to the frame that has begun what it lacks, and no more: how much of `view` that was."""
        taken = min(len(view), max(0, _HEAD.size - len(self._buffer)))
        self._buffer += view[:taken]
        lacks = self._size(self._buffer) - len(self._buffer)
        if lacks <= 0:
            return taken
        self._buffer += view[taken : taken + lacks]
        return min(len(view), taken + lacks)

    def _size(self, data: bytearray | memoryview) -> int:
        """Of the frame that `data` begins with, its head included; 0 while the head is not whole."""
        if len(data) < _HEAD.size:
            return 0
        _, length = _HEAD.unpack_from(data)
        if length > self.max_frame:
            raise WireError(f"a frame of {length} bytes is over the limit of {self.max_frame}")
        return _HEAD.size + int(length)


def _decode_frame(frame: memoryview) -> Any:
    return decode(frame[0], frame[_HEAD.size :])
