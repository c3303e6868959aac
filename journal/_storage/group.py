"""Group commit: who finds the writer idle commits for all that wait.

A lone caller commits in its own thread without a hand-over. Callers that arrive while a commit is being flushed wait,
and the first of them leads the next one for all. No timer delays a commit, and there is no writer thread.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

from journal._core.requests import Transaction
from journal.options import BATCH_ENTRIES_MAX
from journal.records import LogRecord


class Entry:
    """One caller's decision, and what became of it."""

    __slots__ = ("_wake", "answer", "at", "deadline", "decide", "error", "is_done", "leads", "records", "settles")

    def __init__(self, decide: Callable[[Transaction], Any], at: int, deadline: float, *, settles: bool) -> None:
        self.decide = decide
        self.at = at
        self.deadline = deadline
        self.settles = settles
        self.answer: Any = None
        self.records: list[tuple[int, LogRecord]] = []
        self.error: BaseException | None = None
        self.is_done = False
        self.leads = False
        self._wake: threading.Lock | None = None

    def succeed(self, answer: Any, records: list[tuple[int, LogRecord]]) -> None:
        """The decision is durable, with the records that it appended."""
        self.answer = answer
        self.records = records
        self.is_done = True

    def fail(self, error: BaseException) -> None:
        """Nothing of the decision was written."""
        self.error = error
        self.is_done = True

    def prepare_to_wait(self) -> None:
        """Make ready for `wait`; called before others can see the entry."""
        self._wake = threading.Lock()
        self._wake.acquire()

    def wait(self) -> None:
        """Wait until the entry is done or leads."""
        assert self._wake is not None  # noqa: S101 - a bug of ours: only entries that were prepared wait
        self._wake.acquire()

    def wake(self) -> None:
        """Let `wait` return."""
        if self._wake is not None:
            with contextlib.suppress(RuntimeError):  # it may have been woken already
                self._wake.release()


class GroupCommit:
    """The queue in front of the one writer of this handle."""

    def __init__(
        self,
        commit_batch: Callable[[list[Entry]], None],
        wait_timeout: float,
        closed_error: Callable[[], Exception],
    ) -> None:
        self._commit_batch = commit_batch
        self._closed_error = closed_error
        self._is_closed = False
        self._wait_timeout = wait_timeout
        self._lock = threading.Lock()
        self._waiting: list[Entry] = []
        self._is_led = False
        self.batch_count = 0
        self.entry_count = 0

    def commit(self, decide: Callable[[Transaction], Any], at: int, *, settles: bool) -> Entry:
        """The entry with the decision's answer and records, when it is durable.

        An interrupt (`KeyboardInterrupt`) while the entry waits withdraws it; one that comes while it is being
        flushed is raised after the flush, so that no commit is half known.
        """
        entry = Entry(decide, at, time.monotonic() + self._wait_timeout, settles=settles)
        with self._lock:
            if self._is_closed:
                raise self._closed_error()
            entry.leads = not self._is_led
            self._is_led = True
            if not entry.leads:
                entry.prepare_to_wait()
            self._waiting.append(entry)
        if not entry.leads:
            self._wait(entry)
        if not entry.is_done:
            self._lead(entry)
        if entry.error is not None:
            raise entry.error
        return entry

    def close(self) -> None:
        """Take no more entries, and wait for those that are there."""
        last = Entry(lambda _: None, 0, time.monotonic() + self._wait_timeout, settles=False)
        with self._lock:
            self._is_closed = True
            if not self._is_led:
                return
            last.prepare_to_wait()
            self._waiting.append(last)
        last.wait()
        if not last.is_done:
            self._lead(last)

    def _wait(self, entry: Entry) -> None:
        try:
            entry.wait()
        except BaseException:
            with self._lock:
                is_withdrawn = entry in self._waiting
                if is_withdrawn:
                    self._waiting.remove(entry)
                    if entry.leads:
                        self._hand_over()
            if not is_withdrawn and not entry.is_done:
                entry.wait()
            raise

    def _lead(self, own: Entry) -> None:
        with self._lock:
            batch, self._waiting = self._waiting[:BATCH_ENTRIES_MAX], self._waiting[BATCH_ENTRIES_MAX:]
        try:
            self._commit_batch(batch)
        finally:
            with self._lock:
                # What an interrupt or another's deadline left undecided is for the next leader.
                self._waiting[:0] = [entry for entry in batch if not entry.is_done and entry is not own]
                self.batch_count += 1
                self.entry_count += len(batch)
                self._hand_over()
            for entry in batch:
                if entry.is_done and entry is not own:
                    entry.wake()

    def _hand_over(self) -> None:
        if self._waiting:
            self._waiting[0].leads = True
            self._waiting[0].wake()
        else:
            self._is_led = False
