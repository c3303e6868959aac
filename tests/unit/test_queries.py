"""`journal/_core/queries.py`: the protocols that only look."""

from __future__ import annotations

from typing import Any

import pytest

from journal._core import queries
from journal._core.keys import key_form
from journal._core.queries import EffectQuery
from journal._core.requests import Read
from journal.errors import CorruptRecordError, InvalidCursorError, Key
from journal.options import PAGE_RECORDS
from journal.records import Guarantee, Phase
from tests.unit.support import Memory, Play

INTENT, ACCEPTED, UNCERTAIN, FAILED, RELEASED, CLEARED = (
    Phase.INTENT,
    Phase.ACCEPTED,
    Phase.UNCERTAIN,
    Phase.FAILED,
    Phase.RELEASED,
    Phase.CLEARED,
)


def one_of_each() -> Memory:
    """An effect in each phase, under the name of the phase."""
    memory = Memory()
    for phase in Phase:
        memory.put_effect(phase.word, INTENT)
        if phase is not INTENT:
            memory.put_effect(phase.word, phase)
    return memory


def listed(query: EffectQuery, memory: Memory, limit: int = 10) -> list[Key]:
    """The keys of the query's next page."""
    return [record.key for record in Play(query.next_page(limit), memory).finish()]


@pytest.mark.parametrize(
    "phase, keys",
    [
        (None, ["accepted", "failed", "intent", "released", "uncertain"]),
        ("intent", ["intent", "released"]),
        ("accepted", ["accepted"]),
        ("uncertain", ["uncertain"]),
        ("failed", ["failed"]),
    ],
)
def test_effects_are_listed_by_phase(phase: str | None, keys: list[Key]) -> None:
    """A released intent is in phase intent, and a cleared effect in none."""
    assert listed(EffectQuery(phase, None, None), one_of_each()) == keys


def test_unfinished_effects_are_those_without_a_settled_outcome() -> None:
    """Intents, given up or not, and failed effects."""
    assert listed(EffectQuery.unfinished(None), one_of_each()) == ["failed", "intent", "released"]


@pytest.mark.parametrize("phase", ["released", "cleared", "INTENT", "", 1])
def test_unknown_phase_is_refused(phase: Any) -> None:
    """The message lists the words."""
    with pytest.raises(ValueError, match="phase must be one of intent, accepted, uncertain, failed, not "):
        EffectQuery(phase, None, None)


KEYS: list[Key] = ["a", "ab", "b", ("a",), ("a", 1), ("a", 2, "x"), ("ab",), ("b",)]


@pytest.mark.parametrize(
    "prefix, keys",
    [
        (None, KEYS),
        ("", ["a", "ab", "b"]),
        ("a", ["a", "ab"]),
        ((), [("a",), ("a", 1), ("a", 2, "x"), ("ab",), ("b",)]),
        (("a",), [("a",), ("a", 1), ("a", 2, "x")]),
        (("a", 2), [("a", 2, "x")]),
        ("c", []),
    ],
)
def test_effects_are_listed_by_prefix(prefix: Any, keys: list[Key]) -> None:
    """The first characters of string keys, the first parts of tuples; both queries take it."""
    memory = Memory()
    for key in KEYS:
        memory.put_effect(key, INTENT)

    assert listed(EffectQuery(None, prefix, None), memory) == keys
    assert listed(EffectQuery.unfinished(prefix), memory) == keys


@pytest.mark.parametrize("start", range(len(KEYS)))
def test_effects_are_listed_past_a_key(start: int) -> None:
    """`after` is exclusive, and may be a key of which nothing is on record."""
    memory = Memory()
    for key in KEYS:
        memory.put_effect(key, INTENT)

    assert listed(EffectQuery(None, None, KEYS[start]), memory) == KEYS[start + 1 :]


@pytest.mark.parametrize("argument", ["prefix", "after"])
@pytest.mark.parametrize("key, error", [(1, TypeError), ((True,), TypeError), ("\ud800", ValueError)])
def test_key_of_no_use_is_refused(argument: str, key: Any, error: type[Exception]) -> None:
    """As any key, before anything is asked."""
    with pytest.raises(error):
        EffectQuery(None, **({"prefix": None, "after": None} | {argument: key}))


def test_pages_go_on_where_the_last_one_ended() -> None:
    """Each page is one bounded read; the last one is empty."""
    memory = Memory()
    for key in KEYS:
        memory.put_effect(key, INTENT)
    query = EffectQuery(None, None, None)

    pages = [listed(query, memory, limit=3) for _ in range(4)]

    assert pages == [KEYS[:3], KEYS[3:6], KEYS[6:], []]


def test_page_is_bounded() -> None:
    """One read gives no more than a page, however much is asked for."""
    seen: list[int] = []

    class View:
        def effects(self, phases: Any, *, prefix: bytes, after: bytes, limit: int) -> list[Any]:
            seen.append(limit)
            return []

    for limit in (1, PAGE_RECORDS, 10**9):
        next(EffectQuery(None, None, None).next_page(limit)).look(View())

    assert seen == [1, PAGE_RECORDS, PAGE_RECORDS]


def test_record_is_one_read() -> None:
    """What is on record, or `None`."""
    memory = one_of_each()

    play = Play(queries.record("accepted"), memory).run(Read)
    cleared = Play(queries.record("cleared"), memory).run(Read)
    unknown = Play(queries.record("unknown"), memory).run(Read)

    assert (play.returned.key, play.returned.phase) == ("accepted", "accepted")
    assert (cleared.returned, unknown.returned) == (None, None)


def test_damaged_record_is_no_absence() -> None:
    """What cannot be read raises."""
    memory = one_of_each()
    memory.damaged.add(memory.head())

    with pytest.raises(CorruptRecordError):
        Play(queries.record("cleared"), memory).finish()


def test_history_follows_the_links_to_the_first_event() -> None:
    """In order, over a clearing too, and without the events of other keys."""
    memory = Memory()
    for phase in (INTENT, FAILED, INTENT, RELEASED, UNCERTAIN, CLEARED, INTENT):
        memory.put_effect("k", phase)
        memory.put_effect("other", INTENT, guarantee=Guarantee.IDEMPOTENT)

    events = Play(queries.history("k"), memory).finish()

    assert [(event.position, event.phase) for event in events] == [
        (1, "intent"),
        (3, "failed"),
        (5, "intent"),
        (7, "released"),
        (9, "uncertain"),
        (11, "cleared"),
        (13, "intent"),
    ]


def test_history_of_nothing_is_empty() -> None:
    """One read says so."""
    play = Play(queries.history("k"), Memory()).run(Read)

    assert play.returned == []


@pytest.mark.parametrize("count", [1, 2, PAGE_RECORDS, PAGE_RECORDS + 1, PAGE_RECORDS + 2, 2 * PAGE_RECORDS + 2])
def test_long_history_is_read_in_bounded_pieces(count: int) -> None:
    """No read transaction follows more links than a page has records."""
    memory = Memory()
    for _ in range(count):
        memory.put_effect("k", INTENT, guarantee=Guarantee.IDEMPOTENT)

    play = Play(queries.history("k"), memory)
    events = play.finish()

    assert [event.attempt for event in events] == list(range(1, count + 1))
    assert len(play.asked) == 1 + -(-(count - 1) // PAGE_RECORDS)


def test_streams_and_head_are_one_read() -> None:
    """The names of the streams, and the last position."""
    memory = Memory()
    memory.put_operation("1", stream="b")
    memory.put_operation("1", stream="a")

    assert Play(queries.streams(), memory).run(Read).returned == ["a", "b"]
    assert Play(queries.head(), memory).run(Read).returned == 2


@pytest.mark.parametrize("cursor", [0, 1])
def test_cursor_of_the_log_is_taken(cursor: int) -> None:
    """From the start to the head."""
    memory = Memory()
    memory.put_operation("1")

    assert Play(queries.check_from(cursor), memory).run(Read).is_done


@pytest.mark.parametrize("cursor", [-1, 2])
def test_cursor_outside_the_log_is_refused(cursor: int) -> None:
    """With the head."""
    memory = Memory()
    memory.put_operation("1")

    with pytest.raises(InvalidCursorError) as caught:
        Play(queries.check_from(cursor), memory).finish()

    assert (caught.value.cursor, caught.value.head) == (cursor, 1)


@pytest.mark.parametrize("cursor", [None, "0", 0.0, True])
def test_cursor_of_another_type_is_refused(cursor: Any) -> None:
    """Before anything is asked."""
    with pytest.raises(TypeError, match="a cursor is an int"):
        next(queries.check_from(cursor))


@pytest.mark.parametrize("protocol", [queries.record, queries.history])
@pytest.mark.parametrize("key, error", [(1, TypeError), ("", ValueError), ((), ValueError)])
def test_what_is_no_key_is_refused(protocol: Any, key: Any, error: type[Exception]) -> None:
    """Before anything is asked."""
    with pytest.raises(error):
        next(protocol(key))


def test_history_takes_the_form_of_its_key() -> None:
    """A string and a tuple that look alike have histories of their own."""
    memory = Memory()
    memory.put_effect(("k", 1), INTENT)

    assert Play(queries.history('["k",1]'), memory).finish() == []
    assert [event.key for event in Play(queries.history(("k", 1)), memory).finish()] == [("k", 1)]
    assert memory.last(("k", 1)).key == key_form(("k", 1))
