"""Brings the commits of tasks to the writer: many at a time, from one thread of its own, and never on the event loop.

What tasks ask for in one turn of their loop goes to the writer's queue as one party; what they ask for while that is
being flushed is the next one. A loop is woken once for all of its entries that a commit settled.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from journal._core.requests import Transaction
from journal._flights import own_copy
from journal._storage.group import Entry
from journal._storage.store import Store
from journal.options import BATCH_ENTRIES_MAX


class TaskEntry:
    """An entry that a task waits for."""

    __slots__ = ("_future", "entry", "loop")

    def __init__(self, entry: Entry, loop: asyncio.AbstractEventLoop) -> None:
        self.entry = entry
        self.loop = loop
        self._future: asyncio.Future[None] | None = None

    async def wait(self) -> None:
        """Return when the entry is done; a wait that was cancelled can be begun again."""
        while not self.entry.is_done:
            self._future = self.loop.create_future()
            await self._future

    def wake(self) -> None:
        """Let the wait look again; on its loop."""
        if self._future is not None and not self._future.done():
            self._future.set_result(None)


class Committer:
    """The one thread through which the tasks of a handle commit."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._pending: deque[TaskEntry] = deque()
        self._lock = threading.Lock()
        self._is_working = False
        # The loops that come round to `_start`; each is put in and taken out by its own thread.
        self._loops: set[asyncio.AbstractEventLoop] = set()
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="journal-commit")

    def submit(self, decide: Callable[[Transaction], Any], *, settles: bool, can_withdraw: bool) -> TaskEntry:
        """Ask for a commit.

        Raises:
            JournalClosedError, JournalForkedError, JournalReadonlyError: nothing was asked for.
        """
        loop = asyncio.get_running_loop()
        waiting = TaskEntry(self._store.entry(decide, settles=settles, can_withdraw=can_withdraw), loop)
        self._pending.append(waiting)
        if loop not in self._loops:
            # When the loop comes round: by then everybody who runs in this turn has asked.
            self._loops.add(loop)
            loop.call_soon(self._start, loop)
        return waiting

    def close(self) -> None:
        """Let the thread end; it has nothing left to do."""
        self._executor.shutdown(wait=False)

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loops.discard(loop)
        with self._lock:
            if self._is_working or not self._pending:
                return
            self._is_working = True
        try:
            self._executor.submit(self._work)
        except RuntimeError:  # the interpreter ends, and no pool takes work any more
            threading.Thread(target=self._work, name="journal-commit", daemon=True).start()

    def _work(self) -> None:
        while True:
            with self._lock:
                waiting = [self._pending.popleft() for _ in range(min(len(self._pending), BATCH_ENTRIES_MAX))]
                if not waiting:
                    self._is_working = False
                    return
            self._commit(waiting)

    def _commit(self, waiting: list[TaskEntry]) -> None:
        try:
            self._store.group.commit_all([one.entry for one in waiting])
        except BaseException as error:  # noqa: BLE001 - whatever it was, those who wait must hear of it
            for one in waiting:
                if not one.entry.is_done:
                    one.entry.fail(own_copy(error))
        of_loops: dict[asyncio.AbstractEventLoop, list[TaskEntry]] = {}
        for one in waiting:
            of_loops.setdefault(one.loop, []).append(one)
        for loop, entries in of_loops.items():
            with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits any more
                loop.call_soon_threadsafe(_wake_all, entries)


def _wake_all(entries: list[TaskEntry]) -> None:
    for one in entries:
        one.wake()
