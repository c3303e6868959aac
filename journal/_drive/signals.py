"""What a `reconcile` is given: when to stop asking, and about what."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from typing import Any

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


class AsyncSignal(Signal):
    """What a `reconcile` of an `AsyncJournal` is given: as `Signal`, with a `wait` that is awaited on the event loop.

    In a thread, where a plain `reconcile` is called, it blocks.
    """

    def __init__(self, key: Key, attempt: int, first_at: int, seconds: float) -> None:
        super().__init__(key, attempt, first_at, seconds)
        self._waiting: list[asyncio.Future[None]] = []

    def wait(self, seconds: float) -> Any:
        """Wait some seconds, or until cancelled; True when cancelled."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return super().wait(seconds)
        return self._wait_on(loop, seconds)

    def cancel(self) -> None:
        """Tell the reconcile that nobody waits any more."""
        super().cancel()
        for future in list(self._waiting):
            with contextlib.suppress(RuntimeError):  # its loop was closed
                future.get_loop().call_soon_threadsafe(_end, future)

    async def _wait_on(self, loop: asyncio.AbstractEventLoop, seconds: float) -> bool:
        future: asyncio.Future[None] = loop.create_future()
        self._waiting.append(future)
        try:
            if not self.cancelled:
                async with asyncio.timeout(seconds):
                    await future
        except TimeoutError:
            return self.cancelled
        finally:
            self._waiting.remove(future)
        return True


def _end(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
