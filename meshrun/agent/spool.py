"""Owns: output that cannot be sent yet: first in memory, then in unlinked files, first in first out.
Must not: make a worker wait (unless the disk is full: then nothing is lost and `full` says so).
Called by: agent.line."""

from __future__ import annotations

import os
import struct
from collections import deque

MEMORY_BYTES = 256 * 1024
SEGMENT_BYTES = 64 * 1024 * 1024
FULL_BYTES = 64 * 1024 * 1024
_HEAD = struct.Struct("!IBI")

Chunk = tuple[int, int, bytes]  # rank, stream, data


class _Segment:
    """One unlinked file: chunks are appended, then read once from the front."""

    def __init__(self, folder: str) -> None:
        path = f"{folder}/spool-{os.urandom(6).hex()}"
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        os.unlink(path)
        self.size = self.taken = 0

    def append(self, chunk: Chunk) -> bool:
        data = _HEAD.pack(chunk[0], chunk[1], len(chunk[2])) + chunk[2]
        try:
            written = os.pwrite(self.fd, data, self.size)
        except OSError:
            return False
        if written == len(data):
            self.size += written
        return written == len(data)

    def take(self) -> Chunk:
        rank, stream, length = _HEAD.unpack(os.pread(self.fd, _HEAD.size, self.taken))
        data = os.pread(self.fd, length, self.taken + _HEAD.size)
        self.taken += _HEAD.size + length
        return rank, stream, data


class Spool:
    """A queue of chunks. Older ones are in `_front` (memory), then the files, then `_back` if the disk is full."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._front: deque[Chunk] = deque()
        self._front_bytes = 0
        self._segments: deque[_Segment] = deque()
        self._back: deque[Chunk] = deque()
        self._back_bytes = 0

    def __bool__(self) -> bool:
        return bool(self._front or self._back) or any(part.taken < part.size for part in self._segments)

    @property
    def full(self) -> bool:
        """The disk takes no more and memory holds what it should: stop reading until this is False again."""
        return self._back_bytes > FULL_BYTES

    def push(self, chunk: Chunk) -> None:
        """Append one chunk."""
        size = len(chunk[2])
        if not self._segments and not self._back and self._front_bytes + size <= MEMORY_BYTES:
            self._front.append(chunk)
            self._front_bytes += size
        elif self._back or not self._write(chunk):
            self._back.append(chunk)
            self._back_bytes += size

    def _write(self, chunk: Chunk) -> bool:
        if not self._segments or self._segments[-1].size >= SEGMENT_BYTES:
            try:
                self._segments.append(_Segment(self._folder))
            except OSError:
                return False
        return self._segments[-1].append(chunk)

    def pop(self, limit: int) -> Chunk | None:
        """The oldest bytes, at most `limit` of them; None if there are none."""
        if limit <= 0 or not (self._front or self._refill()):
            return None
        rank, stream, data = self._front.popleft()
        self._front_bytes -= min(len(data), limit)
        if len(data) > limit:
            self._front.appendleft((rank, stream, data[limit:]))
        return rank, stream, data[:limit]

    def _refill(self) -> bool:
        while self._segments and self._segments[0].taken >= self._segments[0].size:
            os.close(self._segments.popleft().fd)
        if self._segments:
            self._front.append(self._segments[0].take())
        elif self._back:
            self._front.append(self._back.popleft())
            self._back_bytes -= len(self._front[0][2])
        else:
            return False
        self._front_bytes += len(self._front[0][2])
        return True

    def clear(self) -> None:
        """Forget everything."""
        for segment in self._segments:
            os.close(segment.fd)
        for queue in (self._segments, self._front, self._back):
            queue.clear()
        self._front_bytes = self._back_bytes = 0
