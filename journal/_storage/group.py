"""Group commit: who finds the writer idle commits for all that wait.

A lone caller commits in its own thread without a hand-over. Callers that arrive while a commit is being flushed wait,
and the first of them leads the next one for all. No timer delays a commit, and there is no writer thread.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from journal._core.requests import Transaction
from journal.options import BATCH_ENTRIES_MAX
from journal.records import LogRecord

_LOST_SECONDS: Final = 1.0
"""How often who waits looks whether those before still run: a commit is not delayed by it."""


class Entry:
    """One caller's decision, and what became of it."""

    __slots__ = (
        "_wake",
        "answer",
        "at",
        "deadline",
        "decide",
        "error",
        "is_done",
        "is_left",
        "records",
        "settles",
        "thread",
    )

    def __init__(self, decide: Callable[[Transaction], Any], at: int, deadline: float, *, settles: bool) -> None:
        self.decide = decide
        self.at = at
        self.deadline = deadline
        self.settles = settles
        self.thread = threading.get_ident()
        self.answer: Any = None
        self.records: list[tuple[int, LogRecord]] = []
        self.error: BaseException | None = None
        self.is_done = False
        self.is_left = False
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

    def wait(self, seconds: float) -> bool:
        """Wait until woken, or some seconds (-1: without end); True when woken."""
        assert self._wake is not None  # noqa: S101 - a bug of ours: only entries that were prepared wait
        return self._wake.acquire(timeout=seconds)

    def wake(self) -> None:
        """Let `wait` return, now or when it is called."""
        if self._wake is not None:
            with contextlib.suppress(RuntimeError):  # it was woken already
                self._wake.release()


def _is_running(entry: Entry) -> bool:
    """Whether a call is under way for an entry: two interrupts in a row can end one before it has cleaned up."""
    frame = sys._current_frames().get(entry.thread)  # noqa: SLF001 - documented, for just such questions
    while frame is not None:
        if frame.f_code is GroupCommit._commit.__code__ and frame.f_locals.get("entry") is entry:  # noqa: SLF001 - the class that stands below
            return True
        frame = frame.f_back
    return False


class GroupCommit:
    """The queue in front of the one writer of this handle.

    An interrupt (`KeyboardInterrupt`) may come between any two lines. So the state changes in steps that can be done
    again, the last of which counts, and whoever leaves `commit`, however, leaves by `_leave`.
    """

    def __init__(
        self,
        commit_batch: Callable[[list[Entry]], None],
        wait_timeout: float,
        *,
        closed_error: Callable[[], Exception],
        after_interrupt: Callable[[], None],
    ) -> None:
        self._commit_batch = commit_batch
        self._closed_error = closed_error
        self._after_interrupt = after_interrupt
        self._wait_timeout = wait_timeout
        # Re-entrant, since a signal's handler may come to it while its own thread holds it.
        self._lock = threading.RLock()
        self._is_closed = False
        self._leader: Entry | None = None
        self._batch: list[Entry] = []
        self._waiting: list[Entry] = []
        self.batch_count = 0
        self.entry_count = 0

    def commit(self, decide: Callable[[Transaction], Any], at: int, *, settles: bool) -> Entry:
        """The entry with the decision's answer and records, when it is durable.

        An interrupt while the entry waits withdraws it; one that comes while it is being flushed is raised after the
        flush, so that no commit is half known.
        """
        entry = self._entry(decide, at, settles=settles)
        self._commit(entry, is_last=False)
        if entry.error is not None:
            raise entry.error
        return entry

    def close(self) -> None:
        """Take no more entries, and wait for those that are there."""
        self._commit(self._entry(lambda _: None, 0, settles=False), is_last=True)

    def _entry(self, decide: Callable[[Transaction], Any], at: int, *, settles: bool) -> Entry:
        return Entry(decide, at, time.monotonic() + self._wait_timeout, settles=settles)

    def _commit(self, entry: Entry, *, is_last: bool) -> None:
        try:
            with self._lock:
                if self._is_closed:
                    if is_last:
                        return
                    raise self._closed_error()
                if any(other.thread == entry.thread for other in self._unfinished()):
                    self._drop_lost()
                if any(other.thread == entry.thread for other in self._unfinished()):
                    raise RuntimeError(
                        "a signal's handler may not write to the journal, or close it, while its own thread is in a "
                        "commit: it would wait for itself; raise SystemExit and close the journal in a finally"
                    )
                if self._leader is None:
                    self._is_closed = is_last
                    if is_last:
                        return
                    self._leader = entry
                else:
                    self._is_closed = is_last
                    entry.prepare_to_wait()
                    self._waiting.append(entry)
            while not self._may_go_on(entry):
                self._wait(entry)
            if not entry.is_done:
                self._lead(entry)
        except BaseException:
            self._clean_up(entry)
            raise

    def _clean_up(self, entry: Entry) -> None:
        if self._leader is entry:
            self._after_interrupt()
        self._leave(entry)

    def _drop_lost(self) -> None:
        """Clean up behind those that were interrupted while they cleaned up: no call runs for their entries any more."""
        for entry in self._unfinished():
            if not _is_running(entry):
                self._clean_up(entry)

    def _unfinished(self) -> list[Entry]:
        leading = [] if self._leader is None else [self._leader]
        batch = [entry for entry in self._batch if not entry.is_done and not entry.is_left]
        return [*leading, *batch, *self._waiting]

    def _may_go_on(self, entry: Entry) -> bool:
        # Under the lock: `_leave` wakes a leader before it is one, and holds the lock until it is.
        with self._lock:
            return entry.is_done or self._leader is entry

    def _wait(self, entry: Entry) -> None:
        try:
            while not entry.wait(_LOST_SECONDS):
                with self._lock:
                    self._drop_lost()
        except BaseException:
            with self._lock:
                is_being_flushed = entry in self._batch and not entry.is_done
            if is_being_flushed:
                entry.wait(-1)
            raise

    def _lead(self, own: Entry) -> None:
        with self._lock:
            others = [entry for entry in self._waiting if entry is not own]
            self._batch = [own, *others[: BATCH_ENTRIES_MAX - 1]]
            self._waiting = others[BATCH_ENTRIES_MAX - 1 :]
            self.batch_count += 1
            self.entry_count += len(self._batch)
        self._commit_batch(self._batch)
        self._leave(own)

    def _leave(self, own: Entry) -> None:
        """Go out of the queue, and where this entry led, hand the lead over."""
        with self._lock:
            own.is_left = True
            if own in self._waiting:
                self._waiting.remove(own)
            if self._leader is not own:
                return
            # What another's deadline or an interrupt left undecided is for the next leader.
            undone = [entry for entry in self._batch if not entry.is_done and not entry.is_left]
            self._waiting[:0] = [entry for entry in undone if entry not in self._waiting]
            for entry in self._batch:
                if entry.is_done:
                    entry.wake()
            self._batch = []
            leader = self._waiting[0] if self._waiting else None
            if leader is not None:
                leader.wake()
            self._leader = leader
