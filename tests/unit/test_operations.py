"""`journal/_core/operations.py`: the protocols of append, read pages and cursors, request by request."""

from __future__ import annotations

import enum
import inspect
from typing import Any, Final

import msgspec
import pytest

from journal._core import operations
from journal._core.payloads import digest
from journal._core.requests import Commit, OperationPage, Read, StoredOperation
from journal._core.rules import Rules
from journal._core.schemas import Schema
from journal.errors import (
    CorruptRecordError,
    IdentityConflictError,
    InvalidCursorError,
    InvalidOperationError,
    JournalFullError,
    SequenceConflictError,
)
from journal.options import ACTOR_BYTES_MAX, OP_ID_BYTES_MAX, PAGE_RECORDS, STREAM_BYTES_MAX, VALUE_BYTES_MAX
from journal.records import CompactionRecord, CursorRow, OperationRecord
from journal.values import AlreadyCommitted, Committed, Cursor
from tests.unit.support import START, Memory, Play


class Order(msgspec.Struct):
    """What an application might declare."""

    number: int


class Named(str):
    """A string of a user's own class."""

    __slots__ = ()


class Stream(enum.StrEnum):
    """Streams as a user might list them."""

    ORDERS = "orders"


def append(
    memory: Memory, *pairs: Any, stream: Any = "s", actor: Any = "", expected: Any = None, kind: Any = None
) -> Any:
    """What an append answers, all its requests answered."""
    return Play(operations.append(stream, list(pairs), actor, expected, Rules(Schema(kind))), memory).finish()


NOW: Final = START + 1
"""The time of a memory's first commit."""


# Append


def test_append_is_one_commit() -> None:
    """It asks for nothing but one commit, which is no settlement of an effect."""
    memory = Memory()

    play = Play(operations.append("s", [("1", "a"), ("2", "b")], "me", None, Rules()), memory)
    request = play.expect(Commit)
    play.does(Commit)

    assert request.settles is False
    assert play.asked == ["Commit"]
    assert play.returned == [
        Committed("s", 1, 1, "1", "me", NOW, "a"),
        Committed("s", 2, 2, "2", "me", NOW, "b"),
    ]


def test_record_holds_what_identifies_the_operation() -> None:
    """The head has stream, sequence, identity and the payload's hash and length; the payload is canonical JSON."""
    memory = Memory()

    append(memory, ("1", {"b": 1, "a": 2}), actor="me")

    payload = b'{"a":2,"b":1}'
    assert memory.log == [(OperationRecord("s", 1, 1, "1", "me", NOW, digest(payload), len(payload)), payload)]


def test_sequences_count_each_stream_and_positions_the_log() -> None:
    """Both start at 1 and have no gap, whatever else stands between."""
    memory = Memory()
    memory.put_step("step", 1)

    answers = [append(memory, (f"{n}", n), stream=stream)[0] for n, stream in enumerate("abba")]

    assert [(c.stream, c.sequence, c.position) for c in answers] == [("a", 1, 2), ("b", 1, 3), ("b", 2, 4), ("a", 2, 5)]


def test_nothing_appended_asks_for_nothing() -> None:
    """An empty `append_all` gives an empty list without a commit."""
    play = Play(operations.append("s", [], "", 7, Rules()), Memory())

    assert play.is_done
    assert (play.asked, play.returned) == ([], [])


def test_resend_is_answered_with_what_was_committed_first() -> None:
    """The same op_id with the same payload and actor gives the first `Committed`, repeated, and writes nothing."""
    memory = Memory()
    append(memory, ("1", {"a": 1, "b": 2}), actor="me")

    (again,) = append(memory, ("1", {"b": 2, "a": 1}), actor="me")

    assert again == Committed("s", 1, 1, "1", "me", NOW, {"a": 1, "b": 2}, repeated=True)
    assert memory.head() == 1


@pytest.mark.parametrize("operation, actor", [({"a": 2}, "me"), ({"a": 1}, "you"), ({"a": 1}, "")])
def test_op_id_of_another_operation_is_a_conflict(operation: Any, actor: str) -> None:
    """Another payload or another actor under the same op_id is refused, with the first one's position."""
    memory = Memory()
    append(memory, ("1", {"a": 1}), actor="me")

    with pytest.raises(IdentityConflictError) as caught:
        append(memory, ("2", "x"), ("1", operation), actor=actor)

    assert (caught.value.stream, caught.value.op_id, caught.value.position) == ("s", "1", 1)
    assert memory.head() == 1


def test_op_id_of_another_stream_is_another_operation() -> None:
    """Identity is within the stream."""
    memory = Memory()

    append(memory, ("1", "a"), stream="s")
    (committed,) = append(memory, ("1", "b"), stream="t")

    assert (committed.sequence, committed.position, committed.repeated) == (1, 2, False)


def test_op_id_twice_in_one_append_is_repeated() -> None:
    """The second is answered with the first, and consumes neither sequence nor position."""
    memory = Memory()

    answers = append(memory, ("1", "a"), ("2", "b"), ("1", "a"), ("3", "c"))

    assert [(c.op_id, c.sequence, c.position, c.repeated) for c in answers] == [
        ("1", 1, 1, False),
        ("2", 2, 2, False),
        ("1", 1, 1, True),
        ("3", 3, 3, False),
    ]
    assert memory.head() == 3


def test_op_id_twice_with_another_payload_is_a_conflict() -> None:
    """Within one `append_all` as anywhere; nothing of it is written."""
    memory = Memory()
    append(memory, ("0", "z"))

    with pytest.raises(IdentityConflictError, match="stands earlier in the same call") as caught:
        append(memory, ("1", "a"), ("1", "b"))

    assert caught.value.position == 0
    assert memory.head() == 1


def test_compacted_operation_is_answered_without_its_content() -> None:
    """Before any policy; another payload or actor is a conflict as before, and what is not compacted comes whole."""
    memory = Memory()
    append(memory, ("1", "a"), ("2", "b"), actor="me")
    memory.append(CompactionRecord("s", 1, 1, START, 1))

    answers = append(memory, ("1", "a"), ("2", "b"), ("1", "a"), actor="me", expected=7)

    assert answers[0] == answers[2] == AlreadyCommitted("s", 1, 1, "1", "me")
    assert answers[1] == Committed("s", 2, 2, "2", "me", NOW, "b", repeated=True)
    for pair, actor in ((("1", "other"), "me"), (("1", "a"), "you")):
        with pytest.raises(IdentityConflictError) as caught:
            append(memory, pair, ("3", "c"), actor=actor)
        assert caught.value.position == 1
    assert memory.head() == 3


def test_new_and_repeated_operations_share_one_append() -> None:
    """Those seen before are answered from the record, the others follow the stream's last."""
    memory = Memory()
    append(memory, ("1", "a"))

    answers = append(memory, ("2", "b"), ("1", "a"), ("3", "c"), expected=1)

    assert [(c.op_id, c.sequence, c.repeated) for c in answers] == [("2", 2, False), ("1", 1, True), ("3", 3, False)]


@pytest.mark.parametrize("expected", [0, 2])
def test_other_sequence_than_expected_is_a_conflict(expected: int) -> None:
    """Somebody else appended, or nobody did: nothing is written, and both numbers are told."""
    memory = Memory()
    append(memory, ("1", "a"))

    with pytest.raises(SequenceConflictError) as caught:
        append(memory, ("2", "b"), expected=expected)

    assert (caught.value.stream, caught.value.sequence, caught.value.expected) == ("s", 1, expected)
    assert memory.head() == 1


@pytest.mark.parametrize("expected", [None, 0])
def test_expected_sequence_of_an_empty_stream_is_0(expected: int | None) -> None:
    """0 says that the stream must be empty."""
    assert append(Memory(), ("1", "a"), expected=expected)[0].sequence == 1


def test_identity_is_decided_before_the_expected_sequence() -> None:
    """A resend is answered even where the stream has gone on since."""
    memory = Memory()
    append(memory, ("1", "a"), expected=0)
    append(memory, ("2", "b"))

    (again,) = append(memory, ("1", "a"), expected=0)

    assert again.repeated
    with pytest.raises(IdentityConflictError):
        append(memory, ("1", "other"), expected=0)


def test_operation_comes_back_as_decoded() -> None:
    """The first answer holds what every later read will: the declared type, and no object of the caller's."""
    memory = Memory()
    given = {"number": 1}

    first = append(memory, ("1", given), kind=Order)[0].operation
    again = append(memory, ("1", given), kind=Order)[0].operation

    assert first == again == Order(1)


def test_refusal_of_the_store_is_the_callers() -> None:
    """What the commit raises comes out as it is."""
    error = JournalFullError("/journal", "no room")
    play = Play(operations.append("s", [("1", "a")], "", None, Rules()), Memory())

    with pytest.raises(JournalFullError) as caught:
        play.raises(Commit, error)

    assert caught.value is error


def test_closed_append_ends() -> None:
    """Whoever drives it may give up while it waits for its commit."""
    protocol = operations.append("s", [("1", "a")], "", None, Rules())
    next(protocol)

    protocol.close()

    assert inspect.getgeneratorstate(protocol) == inspect.GEN_CLOSED


def test_names_of_users_classes_are_kept_as_text() -> None:
    """A stream, op_id or actor may be a member of an enumeration or of a class of strings."""
    memory = Memory()

    (committed,) = append(memory, (Named("1"), "a"), stream=Stream.ORDERS, actor=Named("me"))

    assert committed == Committed("orders", 1, 1, "1", "me", NOW, "a")
    head = memory.record(1)
    assert isinstance(head, OperationRecord)
    assert {type(head.stream), type(head.op_id), type(head.actor)} == {str}
    assert append(memory, ("1", "a"), stream="orders", actor="me")[0].repeated


# What is refused before anything is asked


@pytest.mark.parametrize(
    "arguments, error",
    [
        ({"stream": ""}, ValueError),
        ({"stream": 1}, TypeError),
        ({"stream": "s" * (STREAM_BYTES_MAX + 1)}, ValueError),
        ({"stream": "\ud800"}, ValueError),
        ({"actor": None}, TypeError),
        ({"actor": "a" * (ACTOR_BYTES_MAX + 1)}, ValueError),
        ({"expected": "0"}, TypeError),
        ({"expected": True}, TypeError),
        ({"expected": 1.0}, TypeError),
        ({"expected": -1}, ValueError),
    ],
)
def test_argument_of_no_use_is_refused_before_anything_is_asked(arguments: Any, error: type[Exception]) -> None:
    """Wrong use is a `TypeError` or `ValueError`, and the store is not asked."""
    with pytest.raises(error):
        append(Memory(), ("1", "a"), **arguments)


@pytest.mark.parametrize("item", [("1",), ("1", "a", "b"), "1a", {"1": "a"}, None, 5])
def test_what_is_no_pair_is_refused(item: Any) -> None:
    """`append_all` takes pairs; a string of two characters is none."""
    with pytest.raises(TypeError, match="operations are pairs of op_id and operation, not "):
        append(Memory(), ("1", "a"), item)


def test_pair_may_be_a_list() -> None:
    """As JSON would give it."""
    assert append(Memory(), ["1", "a"])[0].op_id == "1"


@pytest.mark.parametrize("op_id, error", [("", ValueError), (1, TypeError), ("o" * (OP_ID_BYTES_MAX + 1), ValueError)])
def test_op_id_of_no_use_is_refused(op_id: Any, error: type[Exception]) -> None:
    """As any name."""
    with pytest.raises(error, match="op_id"):
        append(Memory(), (op_id, "a"))


@pytest.mark.parametrize(
    "operation, kind, why",
    [
        (float("nan"), None, r"\$ is nan"),
        ((1,), None, "open the journal with operation= its type"),
        (Order("x"), Order, r"Expected `int`, got `str` - at `\$\.number`"),  # type: ignore[arg-type]  # msgspec checks nothing when a Struct is built
        ("a" * VALUE_BYTES_MAX, None, f"at most {VALUE_BYTES_MAX} can be kept"),
    ],
)
def test_operation_that_could_not_be_read_back_is_refused(operation: Any, kind: Any, why: str) -> None:
    """It is told with its stream, op_id and the path of the bad field, before the store is asked."""
    with pytest.raises(InvalidOperationError, match=why) as caught:
        append(Memory(), ("1", operation), kind=kind)

    assert (caught.value.stream, caught.value.op_id, caught.value.position) == ("s", "1", None)


@pytest.mark.parametrize("limit", [None, 1, 10**9])
def test_limit_may_be_1_or_more(limit: int | None) -> None:
    """Or nothing at all."""
    operations.check_limit(limit)


@pytest.mark.parametrize("limit, error", [(0, ValueError), (-1, ValueError), (True, TypeError), ("1", TypeError)])
def test_limit_of_no_use_is_refused(limit: Any, error: type[Exception]) -> None:
    """The message has the argument's name."""
    with pytest.raises(error, match="concurrency must be"):
        operations.check_count(limit, "concurrency")


# Reading


def test_page_is_bounded() -> None:
    """One read looks at no more than a page, however much is asked for."""
    seen: list[int] = []

    class View:
        def operations(self, stream: str | None, after: int, limit: int) -> OperationPage:
            seen.append(limit)
            return OperationPage([], after, True)

    for limit in (1, PAGE_RECORDS, PAGE_RECORDS + 1, 10**9):
        protocol = operations.page("s", 3, limit)
        next(protocol).look(View())

    assert seen == [1, PAGE_RECORDS, PAGE_RECORDS, PAGE_RECORDS]


def test_page_gives_what_the_view_found() -> None:
    """Operations of the stream past the position, through where it looked, and whether the log ended."""
    memory = Memory()
    append(memory, ("1", "a"), ("2", "b"), ("3", "c"))
    memory.page_records = 2

    first = Play(operations.page(None, 0, 10), memory).run(Read).returned
    second = Play(operations.page(None, first.through, 10), memory).run(Read).returned

    assert [stored.head.op_id for stored in first.operations + second.operations] == ["1", "2", "3"]
    assert (first.ended, second.ended) == (False, True)


def stored(payload: bytes) -> StoredOperation:
    """An operation as the store gives it."""
    return StoredOperation(4, OperationRecord("s", 2, 3, "1", "me", START, b"h" * 16, len(payload)), payload)


@pytest.mark.parametrize("is_repeated", [False, True])
def test_stored_operation_is_told_with_everything(is_repeated: bool) -> None:
    """Its epoch too, so that the keys of its effects are those of the epoch."""
    committed = operations.committed_of(stored(b'{"number":1}'), Schema(Order), is_repeated=is_repeated)

    assert committed == Committed("s", 3, 4, "1", "me", START, Order(1), is_repeated, 2)


def test_operation_that_todays_type_does_not_decode_is_told_with_its_position() -> None:
    """A changed type is no damage."""
    with pytest.raises(InvalidOperationError, match=r"Expected `int`, got `str`") as caught:
        operations.committed_of(stored(b'{"number":"x"}'), Schema(Order))

    assert (caught.value.stream, caught.value.op_id, caught.value.position) == ("s", "1", 4)


@pytest.mark.parametrize("kind", [None, Order])
def test_payload_that_is_no_json_is_damage(kind: Any) -> None:
    """It is told as such, with position and stream, whatever type was declared."""
    with pytest.raises(CorruptRecordError, match="its payload: ") as caught:
        operations.committed_of(stored(b'{"number":'), Schema(kind))

    assert (caught.value.position, caught.value.stream) == (4, "s")


# Cursors


@pytest.mark.parametrize("stream", [None, "s"])
def test_cursor_is_saved_under_its_name(stream: str | None) -> None:
    """One commit, no log record; saving again overwrites."""
    memory = Memory()
    append(memory, ("1", "a"), ("2", "b"))

    play = Play(operations.save_cursor("reader", 1, stream), memory)
    assert play.expect(Commit).settles is False
    play.finish()
    Play(operations.save_cursor("reader", Cursor(2), stream), memory).finish()

    assert memory.cursors == {"reader": CursorRow(2, stream, memory.at)}
    assert type(memory.cursors["reader"].cursor) is int
    assert memory.head() == 2


def test_saved_cursor_is_read_back() -> None:
    """It is a `Cursor`, and 0 where none was saved."""
    memory = Memory()
    memory.cursors["reader"] = CursorRow(7, None, START)

    saved = Play(operations.cursor("reader"), memory).run(Read)
    missing = Play(operations.cursor("other"), memory).run(Read)

    assert (saved.returned, missing.returned) == (7, 0)
    assert {type(saved.returned), type(missing.returned)} == {Cursor}


@pytest.mark.parametrize("cursor", [-1, 2])
def test_cursor_outside_the_log_is_not_saved(cursor: int) -> None:
    """It is held against the head inside the transaction."""
    memory = Memory()
    append(memory, ("1", "a"))

    with pytest.raises(InvalidCursorError) as caught:
        Play(operations.save_cursor("reader", cursor, None), memory).finish()

    assert (caught.value.cursor, caught.value.head) == (cursor, 1)
    assert memory.cursors == {}


@pytest.mark.parametrize(
    "name, cursor, stream, error",
    [
        ("", 0, None, ValueError),
        (None, 0, None, TypeError),
        ("c" * 256, 0, None, ValueError),
        ("c", "0", None, TypeError),
        ("c", True, None, TypeError),
        ("c", 0.0, None, TypeError),
        ("c", 0, "", ValueError),
        ("c", 0, 1, TypeError),
    ],
)
def test_cursor_of_no_use_is_refused_before_anything_is_asked(
    name: Any, cursor: Any, stream: Any, error: type[Exception]
) -> None:
    """A name as a stream's, an integer, and a stream's name or none."""
    with pytest.raises(error):
        next(operations.save_cursor(name, cursor, stream))


def test_name_of_no_cursor_is_refused() -> None:
    """An empty name was never saved under."""
    with pytest.raises(ValueError, match="a cursor's name must not be empty"):
        next(operations.cursor(""))
