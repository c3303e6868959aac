"""`prune_effects`: what goes, what stays, and that a key which comes again is never run as new work."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import journal
from journal import (
    Accepted,
    EffectConflictError,
    EffectPrunedError,
    Intent,
    Journal,
    JournalFullError,
    JournalReadonlyError,
    NotPerformed,
    Uncertain,
)

from .support import (
    Boom,
    Call,
    Clock,
    Gate,
    Peer,
    Stub,
    accept,
    at_once,
    leave_failed,
    leave_open,
    leave_uncertain,
    phases,
    unused,
)

DAY = 86_400 * 10**9
KEYS: list[Any] = ["k", "k1", ("k",), ("k", 1), "x" * 600 + "1", "x" * 600 + "2"]


def state_of(j: Journal) -> Any:
    """What can be read of a journal."""
    keys = [record.key for record in j.effects()]
    return (
        list(j.effects()),
        j.unfinished(),
        [j.history(key) for key in keys],
        list(j.read()),
        [list(j.read(after=after)) for after in range(j.head() + 1)],
        j.streams(),
        j.head(),
        j.cursor("reader"),
    )


# What goes and what stays


def test_old_effects_go_and_their_keys_are_refused(j: Journal, clock: Clock) -> None:
    """The count says how many; nothing of them is listed, and the journal is sound."""
    for key in KEYS:
        accept(j, key)
    clock.advance(DAY)
    accept(j, "young")

    assert j.prune_effects(settled_before=clock.now) == len(KEYS)

    assert [record.key for record in j.effects()] == ["young"]
    for key in KEYS:
        with pytest.raises(EffectPrunedError) as caught:
            accept(j, key)
        assert caught.value.key == key
    assert accept(j, ("k", 2)) == Accepted("proof", "run")
    assert list(j.verify()) == []
    stats = j.stats()
    assert (stats.effects, stats.pruned) == (2, len(KEYS))


@pytest.mark.parametrize("leave", [leave_open, leave_failed, leave_uncertain])
def test_what_is_not_accepted_stays(j: Journal, clock: Clock, leave: Callable[..., None]) -> None:
    """Uncertain, failed and open effects are never pruned, however old."""
    leave(j, "k")
    before = state_of(j)

    assert j.prune_effects(settled_before=clock.now + DAY) == 0
    assert state_of(j) == before


def test_time_counts_by_the_last_event(j: Journal, clock: Clock) -> None:
    """Settled at that time is not settled before it."""
    leave_open(j, "k")
    settled = clock.advance(DAY)
    assert j.effect("k", run=unused(), reconcile=lambda signal: "found") == Accepted("found", "reconcile")

    assert j.prune_effects(settled_before=settled) == 0
    assert j.prune_effects(settled_before=settled + 1) == 1


def test_everything_else_reads_as_before(j: Journal, clock: Clock) -> None:
    """Operations from every cursor, other effects and their histories, cursors: nothing moves."""
    for number in range(5):
        j.append("s", number, op_id=str(number))
        accept(j, ("old", number))
        leave_failed(j, ("failed", number))
        j.step(("step", number), lambda: 1)
        j.append("t", number, op_id=str(number))
    leave_uncertain(j, "uncertain")
    accept(j, "kept")
    j.save_cursor("reader", 9)
    before = state_of(j)

    assert j.prune_effects(settled_before=clock.now + 1, keep=lambda record: record.key == "kept") == 5

    records, *rest = before
    after_records, *after_rest = state_of(j)
    gone = {("old", number) for number in range(5)}
    assert after_records == [record for record in records if record.key not in gone]
    assert after_rest[0] == rest[0]
    assert after_rest[1] == [events for events in rest[1] if events[0].key not in gone]
    assert after_rest[2:] == rest[2:]
    assert [j.step(("step", number), unused()) for number in range(5)] == [1] * 5
    assert list(j.verify()) == []


def test_pruning_twice_is_pruning_once(j: Journal, clock: Clock) -> None:
    """Nothing is left for the second."""
    for key in KEYS:
        accept(j, key)

    assert j.prune_effects(settled_before=clock.now + 1) == len(KEYS)
    head, stats = j.head(), j.stats().pruned
    assert j.prune_effects(settled_before=clock.now + 1) == 0
    assert (j.head(), j.stats().pruned) == (head, stats)


def test_cleared_keys_are_forgotten(j: Journal, clock: Clock) -> None:
    """They are new work before and after; they are not counted, and no tombstone is left."""
    accept(j, "k")
    j.clear_effect("k", reason="r")

    assert j.prune_effects(settled_before=clock.now + 1, keep=unused()) == 0

    assert (j.history("k"), j.record("k"), j.stats().pruned) == ([], None, 0)
    assert accept(j, "k", "again") == Accepted("again", "run")
    assert phases(j, "k") == ["intent", "accepted"]
    assert list(j.verify()) == []


def test_pruned_journal_is_the_same_after_reopening(open_journal: Callable[..., Journal], clock: Clock) -> None:
    """Pruning is durable."""
    j = open_journal()
    accept(j, "k")
    j.prune_effects(settled_before=clock.now + 1)
    head = j.head()
    j.close()
    again = open_journal()

    with pytest.raises(EffectPrunedError):
        again.record("k")
    assert again.head() == head
    assert again.append("s", 1, op_id="1").position == head + 1
    assert list(again.verify()) == []


def test_more_effects_than_a_transaction_takes(j: Journal, clock: Clock) -> None:
    """They go in several."""
    for number in range(300):
        accept(j, ("k", number))

    assert j.prune_effects(settled_before=clock.now + 1, keep=lambda record: record.key[1] % 100 == 0) == 297
    assert [record.key for record in j.effects()] == [("k", 0), ("k", 100), ("k", 200)]
    assert list(j.verify()) == []


# The predicate


def test_predicate_says_what_stays(j: Journal, clock: Clock) -> None:
    """It is called with the record of each old accepted effect, by key."""
    accept(j, "a", {"id": 1})
    accept(j, "b", {"id": 2})
    leave_failed(j, "c")
    asked: list[Any] = []

    def keep(record: journal.EffectRecord) -> bool:
        asked.append((record.key, record.proof, record.phase))
        return bool(record.proof["id"] == 2)

    assert j.prune_effects(settled_before=clock.now + 1, keep=keep) == 1
    assert asked == [("a", {"id": 1}, "accepted"), ("b", {"id": 2}, "accepted")]
    assert [record.key for record in j.effects(phase="accepted")] == ["b"]


def test_predicate_may_use_the_journal(j: Journal, clock: Clock) -> None:
    """It is called in no transaction: it may read, and write."""
    accept(j, "a")
    accept(j, "b")

    def keep(record: journal.EffectRecord) -> bool:
        if record.key == "a":
            j.clear_effect("b", reason="r")
        return len(j.history(record.key)) > 2

    assert j.prune_effects(settled_before=clock.now + 1, keep=keep) == 1
    assert j.history("b")[-1].phase == "cleared"


@pytest.mark.parametrize("error", [Boom("mine"), KeyError("mine")])
def test_predicate_that_raises_ends_the_pruning(j: Journal, clock: Clock, error: Exception) -> None:
    """Its exception goes on; nothing is half done, and the next call goes on."""
    accept(j, "a")
    accept(j, "b")

    with pytest.raises(type(error)) as caught:
        j.prune_effects(settled_before=clock.now + 1, keep=Stub(False, error))

    assert caught.value is error
    assert [phases(j, key) for key in ("a", "b")] == [["intent", "accepted"]] * 2
    assert j.prune_effects(settled_before=clock.now + 1) == 2


def test_coroutine_function_may_be_the_predicate_of_the_asyncio_face(path: Path, clock: Clock) -> None:
    """As any other policy; the synchronous face refuses it before anything is read."""

    async def keep(record: journal.EffectRecord) -> bool:
        await asyncio.sleep(0)
        return record.key == "b"

    async def main() -> int:
        async with journal.open_async(path, clock=clock) as a:
            for key in ("a", "b"):
                await a.run_effect(key, lambda: 1)
            return await a.prune_effects(settled_before=clock.now + 1, keep=keep)

    assert asyncio.run(main()) == 1
    with journal.open(path, clock=clock) as j:
        with pytest.raises(TypeError, match="coroutine"):
            j.prune_effects(settled_before=clock.now + 1, keep=keep)
        assert [record.key for record in j.effects()] == ["b"]


# Wrong use


@pytest.mark.parametrize("time", [None, True, 1.0, "1"])
def test_time_that_is_none_is_refused(j: Journal, time: Any) -> None:
    """It is an int as `clock` gives it."""
    accept(j, "k")
    with pytest.raises(TypeError, match="settled_before"):
        j.prune_effects(settled_before=time)
    assert phases(j, "k") == ["intent", "accepted"]


@pytest.mark.parametrize("time", [-1, 2**63])
def test_time_out_of_range_is_refused(j: Journal, time: int) -> None:
    """With its value."""
    with pytest.raises(ValueError, match=str(time)):
        j.prune_effects(settled_before=time)


def test_read_only_handle_prunes_nothing(open_journal: Callable[..., Journal], clock: Clock) -> None:
    """Whether or not there is something; and of a pruned key it tells that it was."""
    j = open_journal()
    for key in ("a", "b"):
        accept(j, key)
    j.prune_effects(settled_before=clock.now + 1, keep=lambda record: record.key == "b")
    j.close()
    reader = open_journal(readonly=True)

    with pytest.raises(JournalReadonlyError):
        reader.prune_effects(settled_before=0, keep=unused())
    for call in (
        lambda: accept(reader, "a"),
        lambda: reader.run_effect("a", unused()),
        lambda: reader.record("a"),
        lambda: reader.history("a"),
    ):
        with pytest.raises(EffectPrunedError):
            call()
    with pytest.raises(JournalReadonlyError):
        reader.clear_effect("a", reason="r")
    assert accept(reader, "b") == Accepted("proof", "run")


# A key that comes again


def test_pruned_key_is_told_by_every_method(j: Journal, clock: Clock) -> None:
    """With the position at which it stood; nothing is called and nothing is written."""
    accept(j, "k")
    position = j.head()
    accept(j, "other")
    j.prune_effects(settled_before=clock.now + 1)
    head = j.head()
    for call in (
        lambda: j.effect("k", run=unused(), reconcile=unused()),
        lambda: j.effect("k", run=unused(), reconcile=unused(), request={"amount": 1}),
        lambda: j.run_effect("k", unused()),
        lambda: j.record("k"),
        lambda: j.history("k"),
        lambda: j.resolve("k", NotPerformed("x"), expected_position=position, reason="r"),
    ):
        with pytest.raises(EffectPrunedError) as caught:
            call()
        assert (caught.value.key, caught.value.position) == ("k", position)
    assert j.head() == head
    assert j.step("k", lambda: "a step has a space of its own") == "a step has a space of its own"


def test_many_calls_for_a_pruned_key_are_all_refused(j: Journal, clock: Clock) -> None:
    """None joins another to be told something else."""
    accept(j, "k")
    j.prune_effects(settled_before=clock.now + 1)

    calls = at_once(8, partial(j.effect, "k", run=unused(), reconcile=unused()))

    assert {type(call.error()) for call in calls} == {EffectPrunedError}


def test_pruned_key_can_be_cleared(j: Journal, clock: Clock) -> None:
    """Then the next call is new work, of any guarantee, and the history begins with the clearing."""
    accept(j, "k")
    j.prune_effects(settled_before=clock.now + 1)

    j.clear_effect("k", reason="the letter came back")

    assert j.record("k") is None
    assert j.run_effect("k", lambda: "again") == "again"
    assert [(event.phase, event.reason) for event in j.history("k")] == [
        ("cleared", "the letter came back"),
        ("intent", None),
        ("accepted", None),
    ]
    record = j.record("k")
    assert record is not None
    assert record.attempts == 1
    assert j.stats().pruned == 0
    assert list(j.verify()) == []


def test_clearing_that_was_pruned_leaves_new_work(j: Journal, clock: Clock) -> None:
    """The tombstone does not come back."""
    accept(j, "k")
    j.prune_effects(settled_before=clock.now + 1)
    j.clear_effect("k", reason="r")
    assert j.prune_effects(settled_before=clock.now + 1) == 0

    assert j.history("k") == []
    assert list(j.verify()) == []
    assert accept(j, "k", "again") == Accepted("again", "run")


def test_unknown_key_is_still_unknown(j: Journal, clock: Clock) -> None:
    """Only what was pruned is told so."""
    accept(j, "k")
    j.prune_effects(settled_before=clock.now + 1)

    assert (j.record("never"), j.history("never")) == (None, [])
    with pytest.raises(EffectConflictError):
        j.resolve("never", Uncertain(), expected_position=1, reason="r")
    head = j.head()
    j.clear_effect("never", reason="r")
    assert j.head() == head


# Recovery


@pytest.mark.parametrize("concurrency", [1, 3])
def test_walk_goes_on_over_pruned_effects(j: Journal, clock: Clock, concurrency: int) -> None:
    """They were accepted: reused, and nobody is asked."""
    for number in range(4):
        j.append("s", number, op_id=str(number))

    def intents(committed: journal.Committed) -> Iterator[Intent]:
        yield Intent(committed.effect_key("mail"), run=lambda: "m", reconcile=unused())
        yield Intent(committed.effect_key("charge"), run=lambda: "c")

    assert j.recover(intents=intents).ran == 8
    assert j.prune_effects(settled_before=clock.now + 1, keep=lambda r: r.key[2] == "1") == 6
    j.append("s", 4, op_id="4")

    settled = j.recover(intents=intents, on_unresolved="retry", concurrency=concurrency)

    assert (settled.stopped, settled.ran, settled.reused) == (None, 2, 8)
    assert int(settled) == j.head() - 4
    assert j.recover(intents=intents, on_unresolved="skip").reused == 10


def test_walk_stops_at_a_pruned_effect_of_another_guarantee(j: Journal, clock: Clock) -> None:
    """As at one on record."""
    j.append("s", 1, op_id="1")
    accept(j, "k")
    j.prune_effects(settled_before=clock.now + 1)

    stopped = j.recover(intents=lambda committed: [Intent("k", run=unused())]).stopped

    assert stopped is not None
    assert (stopped.key, stopped.reason) == ("k", "conflict")
    passed = j.recover(intents=lambda committed: [Intent("k", run=unused())], on_unresolved="pass")
    assert (passed.stopped, passed.passed) == (None, 1)


# A full journal


def test_pruning_makes_room_in_a_full_journal(open_journal: Callable[..., Journal], clock: Clock) -> None:
    """Where no intent can be written any more: it may use the reserve, and new effects run after it."""
    j = open_journal(map_size=2**20, max_size=2**20)
    count = 0
    with pytest.raises(JournalFullError):
        while True:
            accept(j, ("k", count), "p" * 200)
            count += 1

    assert j.prune_effects(settled_before=clock.now + 1) == count

    for number in range(count // 4):
        accept(j, ("new", number), "p" * 200)
    assert j.stats().pruned == count
    assert list(j.verify()) == []


# Readers and runs at the same time


def test_listing_goes_on_while_effects_are_pruned(j: Journal, clock: Clock) -> None:
    """What is gone is not given any more; what stays is given once."""
    for number in range(600):
        accept(j, ("k", number))
    listing = iter(j.effects())
    first = next(listing)

    j.prune_effects(settled_before=clock.now + 1, keep=lambda record: record.key[1] % 2 == 0)

    numbers = [int(record.key[1]) for record in (first, *listing)]
    assert numbers == sorted(set(numbers))
    assert set(range(0, 600, 2)) <= set(numbers)
    assert all(number % 2 == 0 for number in numbers if number > 256), "past the page that was read before"


def test_reading_goes_on_while_effects_are_pruned(j: Journal, clock: Clock) -> None:
    """No operation is left out or given twice."""
    for number in range(300):
        j.append("s", number, op_id=str(number))
        accept(j, number_key(number))
    reading = iter(j.read())
    first = next(reading)

    j.prune_effects(settled_before=clock.now + 1)

    assert [first.operation, *(committed.operation for committed in reading)] == list(range(300))


def number_key(number: int) -> Any:
    return ("k", number)


def test_effect_in_flight_is_not_pruned(j: Journal, clock: Clock) -> None:
    """Its intent is no outcome."""
    gate = Gate("m")
    owner = Call(lambda: j.effect("k", run=gate, reconcile=unused()))
    gate.wait_until_entered()

    assert j.prune_effects(settled_before=clock.now + 1) == 0
    gate.open()

    assert owner.result() == Accepted("m", "run")
    assert j.prune_effects(settled_before=clock.now + 1) == 1


def test_prunings_at_once_share_the_work(j: Journal, clock: Clock) -> None:
    """Each effect is counted once."""
    for number in range(400):
        accept(j, number_key(number))

    calls = at_once(4, lambda: j.prune_effects(settled_before=clock.now + 1))

    assert sum(call.result() for call in calls) == 400
    assert j.stats().pruned == 400
    assert list(j.verify()) == []


def test_two_processes_prune_and_run_effects_at_once(j: Journal, clock: Clock, start_peer: Callable[..., Peer]) -> None:
    """Each key runs once among them, and each pruned one is counted once."""
    peers = [start_peer("prune", name=name, count=150) for name in ("a", "b")]
    for peer in peers:
        peer.hear("opened")
    for peer in peers:
        peer.tell("go")
    pruned = 0
    ended = threading.Event()

    def wait_for_peers() -> list[Any]:
        said = [peer.hear("ended") for peer in peers]
        ended.set()
        return said

    waiting = Call(wait_for_peers)
    while not ended.is_set():
        pruned += j.prune_effects(settled_before=2**63 - 1)
        assert list(j.verify()) == []
    said = waiting.result()
    pruned += j.prune_effects(settled_before=2**63 - 1) + sum(facts["pruned"] for facts in said)

    # Every key of the shared ones was run by one of both; the other was told that it was accepted, or pruned since.
    assert sum(facts["ran"] for facts in said) == 150
    assert sum(facts["told"] for facts in said) == 150
    assert pruned == j.stats().pruned == 150
    assert list(j.effects()) == []
    assert [committed.operation for committed in j.read("a")] == list(range(150))
    assert list(j.verify()) == []
    for peer in peers:
        peer.finish()


def test_asyncio_loop_goes_on_while_it_prunes(path: Path, clock: Clock) -> None:
    """Pages are read and committed off the loop."""

    async def main() -> tuple[int, int]:
        async with journal.open_async(path, clock=clock) as a:
            for number in range(20):
                await a.run_effect(("k", number), lambda: 1)
            turns = 0
            pruning = asyncio.ensure_future(a.prune_effects(settled_before=0))
            while not pruning.done():
                turns += 1
                await asyncio.sleep(0)
            return pruning.result(), turns

    pruned, turns = asyncio.run(main())
    assert (pruned, turns > 1) == (0, True)
