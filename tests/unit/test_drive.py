"""`journal/_drive/threads.py`: protocols run in a thread, over a journal in memory."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Generator
from typing import Any, Final

import pytest

from journal._core import requests
from journal._core.effects import effect, run_effect
from journal._core.keys import key_form
from journal._core.ledger import EffectChange, advance
from journal._core.requests import CutOffError, DeadlineError, RunRaisedError
from journal._drive import common, signals, threads
from journal._drive.signals import Signal
from journal._drive.threads import ThreadDriver
from journal._flights import Flight, Flights, inside, own_waiter
from journal._logs import Log
from journal._storage.group import Entry
from journal.errors import (
    CommitFailedError,
    CorruptRecordError,
    EffectInFlightError,
    EffectUnresolvedError,
    JournalReadonlyError,
    NotPerformed,
)
from journal.options import POLL_SECONDS_MAX, POLL_SECONDS_MIN, PROGRESS_SECONDS
from journal.records import Guarantee, Phase
from journal.values import Accepted, Cursor
from tests.unit.support import OTHER, OTHER_PID, OWN, PATIENCE, Boom, Memory, at_most_once, idempotent, raising, unused

colour: Final[contextvars.ContextVar[str]] = contextvars.ContextVar("colour", default="none")


class Lines:
    """A logger that keeps what it is told."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str, dict[str, Any]]] = []

    def __getattr__(self, level: str) -> Callable[..., None]:
        def keep(event: str, **facts: Any) -> None:
            self.lines.append((level, event, facts))

        return keep

    def of(self, event: str) -> list[dict[str, Any]]:
        """The facts of each line with this event."""
        return [facts for _, name, facts in self.lines if name == event]


class MemoryStore:
    """What a driver needs of a store, over a journal in memory."""

    directory = "/journal"
    wait_timeout = 30.0

    def __init__(self) -> None:
        self.memory = Memory()
        self.readonly = False
        self.settled: list[bool] = []

    def read(self, look: Callable[[Any], Any]) -> Any:
        return look(self.memory)

    def commit(self, decide: Callable[[Any], Any], *, settles: bool) -> Entry:
        self.settled.append(settles)
        before = self.memory.head()
        entry = Entry(decide, 0, 0, settles=settles)
        answer = self.memory.commit(decide)
        entry.succeed(answer, [(n, self.memory.record(n)) for n in range(before + 1, self.memory.head() + 1)])
        return entry

    def living_pid(self, owner: int) -> int | None:
        return self.memory.alive.get(owner)


class Time:
    """A clock that goes on when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


class Bench:
    """A driver with everything around it."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.flights = Flights("/journal")
        self.lines = Lines()

    @property
    def memory(self) -> Memory:
        return self.store.memory

    def driver(self) -> ThreadDriver:
        store: Any = self.store
        return ThreadDriver(store, self.flights, Log(self.lines, "id"))

    def run(self, protocol: Any) -> Any:
        return self.driver().run(protocol)

    def ask(self, *asked: Any) -> Any:
        """The answer to the last of some requests of one protocol."""

        def protocol() -> Generator[Any, Any, Any]:
            answer = None
            for request in asked:
                answer = yield request
            return answer

        return self.run(protocol())


@pytest.fixture
def bench() -> Bench:
    """An empty journal in memory, and what drives it."""
    return Bench()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Time:
    """The clock of the driver."""
    made = Time()
    for module in (common, signals, threads):
        monkeypatch.setattr(module, "time", made)
    return made


def entering(key: str = "k") -> requests.Enter:
    """A request for a flight."""
    return requests.Enter("effect", key, key_form(key), Guarantee.AT_MOST_ONCE, None)


# Protocols


def test_protocol_gives_what_it_returns(bench: Bench) -> None:
    """A whole one, with everything that it asks for."""
    assert bench.run(effect(at_most_once(), OWN)) == Accepted("proof", "run")
    assert bench.run(effect(at_most_once(run=unused), OWN)) == Accepted("proof", "run")
    assert bench.store.settled == [False, True]


def test_protocol_that_asks_nothing_is_done(bench: Bench) -> None:
    """Its value comes back."""
    assert bench.ask() is None


def test_exception_is_thrown_into_the_protocol_at_its_place(bench: Bench) -> None:
    """It decides what that means: here, that the effect is unresolved."""
    error = Boom("500")

    with pytest.raises(EffectUnresolvedError) as caught:
        bench.run(effect(at_most_once(run=raising(error)), OWN))

    assert caught.value.__cause__ is error
    assert bench.memory.phases("k") == ["intent", "released"]


@pytest.mark.parametrize("error", [Boom("500"), StopIteration("odd"), StopAsyncIteration(), NotPerformed("no")])
def test_exception_of_a_run_effect_comes_out_as_it_is(bench: Bench, error: Exception) -> None:
    """The very same, with the context that it had and no other."""
    error.__cause__ = KeyError("its own")

    with pytest.raises(type(error)) as caught:
        bench.run(run_effect(idempotent(run=raising(error)), OWN))

    assert caught.value is error
    assert isinstance(error.__cause__, KeyError)
    assert error.__context__ is None


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3), GeneratorExit()])
@pytest.mark.parametrize("make, protocol", [(at_most_once, effect), (idempotent, run_effect)])
def test_what_is_no_exception_passes_through(bench: Bench, error: BaseException, make: Any, protocol: Any) -> None:
    """A `GeneratorExit` of a user's function too, which the protocol could not tell from its own end."""
    with pytest.raises(type(error)) as caught:
        bench.run(protocol(make(run=raising(error)), OWN))

    assert caught.value is error
    assert bench.memory.phases("k") == ["intent", "released"]


def test_protocol_that_cannot_go_on_is_closed(bench: Bench) -> None:
    """What it raises is the caller's."""

    def protocol() -> Generator[Any, Any, None]:
        try:
            yield requests.Read(raising(Boom("first")))
        except Boom as error:
            raise KeyError("second") from error

    with pytest.raises(KeyError) as caught:
        bench.run(protocol())

    assert isinstance(caught.value.__cause__, Boom)


def test_flights_that_a_protocol_leaves_are_ended(bench: Bench) -> None:
    """An interrupt may have come before the protocol had them: nobody waits for them for ever."""
    bench.ask(entering("a"), entering("b"))

    assert bench.flights.enter(entering("a"), [], own_waiter, is_blocking=True) is not None
    assert bench.flights.enter(entering("b"), [], own_waiter, is_blocking=True) is not None


@pytest.mark.parametrize("carrier", [RunRaisedError, CutOffError])
def test_exception_that_is_carried_out_is_raised(bench: Bench, carrier: Any) -> None:
    """Whoever carries it."""
    error = Boom("500")

    def protocol() -> Generator[Any, Any, None]:
        yield requests.Read(lambda view: view.head())
        raise carrier(error)

    with pytest.raises(Boom) as caught:
        bench.run(protocol())

    assert caught.value is error


# Users' functions


@pytest.mark.parametrize(
    "request_",
    [
        requests.Call,
        lambda function: requests.Decide(function, ()),
        lambda function: requests.Ask(lambda _: function(), "k", 1, 0, PATIENCE),
        lambda function: requests.Progress(lambda *_: function(), 0, is_last=True),
    ],
    ids=["call", "decide", "ask", "progress"],
)
def test_users_function_runs_inside_of_the_flights_of_its_call(bench: Bench, request_: Callable[[Any], Any]) -> None:
    """So that a call for its own key is refused; with the caller's context, and without leaving a trace in it."""
    seen: list[Any] = []

    def function() -> None:
        seen.append((len(inside.get()), colour.get()))
        with pytest.raises(EffectInFlightError):
            bench.flights.enter(entering("a"), [], own_waiter, is_blocking=True)

    token = colour.set("red")
    bench.ask(entering("a"), entering("b"), request_(function))
    colour.reset(token)

    assert seen == [(2, "red")]
    assert inside.get() == frozenset()


def test_users_function_that_decides_outside_of_a_flight_runs_as_it_is(bench: Bench) -> None:
    """Nothing is around it."""
    seen: list[frozenset[Flight]] = []

    def decide(one: int, two: int) -> tuple[int, int]:
        seen.append(inside.get())
        return one, two

    answer = bench.ask(requests.Decide(decide, (1, 2)))

    assert (answer, seen) == ((1, 2), [frozenset()])


def test_flight_that_has_ended_is_not_around_the_next_function(bench: Bench) -> None:
    """A walk goes from one effect to the next."""
    seen: list[int] = []

    def protocol() -> Generator[Any, Any, None]:
        first = yield entering("a")
        first.end()
        yield entering("b")
        yield requests.Call(lambda: seen.append(len(inside.get())))

    bench.run(protocol())

    assert seen == [1]


@pytest.mark.parametrize("request_", [requests.Call(raising(Boom())), requests.Decide(raising(Boom()), ())])
def test_users_function_that_raises_leaves_the_context_as_it_was(bench: Bench, request_: Any) -> None:
    """Its exception goes on."""
    with pytest.raises(Boom):
        bench.ask(entering("a"), request_)

    assert inside.get() == frozenset()


# Asking the recipient


def test_recipient_is_asked_in_a_thread_of_its_own(bench: Bench) -> None:
    """With a signal that says about what, and until when."""
    seen: list[Signal] = []

    def reconcile(signal: Signal) -> str:
        seen.append(signal)
        assert threading.current_thread() is not threading.main_thread()
        assert not signal.cancelled
        return "found"

    answer = bench.ask(requests.Ask(reconcile, ("k", 1), 3, 17, PATIENCE))

    (signal,) = seen
    assert answer == "found"
    assert (signal.key, signal.attempt, signal.first_at) == (("k", 1), 3, 17)
    assert signal.cancelled


def test_deadline_of_the_signal_is_that_of_the_call(bench: Bench, clock: Time) -> None:
    """In `time.monotonic()` seconds."""
    deadlines: list[float] = []

    bench.ask(requests.Ask(lambda signal: deadlines.append(signal.deadline), "k", 1, 0, PATIENCE))

    assert deadlines == [clock.now + PATIENCE]


@pytest.mark.parametrize("error", [Boom("500"), NotPerformed("no"), StopIteration(), KeyboardInterrupt(), SystemExit()])
def test_what_the_recipients_answer_raises_is_raised_here(bench: Bench, error: BaseException) -> None:
    """In the thread that waits."""
    caught: list[BaseException] = []

    def protocol() -> Generator[Any, Any, None]:
        try:
            yield requests.Ask(raising(error), "k", 1, 0, PATIENCE)
        except BaseException as raised:
            caught.append(raised)

    bench.run(protocol())

    assert caught == [error]


def test_generator_exit_of_a_reconcile_is_told_apart(bench: Bench) -> None:
    """From the end of the protocol."""
    error = GeneratorExit()

    with pytest.raises(GeneratorExit) as caught:
        bench.ask(requests.Ask(raising(error), "k", 1, 0, PATIENCE))

    assert caught.value is error


def test_answer_that_comes_too_late_is_ignored(bench: Bench) -> None:
    """The signal tells the reconcile that nobody waits any more."""
    was_cancelled = threading.Event()

    def reconcile(signal: Signal) -> str:
        assert signal.wait(PATIENCE)
        was_cancelled.set()
        return "late"

    with pytest.raises(DeadlineError):
        bench.ask(requests.Ask(reconcile, "k", 1, 0, 0.001))

    assert was_cancelled.wait(PATIENCE)


def test_signal_waits_no_longer_than_it_is_told() -> None:
    """And says that nobody cancelled; with any number of seconds."""
    signal = Signal("k", 1, 0, 5.0)
    assert signal.wait(0) is False
    assert signal.wait(-1.0) is False

    signal.cancel()

    assert signal.wait(1e12) is True
    assert signal.cancelled


# Flights, owners, waits


def test_flight_is_given(bench: Bench) -> None:
    """To this call alone."""
    flight = bench.ask(entering())

    assert isinstance(flight, Flight)


def test_readonly_handle_enters_no_flight(bench: Bench) -> None:
    """It could not write the intent."""
    bench.store.readonly = True

    with pytest.raises(JournalReadonlyError) as caught:
        bench.ask(entering())

    assert caught.value.path == "/journal"


@pytest.mark.parametrize("owner, pid", [(OTHER, OTHER_PID), (OWN, None)])
def test_life_of_an_owner_is_the_stores_to_tell(bench: Bench, owner: int, pid: int | None) -> None:
    """By its pid."""
    bench.memory.alive[OTHER] = OTHER_PID

    assert bench.ask(requests.IsAlive(owner)) == pid


def test_wait_gets_longer_up_to_its_end(bench: Bench, clock: Time) -> None:
    """From the shortest pause to the longest, and no further than `wait_timeout`."""
    bench.store.wait_timeout = 0.1
    wait = object()

    with pytest.raises(DeadlineError, match=r"waited 0\.1 seconds"):
        bench.ask(*[requests.Pause(wait)] * 100)

    assert clock.slept[:3] == [POLL_SECONDS_MIN, 2 * POLL_SECONDS_MIN, 4 * POLL_SECONDS_MIN]
    assert max(clock.slept) == POLL_SECONDS_MAX
    assert sum(clock.slept) == pytest.approx(0.1)


def test_every_wait_has_its_own_time(bench: Bench, clock: Time) -> None:
    """A walk may wait for several effects, each as long as a call would."""
    bench.store.wait_timeout = 0.001

    bench.ask(*(requests.Pause(object()) for _ in range(10)))

    assert clock.slept == [POLL_SECONDS_MIN] * 10


# Progress


def test_progress_is_told_ten_times_a_second_and_at_the_end(bench: Bench, clock: Time) -> None:
    """With cursor and head, as such."""
    seen: list[tuple[float, Cursor, Cursor]] = []
    bench.memory.put_step("k", 1)

    def progress(cursor: Cursor, head: Cursor) -> None:
        assert {type(cursor), type(head)} == {Cursor}
        seen.append((clock.now, cursor, head))

    def protocol() -> Generator[Any, Any, None]:
        for cursor in range(5):
            yield requests.Progress(progress, cursor, is_last=False)
            clock.now += 0.6 * PROGRESS_SECONDS
        yield requests.Progress(progress, 9, is_last=True)

    bench.run(protocol())

    assert [cursor for _, cursor, _ in seen] == [0, 2, 4, 9]
    assert {head for _, _, head in seen} == {1}


def test_progress_that_raises_is_raised(bench: Bench) -> None:
    """In the protocol."""
    with pytest.raises(Boom):
        bench.ask(requests.Progress(raising(Boom()), 0, is_last=False))


# The log


def test_records_are_told_after_their_commit(bench: Bench, clock: Time) -> None:
    """Each with its position, by the caller; the time that the recipient took with its outcome alone."""

    def run() -> str:
        assert bench.lines.of("effect_intended")
        assert not bench.lines.of("effect_accepted")
        clock.now += 0.25
        return "proof"

    bench.run(effect(at_most_once(run=run), OWN))

    assert bench.lines.lines == [
        ("info", "effect_intended", {"journal_id": "id", "position": 1, "key": "k", "attempt": 1}),
        (
            "info",
            "effect_accepted",
            {"journal_id": "id", "position": 2, "key": "k", "attempt": 1, "via": "run", "elapsed_ms": 250.0},
        ),
    ]


def test_time_of_an_ask_is_told_with_its_verdict(bench: Bench, clock: Time) -> None:
    """And not with the intent that a proved absence brings in the same commit."""
    bench.memory.put_effect("k", Phase.INTENT)

    def reconcile(_: Signal) -> str:
        clock.now += 0.5
        raise NotPerformed("no")

    bench.run(effect(at_most_once(reconcile=reconcile), OWN))

    assert [facts.get("elapsed_ms") for facts in bench.lines.of("effect_failed")] == [500.0]
    assert [facts.get("elapsed_ms") for facts in bench.lines.of("effect_intended")] == [None]


def test_time_of_one_call_is_not_told_with_the_next(bench: Bench, clock: Time) -> None:
    """What joins or reuses took no time of a recipient's."""
    form = key_form("k")

    def run() -> None:
        clock.now += 1.0

    def protocol() -> Generator[Any, Any, None]:
        yield requests.Call(run)
        yield entering("k")
        change = EffectChange(phase=Phase.FAILED, guarantee=Guarantee.AT_MOST_ONCE, reason="passed")
        yield requests.Commit(advance(form, 0, change))

    bench.run(protocol())

    assert "elapsed_ms" not in bench.lines.of("effect_failed")[0]


def test_refused_commit_is_not_told(bench: Bench) -> None:
    """Nothing happened."""
    with pytest.raises(Boom):
        bench.ask(requests.Commit(raising(Boom())))

    assert bench.lines.lines == []


def test_notes_of_a_protocol_are_told(bench: Bench) -> None:
    """At their level."""
    bench.ask(requests.Note("warning", "recovery_stopped", {"cursor": 3, "key": None}))

    assert bench.lines.lines == [("warning", "recovery_stopped", {"journal_id": "id", "cursor": 3})]


@pytest.mark.parametrize("request_", [requests.Read, requests.Commit])
def test_damage_is_told_as_an_error(bench: Bench, request_: Any) -> None:
    """With position, key and reason, once, and raised."""
    error = CorruptRecordError(4, "its checksum is wrong", ("k", 1))

    with pytest.raises(CorruptRecordError):
        bench.ask(request_(raising(error)))

    assert bench.lines.lines == [
        (
            "error",
            "record_corrupt",
            {"journal_id": "id", "position": 4, "key": '["k",1]', "reason": "its checksum is wrong"},
        )
    ]


def test_damage_that_a_protocol_lives_with_is_told(bench: Bench) -> None:
    """A walk that passes a damaged record says so."""

    def protocol() -> Generator[Any, Any, None]:
        try:
            yield requests.Read(raising(CorruptRecordError(4, "damaged")))
        except CorruptRecordError:
            yield requests.Read(lambda view: view.head())

    bench.run(protocol())

    assert [facts["position"] for facts in bench.lines.of("record_corrupt")] == [4]


def test_failed_flush_is_told_as_an_error(bench: Bench) -> None:
    """With its reason."""
    with pytest.raises(CommitFailedError):
        bench.ask(requests.Commit(raising(CommitFailedError("/journal", "EIO"))))

    assert bench.lines.lines == [("error", "commit_failed", {"journal_id": "id", "reason": "EIO"})]
