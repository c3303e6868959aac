"""Drives protocols in threads.

`ThreadDriver.run` runs a protocol to its end in the calling thread. Each request is answered by `perform`; what a
user's function raises is thrown into the protocol at its place.
"""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

from journal._core import requests
from journal._core.requests import CutOffError, DeadlineError, RunRaisedError, Steps
from journal._drive.branches import Branches
from journal._drive.common import Driver
from journal._drive.signals import Signal
from journal._flights import Flight, Flights, Joined, inside, own_waiter
from journal._logs import Log
from journal._storage.store import Store
from journal.errors import CommitFailedError, CorruptRecordError, JournalReadonlyError

T = TypeVar("T")


class ThreadDriver(Driver):
    """Runs one protocol in the calling thread."""

    def __init__(self, store: Store, flights: Flights, log: Log) -> None:
        super().__init__(store, flights, log)
        self._branches: Branches | None = None

    def run(self, protocol: Steps[T]) -> T:
        """What the protocol returns."""
        try:
            return self._follow(protocol)
        except (RunRaisedError, CutOffError) as raised:
            users_own = raised.error
        # The very exception of the user's function; outside the except, which would become its context.
        try:
            raise users_own
        finally:
            del users_own  # no circle through this frame, which keeps the handle

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
            self._end_flights()
            if self._branches is not None:
                # An interrupt may not have reached it: what it keeps going beside itself has to learn of it.
                protocol.close()
                self._branches.end()

    def perform(self, request: Any) -> Any:
        """The answer to one request."""
        return self._ANSWERS[type(request)](self, request)

    def _commit(self, request: requests.Commit) -> Any:
        try:
            entry = self._store.commit(request.decide, settles=request.settles)
        except (CorruptRecordError, CommitFailedError) as error:
            self._tell_failure(error)
            raise
        return self._answer_of(entry)

    def _call(self, request: requests.Call) -> Any:
        started = time.perf_counter()
        token = inside.set(self._inside())
        try:
            return request.function()
        except GeneratorExit as error:
            raise CutOffError(error) from error
        finally:
            inside.reset(token)
            self._took(started)

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
            self._took(started)
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
        entered = self._flights.enter(request, self._entered, own_waiter, is_blocking=True)
        if not isinstance(entered, Joined):
            return entered
        try:
            entered.waiter.acquire()
        finally:
            entered.leave()
        entered.check()
        return None

    def _pause_for(self, request: requests.Pause) -> None:
        time.sleep(self._seconds_to_pause(request))

    def _report(self, request: requests.Progress) -> None:
        progress = self._progress_of(request)
        if progress is not None:
            self._decide(progress)

    def _spawn(self, request: requests.Spawn) -> None:
        if self._branches is None:
            store, flights, log = self._store, self._flights, self._log
            self._branches = Branches(lambda protocol: ThreadDriver(store, flights, log).run(protocol))
        self._branches.spawn(request)

    def _await(self, request: requests.Await) -> requests.Ended:
        assert self._branches is not None  # noqa: S101 - who waits has spawned
        return self._branches.wait()

    _ANSWERS: ClassVar[dict[type[Any], Callable[[ThreadDriver, Any], Any]]] = {
        requests.Read: Driver.read,
        requests.Commit: _commit,
        requests.Call: _call,
        requests.Decide: _decide,
        requests.Ask: _ask,
        requests.Enter: _enter,
        requests.IsAlive: Driver.is_alive,
        requests.Pause: _pause_for,
        requests.Progress: _report,
        requests.Note: Driver.note,
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
