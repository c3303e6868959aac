"""`journal/_core/queries.py`: the protocols that only look."""

from __future__ import annotations

import math
from typing import Any

import pytest

from journal._core import queries
from journal._core.keys import key_form
from journal._core.queries import EffectPages, OperationPages
from journal._core.requests import DeadlineError, EffectPage, OperationPage, Pause, Read
from journal._core.schemas import Schema
from journal.errors import CompactedCursorError, CorruptRecordError, InvalidCursorError, Key
from journal.options import PAGE_RECORDS
from journal.records import CompactionRecord, Guarantee, Phase
from tests.unit.support import START, Memory, Play

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


def listed(pages: EffectPages, memory: Memory) -> list[Key]:
    """The keys of the query's next page."""
    return [record.key for record in Play(pages.next(), memory).finish()]


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
    assert listed(EffectPages(phase, None, None, None), one_of_each()) == keys


def test_unfinished_effects_are_those_without_a_settled_outcome() -> None:
    """Intents, given up or not, and failed effects."""
    assert listed(EffectPages.unfinished(None), one_of_each()) == ["failed", "intent", "released"]


@pytest.mark.parametrize("phase", ["released", "cleared", "INTENT", "", 1])
def test_unknown_phase_is_refused(phase: Any) -> None:
    """The message lists the words."""
    with pytest.raises(ValueError, match="phase must be one of intent, accepted, uncertain, failed, not "):
        EffectPages(phase, None, None, None)


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

    assert listed(EffectPages(None, prefix, None, None), memory) == keys
    assert listed(EffectPages.unfinished(prefix), memory) == keys


@pytest.mark.parametrize("start", range(len(KEYS)))
def test_effects_are_listed_past_a_key(start: int) -> None:
    """`after` is exclusive, and may be a key of which nothing is on record."""
    memory = Memory()
    for key in KEYS:
        memory.put_effect(key, INTENT)

    assert listed(EffectPages(None, None, KEYS[start], None), memory) == KEYS[start + 1 :]


@pytest.mark.parametrize("argument", ["prefix", "after"])
@pytest.mark.parametrize("key, error", [(1, TypeError), ((True,), TypeError), ("\ud800", ValueError)])
def test_key_of_no_use_is_refused(argument: str, key: Any, error: type[Exception]) -> None:
    """As any key, before anything is asked."""
    with pytest.raises(error):
        EffectPages(None, **({"prefix": None, "after": None, "limit": None} | {argument: key}))


def test_pages_go_on_where_the_last_one_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each page is one bounded read; the last one is empty."""
    monkeypatch.setattr(queries, "PAGE_RECORDS", 3)
    memory = Memory()
    for key in KEYS:
        memory.put_effect(key, INTENT)
    pages = EffectPages(None, None, None, None)

    assert [listed(pages, memory) for _ in range(4)] == [KEYS[:3], KEYS[3:6], KEYS[6:], []]


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 7])
def test_limit_ends_the_pages(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it ends with a page or within one; what is past it is not read."""
    monkeypatch.setattr(queries, "PAGE_RECORDS", 2)
    memory = Memory()
    for key in KEYS:
        memory.put_effect(key, INTENT)
    pages = EffectPages(None, None, None, limit)

    keys = [key for _ in range(5) for key in listed(pages, memory)]

    assert keys == KEYS[:limit]
    assert listed(pages, memory) == []


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 7, None])
def test_operations_come_in_pages_up_to_the_limit(limit: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """In log order, past pages without any operation of the stream; then no more."""
    monkeypatch.setattr(queries, "PAGE_RECORDS", 2)
    memory = Memory()
    for number in range(6):
        memory.put_operation(str(number), number)
        memory.put_operation(str(number), number, stream="other")
    pages = OperationPages("s", 2, limit, Schema())

    found: list[Any] = []
    while page := Play(pages.next(), memory).finish():
        found += [pages.decode(item).operation for item in page]

    assert found == list(range(1, 6))[:limit]
    assert Play(pages.next(), memory).finish() == []


def test_keys_in_other_phases_are_passed_in_bounded_looks() -> None:
    """One look ends after so many of them, and the next goes on behind."""
    memory = Memory()
    memory.page_effects = 2
    for key in KEYS:
        memory.put_effect(key, INTENT)
    memory.put_effect(KEYS[-1], UNCERTAIN)
    pages = EffectPages("uncertain", None, None, None)

    play = Play(pages.next(), memory)

    assert [record.key for record in play.finish()] == KEYS[-1:]
    assert len(play.asked) == -(-len(KEYS) // 2)
    assert listed(pages, memory) == []


def test_operations_are_looked_for_past_empty_pages() -> None:
    """A look may end before it has found any; the next goes on behind, to the end of the log."""
    asked: list[int] = []

    class View:
        def operations(self, stream: str | None, after: int, limit: int) -> OperationPage:
            asked.append(after)
            return OperationPage([], after + 4, ended=after == 8)

    pages = OperationPages(None, 0, None, Schema())
    protocol = pages.next()
    request = next(protocol)
    with pytest.raises(StopIteration) as ended:
        while True:
            view: Any = View()
            request = protocol.send(request.look(view))

    assert (asked, ended.value.value) == ([0, 4, 8], [])


def test_page_is_bounded() -> None:
    """One read gives no more than a page, however much is asked for."""
    seen: list[int] = []

    class View:
        def effects(self, phases: Any, *, prefix: bytes, after: bytes, limit: int) -> EffectPage:
            seen.append(limit)
            return EffectPage([], None)

    for limit in (1, PAGE_RECORDS, 10**9):
        next(EffectPages(None, None, None, limit).next()).look(View())

    assert seen == [1, PAGE_RECORDS, PAGE_RECORDS]


# Waiting


def test_wait_ends_when_something_is_past_its_position() -> None:
    """It looks, pauses, and looks again; the head is its answer."""
    memory = Memory()
    memory.put_effect("k", INTENT)
    play = Play(queries.wait(1, None), memory).run(Read)

    assert play.expect(Pause).seconds == math.inf
    memory.put_effect("l", INTENT)
    assert play.does(Pause, True).run(Read).returned == 2


def test_wait_at_its_timeout_gives_the_head_as_it_is() -> None:
    """Every pause is of one wait, with its seconds."""
    memory = Memory()
    memory.put_effect("k", INTENT)
    play = Play(queries.wait(1, 5), memory).run(Read)
    first = play.expect(Pause)
    second = play.does(Pause, True).run(Read).expect(Pause)

    assert (first.wait, first.seconds) == (second.wait, 5.0)
    assert play.raises(Pause, DeadlineError()).returned == 1


@pytest.mark.parametrize("timeout", [-1, math.nan, "1", True])
def test_wait_for_no_span_of_time_is_refused(timeout: Any) -> None:
    """Before anything is read."""
    with pytest.raises(ValueError, match="timeout"):
        next(queries.wait(0, timeout))


@pytest.mark.parametrize("after", [-1, 1])
def test_wait_outside_of_the_log_is_refused(after: int) -> None:
    """As any cursor."""
    with pytest.raises(InvalidCursorError):
        Play(queries.wait(after, None), Memory()).finish()


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

    assert Play(queries.check_from(None, cursor), memory).run(Read).is_done


@pytest.mark.parametrize("cursor", [-1, 2])
def test_cursor_outside_the_log_is_refused(cursor: int) -> None:
    """With the head."""
    memory = Memory()
    memory.put_operation("1")

    with pytest.raises(InvalidCursorError) as caught:
        Play(queries.check_from(None, cursor), memory).finish()

    assert (caught.value.cursor, caught.value.head) == (cursor, 1)


@pytest.mark.parametrize(
    "stream, cursor, floor",
    [("s", 0, 3), ("s", 1, 3), ("t", 2, 5), (None, 0, 5), (None, 3, 5)],
)
def test_cursor_below_what_was_compacted_is_refused(stream: str | None, cursor: int, floor: int) -> None:
    """With the floor: of the stream, or the highest of all."""
    with pytest.raises(CompactedCursorError) as caught:
        Play(queries.check_from(stream, cursor), compacted()).finish()

    assert (caught.value.cursor, caught.value.floor, caught.value.stream) == (cursor, floor, stream)


@pytest.mark.parametrize("stream, cursor", [("s", 2), ("s", 3), ("t", 4), ("t", 5), (None, 4), (None, 5), ("none", 0)])
def test_cursor_past_what_was_compacted_is_taken(stream: str | None, cursor: int) -> None:
    """From the last operation that was dropped on."""
    assert Play(queries.check_from(stream, cursor), compacted()).run(Read).is_done


def test_cursor_outside_the_log_comes_first() -> None:
    """It is of another journal."""
    with pytest.raises(InvalidCursorError):
        Play(queries.check_from(None, -1), compacted()).finish()


def compacted() -> Memory:
    """Stream `s` with operations at 1, 2, compacted through 3; stream `t` with one at 4, compacted through 5."""
    memory = Memory()
    for op_id, stream in (("1", "s"), ("2", "s")):
        memory.put_operation(op_id, stream=stream)
    memory.append(CompactionRecord("s", 1, 2, START, 3))
    memory.put_operation("1", stream="t")
    memory.append(CompactionRecord("t", 1, 4, START, 5))
    return memory


@pytest.mark.parametrize("cursor", [None, "0", 0.0, True])
def test_cursor_of_another_type_is_refused(cursor: Any) -> None:
    """Before anything is asked."""
    with pytest.raises(TypeError, match="a cursor is an int"):
        next(queries.check_from(None, cursor))


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
