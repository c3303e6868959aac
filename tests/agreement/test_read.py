"""`read`, `streams`, `head`."""

from collections.abc import Callable

import msgspec
import pytest

from journal import InvalidCursorError, InvalidOperationError, Journal

from .support import accept


def fill(j: Journal) -> None:
    """Appends to two streams, with effects in between: operations at 1, 4, 5 and 6."""
    j.append("a", "a1", op_id="1")
    accept(j, "k")
    j.append("b", "b1", op_id="1")
    j.append("a", "a2", op_id="2")
    j.append("a", "a3", op_id="3")


def test_read_gives_all_operations_in_log_order(j: Journal) -> None:
    """All streams when none is named; effects are not operations."""
    fill(j)

    assert [(c.position, c.stream, c.sequence, c.operation) for c in j.read()] == [
        (1, "a", 1, "a1"),
        (4, "b", 1, "b1"),
        (5, "a", 2, "a2"),
        (6, "a", 3, "a3"),
    ]
    assert not any(c.repeated for c in j.read())


def test_read_gives_one_stream(j: Journal) -> None:
    """A stream's own operations, in order."""
    fill(j)

    assert [c.operation for c in j.read("a")] == ["a1", "a2", "a3"]
    assert [c.operation for c in j.read(stream="b")] == ["b1"]
    assert list(j.read("unknown")) == []


@pytest.mark.parametrize(
    "after,expected",
    [
        (0, ["a1", "b1", "a2", "a3"]),
        (1, ["b1", "a2", "a3"]),
        (2, ["b1", "a2", "a3"]),
        (4, ["a2", "a3"]),
        (6, []),
    ],
)
def test_read_begins_after_the_cursor(j: Journal, after: int, expected: list[str]) -> None:
    """`after` is exclusive, and may be the position of any record."""
    fill(j)

    assert [c.operation for c in j.read(after=after)] == expected
    assert [c.operation for c in j.read("a", after=after)] == [name for name in expected if name.startswith("a")]


def test_read_ends_at_the_limit(j: Journal) -> None:
    """`limit` counts operations."""
    fill(j)

    assert [c.operation for c in j.read(limit=2)] == ["a1", "b1"]
    assert [c.operation for c in j.read("a", after=1, limit=1)] == ["a2"]
    assert len(list(j.read(limit=1000))) == 4


@pytest.mark.parametrize("limit", [0, -1])
def test_limit_is_at_least_one(j: Journal, limit: int) -> None:
    """A smaller limit is a `ValueError`."""
    fill(j)

    with pytest.raises(ValueError):
        list(j.read(limit=limit))


@pytest.mark.parametrize("after", [-1, 7, 1_000_000])
def test_cursor_outside_the_log_is_refused_at_the_call(j: Journal, after: int) -> None:
    """`read` takes 0 to head, and says so before the first step."""
    fill(j)

    with pytest.raises(InvalidCursorError) as caught:
        j.read(after=after)

    assert (caught.value.cursor, caught.value.head) == (after, 6)


def test_long_log_is_read_whole_and_in_order(j: Journal) -> None:
    """However the journal reads in batches, nothing is missing, doubled or out of order."""
    count = 3_000
    for first in range(0, count, 500):
        j.append_all(f"s{first % 1000}", [(str(index), index) for index in range(first, first + 500)])

    assert [c.operation for c in j.read()] == list(range(count))
    assert [c.operation for c in j.read("s500")] == [n for n in range(count) if n // 500 % 2]
    assert [c.position for c in j.read(after=1234, limit=700)] == list(range(1235, 1935))


def test_reader_may_write_while_it_reads(j: Journal) -> None:
    """No transaction stays open between two steps of the iterator."""
    fill(j)

    for c in j.read(limit=4):
        j.append("copy", c.operation, op_id=str(c.position))

    assert [c.operation for c in j.read("copy")] == ["a1", "b1", "a2", "a3"]


def test_abandoned_iterator_is_in_nobodys_way(j: Journal) -> None:
    """A reader that stops in the middle keeps neither a writer nor `close` waiting."""
    fill(j)
    reader = iter(j.read())
    next(reader)
    j.append("a", "a4", op_id="4")

    j.close()


def test_streams_are_sorted(j: Journal) -> None:
    """`streams` gives each stream once, by code point."""
    names = ["b", "a", "ä", "B", "a/b", "\U0001f600", "\uffff", "aa", "10", "9"]
    for op_id in ("1", "2"):
        for name in names:
            j.append(name, 1, op_id=op_id)

    assert j.streams() == sorted(names)


def test_streams_are_not_made_by_effects(j: Journal) -> None:
    """Only operations have a stream."""
    accept(j, ("orders", 1))

    assert j.streams() == []


def test_head_is_the_last_position_of_any_kind(j: Journal) -> None:
    """Operations, effect events and steps count; cursors and readers do not."""
    heads = [j.head()]
    j.append("s", 1, op_id="1")
    heads.append(j.head())
    accept(j, "k")
    heads.append(j.head())
    j.step("k", lambda: 1)
    heads.append(j.head())
    j.save_cursor("c", 3)
    list(j.read())
    j.stats()
    heads.append(j.head())

    assert heads == [0, 1, 3, 4, 4]


class New(msgspec.Struct):
    b: int


def test_operation_that_todays_type_cannot_decode_is_named(open_journal: Callable[..., Journal]) -> None:
    """Reading it raises `InvalidOperationError` with its position; other streams are read as before."""
    j = open_journal(operation=dict[str, int])
    j.append("fine", {"b": 1}, op_id="1")
    j.append("old", {"a": 1}, op_id="1")
    j.append("fine", {"b": 2}, op_id="2")
    j.close()
    today = open_journal(operation=New)

    with pytest.raises(InvalidOperationError) as caught:
        list(today.read())

    assert caught.value.position == 2
    assert [c.operation for c in today.read("fine")] == [New(1), New(2)]
    assert [c.operation for c in today.read(after=2)] == [New(2)]
    with pytest.raises(InvalidOperationError):
        today.recover(0, intents=lambda _: [])
