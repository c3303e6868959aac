"""`history`, `unfinished` and `effects`: order, paging, prefixes, phases."""

from collections.abc import Callable
from typing import Any

import pytest

from journal import Intent, Journal, NotPerformed, Uncertain

from .support import (
    START,
    Clock,
    Key,
    Stub,
    accept,
    leave_failed,
    leave_open,
    leave_uncertain,
    phases,
    unused,
)

KEYS: list[Key] = [
    "\x00",
    "A",
    "a",
    "a\x00",
    "aa",
    "b",
    "e\u0301",
    "\u00e9",
    "\ud7ff",
    "\uffff",
    "\U00010000",
    (-(2**40),),
    (-1,),
    (0,),
    (2,),
    (10,),
    (10, -3),
    (10, 3),
    (10, "3"),
    (2**40,),
    ("a",),
    ("a", -1),
    ("a", 0),
    ("a", 0, "x"),
    ("a", 1),
    ("a", "0"),
    ("a", "a"),
    ("a\x00",),
    ("aa",),
    ("b", 1),
]
"""Keys in the order of the contract."""


def listed(records: Any) -> list[Key]:
    """Gives the keys of records."""
    return [record.key for record in records]


@pytest.fixture
def filled(j: Journal) -> Journal:
    """A journal with an effect for each of `KEYS`, made in another order, every third unfinished."""
    for index in sorted(range(len(KEYS)), key=lambda index: index * 7 % len(KEYS)):
        if index % 3:
            accept(j, KEYS[index])
        elif index % 2:
            leave_open(j, KEYS[index])
        else:
            leave_failed(j, KEYS[index])
    return j


# effects


def test_effects_are_ordered_by_key(filled: Journal) -> None:
    """str keys by code point, then tuples by their parts, ints by value before strs."""
    assert listed(filled.effects()) == KEYS


def test_records_in_lists_are_the_records(filled: Journal) -> None:
    """What `effects` and `unfinished` give is what `record` gives."""
    for record in [*filled.effects(), *filled.unfinished()]:
        assert record == filled.record(record.key)


@pytest.mark.parametrize("size", [1, 2, 5, 100])
def test_pages_make_the_whole(filled: Journal, size: int) -> None:
    """`after` the last key of a page begins the next one; nothing is missing or doubled."""
    pages: list[Key] = []
    after: Key | None = None
    while page := listed(filled.effects(after=after, limit=size)):
        assert len(page) <= size
        pages.extend(page)
        after = page[-1]

    assert pages == KEYS


@pytest.mark.parametrize(
    "after,expected",
    [
        ("a\x00\x00", "aa"),
        ("zzz", "\u00e9"),
        ("\U0010ffff", (-(2**40),)),
        ((3,), (10,)),
        ((10, 4), (10, "3")),
        (("a", "a", 1), ("a\x00",)),
    ],
    ids=repr,
)
def test_page_may_begin_after_a_key_without_record(filled: Journal, after: Key, expected: Key) -> None:
    """`after` is a place in the order, whether or not something is there."""
    assert listed(filled.effects(after=after, limit=1)) == [expected]


@pytest.mark.parametrize(
    "prefix,expected",
    [
        ("a", ["a", "a\x00", "aa"]),
        ("a\x00", ["a\x00"]),
        ("aa", ["aa"]),
        ("c", []),
        (("a",), [key for key in KEYS if isinstance(key, tuple) and key[0] == "a"]),
        (("a", 0), [("a", 0), ("a", 0, "x")]),
        (("a", "0"), [("a", "0")]),
        ((10,), [(10,), (10, -3), (10, 3), (10, "3")]),
        ((1,), []),
        (("A",), []),
    ],
    ids=repr,
)
def test_prefix_selects(filled: Journal, prefix: Key, expected: list[Key]) -> None:
    """A str prefix matches the beginning of str keys, a tuple prefix whole first parts of tuple keys."""
    assert listed(filled.effects(prefix=prefix)) == expected
    assert listed(filled.unfinished(prefix=prefix)) == [key for key in expected if KEYS.index(key) % 3 == 0]


def test_filters_work_together(filled: Journal) -> None:
    """`phase`, `prefix`, `after` and `limit` narrow the same list."""
    tuples = [key for key in KEYS if isinstance(key, tuple) and key[0] == "a"]
    accepted = [key for key in tuples if KEYS.index(key) % 3]

    assert listed(filled.effects(phase="accepted", prefix=("a",))) == accepted
    assert listed(filled.effects(phase="accepted", prefix=("a",), after=accepted[0], limit=2)) == accepted[1:3]
    assert listed(filled.effects(phase="accepted", prefix=("a",), after=accepted[-1])) == []


def test_phase_selects(j: Journal) -> None:
    """Each phase gives its own records, and none is in two."""
    accept(j, "a")
    leave_open(j, "i")
    leave_failed(j, "f")
    leave_uncertain(j, "u")

    assert listed(j.effects(phase="accepted")) == ["a"]
    assert listed(j.effects(phase="intent")) == ["i"]
    assert listed(j.effects(phase="failed")) == ["f"]
    assert listed(j.effects(phase="uncertain")) == ["u"]
    assert listed(j.effects()) == ["a", "f", "i", "u"]


def test_limit_counts_what_the_phase_selects(j: Journal) -> None:
    """A limit is reached by records of the phase, not by those passed over."""
    for index in range(50):
        accept(j, ("k", index))
    leave_open(j, ("k", 100))

    assert listed(j.effects(phase="intent", limit=1)) == [("k", 100)]


@pytest.mark.parametrize("options", [{"phase": "nonsense"}, {"phase": ""}, {"limit": 0}, {"limit": -1}], ids=repr)
def test_unknown_phase_or_limit_is_a_value_error(j: Journal, options: dict[str, Any]) -> None:
    """An unknown phase, and a limit below 1, are refused."""
    accept(j, "a")

    with pytest.raises(ValueError):
        list(j.effects(**options))


def test_effects_may_change_while_they_are_listed(j: Journal) -> None:
    """No transaction stays open between two steps of the iterator."""
    for index in range(20):
        accept(j, ("k", index))

    for record in j.effects(prefix=("k",)):
        j.clear_effect(record.key, reason="r")

    assert list(j.effects()) == []


def test_many_effects_are_listed_whole(j: Journal) -> None:
    """However the journal reads in batches, nothing is missing, doubled or out of order."""
    j.append_all("s", [(str(index), index) for index in range(1_500)])
    j.recover(0, intents=lambda c: [_intent(c)], on_unresolved="pass")

    assert listed(j.effects()) == [("k", index) for index in range(1_500)]
    assert listed(j.unfinished()) == [("k", index) for index in range(1_500)]
    assert listed(j.effects(after=("k", 1_234), limit=3)) == [("k", 1_235), ("k", 1_236), ("k", 1_237)]


def _intent(c: Any) -> Intent:
    return Intent(("k", c.operation), unused(), unused())


# unfinished


def test_unfinished_are_intents_and_failures(j: Journal) -> None:
    """Records in phase intent or failed, by key; what is settled or cleared is not among them."""
    leave_open(j, "open")
    leave_failed(j, "failed")
    leave_open(j, ("t", 1))
    accept(j, "accepted")
    leave_uncertain(j, "uncertain")
    leave_open(j, "cleared")
    j.clear_effect("cleared", reason="r")

    assert isinstance(j.unfinished(), list)
    assert [(r.key, r.phase) for r in j.unfinished()] == [
        ("failed", "failed"),
        ("open", "intent"),
        (("t", 1), "intent"),
    ]


def test_unfinished_has_what_is_in_flight(j: Journal) -> None:
    """An effect that runs has no outcome yet."""
    seen: list[Any] = []

    j.effect("k", run=lambda: seen.extend(j.unfinished()), reconcile=unused())

    assert listed(seen) == ["k"]
    assert j.unfinished() == []


def test_unfinished_follows_each_outcome(j: Journal) -> None:
    """A record leaves the list when it is settled, and comes back only as new work."""
    leave_failed(j, "k")
    assert listed(j.unfinished()) == ["k"]
    leave_open(j, "k")
    assert listed(j.unfinished()) == ["k"]
    j.effect("k", run=unused(), reconcile=Stub("m-1"))
    assert j.unfinished() == []
    j.clear_effect("k", reason="r")
    leave_open(j, "k")
    assert listed(j.unfinished()) == ["k"]


# history


def test_history_has_every_event_in_order(j: Journal, clock: Clock) -> None:
    """Each event with its position, time, attempt and guarantee; positions grow, and none is shared."""
    leave_failed(j, "k", "refused")
    clock.advance()
    leave_open(j, "k")
    clock.advance()
    j.effect("k", run=unused(), reconcile=Stub(None))
    record = j.record("k")
    assert record is not None
    j.resolve("k", NotPerformed("no"), expected_position=record.position, reason="asked")
    accept(j, "k", "m-1")

    events = j.history("k")

    assert isinstance(events, list)
    assert [(e.position, e.at - START, e.phase, e.attempt) for e in events] == [
        (1, 0, "intent", 1),
        (2, 0, "failed", 1),
        (3, 1000, "intent", 2),
        (4, 1000, "released", 2),
        (5, 2000, "uncertain", 2),
        (6, 2000, "failed", 2),
        (7, 2000, "intent", 3),
        (8, 2000, "accepted", 3),
    ]
    assert {(e.key, e.guarantee) for e in events} == {("k", "at_most_once")}
    assert (events[-1].via, events[-1].proof) == ("run", "m-1")
    assert events[4].via == "reconcile"
    assert (events[5].via, events[5].reason) == ("resolve", "asked")


def test_history_is_the_keys_own(j: Journal) -> None:
    """Events of other keys, and of steps, are not in it."""
    accept(j, "k")
    accept(j, "k1")
    accept(j, ("k",))
    j.step("k", lambda: 1)

    assert {e.key for e in j.history("k")} == {"k"}
    assert phases(j, ("k",)) == ["intent", "accepted"]
    assert j.history("unknown") == []


def test_position_of_each_record_is_taken_once(j: Journal) -> None:
    """Operations, events and steps fill the log from 1 to head without a gap."""
    taken: list[int] = []
    for index in range(5):
        taken.append(j.append("s", index, op_id=str(index)).position)
        leave_open(j, ("e", index))
        j.effect(("e", index), run=lambda: 1, reconcile=Stub(NotPerformed("absent")))
        j.step(("e", index), lambda: 1)
        taken.append(j.head())
        taken.extend(e.position for e in j.history(("e", index)))

    assert sorted(taken) == list(range(1, j.head() + 1))


def test_long_history_is_given_whole(j: Journal) -> None:
    """Every attempt of a key that failed often is there."""
    for _ in range(300):
        leave_failed(j, "k")

    events = j.history("k")

    assert len(events) == 600
    assert [e.attempt for e in events[::2]] == list(range(1, 301))


def test_owner_is_the_handle_that_wrote_the_intent(open_journal: Callable[..., Journal]) -> None:
    """Each open handle is an owner of its own."""
    j = open_journal()
    accept(j, "a")
    accept(j, "b")
    j.close()
    again = open_journal()
    accept(again, "c")

    owners = [again.history(key)[0].owner for key in ("a", "b", "c")]
    assert owners[0] == owners[1] != owners[2]
    record = again.record("a")
    assert record is not None
    assert record.owner == owners[0]


def test_records_of_uncertain_effects(j: Journal) -> None:
    """An uncertain record has no proof."""
    leave_uncertain(j, "k")

    record = j.record("k")
    assert record is not None
    assert (record.phase, record.proof) == ("uncertain", None)
    assert j.effect("k", run=unused(), reconcile=unused()) == Uncertain()
