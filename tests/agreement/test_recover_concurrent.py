"""`recover` with several operations in flight: who runs beside whom, what stops, and what is there afterwards."""

import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from journal import (
    Accepted,
    Committed,
    EffectConflictError,
    EffectInFlightError,
    EffectUnresolvedError,
    Intent,
    InvalidCursorError,
    InvalidOperationError,
    Journal,
    NotPerformed,
    Settled,
)
from recovery.lanes import WINDOW_PER_LANE

from .conftest import Facade
from .support import (
    PATIENCE,
    Boom,
    Call,
    Gate,
    Key,
    Peer,
    Stub,
    accept,
    leave_failed,
    leave_open,
    leave_uncertain,
    phases,
    unused,
    wait_for,
    wait_until,
)

Intents = Callable[[Committed], Iterable[Intent]]


def append(j: Journal, *operations: Any, stream: str = "s") -> None:
    """Appends operations, one op_id each."""
    j.append_all(stream, [(f"{stream}{index}", operation) for index, operation in enumerate(operations)])


def one_each(run: Any, reconcile: Any = None, **options: Any) -> Intents:
    """Gives one intent for each operation, its key ("k", operation)."""
    return lambda c: [Intent(("k", c.operation), run, reconcile, **options)]


def by_operation(**intents: Iterable[Intent] | Callable[[], Iterable[Intent]]) -> Intents:
    """Gives the intents of an operation by its name, or has them made."""

    def give(c: Committed) -> Iterable[Intent]:
        given = intents[c.operation]
        return given() if callable(given) else given

    return give


def effect(key: Key, run: Any = None, reconcile: Any = None, **options: Any) -> Intent:
    """Gives an intent that settles as `effect`."""
    return Intent(key, run or Stub("proof"), reconcile or unused(), **options)


def counts(settled: Settled) -> tuple[int, int, int, int, int]:
    """Gives ran, reused, reconciled, uncertain and passed."""
    return (settled.ran, settled.reused, settled.reconciled, settled.uncertain, settled.passed)


def stop_of(settled: Settled) -> tuple[int, int, Any, str]:
    """Gives the cursor, and where, over which key and why the walk stopped."""
    assert settled.stopped is not None
    return (int(settled), settled.stopped.position, settled.stopped.key, settled.stopped.reason)


class Watched:
    """Intents of one operation, from an iterator that is never exhausted: it is let go when the walk over it is over.

    `each` makes one that lives until the end of that walk is known to the others, too.
    """

    def __init__(self, *intents: Intent) -> None:
        self.over = threading.Event()
        self._intents = intents

    def each(self) -> Iterator[Intent]:
        try:
            yield from self._intents
            yield effect("one more")
        finally:
            self.over.set()

    __iter__ = each


# In flight beside each other


@pytest.mark.parametrize("reconcile", [None, Stub()], ids=["run_effect", "effect"])
def test_operations_run_beside_each_other(j: Journal, reconcile: Any) -> None:
    """With a concurrency of n, n operations are in flight at once."""
    append(j, *range(8))
    barrier = threading.Barrier(4)

    settled = j.recover(0, intents=one_each(lambda: barrier.wait(PATIENCE), reconcile), concurrency=4)

    assert (settled, settled.stopped, counts(settled)) == (8, None, (8, 0, 0, 0, 0))


@pytest.mark.parametrize("concurrency", [1, 2, 3])
def test_no_more_operations_run_beside_each_other(j: Journal, concurrency: int) -> None:
    """And no more than n, whichever ends first."""
    append(j, *range(7))
    gates = [Gate(n) for n in range(7)]
    entered = threading.Semaphore(0)
    lock = threading.Lock()
    beside: list[int] = []
    running = 0

    def run(n: int) -> Callable[[], Any]:
        def work() -> Any:
            nonlocal running
            with lock:
                running += 1
                beside.append(running)
            entered.release()
            try:
                return gates[n]()
            finally:
                with lock:
                    running -= 1

        return work

    walk = Call(
        lambda: j.recover(0, intents=lambda c: [Intent(("k", c.operation), run(c.operation))], concurrency=concurrency)
    )
    for _ in range(concurrency):
        assert entered.acquire(timeout=PATIENCE)
    for begun in range(concurrency, 8):
        # The last one that began is let go first.
        gates[begun - 1].open()
        if begun < 7:
            assert entered.acquire(timeout=PATIENCE)
    for gate in gates:
        gate.open()

    assert (walk.result(), walk.result().ran) == (7, 7)
    assert max(beside) == concurrency


def test_effects_of_one_operation_run_in_order(j: Journal) -> None:
    """Each after the one before, whatever runs beside them."""
    append(j, *"abcd")
    ran: list[str] = []

    def run(name: str) -> Callable[[], None]:
        return lambda: ran.append(name)

    settled = j.recover(
        0,
        intents=lambda c: [Intent((c.operation, n), run(f"{c.operation}{n}")) for n in range(4)],
        concurrency=3,
    )

    assert (settled, settled.ran) == (4, 16)
    for name in "abcd":
        assert [each for each in ran if each[0] == name] == [f"{name}{n}" for n in range(4)]


def test_each_intent_is_durable_before_its_run(j: Journal) -> None:
    """And the outcome before the next run of its operation."""
    append(j, *range(6))
    seen: list[tuple[list[str], list[str]]] = []

    def run(number: int, n: int) -> Callable[[], None]:
        return lambda: seen.append((phases(j, (number, n)), phases(j, (number, n - 1))))

    j.recover(0, intents=lambda c: [Intent((c.operation, n), run(c.operation, n)) for n in (1, 2)], concurrency=4)

    assert sorted(seen) == [(["intent"], [])] * 6 + [(["intent"], ["intent", "accepted"])] * 6


def test_intents_is_asked_in_order_by_one_thread(j: Journal, facade: Facade) -> None:
    """Each operation once; an iterator that it gave is resumed only after the effects before.

    On a loop each plain call has a thread of its own, and none begins before the last has ended.
    """
    append(j, *range(20))
    asked: list[int] = []
    threads: set[int] = set()
    wrong: list[Any] = []

    def each(number: int) -> Iterator[Intent]:
        yield Intent((number, 1), Stub(1))
        if phases(j, (number, 1)) != ["intent", "accepted"]:
            wrong.append(number)
        yield Intent((number, 2), Stub(2))

    def intents(c: Committed) -> Iterator[Intent]:
        asked.append(c.operation)
        threads.add(threading.get_ident())
        return each(c.operation)

    settled = j.recover(0, intents=intents, concurrency=4)

    assert (settled, settled.ran, asked) == (20, 40, list(range(20)))
    assert threads == {facade.thread} or facade.is_loop
    assert wrong == []


def test_walk_beside_comes_to_what_one_after_the_other_comes_to(j: Journal, open_journal: Any, tmp_path: Any) -> None:
    """Over effects of every beginning: the same cursor, counts and phases."""
    names = ("new", "accepted", "open", "absent", "uncertain", "becomes uncertain", "failed", "often")

    def walk(handle: Journal, concurrency: int) -> tuple[Any, ...]:
        append(handle, *range(3 * len(names)))
        keys: dict[int, Key] = {}
        for number, name in enumerate(names * 3):
            keys[number] = (name, number)
            if name == "accepted":
                accept(handle, keys[number])
            elif name in ("open", "absent", "becomes uncertain"):
                leave_open(handle, keys[number])
            elif name == "uncertain":
                leave_uncertain(handle, keys[number])
            elif name == "failed":
                leave_failed(handle, keys[number])
        answers = {"absent": NotPerformed("no"), "becomes uncertain": None}
        settled = handle.recover(
            0,
            intents=lambda c: [
                Intent(
                    keys[c.operation],
                    Stub("m"),
                    None if keys[c.operation][0] == "often" else Stub(answers.get(str(keys[c.operation][0]), "found")),
                )
            ],
            concurrency=concurrency,
        )
        assert settled.stopped is None
        return int(settled), counts(settled), [phases(handle, key) for key in keys.values()]

    assert walk(j, 5) == walk(open_journal(tmp_path / "other"), 1)


def test_walk_of_a_stream_beside(j: Journal) -> None:
    """Its operations alone, from a cursor on."""
    append(j, *range(4), stream="a")
    append(j, *range(4), stream="b")
    append(j, "last", stream="c")

    settled = j.recover(5, intents=one_each(Stub(1)), stream="b", concurrency=3)

    assert (settled, settled.ran) == (8, 3)
    assert [r.key for r in j.effects()] == [("k", 1), ("k", 2), ("k", 3)]


def test_walk_over_nothing_beside(j: Journal) -> None:
    """The cursor comes back; one outside the log is refused."""
    assert j.recover(0, intents=unused(), concurrency=4) == 0
    append(j, "a")
    assert j.recover(1, intents=unused(), concurrency=4) == 1
    assert j.recover(0, intents=lambda _: [], concurrency=4) == 1
    with pytest.raises(InvalidCursorError):
        j.recover(2, intents=unused(), concurrency=4)


def test_recovering_twice_beside_is_recovering_once(j: Journal) -> None:
    """The second walk calls nobody and writes nothing."""
    append(j, *range(30))
    j.recover(0, intents=one_each(Stub(1), unused()), concurrency=4)
    head, called = j.head(), unused()

    settled = j.recover(0, intents=one_each(called, called), concurrency=4)

    assert (settled, counts(settled)) == (30, (0, 30, 0, 0, 0))
    assert (called.count, j.head()) == (0, head)


def test_slow_operation_holds_up_the_others_at_a_bound(j: Journal) -> None:
    """So many begin past the oldest unsettled one; memory does not grow with what waits behind it."""
    bound = 2 * WINDOW_PER_LANE
    append(j, *range(3 * bound))
    gate = Gate("proof")
    asked: list[int] = []
    when_it_went_on: list[int] = []

    def slow() -> Any:
        answer = gate()
        when_it_went_on.append(len(asked))
        return answer

    def intents(c: Committed) -> list[Intent]:
        asked.append(c.operation)
        return [effect("slow", slow)] if c.operation == 0 else []

    walk = Call(lambda: j.recover(0, intents=intents, concurrency=2))
    gate.wait_until_entered()
    wait_until(lambda: len(asked) == bound)
    gate.open()

    assert walk.result() == 3 * bound
    assert when_it_went_on == [bound]


# Keys that several operations share


@pytest.mark.parametrize("reconcile", [None, Stub()], ids=["run_effect", "effect"])
def test_key_of_many_operations_runs_once(j: Journal, reconcile: Any) -> None:
    """Whoever comes first runs it; the others join it or reuse what it came to."""
    append(j, *range(24))
    run = Stub("m-1")

    settled = j.recover(
        0,
        intents=lambda c: [Intent(("own", c.operation), Stub(1)), Intent("shared", run, reconcile)],
        concurrency=8,
    )

    assert (settled, settled.stopped, counts(settled)) == (24, None, (25, 23, 0, 0, 0))
    assert run.count == 1


def test_run_in_flight_is_joined_beside(j: Journal) -> None:
    """Two operations wait for one run, and none of them is refused for the other's sake."""
    append(j, "a", "b", "c")
    gate = Gate("m-1")
    intents = by_operation(a=[effect("k", gate)], b=[effect("k", gate)], c=[effect("k", gate), effect("c")])
    walk = Call(lambda: j.recover(0, intents=intents, concurrency=3))
    gate.wait_until_entered()
    walk.wait_until_it_waits()
    gate.open()

    assert (walk.result(), walk.result().stopped, counts(walk.result())) == (3, None, (2, 2, 0, 0, 0))
    assert gate.count == 1


def test_keys_in_opposite_orders_do_not_wait_for_each_other(j: Journal) -> None:
    """Whatever is begun ahead where: nobody holds one effect and waits for another."""
    append(j, *range(40))
    keys = ["a", "b", "c", "d"]

    settled = j.recover(
        0,
        intents=lambda c: [
            Intent((key, c.operation // 4), Stub(key)) for key in (keys if c.operation % 2 else reversed(keys))
        ],
        concurrency=4,
    )

    assert (settled, settled.stopped, settled.ran + settled.reused, settled.ran) == (40, None, 160, 40)


def test_failure_of_a_shared_key_stops_before_the_first(j: Journal) -> None:
    """Whichever operation ran it."""
    append(j, *range(6))

    settled = j.recover(0, intents=lambda c: [Intent("bad", Stub(Boom("no")))], concurrency=3)

    assert stop_of(settled) == (0, 1, "bad", "failed")


def test_conflict_between_operations_stops_before_the_later(j: Journal) -> None:
    """A key for two requests at once is refused as it is one after the other."""
    append(j, "a", "b")
    gate = Gate("m-1")
    first = effect("k", gate, request=1)
    walk = Call(
        lambda: j.recover(
            0,
            intents=by_operation(a=[first], b=[effect("wait", gate.wait_until_entered), effect("k", request=2)]),
            concurrency=2,
        )
    )
    gate.wait_until_entered()
    wait_until(lambda: phases(j, "wait") == ["intent", "accepted"])
    walk.wait_until_it_waits()
    gate.open()

    settled = walk.result()
    assert stop_of(settled) == (1, 2, "k", "conflict")
    assert settled.stopped is not None
    assert isinstance(settled.stopped.error, EffectConflictError)


def test_walks_beside_each_other_and_calls_run_each_effect_once(j: Journal) -> None:
    """Three concurrent walks over the same operations, and direct calls for the same keys."""
    append(j, *range(30))
    runs = {n: Stub(n) for n in range(30)}
    calls: list[Call[Any]] = [
        Call(
            lambda: j.recover(
                0, intents=lambda c: [Intent(("k", c.operation), runs[c.operation], unused())], concurrency=3
            )
        )
        for _ in range(3)
    ]
    calls += [
        Call(lambda n=n: j.effect(("k", n), run=runs[n], reconcile=unused()))  # type: ignore[misc]  # mypy cannot infer a lambda with a default
        for n in range(0, 30, 5)
    ]
    results = [call.result() for call in calls]

    assert [(settled, settled.stopped) for settled in results[:3]] == [(30, None)] * 3
    assert [run.count for run in runs.values()] == [1] * 30


def test_call_for_a_key_that_waits_for_its_own_walk_is_refused(j: Journal) -> None:
    """A walk inside of a run carries that run with it into each of its threads: its key is refused, others are not."""
    append(j, "a", "b")
    results: list[Any] = []

    def run() -> str:
        settled = j.recover(
            0, intents=by_operation(a=[effect("a", Stub(1))], b=[effect("outer", unused())]), concurrency=2
        )
        results.append(settled)
        return "m-1"

    assert j.effect("outer", run=run, reconcile=unused()) == Accepted("m-1", "run")
    assert stop_of(results[0]) == (1, 2, "outer", "in_flight")
    assert isinstance(results[0].stopped.error, EffectInFlightError)


# The settled prefix, and stops


def test_cursor_stays_before_the_first_that_has_not_settled(j: Journal) -> None:
    """Later ones that have settled long ago are on record, and reused by the next walk."""
    append(j, "a", "b", "c", "d")
    gate = Gate(Boom("no"))
    walk = Call(
        lambda: j.recover(
            0,
            intents=lambda c: [effect(("k", c.operation), gate if c.operation == "b" else Stub("m"))],
            concurrency=2,
        )
    )
    gate.wait_until_entered()
    for name in "acd":
        wait_until(lambda name=name: phases(j, ("k", name)) == ["intent", "accepted"])  # type: ignore[misc]  # mypy cannot infer a lambda with a default
    gate.open()

    settled = walk.result()
    assert stop_of(settled) == (1, 2, ("k", "b"), "unresolved")
    assert counts(settled) == (3, 0, 0, 0, 0)
    again = j.recover(settled, intents=lambda c: [effect(("k", c.operation), unused(), Stub("m-2"))], concurrency=2)
    assert (again, counts(again)) == (4, (0, 2, 1, 0, 0))


STOPS: dict[str, tuple[Callable[[Any], Intent], str]] = {
    "not performed": (lambda run: effect("bad", run(NotPerformed("no"))), "failed"),
    "idempotent run raises": (lambda run: Intent("bad", run(Boom("no"))), "failed"),
    "run raises": (lambda run: effect("bad", run(Boom("no"))), "unresolved"),
    "proof rejected": (lambda run: effect("bad", run(float("nan"))), "unresolved"),
}


@pytest.mark.parametrize("name", STOPS)
def test_operations_before_a_stop_go_on_to_their_end(j: Journal, name: str) -> None:
    """A later one stops first: those before it run all their effects, and what has not begun does not begin."""
    make, reason = STOPS[name]
    append(j, "a", "b", "c")
    gate, second, never = Gate(), Stub("m-2"), unused()
    bad = Watched(make(Stub))
    walk = Call(
        lambda: j.recover(
            0,
            intents=by_operation(a=[effect("a1", gate), effect("a2", second)], b=bad.each, c=[effect("c", never)]),
            concurrency=2,
        )
    )
    gate.wait_until_entered()
    wait_for(bad.over)
    gate.open()

    settled = walk.result()
    assert stop_of(settled) == (1, 2, "bad", reason)
    assert settled.ran == 2
    assert (second.count, never.count, j.record("c")) == (1, 0, None)


@pytest.mark.parametrize("name", STOPS)
def test_operations_after_a_stop_start_nothing_more(j: Journal, name: str) -> None:
    """What they run is recorded; the intent that came with its outcome is taken back, as known not performed."""
    make, reason = STOPS[name]
    append(j, "a", "b", "c")
    stops, runs, never = threading.Event(), Gate("m-1"), unused()

    def wait_and(answer: Any) -> Callable[[], Any]:
        def run() -> Any:
            wait_for(stops)
            return Stub(answer)()

        return run

    bad = Watched(make(wait_and))
    walk = Call(
        lambda: j.recover(
            0,
            intents=by_operation(a=bad.each, b=[effect("b1", runs), effect("b2", never)], c=[effect("c", never)]),
            concurrency=2,
        )
    )
    runs.wait_until_entered()
    stops.set()
    wait_for(bad.over)
    runs.open()

    settled = walk.result()
    assert stop_of(settled) == (0, 1, "bad", reason)
    assert settled.ran == 1
    assert (never.count, j.record("c")) == (0, None)
    assert phases(j, "b1") == ["intent", "accepted"]
    record = j.record("b2")
    assert record is not None
    assert (record.phase, record.reason) == ("failed", "not-started")


def test_first_of_two_stops_is_told(j: Journal) -> None:
    """By position; the error is that of its effect."""
    append(j, "a", "b", "c")
    gate = Gate(NotPerformed("first"))
    later = Watched(effect("later", Stub(Boom("later"))))
    walk = Call(
        lambda: j.recover(
            0, intents=by_operation(a=[effect("a")], b=[effect("first", gate)], c=later.each), concurrency=3
        )
    )
    gate.wait_until_entered()
    wait_for(later.over)
    gate.open()

    assert stop_of(walk.result()) == (1, 2, "first", "failed")
    assert phases(j, "later") == ["intent", "released"]


def test_operation_that_waits_for_another_process_ends_with_the_walk(
    open_journal: Callable[..., Journal], start_peer: Callable[..., Peer]
) -> None:
    """It has begun nothing: a stop before it does not wait until its wait is over."""
    j = open_journal(wait_timeout=1_000_000.0)
    append(j, "a", "b")
    peer = start_peer("call", key="theirs", run=["running", "listen"])
    peer.hear("opened")
    peer.hear("running")
    gate = Gate(Boom("no"))
    walk = Call(
        lambda: j.recover(
            0, intents=by_operation(a=[effect("bad", gate)], b=[effect("theirs", unused())]), concurrency=2
        )
    )
    gate.wait_until_entered()
    gate.open()

    assert stop_of(walk.result()) == (0, 1, "bad", "unresolved")
    peer.tell("return")
    peer.hear("accepted")


# Policies


@pytest.mark.parametrize("policy", ["accept", "stop"])
@pytest.mark.parametrize("when", ["before", "in this walk"])
def test_uncertain_effects_are_decided_about_beside(j: Journal, when: str, policy: str) -> None:
    """Accepted they are counted; where the policy stops, the first of them stops the walk."""
    append(j, *range(6))
    for number in (2, 4):
        (leave_uncertain if when == "before" else leave_open)(j, ("k", number))

    settled = j.recover(0, intents=one_each(Stub("m"), Stub(None)), on_uncertain=policy, concurrency=3)

    if policy == "accept":
        assert (settled, settled.stopped, counts(settled)) == (6, None, (4, 0, 0, 2, 0))
    else:
        assert stop_of(settled) == (2, 3, ("k", 2), "uncertain")


def test_passed_effects_are_left_beside(j: Journal) -> None:
    """One poisoned effect need not hold up the rest; the policy is asked about each."""
    append(j, *range(10))
    policy = Stub(lambda intent, record: "pass" if intent.key[1] % 3 == 0 else "retry")

    settled = j.recover(0, intents=one_each(Stub("m"), unused()), on_unresolved=policy, concurrency=3)

    assert (settled, settled.stopped, counts(settled)) == (10, None, (6, 0, 0, 0, 4))
    assert policy.count == 10
    assert [(r.key, r.reason) for r in j.unfinished()] == [(("k", n), "passed") for n in (0, 3, 6, 9)]


def test_skip_stops_before_the_first_beside(j: Journal) -> None:
    """Nothing is written for it."""
    append(j, *range(6))

    settled = j.recover(
        0,
        intents=one_each(Stub("m"), unused()),
        on_unresolved=lambda intent, record: "skip" if intent.key[1] in (2, 3) else "retry",
        concurrency=3,
    )

    assert stop_of(settled) == (2, 3, ("k", 2), "skipped")
    assert (j.record(("k", 2)), j.record(("k", 3))) == (None, None)


# limit and progress


@pytest.mark.parametrize("limit, walked", [(1, 1), (2, 2), (5, 5), (100, 8)])
def test_limit_counts_operations_beside(j: Journal, limit: int, walked: int) -> None:
    """None beyond it has an intent; the next walk goes on there."""
    append(j, *range(8))

    settled = j.recover(0, intents=one_each(Stub(1)), limit=limit, concurrency=3)

    assert (settled, settled.ran) == (walked, walked)
    assert len(list(j.effects())) == walked
    assert j.recover(settled, intents=one_each(Stub(1)), concurrency=3) == 8


def test_progress_is_told_by_the_callers_thread(j: Journal, facade: Facade) -> None:
    """Cursors of the settled prefix, which never go back, and the settled cursor at the end."""
    append(j, *range(40))
    told: list[tuple[int, int]] = []
    threads: set[int] = set()

    def intents(c: Committed) -> list[Intent]:
        threads.add(threading.get_ident())
        return [Intent(("k", c.operation), Stub(1))]

    def progress(cursor: int, head: int) -> None:
        threads.add(threading.get_ident())
        told.append((int(cursor), int(head)))

    settled = j.recover(0, intents=intents, progress=progress, concurrency=4)

    assert told[-1][0] == settled == 40
    assert [cursor for cursor, _ in told] == sorted(cursor for cursor, _ in told)
    assert all(cursor <= head for cursor, head in told)
    assert threads == {facade.thread} or facade.is_loop


def test_progress_that_raises_ends_the_walk(j: Journal) -> None:
    """As it is; nothing is left open, and the next walk settles everything."""
    append(j, *range(20))
    boom = Boom("progress")

    with pytest.raises(Boom) as caught:
        j.recover(0, intents=one_each(Stub(1), unused()), progress=Stub(boom), concurrency=3)

    assert caught.value is boom
    assert list(j.effects(phase="intent")) == []
    assert j.recover(0, intents=one_each(Stub(1), unused()), concurrency=3) == 20


# What raises


def test_intents_that_raise_raise_when_those_before_have_ended(j: Journal) -> None:
    """Everything before is settled, and nothing after it is begun."""
    append(j, "a", "b", "c")
    gate, boom = Gate(), Boom("cannot decide")
    asked = threading.Event()

    def intents(c: Committed) -> list[Intent]:
        if c.operation == "a":
            return [effect("a1", gate), effect("a2")]
        asked.set()
        raise boom

    walk = Call(lambda: j.recover(0, intents=intents, concurrency=3))
    gate.wait_until_entered()
    wait_for(asked)
    gate.open()

    assert walk.error() is boom
    assert [(r.key, r.phase) for r in j.effects()] == [("a1", "accepted"), ("a2", "accepted")]


def test_stop_before_an_error_is_told_instead(j: Journal) -> None:
    """The walk would not have come to what raised."""
    append(j, "a", "b")
    gate = Gate(Boom("no"))
    asked = threading.Event()

    def intents(c: Committed) -> list[Intent]:
        if c.operation == "a":
            return [effect("a", gate)]
        asked.set()
        raise Boom("cannot decide")

    walk = Call(lambda: j.recover(0, intents=intents, concurrency=2))
    gate.wait_until_entered()
    wait_for(asked)
    gate.open()

    assert stop_of(walk.result()) == (0, 1, "a", "unresolved")


@pytest.mark.parametrize("who", ["on_unresolved", "on_uncertain", "iterator", "not an intent", "not iterable"])
def test_wrong_use_is_raised_when_those_before_have_ended(j: Journal, who: str) -> None:
    """Whatever of the caller's raises in a thread of its own: the first by position is raised in the caller's."""
    append(j, *range(6))
    leave_uncertain(j, ("k", 4))
    booms = {number: Boom(str(number)) for number in (4, 5)}

    def policy(intent: Intent, record: Any) -> str:
        if who == "on_unresolved" and intent.key[1] in booms:
            raise booms[intent.key[1]]
        return "retry"

    def on_uncertain(intent: Intent, record: Any) -> str:
        if who == "on_uncertain":
            raise booms[4]
        return "accept"

    def each(number: int) -> Iterator[Any]:
        yield effect(("k", number))
        if number in booms:
            raise booms[number]

    def intents(c: Committed) -> Any:
        if who == "iterator":
            return each(c.operation)
        if c.operation in booms and who == "not an intent":
            return [effect(("k", c.operation)), "intent"]
        if c.operation in booms and who == "not iterable":
            return 5
        return [effect(("k", c.operation))]

    with pytest.raises((Boom, TypeError)) as caught:
        j.recover(0, intents=intents, on_unresolved=policy, on_uncertain=on_uncertain, concurrency=3)

    if who == "on_unresolved":
        assert caught.value is booms[5]
    elif who in ("on_uncertain", "iterator"):
        assert caught.value is booms[4]
    assert list(j.effects(phase="intent")) == []
    for number in range(4):
        assert phases(j, ("k", number)) == ["intent", "accepted"]


def test_operation_of_another_type_is_raised_when_those_before_have_ended(open_journal: Callable[..., Journal]) -> None:
    """With its position."""
    j = open_journal()
    append(j, 1, 2, "three", 4)
    j.close()
    j = open_journal(operation=int)

    with pytest.raises(InvalidOperationError) as caught:
        j.recover(0, intents=one_each(Stub(1)), concurrency=3)

    assert caught.value.position == 3
    assert [r.key for r in j.effects()] == [("k", 1), ("k", 2)]


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt(), SystemExit(1), GeneratorExit()], ids=repr)
def test_what_is_no_exception_passes_through_the_walk(j: Journal, interrupt: BaseException) -> None:
    """A run that raises it leaves its intent; what runs beside it is recorded, before and after; nothing else starts."""
    append(j, "a", "b", "c", "d")
    gates = [Gate(), Gate()]
    bad = Watched(effect("bad", Stub(interrupt)))
    walk = Call(
        lambda: j.recover(
            0,
            intents=by_operation(
                a=[effect("a1", gates[0]), effect("a2", unused())],
                b=[effect("b1", gates[1]), effect("b2", unused())],
                c=bad,
                d=[effect("d", unused())],
            ),
            concurrency=3,
        )
    )
    wait_for(bad.over)
    for gate in gates:
        gate.wait_until_entered()
        gate.open()

    assert walk.error() is interrupt
    assert j.record("d") is None
    assert [(r.key, r.phase) for r in j.effects()] == [
        ("a1", "accepted"),
        ("a2", "failed"),
        ("b1", "accepted"),
        ("b2", "failed"),
        ("bad", "intent"),
    ]


def test_interrupt_of_the_caller_goes_out_at_once(open_journal: Callable[..., Journal]) -> None:
    """Ctrl-C while it waits: what runs is recorded, nothing more starts, and `close` waits for it."""
    j = open_journal()
    append(j, "a", "b", "c")
    gates = [Gate("m-a"), Gate("m-b")]

    def interrupt() -> None:
        for gate in gates:
            gate.wait_until_entered()
        os.kill(os.getpid(), signal.SIGINT)

    helper = Call(interrupt)
    with pytest.raises(KeyboardInterrupt):
        j.recover(
            0,
            intents=by_operation(
                a=[effect("a", gates[0])],
                b=[effect("b", gates[1]), effect("b2", unused())],
                c=[effect("c", unused())],
            ),
            concurrency=2,
        )
    helper.result()
    closing = Call(j.close)
    closing.wait_until_it_waits()
    assert not closing.is_done
    for gate in gates:
        gate.open()
    closing.result()

    again = open_journal()
    assert {r.key: r.phase for r in again.effects()} == {"a": "accepted", "b": "accepted"}
    settled = again.recover(
        0,
        intents=by_operation(a=[effect("a", unused())], b=[effect("b", unused()), effect("b2")], c=[effect("c")]),
        concurrency=2,
    )
    assert (settled, counts(settled)) == (3, (2, 2, 0, 0, 0))


def test_closed_journal_refuses_a_walk_that_goes_on(open_journal: Callable[..., Journal]) -> None:
    """`close` waits for what runs; the walk then finds the journal closed, and raises."""
    j = open_journal()
    append(j, *range(10))
    gate = Gate("m")
    walk = Call(lambda: j.recover(0, intents=one_each(gate, unused()), concurrency=2))
    gate.wait_until_entered()
    closing = Call(j.close)
    closing.wait_until_it_waits()
    gate.open()
    closing.result()

    assert type(walk.error()).__name__ == "JournalClosedError"
    again = open_journal()
    assert list(again.effects(phase="intent")) == []


def test_recipient_that_cannot_be_asked_stops_beside(j: Journal) -> None:
    """A reconcile that raises leaves the intent open."""
    append(j, *range(4))
    leave_open(j, ("k", 2))

    settled = j.recover(0, intents=one_each(Stub("m"), Stub(Boom("down"))), concurrency=2)

    assert stop_of(settled) == (2, 3, ("k", 2), "unresolved")
    assert settled.stopped is not None
    assert isinstance(settled.stopped.error, EffectUnresolvedError)
    assert settled.stopped.error.reason == "reconcile-failed"
