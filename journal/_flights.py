"""The effects that this process has in its hands: one flight a key, which later calls join.

The calls that a user's function makes carry, in a context variable, the flights that they are inside of, so that a
call which would wait for itself (directly, or through other flights that wait in a circle) is refused instead.
"""

from __future__ import annotations

import copy
import os
import threading
from contextvars import ContextVar
from typing import Final

from journal._core.requests import Enter
from journal.errors import EffectConflictError, EffectInFlightError, JournalClosedError, Key

Identity = tuple[int, str, bytes]
"""A flight's registry, key space and key."""

inside: Final[ContextVar[frozenset[Identity]]] = ContextVar("journal_flights", default=frozenset())
"""The flights whose user functions the current code runs in."""


class Flight:
    """One call that acts for a key, and those that wait for it."""

    __slots__ = ("_flights", "_waiters", "ended", "error", "identity", "key", "request")

    def __init__(self, flights: Flights, identity: Identity, request: Enter) -> None:
        self._flights = flights
        self._waiters: list[threading.Lock] = []
        self.identity = identity
        self.key: Key = request.key
        self.request = request
        self.ended = False
        self.error: BaseException | None = None

    def end(self, error: BaseException | None = None) -> None:
        """Let those who joined read again, or have this error each; the first call counts."""
        with self._flights.lock:
            if self.ended:
                return
            self.ended = True
            self.error = error
            waiters, self._waiters = self._waiters, []
            self._flights.remove(self)
        for waiter in waiters:
            waiter.release()

    def add_waiter(self) -> threading.Lock:
        """A lock that is released at the end; the registry's lock is held."""
        waiter = threading.Lock()
        waiter.acquire()
        self._waiters.append(waiter)
        return waiter


class Flights:
    """The flights of one handle."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._is_closing = False
        self.lock = threading.Lock()
        self._open: dict[Identity, Flight] = {}
        self._waits: dict[Identity, list[Identity]] = {}
        self._all_ended = threading.Condition(self.lock)

    def enter(self, request: Enter) -> Flight | None:
        """A flight of one's own; `None` when the one that was joined has ended well, or at once where not to wait.

        Raises:
            EffectConflictError, EffectInFlightError: as `journal._core.requests.Enter` says.
            BaseException: what ended the flight that was joined.
        """
        identity = (id(self), request.space, request.form)
        callers = inside.get()
        if identity in callers:
            raise EffectInFlightError(request.key, os.getpid())
        with self.lock:
            flight = self._open.get(identity)
            if flight is None:
                if self._is_closing and not callers:
                    raise JournalClosedError(self._directory)
                flight = self._open[identity] = Flight(self, identity, request)
                return flight
            _check_same(flight.request, request)
            if not request.wait:
                return None
            if self._would_wait_for(identity, callers):
                raise EffectInFlightError(request.key, os.getpid())
            waiter = flight.add_waiter()
            for caller in callers:
                self._waits.setdefault(caller, []).append(identity)
        try:
            waiter.acquire()
        finally:
            self._stop_waiting(callers, identity)
        if flight.error is not None:
            raise _own_copy(flight.error)
        return None

    def remove(self, flight: Flight) -> None:
        """Forget a flight that ends; the lock is held."""
        self._open.pop(flight.identity, None)
        if not self._open:
            self._all_ended.notify_all()

    def close(self) -> None:
        """Let no flight begin but from inside another one, and wait until nothing is in flight."""
        if any(identity[0] == id(self) for identity in inside.get()):
            raise RuntimeError("close() from inside a run, reconcile or body would wait for itself; close it outside")
        with self.lock:
            self._is_closing = True
            while self._open:
                self._all_ended.wait()

    def _would_wait_for(self, target: Identity, callers: frozenset[Identity]) -> bool:
        """Whether a flight waits, through others, for one that the caller is inside of."""
        seen: set[Identity] = set()
        todo = [target]
        while todo:
            identity = todo.pop()
            if identity in callers:
                return True
            if identity not in seen:
                seen.add(identity)
                todo.extend(self._waits.get(identity, ()))
        return False

    def _stop_waiting(self, callers: frozenset[Identity], identity: Identity) -> None:
        with self.lock:
            for caller in callers:
                waited = self._waits[caller]
                waited.remove(identity)
                if not waited:
                    del self._waits[caller]


def _check_same(first: Enter, second: Enter) -> None:
    if second.guarantee is None or first.guarantee is None:
        return
    if first.guarantee is not second.guarantee:
        reason = f"it is in flight as {first.guarantee.word}, this call is {second.guarantee.word}"
        raise EffectConflictError(second.key, reason)
    if first.request is not None and second.request is not None and first.request != second.request:
        raise EffectConflictError(second.key, "it is in flight for another request than that of this call")


def _own_copy(error: BaseException) -> BaseException:
    """A copy for one who joined: an exception that several raise would mix their tracebacks."""
    try:
        twin: BaseException = copy.copy(error)
    except Exception:  # noqa: BLE001 - a user's exception may refuse to be copied
        return error
    if type(twin) is not type(error):
        return error
    twin.__cause__, twin.__context__ = error.__cause__, error.__context__
    return twin
