"""`journal/_flights.py`: one flight a key, those who join it, and those who may not wait for it."""

from __future__ import annotations

import contextvars
import os
import threading
from collections.abc import Callable
from typing import Any, Final

import pytest

from journal import _flights
from journal._core.keys import key_form
from journal._core.payloads import fingerprint
from journal._core.requests import Enter, RunRaisedError
from journal._flights import Flight, Flights, Joined, Waiter, inside, own_waiter, release_all
from journal.errors import EffectConflictError, EffectInFlightError, EffectUnresolvedError, JournalClosedError
from journal.records import Guarantee
from tests.unit.support import Boom, InterruptAt, InThread, lines_interrupted, until

ONCE: Final = Guarantee.AT_MOST_ONCE


def request(
    key: str = "k", *, space: str = "effect", guarantee: Guarantee | None = ONCE, asked: Any = None, wait: bool = True
) -> Enter:
    """A request for a flight."""
    return Enter(space, key, key_form(key), guarantee, fingerprint(asked), wait)


def take(flights: Flights, wanted: Enter, entered: list[Flight]) -> Flight | None:
    """Enter as a thread does, and wait for a flight that was joined."""
    found = flights.enter(wanted, entered, own_waiter, is_blocking=True)
    if not isinstance(found, Joined):
        return found
    try:
        found.waiter.acquire()
    finally:
        found.leave()
    found.check()
    return None


def closer_of(flights: Flights) -> Callable[[], None]:
    """Closes as a thread does, and waits for what is in flight."""

    def close() -> None:
        waiter = own_waiter()
        if flights.close(waiter, is_blocking=True):
            waiter.acquire()

    return close


def enter(flights: Flights, wanted: Enter | None = None) -> Flight:
    """A flight of one's own."""
    flight = take(flights, wanted or request(), [])
    assert flight is not None
    return flight


def within(flight: Flight, function: Callable[[], Any]) -> Callable[[], Any]:
    """The function as if a user's function of that flight had called it."""
    context = contextvars.copy_context()
    context.run(inside.set, frozenset({*inside.get(), flight}))
    return lambda: context.run(function)


def join(flights: Flights, flight: Flight, wanted: Enter | None = None) -> InThread[Any]:
    """A call in another thread, which waits for that flight when this returns."""
    count = len(flight._waiters)
    call = InThread(lambda: take(flights, wanted or request(), []))
    until(lambda: len(flight._waiters) > count or call.raised)
    return call


@pytest.fixture
def flights() -> Flights:
    """The flights of a handle, none of them open."""
    return Flights("/journal")


# One flight a key


def test_flight_is_given_to_one_call(flights: Flights) -> None:
    """Until it has ended; then to the next."""
    flight = enter(flights)
    assert take(flights, request(wait=False), []) is None

    flight.end()

    assert enter(flights) is not flight


@pytest.mark.parametrize("other", [request("other"), request(space="step", guarantee=None)])
def test_other_keys_and_spaces_have_flights_of_their_own(flights: Flights, other: Enter) -> None:
    """A step and an effect of one key never wait for each other."""
    first = enter(flights)

    second = enter(flights, other)

    assert first is not second
    first.end()
    assert take(flights, other.__class__(other.space, other.key, other.form, None, None, wait=False), []) is None


def test_flight_is_noted_for_its_driver_before_anybody_sees_it(flights: Flights) -> None:
    """So that whatever happens it can be ended."""
    entered: list[Flight] = []

    flight = take(flights, request(), entered)

    assert entered == [flight]


def test_flights_of_another_handle_are_its_own(flights: Flights) -> None:
    """Two journals have nothing to do with each other."""
    enter(flights)

    enter(Flights("/other")).end()


# Joining


def test_who_joined_reads_again_when_the_flight_ended_well(flights: Flights) -> None:
    """All of them, in whatever threads."""
    flight = enter(flights)
    calls = [join(flights, flight) for _ in range(3)]

    flight.end()

    assert [call.result() for call in calls] == [None, None, None]


def test_who_joined_has_the_error_in_which_the_flight_ended(flights: Flights) -> None:
    """Each its own copy, with the same facts and cause."""
    error = EffectUnresolvedError("k", "run-failed", "record")
    error.__cause__ = Boom("500")
    flight = enter(flights)
    calls = [join(flights, flight) for _ in range(2)]

    flight.end(error)

    raised = [call.join().raised for call in calls]
    for one in raised:
        assert isinstance(one, EffectUnresolvedError)
        assert one is not error
        assert (one.key, one.reason, one.record, one.__cause__) == ("k", "run-failed", "record", error.__cause__)
    assert raised[0] is not raised[1]


def test_who_joined_has_a_copy_of_what_the_run_raised(flights: Flights) -> None:
    """Within what carries it out of a protocol."""
    error = Boom("500")
    flight = enter(flights)
    call = join(flights, flight)

    flight.end(RunRaisedError(error))

    raised = call.join().raised
    assert isinstance(raised, RunRaisedError)
    assert isinstance(raised.error, Boom)
    assert raised.error is not error
    assert raised.error.args == ("500",)


class Unique(Exception):
    """An exception that refuses to be copied."""

    def __copy__(self) -> Unique:
        raise RuntimeError("there is only one")


class Shifty(Exception):
    """An exception whose copy is another's."""

    def __copy__(self) -> Exception:
        return Boom("another")


class Needy(Exception):
    """An exception that cannot be made from its own arguments."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} {two}")


@pytest.mark.parametrize("error", [Unique(), Shifty(), Needy(1, 2)])
def test_exception_that_cannot_be_copied_is_raised_as_it_is(flights: Flights, error: Exception) -> None:
    """Better the same for all than another."""
    flight = enter(flights)
    call = join(flights, flight)

    flight.end(error)

    assert call.join().raised is error


def test_first_end_counts(flights: Flights) -> None:
    """A driver ends what its protocol ended already."""
    flight = enter(flights)
    call = join(flights, flight)

    flight.end()
    flight.end(Boom("too late"))

    assert call.result() is None
    assert flight.error is None


def test_end_of_an_old_flight_leaves_the_next_one(flights: Flights) -> None:
    """It is no longer the key's."""
    first = enter(flights)
    first.end()
    second = enter(flights)

    first.end(Boom())

    assert take(flights, request(wait=False), []) is None
    assert not second.ended


# Conflicts


@pytest.mark.parametrize("wait", [True, False])
@pytest.mark.parametrize(
    "first, second, why",
    [
        ((ONCE, None), (Guarantee.IDEMPOTENT, None), "it is in flight as at_most_once, this call is idempotent"),
        ((ONCE, "a"), (ONCE, "b"), "it is in flight for another request than that of this call"),
    ],
)
def test_conflict_is_told_at_once(flights: Flights, first: Any, second: Any, why: str, *, wait: bool) -> None:
    """Without joining."""
    flight = enter(flights, request(guarantee=first[0], asked=first[1]))

    with pytest.raises(EffectConflictError, match=why) as caught:
        take(flights, request(guarantee=second[0], asked=second[1], wait=wait), [])

    assert caught.value.key == "k"
    assert flight._waiters == []


@pytest.mark.parametrize(
    "first, second",
    [
        ((ONCE, None), (ONCE, "a")),
        ((ONCE, "a"), (ONCE, None)),
        ((ONCE, "a"), (None, None)),
        ((None, None), (ONCE, "a")),
    ],
)
def test_call_that_binds_nothing_joins(flights: Flights, first: Any, second: Any) -> None:
    """No request is compared with none, and a clearing is for every guarantee."""
    flight = enter(flights, request(guarantee=first[0], asked=first[1]))
    call = join(flights, flight, request(guarantee=second[0], asked=second[1]))

    flight.end()

    assert call.result() is None


# Waiting for oneself


@pytest.mark.parametrize("wait", [True, False])
def test_call_from_inside_the_flight_is_refused(flights: Flights, *, wait: bool) -> None:
    """It would wait for itself for ever: told with the own pid."""
    flight = enter(flights)

    with pytest.raises(EffectInFlightError) as caught:
        within(flight, lambda: take(flights, request(wait=wait), []))()

    assert (caught.value.key, caught.value.pid) == ("k", os.getpid())


def test_call_from_inside_for_another_key_is_allowed(flights: Flights) -> None:
    """A run may have effects of its own."""
    outer = enter(flights)

    inner = within(outer, lambda: take(flights, request("inner"), []))()

    assert inner is not None


def test_call_from_deeper_inside_is_refused(flights: Flights) -> None:
    """The context of a call has every flight around it."""
    outer, inner = enter(flights), enter(flights, request("inner"))

    with pytest.raises(EffectInFlightError):
        within(outer, within(inner, lambda: take(flights, request("inner"), [])))()
    deep = contextvars.copy_context()
    deep.run(inside.set, frozenset({outer, inner}))
    with pytest.raises(EffectInFlightError):
        deep.run(lambda: take(flights, request(), []))


def test_flight_that_has_ended_is_nothing_to_be_inside_of(flights: Flights) -> None:
    """A thread that a run left behind may call for the key again."""
    flight = enter(flights)
    again = within(flight, lambda: take(flights, request(), []))
    flight.end()

    assert again() is not None


def test_two_that_would_wait_for_each_other_are_not_let(flights: Flights) -> None:
    """One waits, the other is refused: directly, and in a circle of three."""
    a, b, c = (enter(flights, request(key)) for key in "abc")
    first = InThread(within(a, lambda: take(flights, request("b"), [])))
    until(lambda: b._waiters)
    with pytest.raises(EffectInFlightError):
        within(b, lambda: take(flights, request("a"), []))()

    second = InThread(within(b, lambda: take(flights, request("c"), [])))
    until(lambda: c._waiters)
    with pytest.raises(EffectInFlightError):
        within(c, lambda: take(flights, request("a"), []))()

    c.end()
    b.end()
    assert (first.result(), second.result()) == (None, None)
    assert (a.waits_for, b.waits_for) == ([], [])


def test_circle_without_the_caller_is_not_followed_for_ever(flights: Flights) -> None:
    """Flights of two journals may wait for each other in ways that one cannot see; looking has an end."""
    a, b = enter(flights, request("a")), enter(flights, request("b"))
    a.waits_for.append(b)
    b.waits_for.append(a)
    outside = enter(flights, request("outside"))

    call = InThread(within(outside, lambda: take(flights, request("a"), [])))
    until(lambda: a._waiters)
    a.end()

    assert call.result() is None


def test_circle_over_two_journals_is_seen(flights: Flights) -> None:
    """The context does not stop at the handle."""
    other = Flights("/other")
    a, b = enter(flights, request("a")), enter(other, request("b"))
    first = InThread(within(a, lambda: take(other, request("b"), [])))
    until(lambda: b._waiters)

    with pytest.raises(EffectInFlightError):
        within(b, lambda: take(flights, request("a"), []))()

    b.end()
    assert first.result() is None


def test_thread_does_not_wait_for_its_own_flight(flights: Flights) -> None:
    """A signal's handler that calls for the key in which its own thread is: the flight cannot end before it does."""
    enter(flights)

    with pytest.raises(EffectInFlightError) as caught:
        take(flights, request(), [])

    assert caught.value.pid == os.getpid()


# Closing


def test_closing_does_not_wait_for_its_own_thread(flights: Flights) -> None:
    """From a signal's handler it would be for ever; the flights stay open to be ended."""
    flight = enter(flights)

    with pytest.raises(RuntimeError, match="a signal's handler"):
        closer_of(flights)()

    flight.end()
    closer_of(flights)()


def test_closed_flights_let_none_begin(flights: Flights) -> None:
    """At once where nothing is in flight; twice is fine."""
    closer_of(flights)()
    closer_of(flights)()

    with pytest.raises(JournalClosedError) as caught:
        take(flights, request(), [])

    assert caught.value.path == "/journal"


def test_closing_waits_for_all_that_is_in_flight(flights: Flights) -> None:
    """Those that begin from inside another one too; several may wait."""
    outer = enter(flights)
    closing = [InThread(closer_of(flights)), InThread(closer_of(flights))]
    until(lambda: len(flights._closers) == 2)
    with pytest.raises(JournalClosedError):
        take(flights, request("new"), [])
    inner = within(outer, lambda: take(flights, request("inner"), []))()

    outer.end()
    assert all(call._thread.is_alive() for call in closing)
    inner.end()

    for call in closing:
        call.result()


def test_flight_of_another_journal_is_no_inside_of_this(flights: Flights) -> None:
    """A closing journal lets begin only what its own flights need."""
    stranger = enter(Flights("/other"))
    closer_of(flights)()

    with pytest.raises(JournalClosedError):
        within(stranger, lambda: take(flights, request(), []))()


def test_closing_from_inside_is_refused(flights: Flights) -> None:
    """It would wait for itself; from inside another journal's flight it is fine."""
    flight = enter(flights)
    with pytest.raises(RuntimeError, match="would wait for itself"):
        within(flight, closer_of(flights))()
    flight.end()

    within(enter(Flights("/other")), closer_of(flights))()


def test_flight_that_has_ended_does_not_hold_up_closing(flights: Flights) -> None:
    """Nor does being called from a thread that it left behind."""
    flight = enter(flights)
    flight.end()

    within(flight, closer_of(flights))()


# Interrupts


def joiner_interrupted(interrupt: InterruptAt) -> None:
    """A call that joins, is interrupted somewhere, and the flight that it joined."""
    flights = Flights("/journal")
    flight, outer = enter(flights), enter(flights, request("outer"))

    def interruptible() -> None:
        with interrupt:
            take(flights, request(), [])

    call = InThread(within(outer, interruptible))
    until(lambda: flight._waiters or call.raised)
    flight.end()

    assert call.join().raised is None or isinstance(call.raised, KeyboardInterrupt)
    # A note that is left behind is of a flight that has ended, which nobody is inside of any more.
    assert all(noted.ended for noted in outer.waits_for)
    outer.end()
    InThread(closer_of(flights)).result()


def test_joining_may_be_interrupted_before_any_line() -> None:
    """It ends only that call's own wait."""
    assert lines_interrupted(_flights, joiner_interrupted) > 10


def owner_interrupted(interrupt: InterruptAt) -> None:
    """A call that enters and ends its flight, interrupted somewhere, as its driver does it."""
    flights = Flights("/journal")
    entered: list[Flight] = []
    with interrupt:
        try:
            flight = take(flights, request(), entered)
            assert flight is not None
            waiter = own_waiter()
            flight.add_waiter(waiter)
            flight.end()
            waiter.acquire()
        except KeyboardInterrupt:
            pass
    for flight in entered:
        flight.end()

    assert InThread(lambda: take(flights, request(), [])).result() is not None


def test_owning_may_be_interrupted_before_any_line() -> None:
    """Whatever it was about to do, the driver's end lets everybody go."""
    assert lines_interrupted(_flights, owner_interrupted) > 10


def test_locks_that_are_free_are_released_without_a_word() -> None:
    """Steps that are done again after an interrupt."""
    taken, free = threading.Lock(), threading.Lock()
    taken.acquire()
    locks: list[Waiter] = [taken, free]

    release_all(locks)

    assert locks == []
    assert not taken.locked()
