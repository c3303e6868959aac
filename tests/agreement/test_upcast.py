"""`upcast`: operations of older types, read as today's."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from journal import (
    Committed,
    IdentityConflictError,
    Intent,
    InvalidOperationError,
    Journal,
    Reducer,
)

Open = Callable[..., Journal]


class Opened(msgspec.Struct, tag="opened"):
    name: str


class Renamed(msgspec.Struct, tag="renamed"):
    to: str
    by: str = "nobody"


class Placed(msgspec.Struct, tag="placed", tag_field="kind"):
    """Its tag stands in a field of its own."""

    total: int


class Row(msgspec.Struct, tag=2, array_like=True):
    """Its tag is the first item of an array."""

    a: int
    b: int


def write(open_journal: Open, *operations: Any, **options: Any) -> None:
    """Appends operations as an application wrote them long ago."""
    j = open_journal(**options)
    for number, operation in enumerate(operations, 1):
        j.append("s", operation, op_id=str(number))
    j.close()


def operations_of(j: Journal) -> list[Any]:
    return [c.operation for c in j.read()]


def test_old_tag_is_read_as_todays_type(open_journal: Open) -> None:
    """Others are not touched."""
    write(open_journal, {"type": "created", "title": "a"}, {"type": "opened", "name": "b"})
    j = open_journal(
        operation=Opened | Renamed, upcast={"created": lambda old: {"type": "opened", "name": old["title"]}}
    )

    assert operations_of(j) == [Opened("a"), Opened("b")]


@pytest.mark.parametrize(
    "kind, old, upcast, new",
    [
        (
            Placed,
            {"kind": "ordered", "sum": 3},
            {"ordered": lambda o: {"kind": "placed", "total": o["sum"]}},
            Placed(3),
        ),
        (Row, [1, 5], {1: lambda o: [2, *o[1:], 0]}, Row(5, 0)),
        (Any, {"type": "old"}, {"old": lambda o: {**o, "type": "new"}}, {"type": "new"}),
        (dict[str, int], {"type": 1, "n": 2}, {1: lambda o: {"n": o["n"]}}, {"n": 2}),
        (Opened, {"type": 7}, {7: lambda _: Opened("struct")}, Opened("struct")),
        (Row, [1, 5], {1: lambda _: [2, 5, 6]}, Row(5, 6)),
    ],
)
def test_tag_stands_where_the_declared_type_has_it(
    open_journal: Open, kind: Any, old: Any, upcast: Any, new: Any
) -> None:
    """In its tag field, `type` where it names none, at index 0 of an array."""
    write(open_journal, old)

    assert operations_of(open_journal(operation=kind, upcast=upcast)) == [new]


def test_upcasts_follow_each_other(open_journal: Open) -> None:
    """From version to version, each function knows only the next one."""
    write(open_journal, {"type": "v1", "n": "a"}, {"type": "v2", "name": "b"})

    def second(old: Any) -> Any:
        old["type"] = "v2"
        old["name"] = old.pop("n")
        return old

    j = open_journal(operation=Opened, upcast={"v1": second, "v2": lambda old: {"type": "opened", "name": old["name"]}})

    assert operations_of(j) == [Opened("a"), Opened("b")]
    assert operations_of(j) == [Opened("a"), Opened("b")]


@pytest.mark.parametrize(
    "upcast, why",
    [
        ({"old": lambda old: old["gone"]}, "upcast= of its tag 'old' raised KeyError"),
        ({"old": lambda _: {"type": "opened"}}, "made of its tag 'old' cannot be read.*name"),
        ({"old": lambda _: {"type": "unheard"}}, "made of its tag 'old' cannot be read.*unheard"),
        ({"old": lambda _: object()}, "made of its tag 'old' cannot be read"),
        ({"old": lambda _: None}, "made of its tag 'old' cannot be read"),
        ({"old": lambda _: {"type": ["x"]}}, "made of its tag 'old' cannot be read"),
        ({"old": lambda old: old}, "leads from tag 'old' back"),
        ({"old": lambda _: {"type": "older"}, "older": lambda _: {"type": "old"}}, "leads from tag 'old' back"),
        (None, "its tag 'old' is none of that type's"),
        ({"other": lambda old: old}, "its tag 'old' is none of that type's"),
    ],
)
def test_what_cannot_be_read_names_position_and_tag(open_journal: Open, upcast: Any, why: str) -> None:
    """At `read`, `load`, `recover` and a repeated answer; never a silent default."""
    write(open_journal, {"type": "opened", "name": "a"}, {"type": "old"})
    j = open_journal(operation=Opened | Renamed, upcast=upcast, state=Reducer(list, lambda state, _: state, list[int]))
    reader = iter(j.read())
    assert next(reader).operation == Opened("a")
    calls: list[Callable[[], Any]] = [
        lambda: next(reader),
        lambda: j.load("s"),
        lambda: j.recover(intents=lambda _: []),
        lambda: j.append("s", Opened("b"), op_id="3"),
    ]
    for call in calls:
        with pytest.raises(InvalidOperationError, match=why) as caught:
            call()
        assert (caught.value.position, caught.value.op_id, caught.value.stream) == (2, "2", "s")
        assert "at position 2" in str(caught.value)
        assert "upcast=" in str(caught.value)
    assert j.head() == 2


def test_error_of_an_upcast_is_the_cause(open_journal: Open) -> None:
    """The very exception."""
    error = LookupError("not there")

    def fail(_: Any) -> Any:
        raise error

    write(open_journal, {"type": "old"})
    with pytest.raises(InvalidOperationError) as caught:
        operations_of(open_journal(operation=Opened, upcast={"old": fail}))

    assert caught.value.__cause__ is error


def test_upcast_is_seen_by_everybody(open_journal: Open) -> None:
    """By `read`, `recover`, a reducer, the hooks, and in answers, first and repeated."""
    write(open_journal, {"type": "old", "n": "a"})
    seen: list[Any] = []

    def apply(names: list[str], operation: Opened) -> list[str]:
        return [*names, operation.name]

    j = open_journal(
        operation=Opened,
        upcast={"old": lambda old: {"type": "opened", "name": old["n"]}},
        state=Reducer(list, apply, list[str]),
        validate=lambda operation, state: seen.append((operation, state)),
    )
    j.append("s", Opened("b"), op_id="2")

    def intents(committed: Committed) -> list[Intent]:
        seen.append(committed.operation)
        return []

    j.recover(intents=intents)

    assert j.load("s").state == ["a", "b"]
    assert seen == [(Opened("b"), ["a"]), Opened("a"), Opened("b")]


def test_answer_of_an_append_is_what_a_read_gives(open_journal: Open) -> None:
    """Also where what is appended has an old tag."""
    j = open_journal(upcast={"old": lambda old: {**old, "type": "new"}})

    first = j.append("s", {"type": "old"}, op_id="1")
    again = j.append("s", {"type": "old"}, op_id="1")

    assert isinstance(first, Committed)
    assert first.operation == next(iter(j.read())).operation == {"type": "new"}
    assert again == msgspec.structs.replace(first, repeated=True)


def test_appended_operation_that_its_upcast_breaks_is_refused(open_journal: Open) -> None:
    """It could not be read afterwards."""
    j = open_journal(upcast={"old": lambda old: old})
    with pytest.raises(InvalidOperationError, match="back to it"):
        j.append("s", {"type": "old"}, op_id="1")

    assert j.head() == 0


# Identity


class Wider(msgspec.Struct, tag="opened"):
    """`Opened` with a field more."""

    name: str
    rank: int = 0


def test_resend_in_a_wider_type_is_the_same_operation(open_journal: Open) -> None:
    """What was stored, read as today's type, is what is sent: repeated, and no conflict."""
    write(open_journal, Opened("a"), operation=Opened)
    j = open_journal(operation=Wider)

    again = j.append("s", Wider("a"), op_id="1")

    assert isinstance(again, Committed)
    assert (again.repeated, again.operation, again.position) == (True, Wider("a"), 1)
    for other in (Wider("a", 1), Wider("b")):
        with pytest.raises(IdentityConflictError):
            j.append("s", other, op_id="1")
    with pytest.raises(IdentityConflictError):
        j.append("s", Wider("a"), op_id="1", actor="ann")
    assert j.head() == 1


def test_resend_in_an_upcast_type_is_the_same_operation(open_journal: Open) -> None:
    """Also where the type has another name now."""
    write(open_journal, {"type": "old", "n": "a"})
    j = open_journal(operation=Opened, upcast={"old": lambda old: {"type": "opened", "name": old["n"]}})

    again = j.append("s", Opened("a"), op_id="1")

    assert isinstance(again, Committed)
    assert again.repeated
    with pytest.raises(IdentityConflictError):
        j.append("s", Opened("b"), op_id="1")


def test_what_cannot_be_read_is_not_the_same_operation(open_journal: Open) -> None:
    """Then it is a conflict."""
    write(open_journal, {"type": "old"})
    j = open_journal(operation=Opened)
    with pytest.raises(IdentityConflictError):
        j.append("s", Opened("a"), op_id="1")
