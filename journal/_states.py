"""The states that a handle remembers: the newest of each stream, as bytes, within bounds.

Shared by all threads and tasks of a handle. What is remembered was true when it was put, and is only put when it is
durable; whether it still is the newest, who uses it finds out in his own transaction (`journal._core.states`).
"""

from __future__ import annotations

import threading
from collections import OrderedDict

from journal._core.states import StateAt


class States:
    """States by stream; those that were not asked for longest are forgotten first."""

    def __init__(self, *, bytes_max: int, count_max: int) -> None:
        self._bytes_max = bytes_max
        self._count_max = count_max
        self._bytes = 0
        self._by_stream: OrderedDict[str, StateAt] = OrderedDict()
        # Re-entrant, since a signal's handler may come to it while its own thread holds it.
        self._lock = threading.RLock()

    def get(self, stream: str) -> StateAt | None:
        """The newest that is remembered."""
        with self._lock:
            at = self._by_stream.get(stream)
            if at is not None:
                self._by_stream.move_to_end(stream)
            return at

    def put(self, stream: str, at: StateAt) -> None:
        """Remember it, unless a newer one is; threads come to it in any order."""
        with self._lock:
            before = self._by_stream.get(stream)
            if before is not None and (before.epoch, before.sequence) > (at.epoch, at.sequence):
                return
            self._forget(stream)
            self._by_stream[stream] = at
            self._bytes += len(at.state)
            while self._by_stream and (self._bytes > self._bytes_max or len(self._by_stream) > self._count_max):
                self._forget(next(iter(self._by_stream)))

    def put_all(self, states: dict[str, StateAt]) -> None:
        """Remember what a commit came to, which is durable."""
        for stream, at in states.items():
            self.put(stream, at)

    def _forget(self, stream: str) -> None:
        at = self._by_stream.pop(stream, None)
        if at is not None:
            self._bytes -= len(at.state)
