"""Group commit: who finds the writer idle commits for all that wait.

A lone caller commits in its own thread without a hand-over. Callers that arrive while a commit is being flushed wait,
and the first of them leads the next one for all. No timer delays a commit, and there is no writer thread.
"""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

from journal._core.requests import Transaction
from journal.options import BATCH_ENTRIES_MAX
from journal.records import LogRecord

_LOST_SECONDS: Final = 1.0
"""How often who waits looks whether those before still run: a commit is not delayed by it."""


class Entry:
    """One decision, and what became of it."""

    __slots__ = (
        "_claim",
        "answer",
        "at",
        "deadline",
        "decide",
        "error",
        "is_done",
        "is_withdrawn",
        "records",
        "settles",
    )

    def __init__(
        self,
        decide: Callable[[Transaction], Any],
        at: int,
        deadline: float,
        *,
        settles: bool,
        can_withdraw: bool = False,
    ) -> None:
        self.decide = decide
        self.at = at
        self.deadline = deadline
        self.settles = settles
        self.answer: Any = None
        self.records: list[tuple[int, LogRecord]] = []
        self.error: BaseException | None = None
        self.is_done = False
        self.is_withdrawn = False
        # Who takes it first has it: the commit, or the one who would withdraw it.
        self._claim = threading.Lock() if can_withdraw else None

    def succeed(self, answer: Any, records: list[tuple[int, LogRecord]]) -> None:
        """The decision is durable, with the records that it appended."""
        self.answer = answer
        self.records = records
        self.is_done = True

    def fail(self, error: BaseException) -> None:
        """Nothing of the decision was written."""
        self.error = error
        self.is_done = True

    def check(self) -> None:
        """Raise what it was refused for; once, and without a circle from the error through this frame to itself."""
        error, self.error = self.error, None
        if error is not None:
            try:
                raise error
            finally:
                del error

    def take(self) -> bool:
        """Begin to decide it, again too; False where it was withdrawn before."""
        if self._claim is not None:
            if not self._claim.acquire(blocking=False):
                return False
            self._claim = None
        return True

    def withdraw(self) -> bool:
        """Take it back, where no commit has begun with it."""
        claim = self._claim
        if claim is None or not claim.acquire(blocking=False):
            return False
        self.is_withdrawn = self.is_done = True
        return True


class Party:
    """The decisions that one thread brings to the queue together, and its place there."""

    __slots__ = ("_wake", "chore", "entries", "is_left", "thread")

    def __init__(self, entries: list[Entry], chore: Callable[[], None] | None = None) -> None:
        self.entries = entries
        self.chore = chore
        self.thread = threading.get_ident()
        self.is_left = False
        self._wake: threading.Lock | None = None

    @property
    def is_done(self) -> bool:
        """Whether every decision is durable, refused or withdrawn."""
        return all(entry.is_done for entry in self.entries)

    def prepare_to_wait(self) -> None:
        """Make ready for `wait`; called before others can see the party, or by themselves while they hold the lock."""
        if self._wake is None:
            self._wake = threading.Lock()
            self._wake.acquire()

    def wait(self, seconds: float) -> bool:
        """Wait until woken, or some seconds (-1: without end); True when woken."""
        assert self._wake is not None  # noqa: S101 - a bug of ours: only parties that were prepared wait
        return self._wake.acquire(timeout=seconds)

    def wake(self) -> None:
        """Let `wait` return, now or when it is called."""
        if self._wake is not None:
            with contextlib.suppress(RuntimeError):  # it was woken already
                self._wake.release()


def _frame_of(thread: int) -> FrameType | None:
    """Where a thread is just now.

    CPython before 3.12 holds a lock while it lists the frames, and ends in a deadlock where the collector comes in
    between and frees a `threading.local` (https://github.com/python/cpython/issues/106883): so it may not.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return sys._current_frames().get(thread)  # noqa: SLF001 - documented, for just such questions
    finally:
        if was_enabled:
            gc.enable()


def _is_running(party: Party) -> bool:
    """Whether a call is under way for a party: two interrupts in a row can end one before it has cleaned up."""
    frame = _frame_of(party.thread)
    while frame is not None:
        if frame.f_code is GroupCommit._commit.__code__ and frame.f_locals.get("party") is party:  # noqa: SLF001 - the class that stands below
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
        # Who is in the queue, by thread: each has one party there at most.
        self._present: dict[int, Party] = {}
        self._leader: Party | None = None
        self._batch: list[Party] = []
        self._waiting: list[Party] = []
        self.batch_count = 0
        self.entry_count = 0

    def entry(
        self, decide: Callable[[Transaction], Any], at: int, *, settles: bool, can_withdraw: bool = False
    ) -> Entry:
        """A decision for `commit_all`, which is to begin with it within `wait_timeout` from now."""
        return Entry(decide, at, time.monotonic() + self._wait_timeout, settles=settles, can_withdraw=can_withdraw)

    def commit_all(self, entries: list[Entry]) -> None:
        """Return when every entry is done: its decision durable, with the records that it appended, or refused.

        An interrupt while they wait withdraws them; one that comes while they are being flushed is raised after the
        flush, so that no commit is half known.
        """
        self._commit(Party(entries), is_last=False)

    def run_alone(self, chore: Callable[[], None]) -> None:
        """Do something in the place of a commit: those who commit wait, and nobody shares it."""
        self._commit(Party([self.entry(lambda _: None, 0, settles=False)], chore), is_last=False)

    def close(self) -> None:
        """Take no more entries, and wait for those that are there."""
        self._commit(Party([self.entry(lambda _: None, 0, settles=False)]), is_last=True)

    def _commit(self, party: Party, *, is_last: bool) -> None:
        try:
            with self._lock:
                if self._is_closed:
                    if is_last:
                        return
                    raise self._closed_error()
                if party.thread in self._present:
                    self._drop_lost()
                if party.thread in self._present:
                    raise RuntimeError(
                        "a signal's handler may not write to the journal, or close it, while its own thread is in a "
                        "commit: it would wait for itself; raise SystemExit and close the journal in a finally"
                    )
                self._is_closed = is_last
                if self._leader is None:
                    if is_last:
                        return
                    self._present[party.thread] = party
                    self._leader = party
                else:
                    party.prepare_to_wait()
                    self._present[party.thread] = party
                    self._waiting.append(party)
            while not party.is_done:
                if self._is_leader(party):
                    self._lead(party)
                else:
                    self._wait(party)
        except BaseException:
            self._clean_up(party)
            raise
        self._leave(party)

    def _is_leader(self, party: Party) -> bool:
        # Under the lock: `_hand_over` wakes a leader before it is one, and holds the lock until it is.
        with self._lock:
            return self._leader is party

    def _wait(self, party: Party) -> None:
        try:
            while not party.wait(_LOST_SECONDS):
                with self._lock:
                    self._drop_lost()
        except BaseException:
            with self._lock:
                is_being_flushed = party in self._batch and not party.is_done
            if is_being_flushed:
                party.wait(-1)
            raise

    def _lead(self, own: Party) -> None:
        with self._lock:
            others = [party for party in self._waiting if party is not own]
            self._batch = [own]
            entries = [entry for entry in own.entries if not entry.is_done]
            while own.chore is None and others and others[0].chore is None and len(entries) < BATCH_ENTRIES_MAX:
                party = others.pop(0)
                self._batch.append(party)
                entries += [entry for entry in party.entries if not entry.is_done]
            self._waiting = others
            if own.chore is None:
                self.batch_count += 1
                self.entry_count += len(entries)
        if own.chore is not None:
            own.chore()
            own.entries[0].succeed(None, [])
        elif entries:  # they may all have been withdrawn meanwhile
            self._commit_batch(entries)
        self._hand_over(own)

    def _hand_over(self, own: Party) -> None:
        """End a lead: wake those who have their answers, and the next leader."""
        with self._lock:
            if self._leader is not own:
                return
            # What another's deadline or an interrupt left undecided is for the next leader.
            undone = [party for party in self._batch if not party.is_done and not party.is_left]
            for party in undone:
                party.prepare_to_wait()
            self._waiting[:0] = [party for party in undone if party not in self._waiting]
            for party in self._batch:
                if party.is_done:
                    party.wake()
            self._batch = []
            leader = self._waiting[0] if self._waiting else None
            if leader is not None:
                leader.wake()
            self._leader = leader

    def _clean_up(self, party: Party) -> None:
        if self._leader is party:
            self._after_interrupt()
        self._leave(party)

    def _drop_lost(self) -> None:
        """Clean up behind those that were interrupted while they cleaned up: no call runs for them any more."""
        for party in list(self._present.values()):
            if not _is_running(party):
                self._clean_up(party)

    def _leave(self, own: Party) -> None:
        """Go out of the queue; who leads hands the lead over."""
        with self._lock:
            own.is_left = True
            if own in self._waiting:
                self._waiting.remove(own)
            self._hand_over(own)
            if self._present.get(own.thread) is own:
                del self._present[own.thread]
