"""The effects that this process has in its hands: one flight a key, which later calls join.

The calls that a user's function makes carry, in a context variable, the flights that they are inside of, so that a
call which would wait for itself (directly, or through other flights that wait in a circle) is refused instead.
"""

from __future__ import annotations

import contextlib
import copy
import os
import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import Final, Generic, Protocol, TypeVar

from journal._core.requests import Enter, RunRaisedError
from journal.errors import EffectConflictError, EffectInFlightError, JournalClosedError

Identity = tuple[str, bytes]
"""A flight's key space and key."""

inside: Final[ContextVar[frozenset[Flight]]] = ContextVar("journal_flights", default=frozenset())
"""The flights whose user functions the current code runs in; those that have ended count no more."""


class Waiter(Protocol):
    """Something that a thread or a task waits on; a lock that is held is one."""

    def release(self) -> None:
        """Let it wait no more; from any thread."""


W = TypeVar("W", bound=Waiter)


def own_waiter() -> threading.Lock:
    """What a thread waits on: a lock that it holds already."""
    waiter = threading.Lock()
    waiter.acquire()
    return waiter


class Flight:
    """One call that acts for a key, and those that wait for it."""

    __slots__ = ("_waiters", "ended", "error", "flights", "identity", "is_lost", "request", "thread", "waits_for")

    def __init__(self, flights: Flights, request: Enter) -> None:
        self.flights = flights
        self.identity: Identity = (request.space, request.form)
        self.request = request
        self.thread = threading.get_ident()
        self.is_lost: Callable[[], bool] = _never
        """Whether its call will never end it: the event loop that it ran on was closed."""
        self.ended = False
        self.error: BaseException | None = None
        self.waits_for: list[Flight] = []
        self._waiters: list[Waiter] = []

    def end(self, error: BaseException | None = None) -> None:
        """Let those who joined read again, or have this error each; the first call counts."""
        with self.flights.lock:
            if not self.ended:
                # Kept only for who asks: it leads, by its traceback, to all that the caller had in its hands.
                self.error = error if self._waiters else None
                self.flights.forget(self)
                self.ended = True
            release_all(self._waiters)

    def add_waiter(self, waiter: Waiter) -> None:
        """Something to be released at the end; the registry's lock is held."""
        self._waiters.append(waiter)


class Joined(Generic[W]):
    """A call's wait for another one's flight: wait, `leave` whatever happens, then `check`."""

    def __init__(self, flight: Flight, waiter: W, callers: list[Flight]) -> None:
        self.waiter = waiter
        self._flight = flight
        self._callers = callers
        flight.add_waiter(waiter)
        for caller in callers:
            caller.waits_for.append(flight)

    def leave(self) -> None:
        """The wait is over, whether the flight is or not."""
        with self._flight.flights.lock:
            for caller in self._callers:
                caller.waits_for.remove(self._flight)

    def check(self) -> None:
        """Raise what ended the flight, where it did not end well."""
        if self._flight.error is not None:
            raise own_copy(self._flight.error)


class Flights:
    """The flights of one handle."""

    def __init__(self, directory: str) -> None:
        # Re-entrant, since a signal's handler may come to it while its own thread holds it.
        self.lock = threading.RLock()
        self._directory = directory
        self._is_closing = False
        self._open: dict[Identity, Flight] = {}
        self._closers: list[Waiter] = []

    def enter(
        self, request: Enter, entered: list[Flight], make_waiter: Callable[[], W], *, is_blocking: bool
    ) -> Flight | Joined[W] | None:
        """A flight of one's own; or another one's, to be waited for; or `None` where not to wait.

        One's own is in `entered` before anybody else can see it, so that whatever happens it can be ended.
        `is_blocking` says that the wait would hold up the whole thread.

        Raises:
            EffectConflictError, EffectInFlightError: as `journal._core.requests.Enter` says.
        """
        callers = [flight for flight in inside.get() if not flight.ended]
        with self.lock:
            flight = self._open.get((request.space, request.form))
            if flight is not None and flight.is_lost():
                flight.end()
                flight = None
            if flight is None:
                if self._is_closing and not any(caller.flights is self for caller in callers):
                    raise JournalClosedError(self._directory)
                flight = Flight(self, request)
                entered.append(flight)
                self._open[flight.identity] = flight
                return flight
            if _waits_for_one_of(flight, callers):
                raise EffectInFlightError(request.key, os.getpid())
            _check_same(flight.request, request)
            if not request.wait:
                return None
            if is_blocking and flight.thread == threading.get_ident():
                # A signal's handler, or a policy of a walk that has this effect begun: it cannot end before we do.
                raise EffectInFlightError(request.key, os.getpid())
            return Joined(flight, make_waiter(), callers)

    def forget(self, flight: Flight) -> None:
        """A flight ends; the lock is held."""
        self._open.pop(flight.identity, None)
        if not self._open:
            release_all(self._closers)

    def close(self, waiter: Waiter, *, is_blocking: bool) -> bool:
        """Let no flight begin but from inside another one; whether the waiter has to wait until nothing is in flight.

        Raises:
            RuntimeError: the caller would wait for itself.
        """
        if any(flight.flights is self and not flight.ended for flight in inside.get()):
            raise RuntimeError("close() from inside a run, reconcile or body would wait for itself; close it outside")
        with self.lock:
            if is_blocking and any(flight.thread == threading.get_ident() for flight in self._open.values()):
                raise RuntimeError(
                    "close() from a signal's handler would wait for a call of its own thread; exit first"
                )
            self._is_closing = True
            for flight in [flight for flight in self._open.values() if flight.is_lost()]:
                flight.end()
            if self._open:
                self._closers.append(waiter)
            return bool(self._open)

    def has_open(self) -> bool:
        """Whether anything is in flight."""
        return bool(self._open)


def _never() -> bool:
    return False


def release_all(locks: list[Waiter]) -> None:
    """Release each lock and forget it, in steps that can be done again after an interrupt."""
    while locks:
        with contextlib.suppress(RuntimeError):
            locks[-1].release()
        locks.pop()


def _waits_for_one_of(flight: Flight, callers: list[Flight]) -> bool:
    """Whether a flight is one that the caller is inside of, or waits, through others, for one."""
    seen: set[Flight] = set()
    todo = [flight]
    while todo:
        one = todo.pop()
        if one in callers:
            return True
        if one not in seen:
            seen.add(one)
            todo.extend(one.waits_for)
    return False


def _check_same(first: Enter, second: Enter) -> None:
    if second.guarantee is None or first.guarantee is None:
        return
    if first.guarantee is not second.guarantee:
        reason = f"it is in flight as {first.guarantee.word}, this call is {second.guarantee.word}"
        raise EffectConflictError(second.key, reason)
    if first.request is not None and second.request is not None and first.request != second.request:
        raise EffectConflictError(second.key, "it is in flight for another request than that of this call")


def own_copy(error: BaseException) -> BaseException:
    """A copy for one who joined: an exception that several raise would mix their tracebacks."""
    if isinstance(error, RunRaisedError):
        return RunRaisedError(own_copy(error.error))
    try:
        twin: BaseException = copy.copy(error)
    except Exception:  # noqa: BLE001 - a user's exception may refuse to be copied
        return error
    if type(twin) is not type(error):
        return error
    twin.__cause__, twin.__context__ = error.__cause__, error.__context__
    return twin
