"""What the drivers have in common: the state of one protocol's run, and the answers that need no waiting."""

from __future__ import annotations

import functools
import inspect
import math
import time
from types import FunctionType
from typing import Any

from journal._core import requests
from journal._flights import Flight, Flights, inside
from journal._logs import Log
from journal._storage.group import Entry
from journal._storage.store import Store
from journal.errors import CommitFailedError, CorruptRecordError
from journal.options import POLL_SECONDS_MIN, PROGRESS_SECONDS
from journal.records import EffectEntry, Phase
from journal.values import Cursor


class Driver:
    """Runs one protocol of one handle."""

    def __init__(self, store: Store, flights: Flights, log: Log) -> None:
        self._store = store
        self._flights = flights
        self._log = log
        self._entered: list[Flight] = []
        self._elapsed_ms: float | None = None
        self._wait: object = None
        self._wait_until = math.inf
        self._pause = POLL_SECONDS_MIN
        self._progress_at = -math.inf

    def _end_flights(self) -> None:
        # The protocol ends its flights; an interrupt may have come before it had them.
        for flight in self._entered:
            flight.end()
        self._entered = []

    def read(self, request: requests.Read) -> Any:
        """What it sees."""
        try:
            return self._store.read(request.look)
        except CorruptRecordError as error:
            self._tell_damage(error)
            raise

    def _answer_of(self, entry: Entry) -> Any:
        """What became of an entry that is done, after it was logged; or its error."""
        if entry.error is not None:
            self._tell_failure(entry.error)
        entry.check()
        for position, record in entry.records:
            elapsed_ms = None
            if not isinstance(record, EffectEntry) or record.phase is not Phase.INTENT:
                elapsed_ms, self._elapsed_ms = self._elapsed_ms, None
            self._log.committed(position, record, elapsed_ms)
        return entry.answer

    def _tell_failure(self, error: BaseException) -> None:
        if isinstance(error, CorruptRecordError):
            self._tell_damage(error)
        elif isinstance(error, CommitFailedError):
            self._log.emit("error", "commit_failed", reason=error.reason)

    def _tell_damage(self, error: CorruptRecordError) -> None:
        self._log.emit("error", "record_corrupt", position=error.position, key=error.key, reason=error.reason)

    def is_alive(self, request: requests.IsAlive) -> int | None:
        """The pid of an owner that lives."""
        return self._store.living_pid(request.owner)

    def note(self, request: requests.Note) -> None:
        """Log it."""
        self._log.emit(request.level, request.event, **request.facts)

    def _took(self, started: float) -> None:
        """Note how long a user's function took, since `time.perf_counter()` said `started`."""
        self._elapsed_ms = round((time.perf_counter() - started) * 1_000, 3)

    def _seconds_to_pause(self, request: requests.Pause) -> float:
        """How long to wait before looking again.

        Raises:
            DeadlineError: this wait has taken as long as it may.
        """
        now = time.monotonic()
        seconds = self._store.wait_timeout if request.seconds is None else request.seconds
        if self._wait is not request.wait:
            self._wait = request.wait
            self._wait_until = now + seconds
            self._pause = POLL_SECONDS_MIN
        if now >= self._wait_until:
            raise requests.DeadlineError(f"waited {seconds} seconds")
        pause = min(self._pause, self._wait_until - now)
        self._pause = min(2 * self._pause, request.step_seconds_max)
        return pause

    def _progress_of(self, request: requests.Progress) -> requests.Decide | None:
        """The call of a walk's `progress`, where it is time for one."""
        now = time.monotonic()
        if not request.is_last and now - self._progress_at < PROGRESS_SECONDS:
            return None
        self._progress_at = now
        head = self._store.read(lambda view: view.head())
        return requests.Decide(request.function, (Cursor(request.cursor), Cursor(head)))

    def _inside(self) -> frozenset[Flight]:
        """The flights that a user's function called now runs in: those of the caller, and our own."""
        return inside.get().union(flight for flight in self._entered if not flight.ended)


def is_coroutine_function(function: Any) -> bool:
    """Whether a call of it gives a coroutine: an `async def`, a partial of one, an object whose `__call__` is one."""
    if type(function) is FunctionType:
        return bool(function.__code__.co_flags & inspect.CO_COROUTINE)
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004 - which of both is the question
