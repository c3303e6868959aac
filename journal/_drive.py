"""Drives protocols in threads: the only code that waits.

`drive` runs a protocol to its end in the calling thread. Each request is answered by `Driver.perform`; what a user's
function raises is thrown into the protocol at its place.
"""

from __future__ import annotations

import contextvars
import math
import threading
import time
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

from journal._branches import Branches
from journal._core import requests
from journal._core.requests import CutOffError, DeadlineError, RunRaisedError, Steps
from journal._flights import Flight, Flights, inside
from journal._logs import Log
from journal._storage.store import Store
from journal.errors import CommitFailedError, CorruptRecordError, JournalReadonlyError, Key
from journal.options import POLL_SECONDS_MAX, POLL_SECONDS_MIN, PROGRESS_SECONDS
from journal.records import EffectEntry, Phase
from journal.values import Cursor

T = TypeVar("T")


class Signal:
    """What a `reconcile` is given: when to stop asking, and about what.

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
        self._branches: Branches | None = None

    def run(self, protocol: Steps[T]) -> T:
        """What the protocol returns."""
        try:
            return self._follow(protocol)
        except (RunRaisedError, CutOffError) as raised:
            users_own = raised.error
        # The very exception of the user's function; outside the except, which would become its context.
        raise users_own

    def _follow(self, protocol: Steps[T]) -> T:
        try:
            request = next(protocol)
            while True:
                try:
                    answer = self.perform(request)
                except BaseException as error:  # noqa: BLE001 - the protocol decides what an exception means
                    request = protocol.throw(error)
                else:
                    request = protocol.send(answer)
        except StopIteration as end:
            value: T = end.value
            return value
        finally:
            # The protocol ends its flights; an interrupt may have come before it had them.
            for flight in self._entered:
                flight.end()
            if self._branches is not None:
                # An interrupt may not have reached it: what it keeps going beside itself has to learn of it.
                protocol.close()
                self._branches.end()

    def perform(self, request: Any) -> Any:
        """The answer to one request."""
        return self._ANSWERS[type(request)](self, request)

    def _read(self, request: requests.Read) -> Any:
        try:
            return self._store.read(request.look)
        except CorruptRecordError as error:
            self._tell_damage(error)
            raise

    def _commit(self, request: requests.Commit) -> Any:
        try:
            entry = self._store.commit(request.decide, settles=request.settles)
        except CorruptRecordError as error:
            self._tell_damage(error)
            raise
        except CommitFailedError as error:
            self._log.emit("error", "commit_failed", reason=error.reason)
            raise
        for position, record in entry.records:
            elapsed_ms = None
            if not isinstance(record, EffectEntry) or record.phase is not Phase.INTENT:
                elapsed_ms, self._elapsed_ms = self._elapsed_ms, None
            self._log.committed(position, record, elapsed_ms)
        return entry.answer

    def _tell_damage(self, error: CorruptRecordError) -> None:
        self._log.emit("error", "record_corrupt", position=error.position, key=error.key, reason=error.reason)

    def _call(self, request: requests.Call) -> Any:
        started = time.perf_counter()
        token = inside.set(self._inside())
        try:
            return request.function()
        except GeneratorExit as error:
            raise CutOffError(error) from error
        finally:
            inside.reset(token)
            self._elapsed_ms = round((time.perf_counter() - started) * 1_000, 3)

    def _decide(self, request: requests.Decide) -> Any:
        token = inside.set(self._inside()) if self._entered else None
        try:
            return request.function(*request.arguments)
        except GeneratorExit as error:
            raise CutOffError(error) from error
        finally:
            if token is not None:
                inside.reset(token)

    def _ask(self, request: requests.Ask) -> Any:
        """Call the reconcile in a thread of its own, so that its deadline holds whether or not it looks at it."""
        signal = Signal(request.key, request.attempt, request.first_at, request.seconds)
        started = time.perf_counter()
        context = contextvars.copy_context()
        context.run(inside.set, self._inside())
        answer = _Answer()
        threading.Thread(
            target=context.run,
            args=(answer.give, request.reconcile, signal),
            name="journal-reconcile",
            daemon=True,
        ).start()
        try:
            if not answer.has_come.wait(min(request.seconds, threading.TIMEOUT_MAX)):
                raise DeadlineError(f"the recipient did not answer within {request.seconds} seconds")
        finally:
            signal.cancel()
            self._elapsed_ms = round((time.perf_counter() - started) * 1_000, 3)
        if isinstance(answer.error, GeneratorExit):
            raise CutOffError(answer.error)
        if answer.error is not None:
            raise answer.error
        return answer.value

    def _enter(self, request: requests.Enter) -> Flight | None:
        if self._store.readonly:
            raise JournalReadonlyError(self._store.directory)
        self._elapsed_ms = None
        self._entered = [flight for flight in self._entered if not flight.ended]
        return self._flights.enter(request, self._entered)

    def _is_alive(self, request: requests.IsAlive) -> int | None:
        return self._store.living_pid(request.owner)

    def _pause_for(self, request: requests.Pause) -> None:
        now = time.monotonic()
        if self._wait is not request.wait:
            self._wait = request.wait
            self._wait_until = now + self._store.wait_timeout
            self._pause = POLL_SECONDS_MIN
        if now >= self._wait_until:
            raise DeadlineError(f"waited {self._store.wait_timeout} seconds")
        time.sleep(min(self._pause, self._wait_until - now))
        self._pause = min(2 * self._pause, POLL_SECONDS_MAX)

    def _report(self, request: requests.Progress) -> None:
        now = time.monotonic()
        if request.is_last or now - self._progress_at >= PROGRESS_SECONDS:
            self._progress_at = now
            head = self._store.read(lambda view: view.head())
            self._decide(requests.Decide(request.function, (Cursor(request.cursor), Cursor(head))))

    def _spawn(self, request: requests.Spawn) -> None:
        if self._branches is None:
            store, flights, log = self._store, self._flights, self._log
            self._branches = Branches(lambda protocol: Driver(store, flights, log).run(protocol))
        self._branches.spawn(request)

    def _await(self, request: requests.Await) -> requests.Ended:
        assert self._branches is not None  # noqa: S101 - who waits has spawned
        return self._branches.wait()

    def _note(self, request: requests.Note) -> None:
        self._log.emit(request.level, request.event, **request.facts)

    def _inside(self) -> frozenset[Flight]:
        """The flights that a user's function called now runs in: those of the caller, and our own."""
        return inside.get().union(flight for flight in self._entered if not flight.ended)

    _ANSWERS: ClassVar[dict[type[Any], Callable[[Driver, Any], Any]]] = {
        requests.Read: _read,
        requests.Commit: _commit,
        requests.Call: _call,
        requests.Decide: _decide,
        requests.Ask: _ask,
        requests.Enter: _enter,
        requests.IsAlive: _is_alive,
        requests.Pause: _pause_for,
        requests.Progress: _report,
        requests.Note: _note,
        requests.Spawn: _spawn,
        requests.Await: _await,
    }


class _Answer:
    """What a reconcile in another thread came to."""

    def __init__(self) -> None:
        self.has_come = threading.Event()
        self.value: Any = None
        self.error: BaseException | None = None

    def give(self, reconcile: Callable[..., Any], signal: Signal) -> None:
        """Call it, and keep what it returns or raises."""
        try:
            self.value = reconcile(signal)
        except BaseException as error:  # noqa: BLE001 - it is raised in the thread that waits
            self.error = error
        self.has_come.set()
