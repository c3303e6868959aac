"""`append` and `append_all`: identity, expectation, names, and what a refusal leaves."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from journal import (
    Committed,
    IdentityConflictError,
    InvalidOperationError,
    Journal,
    JournalError,
    SequenceConflictError,
)

from .support import START, Clock, Peer, accept, nested


class Item(msgspec.Struct):
    name: str
    count: int


class Order(msgspec.Struct):
    total: int
    items: list[Item] = []


def committed(answer: Any) -> Committed:
    """Gives the answer as what it must be here."""
    assert isinstance(answer, Committed)
    return answer


def test_append_says_what_it_committed(j: Journal) -> None:
    """The answer carries stream, sequence, position, identity, actor, time and operation."""
    c = committed(j.append("orders", {"n": 1}, op_id="o-1", actor="ann"))

    assert (c.stream, c.sequence, c.position, c.op_id, c.actor, c.at, c.operation, c.repeated) == (
        "orders",
        1,
        1,
        "o-1",
        "ann",
        START,
        {"n": 1},
        False,
    )
    assert isinstance(c.position, int)


def test_actor_is_empty_unless_given(j: Journal) -> None:
    """Only the actor may be empty, and it is by default."""
    assert committed(j.append("s", 1, op_id="1")).actor == ""


def test_sequences_count_in_their_stream_and_positions_in_the_log(j: Journal) -> None:
    """Sequences start at 1 in each stream and have no gap; positions run over all record kinds."""
    a1 = committed(j.append("a", 1, op_id="1"))
    b1 = committed(j.append("b", 1, op_id="1"))
    accept(j, "k")
    j.step("k", lambda: 1)
    a2 = committed(j.append("a", 2, op_id="2"))

    assert [(c.sequence, c.position) for c in (a1, b1, a2)] == [(1, 1), (1, 2), (2, 6)]
    assert [event.position for event in j.history("k")] == [3, 4]
    assert j.head() == 6


def test_time_is_the_clock_at_each_append(j: Journal, clock: Clock) -> None:
    """`at` is what `clock` showed, in nanoseconds."""
    j.append("s", 1, op_id="1")
    later = clock.advance()
    j.append("s", 2, op_id="2")

    assert [c.at for c in j.read()] == [START, later]


# Identity


def test_resend_is_answered_with_the_first_commit(j: Journal, clock: Clock) -> None:
    """The same op_id, payload and actor give the first answer, marked as repeated, and write nothing."""
    first = committed(j.append("s", {"a": 1, "b": [2]}, op_id="1", actor="ann"))
    j.append("s", 2, op_id="2")
    clock.advance()

    again = committed(j.append("s", {"b": [2], "a": 1}, op_id="1", actor="ann"))

    assert again == msgspec.structs.replace(first, repeated=True)
    assert j.head() == 2


def test_identity_counts_in_its_stream(j: Journal) -> None:
    """The same op_id in another stream is another operation."""
    j.append("a", 1, op_id="1")

    assert committed(j.append("b", 2, op_id="1")).repeated is False


@pytest.mark.parametrize(
    "other",
    [{"operation": {"n": 2}}, {"actor": "bob"}, {"operation": {"n": True}}, {"operation": {"n": "1"}}],
    ids=["payload", "actor", "bool", "text"],
)
def test_other_payload_or_actor_under_one_op_id_is_a_conflict(j: Journal, other: dict[str, Any]) -> None:
    """Another payload or actor under a known op_id is refused, and nothing is written."""
    first: dict[str, Any] = {"operation": {"n": 1}, "actor": "ann"}
    j.append("s", first["operation"], op_id="1", actor=first["actor"])
    sent = {**first, **other}

    with pytest.raises(IdentityConflictError) as caught:
        j.append("s", sent["operation"], op_id="1", actor=sent["actor"])

    assert (caught.value.stream, caught.value.op_id) == ("s", "1")
    assert j.head() == 1
    assert committed(j.append("s", {"n": 1}, op_id="1", actor="ann")).repeated


def test_order_of_list_items_is_part_of_the_payload(j: Journal) -> None:
    """Map order does not matter, list order does."""
    j.append("s", [1, 2], op_id="1")

    with pytest.raises(IdentityConflictError):
        j.append("s", [2, 1], op_id="1")


def test_map_order_does_not_matter_at_any_depth(j: Journal) -> None:
    """Payload identity is over a canonical encoding."""
    j.append("s", {"x": [{"a": {"p": 1, "q": 2}, "b": 2}]}, op_id="1")

    assert committed(j.append("s", {"x": [{"b": 2, "a": {"q": 2, "p": 1}}]}, op_id="1")).repeated


def test_resend_is_known_after_reopening(open_journal: Callable[..., Journal]) -> None:
    """Identity is kept with the operation, not in the handle."""
    j = open_journal()
    j.append("s", {"a": 1}, op_id="1")
    j.close()

    assert committed(open_journal().append("s", {"a": 1}, op_id="1")).repeated


# expected


@pytest.mark.parametrize("at", [0, 1, 3])
def test_expected_sequence_is_where_the_stream_must_be(j: Journal, at: int) -> None:
    """`expected` is the last sequence of the stream; 0 says that it is empty."""
    for index in range(at):
        j.append("s", index, op_id=str(index))

    assert committed(j.append("s", "new", op_id="new", expected=at)).sequence == at + 1


@pytest.mark.parametrize("expected", [0, 1, 3, 100])
def test_other_sequence_is_a_conflict(j: Journal, expected: int) -> None:
    """Where the stream is elsewhere, the append is refused with both numbers, and consumes nothing."""
    j.append("s", 1, op_id="1")
    j.append("s", 2, op_id="2")

    with pytest.raises(SequenceConflictError) as caught:
        j.append("s", 3, op_id="3", expected=expected)

    assert (caught.value.stream, caught.value.sequence, caught.value.expected) == ("s", 2, expected)
    assert j.head() == 2
    assert committed(j.append("s", "another", op_id="3")).sequence == 3


def test_expected_counts_only_its_own_stream(j: Journal) -> None:
    """Other streams do not move the expectation."""
    j.append("a", 1, op_id="1")

    assert committed(j.append("b", 1, op_id="1", expected=0)).sequence == 1


def test_identity_is_decided_before_the_expectation(j: Journal) -> None:
    """A resend is answered although its expectation has become stale; a conflict is told before a stale one."""
    j.append("s", 1, op_id="1", expected=0)
    j.append("s", 2, op_id="2", expected=1)

    assert committed(j.append("s", 1, op_id="1", expected=0)).repeated
    with pytest.raises(IdentityConflictError):
        j.append("s", "other", op_id="1", expected=0)


# append_all


def test_append_all_commits_each_in_order(j: Journal) -> None:
    """One call gives one answer for each operation, with consecutive sequences and positions."""
    j.append("s", 0, op_id="0")

    answers = [committed(c) for c in j.append_all("s", [("1", "a"), ("2", "b"), ("3", "c")], actor="ann", expected=1)]

    assert [(c.op_id, c.sequence, c.position, c.operation, c.actor, c.repeated) for c in answers] == [
        ("1", 2, 2, "a", "ann", False),
        ("2", 3, 3, "b", "ann", False),
        ("3", 4, 4, "c", "ann", False),
    ]
    assert [c.operation for c in j.read("s")] == [0, "a", "b", "c"]


def test_append_all_of_nothing_writes_nothing(j: Journal) -> None:
    """No operations: an empty list, and no stream comes into being."""
    assert j.append_all("s", []) == []
    assert (j.head(), j.streams()) == (0, [])


def test_append_all_answers_what_is_known_and_appends_the_rest(j: Journal) -> None:
    """Known op_ids are answered as repeated in their place; the others are new."""
    j.append("s", "b", op_id="2")

    answers = [committed(c) for c in j.append_all("s", [("1", "a"), ("2", "b"), ("3", "c")])]

    assert [(c.op_id, c.sequence, c.repeated) for c in answers] == [("1", 2, False), ("2", 1, True), ("3", 3, False)]
    assert j.head() == 3


def test_append_all_resent_as_a_whole_is_answered(j: Journal) -> None:
    """The identity comes first, also where the expectation has become stale."""
    first = j.append_all("s", [("1", "a"), ("2", "b")], expected=0)

    again = j.append_all("s", [("1", "a"), ("2", "b")], expected=0)

    assert [c.position for c in again] == [c.position for c in first]
    assert all(committed(c).repeated for c in again)
    assert j.head() == 2


def test_op_id_twice_in_one_call_is_answered_as_repeated(j: Journal) -> None:
    """The second of two equal op_ids in one call is a resend of the first."""
    answers = [committed(c) for c in j.append_all("s", [("1", "a"), ("1", "a"), ("2", "b")])]

    assert [(c.position, c.repeated) for c in answers] == [(1, False), (1, True), (2, False)]
    assert j.head() == 2


def test_op_id_twice_with_other_payload_in_one_call_is_a_conflict(j: Journal) -> None:
    """Within one call as between calls: another payload under one op_id is refused, and nothing is written."""
    with pytest.raises(IdentityConflictError):
        j.append_all("s", [("1", "a"), ("1", "b")])

    assert (j.head(), j.streams()) == (0, [])


REFUSALS: dict[str, tuple[list[tuple[str, Any]], int | None, type[JournalError]]] = {
    "identity": ([("new", 1), ("known", "other")], None, IdentityConflictError),
    "sequence": ([("new", 1), ("newer", 2)], 7, SequenceConflictError),
    "value": ([("new", 1), ("newer", {1, 2})], None, InvalidOperationError),
}


@pytest.mark.parametrize("why", REFUSALS)
def test_append_all_is_all_or_nothing(j: Journal, why: str) -> None:
    """One refused operation refuses the call, and consumes no sequence, position or op_id."""
    operations, expected, error = REFUSALS[why]
    j.append("s", "first", op_id="known")

    with pytest.raises(error):
        j.append_all("s", operations, expected=expected)

    assert j.head() == 1
    c = committed(j.append("s", "elsewise", op_id="new"))
    assert (c.sequence, c.position, c.repeated) == (2, 2, False)


# Names

LONG = {"stream": 255, "op_id": 4096, "actor": 4096}


def append_named(j: Journal, **names: Any) -> Any:
    """Appends with one name as given and the others plain."""
    given = {"stream": "s", "op_id": "1", "actor": "ann", **names}
    return j.append(given["stream"], 1, op_id=given["op_id"], actor=given["actor"])


@pytest.mark.parametrize("character", ["x", "é", "😀", "\x00"])
@pytest.mark.parametrize("name", LONG)
def test_longest_name_is_taken_as_it_is(j: Journal, name: str, character: str) -> None:
    """Lengths count bytes of UTF-8, and the limit itself is allowed."""
    longest = character * (LONG[name] // len(character.encode()))

    append_named(j, **{name: longest})

    assert [getattr(c, name) for c in j.read()] == [longest]


@pytest.mark.parametrize("character", ["x", "é", "😀"])
@pytest.mark.parametrize("name", LONG)
def test_longer_name_is_refused(j: Journal, name: str, character: str) -> None:
    """One byte more is a `ValueError`, and nothing is written."""
    with pytest.raises(ValueError):
        append_named(j, **{name: character * (LONG[name] // len(character.encode()) + 1)})

    assert j.head() == 0


@pytest.mark.parametrize("name", ["stream", "op_id"])
def test_empty_name_is_refused(j: Journal, name: str) -> None:
    """Only the actor may be empty."""
    with pytest.raises(ValueError):
        append_named(j, **{name: ""})

    assert j.head() == 0


@pytest.mark.parametrize("name", LONG)
def test_name_that_is_no_utf8_is_refused(j: Journal, name: str) -> None:
    """A lone surrogate has no UTF-8."""
    with pytest.raises(ValueError):
        append_named(j, **{name: "a\ud800"})

    assert j.head() == 0


@pytest.mark.parametrize("value", [None, 1, b"s", ("s",)], ids=repr)
@pytest.mark.parametrize("name", LONG)
def test_name_that_is_no_string_is_refused(j: Journal, name: str, value: Any) -> None:
    """Wrong use raises `TypeError` or `ValueError`, and nothing is written."""
    with pytest.raises((TypeError, ValueError)):
        append_named(j, **{name: value})

    assert j.head() == 0


def test_names_are_compared_code_point_by_code_point(j: Journal) -> None:
    """Streams that look alike, or begin alike, are different streams."""
    names = ["a", "a\x00", "a\x00b", "A", "é", "e\u0301", "x" * 255, "x" * 254]

    for name in names:
        j.append(name, name, op_id="1")

    assert j.streams() == sorted(names)
    for name in names:
        assert [c.operation for c in j.read(name)] == [name]


def test_long_op_ids_with_one_beginning_are_different(j: Journal) -> None:
    """The whole op_id is the identity."""
    op_ids = ["x" * 600 + end for end in ("a", "b", "")]

    for op_id in op_ids:
        assert not committed(j.append("s", op_id, op_id=op_id)).repeated

    assert [c.op_id for c in j.read("s")] == op_ids
    assert committed(j.append("s", op_ids[1], op_id=op_ids[1])).sequence == 2


# Values


@pytest.mark.parametrize(
    "operation",
    [None, True, False, 0, -1, 2**63 - 1, 1.5, "", "é😀\x00", [], {}, {"": None}, [[{"a": [1, "2", 3.0]}]]],
    ids=repr,
)
def test_plain_operation_comes_back_equal(j: Journal, operation: Any) -> None:
    """Without a declared type, what JSON knows comes back as it was, in the answer as in every read."""
    c = committed(j.append("s", operation, op_id="1"))

    (read,) = j.read()
    assert c.operation == read.operation == operation
    assert type(c.operation) is type(read.operation) is type(operation)


@pytest.mark.parametrize(
    "operation",
    [
        float("nan"),
        (1, 2),
        {1, 2},
        {1: 2},
        Order(1),
        object(),
        {"field": (1,)},
        [{"field": float("nan")}],
        "\ud800",
        nested(129),
    ],
    ids=["nan", "tuple", "set", "int key", "struct", "object", "tuple inside", "nan inside", "surrogate", "too deep"],
)
def test_operation_that_would_not_come_back_equal_is_refused(j: Journal, operation: Any) -> None:
    """Without a declared type an operation must come back equal; a refused one consumes nothing."""
    with pytest.raises(InvalidOperationError):
        j.append("s", operation, op_id="1")

    assert (j.head(), j.streams()) == (0, [])
    assert committed(j.append("s", 1, op_id="1")).sequence == 1


def test_refusal_names_the_bad_field(j: Journal) -> None:
    """The message of a refusal has the path of what would not come back."""
    with pytest.raises(InvalidOperationError, match="amounts"):
        j.append("s", {"fine": 1, "amounts": (1, 2)}, op_id="1")


def test_answer_is_detached_from_what_was_given(j: Journal) -> None:
    """The operation is what was committed, whatever happens to the value that was given."""
    given = {"list": [1]}
    c = committed(j.append("s", given, op_id="1"))
    given["list"].append(2)

    assert c.operation == {"list": [1]}
    assert [r.operation for r in j.read()] == [{"list": [1]}]


def test_declared_type_comes_back_as_itself(open_journal: Callable[..., Journal]) -> None:
    """With `operation=T` answers and reads give a `T`."""
    j = open_journal(operation=Order)

    c = committed(j.append("s", Order(3, [Item("pen", 2)]), op_id="1"))

    (read,) = j.read()
    assert c.operation == read.operation == Order(3, [Item("pen", 2)])
    assert committed(j.append("s", Order(3, [Item("pen", 2)]), op_id="1")).operation == read.operation


def test_what_the_declared_type_could_not_read_back_is_refused(open_journal: Callable[..., Journal]) -> None:
    """A struct is not checked when it is built, so it is at `append`, with the path of the bad field."""
    j = open_journal(operation=Order)

    with pytest.raises(InvalidOperationError, match=r"count"):
        j.append("s", Order(1, [Item("pen", "two")]), op_id="1")  # type: ignore[arg-type]  # the wrong type is what is tested

    assert j.head() == 0


def test_union_of_types_comes_back_as_the_right_one(open_journal: Callable[..., Journal]) -> None:
    """A tagged union is a declared type like any other."""

    class Opened(msgspec.Struct, tag=True, frozen=True):
        by: str

    class Closed(msgspec.Struct, tag=True, frozen=True):
        why: str

    j = open_journal(operation=Opened | Closed)
    j.append("s", Opened("ann"), op_id="1")
    j.append("s", Closed("done"), op_id="2")

    assert [c.operation for c in j.read()] == [Opened("ann"), Closed("done")]


def test_large_operation_is_kept(j: Journal) -> None:
    """An operation may have 16 MiB."""
    large = "x" * (16 * 1024 * 1024 - 1024)

    j.append("s", large, op_id="1")

    assert [c.operation == large for c in j.read()] == [True]


def test_larger_operation_is_refused(j: Journal) -> None:
    """More than 16 MiB is refused and consumes nothing."""
    with pytest.raises(InvalidOperationError):
        j.append("s", "x" * (16 * 1024 * 1024 + 1), op_id="1")

    assert j.head() == 0


# Durability and other processes


def test_acknowledged_appends_survive_the_death_of_their_process(j: Journal, start_peer: Callable[..., Peer]) -> None:
    """What `append` acknowledged is there after a SIGKILL."""
    peer = start_peer("append", stream="s", op_ids=["1", "2", "3"], after="die")
    peer.hear("opened")
    told = [peer.hear("appended")["position"] for _ in range(3)]
    peer.wait_until_dead()

    assert [c.position for c in j.read("s")] == told == [1, 2, 3]


def test_resend_from_another_process_is_answered(j: Journal, start_peer: Callable[..., Peer]) -> None:
    """Identity holds between processes, also for a handle that was open all the time."""
    peer = start_peer("append", stream="s", op_ids=["1"])
    peer.hear("opened")
    peer.hear("appended")

    c = committed(j.append("s", {"op": "1"}, op_id="1"))

    assert (c.position, c.repeated) == (1, True)
    with pytest.raises(IdentityConflictError):
        j.append("s", "other", op_id="1")
    with pytest.raises(SequenceConflictError):
        j.append("s", "new", op_id="2", expected=0)
    peer.finish()
