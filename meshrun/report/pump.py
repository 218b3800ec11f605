"""Owns: a thread that takes items from a queue in batches, so that whoever puts them never waits for a disk or screen.
Must not: know what the items are; be the way to lose an error (the first one is kept in `error`).
Called by: report.stream (screen), report.report (files)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

BATCH = 512


class Pump:
    """Hands what is put to `handle`, in order. A batch is empty when nothing came for `tick_s` (None: never)."""

    def __init__(self, name: str, handle: Callable[[list[Any]], None], tick_s: float | None = None) -> None:
        self.moved = 0  # `handle` raises it whenever something got through: the sign of life that `finish` looks at
        self.error: Exception | None = None
        self._handle = handle
        self._tick_s = tick_s
        self._ended = False
        self._queue: SimpleQueue[Any] = SimpleQueue()
        # A daemon: a screen that never reads again must not keep the process.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, item: Any) -> None:
        """Queue one item (not None); never blocks."""
        self._queue.put(item)

    def finish(self, stall_s: float, hurried: threading.Event | None = None) -> bool:
        """Wait until all is handled; False if nothing moved for `stall_s` seconds, where `hurried` is given only once
        it is set, which may happen meanwhile."""
        self._queue.put(None)
        while self._thread.is_alive():
            before, in_time = self.moved, hurried is None or hurried.is_set()
            self._thread.join(stall_s)
            if in_time and self._thread.is_alive() and self.moved == before:
                return False
        return True

    def _run(self) -> None:
        while not self._ended:
            batch = self._next_batch()
            try:
                self._handle(batch)
            except Exception as error:
                self.error = self.error or error
            self.moved += 1

    def _next_batch(self) -> list[Any]:
        batch: list[Any] = []
        try:
            item = self._queue.get(timeout=self._tick_s)
            while item is not None and len(batch) < BATCH - 1:
                batch.append(item)
                item = self._queue.get_nowait()
            if item is None:
                self._ended = True
            else:
                batch.append(item)
        except Empty:
            pass
        return batch
