"""What a `reconcile` is given: when to stop asking, and about what."""

from __future__ import annotations

import asyncio
import threading
import time

from journal.errors import Key


class Signal:
    """What a plain `reconcile` is given.

    `deadline` is in `time.monotonic()` seconds, `first_at` in nanoseconds since the epoch, `attempt` counts from 1.
    """

    def __init__(self, key: Key, attempt: int, first_at: int, seconds: float) -> None:
        self.key = key
        self.attempt = attempt
        self.first_at = first_at
        self.deadline = time.monotonic() + seconds
        self._cancelled = threading.Event()

    @property
    def cancelled(self) -> bool:
        """Whether nobody waits for the answer any more."""
        return self._cancelled.is_set()

    def wait(self, seconds: float) -> bool:
        """Wait some seconds, or until cancelled; True when cancelled."""
        return self._cancelled.wait(min(seconds, threading.TIMEOUT_MAX))

    def cancel(self) -> None:
        """Tell the reconcile that nobody waits any more."""
        self._cancelled.set()


class AsyncSignal:
    """What a coroutine `reconcile` is given: as `Signal`, with a `wait` that is awaited."""

    def __init__(self, key: Key, attempt: int, first_at: int, seconds: float) -> None:
        self.key = key
        self.attempt = attempt
        self.first_at = first_at
        self.deadline = time.monotonic() + seconds
        self._cancelled = asyncio.Event()

    @property
    def cancelled(self) -> bool:
        """Whether nobody waits for the answer any more."""
        return self._cancelled.is_set()

    async def wait(self, seconds: float) -> bool:
        """Wait some seconds, or until cancelled; True when cancelled."""
        try:
            async with asyncio.timeout(seconds):
                await self._cancelled.wait()
        except TimeoutError:
            return False
        return True

    def cancel(self) -> None:
        """Tell the reconcile that nobody waits any more."""
        self._cancelled.set()
