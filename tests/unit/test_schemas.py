"""`journal/_core/schemas.py`: stored operations as today's type."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import pytest

from journal._core.payloads import NotOfTypeError, digest
from journal._core.requests import StoredOperation
from journal._core.schemas import Schema
from journal.errors import CorruptRecordError, InvalidOperationError
from journal.records import OperationRecord


class New(msgspec.Struct, tag="new"):
    n: int = 0


class Other(msgspec.Struct, tag="other"):
    n: int = 0


class Named(msgspec.Struct, tag="named", tag_field="kind"):
    n: int = 0


class Row(msgspec.Struct, tag=2, array_like=True):
    n: int = 0


class Plain(msgspec.Struct):
    n: int = 0


def renew(old: Any) -> Any:
    """The newer shape of an object with the tag `old`."""
    return {"type": "new", "n": old["m"]}


def stored(payload: bytes) -> StoredOperation:
    return StoredOperation(9, OperationRecord("s", 1, 1, "o", "", 0, digest(payload), len(payload)), payload)


@pytest.mark.parametrize("kind", [New, New | Other, Annotated[New | Other, msgspec.Meta(title="x")], New | None])
def test_tag_of_any_tagged_type_is_found(kind: Any) -> None:
    """In unions, annotated or not, and alone."""
    schema = Schema(kind, {"old": renew})

    assert schema.decode(b'{"type":"old","m":3}') == New(3)
    assert schema.decode(b'{"type":"new","n":4}') == New(4)


@pytest.mark.parametrize(
    "kind, payload, tag",
    [
        (Named, b'{"kind":"old"}', "old"),
        (Named, b'{"type":"named","kind":"old"}', "old"),
        (Row, b'["old",1]', "old"),
        (Row, b"[7]", 7),
        (New, b'{"type":"old","n":[{"type":"new"}]}', "old"),
    ],
)
def test_unknown_tag_is_named(kind: Any, payload: bytes, tag: Any) -> None:
    """With the advice."""
    with pytest.raises(NotOfTypeError, match="upcast= has no function for it") as caught:
        Schema(kind).decode(payload)

    assert f"its tag {tag!r} is none of that type's" in str(caught.value)


@pytest.mark.parametrize(
    "kind, payload",
    [
        (New, b'{"type":"new","n":"x"}'),
        (New, b"[]"),
        (New, b'{"type":true}'),
        (New, b'{"type":1.5}'),
        (Row, b"[]"),
        (Row, b"{}"),
        (Row, b"3"),
        (Plain, b'{"n":"x"}'),
        (int, b'"x"'),
    ],
)
def test_without_a_strange_tag_the_type_speaks_for_itself(kind: Any, payload: bytes) -> None:
    """What is wrong then is no matter of tags."""
    with pytest.raises(NotOfTypeError) as caught:
        Schema(kind).decode(payload)

    assert "upcast" not in str(caught.value)


@pytest.mark.parametrize("payload", [b'{"type":true,"n":1}', b'{"type":1.0}', b'{"type":null}', b"{}", b"[1]", b"1"])
def test_tag_is_a_str_or_an_int(payload: bytes) -> None:
    """`true` and `1.0` are no 1."""
    schema = Schema(None, {1: lambda _: pytest.fail("it has no such tag")})

    assert schema.decode(payload) == msgspec.json.decode(payload)


def test_upcast_gets_builtins_of_its_own() -> None:
    """Each time anew, to change as it likes."""

    def change(old: Any) -> Any:
        old["type"] = "new"
        old["n"] = len(old.pop("items"))
        return old

    schema = Schema(New, {"old": change})

    assert [schema.decode(b'{"type":"old","items":[1,2]}') for _ in range(2)] == [New(2), New(2)]


@pytest.mark.parametrize("made", [[2, 5], Row(5)])
def test_upcast_of_an_array_ends_with_what_has_no_old_tag(made: Any) -> None:
    """Builtins, or an instance of the type itself."""
    assert Schema(Row, {1: lambda _: made}).decode(b"[1]") == Row(5)


@pytest.mark.parametrize("made", [[], {}, None, [True]])
def test_upcast_to_what_has_no_tag_is_read_as_it_is(made: Any) -> None:
    """Without a declared type."""
    assert Schema(None, {"old": lambda _: made}).decode(b'{"type":"old"}') == made


def test_circle_of_upcasts_is_refused() -> None:
    """Instead of going on for ever."""
    upcast = {"a": lambda _: {"type": "b"}, "b": lambda _: {"type": "c"}, "c": lambda _: {"type": "b"}}

    with pytest.raises(NotOfTypeError, match="leads from tag 'b' back to it"):
        Schema(None, upcast).decode(b'{"type":"a"}')


@pytest.mark.parametrize("made", [{"type": "new", "n": "x"}, {"type": "old2"}, object(), 3])
def test_upcast_to_what_the_type_does_not_read_is_refused(made: Any) -> None:
    """With the tag that it began with."""
    with pytest.raises(NotOfTypeError, match="what upcast= made of its tag 'old' cannot be read"):
        Schema(New, {"old": lambda _: made}).decode(b'{"type":"old"}')


def test_payload_that_is_no_json_is_damage() -> None:
    """With or without an upcast."""
    for schema in (Schema(), Schema(New), Schema(New, {"old": renew})):
        with pytest.raises(CorruptRecordError) as caught:
            schema.operation_of(stored(b'{"type":'))
        assert (caught.value.position, caught.value.stream) == (9, "s")


def test_error_says_which_operation_and_why() -> None:
    """The exception that a user's function raised is the cause."""
    with pytest.raises(InvalidOperationError) as caught:
        Schema(New, {"old": renew}).operation_of(stored(b'{"type":"old"}'))

    assert isinstance(caught.value.__cause__, KeyError)
    assert (caught.value.position, caught.value.op_id, caught.value.was_read) == (9, "o", False)


@pytest.mark.parametrize(
    "schema, payload, is_same",
    [
        (Schema(), b'{"type":"new","n":0}', False),
        (Schema(New), b'{"type":"new","n":0}', True),
        (Schema(New), b'{"type":"new","n":1}', False),
        (Schema(Other), b'{"type":"new","n":0}', False),
        (Schema(None, {"new": lambda _: 7}), b"7", True),
    ],
)
def test_stored_operation_is_what_todays_type_writes(schema: Schema, payload: bytes, is_same: bool) -> None:
    """Read and written again; what cannot be read is nothing else's twin."""
    assert schema.is_same(stored(b'{"type":"new"}'), payload) is is_same


@pytest.mark.parametrize("upcast", [["old"], {None: renew}, {True: renew}, {1.5: renew}, {"old": None}])
def test_useless_upcasts_are_refused(upcast: Any) -> None:
    """With what is wrong with them."""
    with pytest.raises(TypeError, match="upcast"):
        Schema(None, upcast)
