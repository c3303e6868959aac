"""`journal/_core/payloads.py`: what can be kept of users' values, how it comes back, and why the rest is refused."""

from __future__ import annotations

import datetime
import decimal
import enum
import uuid
from typing import Any, Final

import msgspec
import pytest

from journal._core.payloads import (
    DIGEST_BYTES,
    NotOfTypeError,
    ValueRejectedError,
    check_type,
    decode_value,
    digest,
    encode_canonical,
    fingerprint,
    keep_operation,
    keep_value,
)
from journal.options import VALUE_DEPTH_MAX

LIMIT: Final = 1_000


class Order(msgspec.Struct):
    """What an application might declare."""

    number: int
    lines: list[str] = []


class Picky(msgspec.Struct):
    """A type that refuses some of its values, each with another kind of exception."""

    how: str

    def __post_init__(self) -> None:
        if self.how == "value":
            raise ValueError("too small")
        if self.how == "key":
            raise KeyError("no such thing")
        if self.how == "silent":
            raise RuntimeError


class Unequal:
    """A value whose comparison raises."""

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("not comparable")

    __hash__ = None  # type: ignore[assignment]  # as of any class that only compares


class Colour(enum.StrEnum):
    """Comes back equal: as its value."""

    RED = "red"


def nested(depth: int, inside: Any = None) -> Any:
    """Lists in each other, `depth` of them."""
    value = [] if inside is None else [inside]
    for _ in range(depth - 1):
        value = [value]
    return value


# Values without a type


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, False, 0, -1, 2**64, -(2**70), 0.5, 1.0, -0.0, 1e300, 5e-324),
        *("", "a", 'é\x00\n"\\', "\U0001f600"),
        *([], {}, [[]], {"a": [1, None, {"b": "c"}]}, {"": 1}),
        *(Colour.RED, [Colour.RED]),
    ],
    ids=repr,
)
def test_value_of_json_comes_back_equal(value: Any) -> None:
    """What JSON can say is kept, and is what every later read gives."""
    data, back = keep_value(value, None, LIMIT)

    assert back == value
    assert decode_value(data) == value


def test_value_is_detached_from_what_was_given() -> None:
    """Changing the value afterwards changes nothing that was kept."""
    value = {"lines": ["a"]}

    _, back = keep_value(value, None, LIMIT)
    value["lines"].append("b")

    assert back == {"lines": ["a"]}


@pytest.mark.parametrize(
    "value, why",
    [
        (float("nan"), r"\$ is nan, which JSON cannot say"),
        ({"a": [0, float("inf")]}, r"\$\.a\[1\] is inf, which JSON cannot say"),
        ([float("-inf")], r"\$\[0\] is -inf"),
        ((1, 2), r"\$ is of type tuple, which does not come back as it was"),
        ({"a": ({},)}, r"\$\.a is of type tuple"),
        ([1.5, None, {"b": (1,)}], r"\$\[2\]\.b is of type tuple"),
        ({1, 2}, r"\$ is of type set"),
        (b"a", r"\$ is of type bytes"),
        (datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC), r"\$ is of type datetime"),
        (decimal.Decimal("1.5"), r"\$ is of type Decimal"),
        (uuid.UUID(int=1), r"\$ is of type UUID"),
        (Order(1), r"\$ is of type Order"),
        ({1: "a"}, r"\$ has the key 1 of type int, which does not come back"),
        ([{"a": {None: 1}}], r"\$\[0\]\.a has the key None of type NoneType"),
    ],
)
def test_value_that_would_come_back_as_another_is_refused_with_its_path(value: Any, why: str) -> None:
    """Without a type only what comes back equal is kept; the message names the place and the way out."""
    with pytest.raises(ValueRejectedError, match=why):
        keep_value(value, None, LIMIT)


@pytest.mark.parametrize("value", [(1, 2), float("nan"), {1: "a"}])
def test_advice_names_the_argument_that_helps(value: Any) -> None:
    """For an effect it is `returns=`, for an operation the type that the journal is opened with."""
    with pytest.raises(ValueRejectedError, match=r"; pass returns= with its type$"):
        keep_value(value, None, LIMIT)
    with pytest.raises(ValueRejectedError, match=r"; open the journal with operation= its type$"):
        keep_operation(value, None, LIMIT)


@pytest.mark.parametrize(
    "value, why",
    [
        (object(), r"\$ is of type object"),
        ([1, {"a": object()}], r"\$\[1\]\.a is of type object"),
        ("a\ud800", r"\$ holds a lone surrogate, which does not come back"),
        (["é", {"k": "\udfff"}], r"\$\[1\]\.k holds a lone surrogate"),
        ({"n": 10**4_300}, r"it cannot be encoded: "),
        (["é", -(10**4_300)], r"it cannot be encoded: "),
    ],
)
def test_value_that_cannot_be_encoded_is_refused(value: Any, why: str) -> None:
    """The message has the path where it can be found, and the encoder's reason otherwise."""
    with pytest.raises(ValueRejectedError, match=why):
        keep_value(value, None, LIMIT)


def test_value_whose_comparison_raises_is_refused() -> None:
    """A user's `__eq__` that raises is no evidence that a value comes back."""
    with pytest.raises(ValueRejectedError, match=r"\$ is of type Unequal"):
        keep_value(Unequal(), None, LIMIT)
    with pytest.raises(ValueRejectedError, match=r"\$ is of type Odd"):
        keep_value(Odd(), None, LIMIT)


class Odd(msgspec.Struct, eq=False):
    """Is encoded, and raises when it is compared."""

    a: int = 1

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("not comparable")

    __hash__ = None  # type: ignore[assignment]  # as of any class that only compares


class Grudging(list[str]):
    """A list that is equal to nothing."""

    __hash__ = list.__hash__

    def __eq__(self, other: object) -> bool:
        return False


def test_value_without_a_place_to_name_is_refused_all_the_same() -> None:
    """Where every part is JSON's and the whole is not equal, the message says just that."""
    with pytest.raises(ValueRejectedError, match=r"^it does not come back equal; pass returns="):
        keep_value(Grudging("a"), None, LIMIT)


# Values with a type


@pytest.mark.parametrize(
    "value, kind",
    [
        (Order(1, ["a"]), Order),
        ((1, "a"), tuple[int, str]),
        ({1, 2}, set[int]),
        (b"a\xff", bytes),
        (datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC), datetime.datetime),
        ({1: "a"}, dict[int, str]),
        ([Order(2)], list[Order]),
        (None, Order | None),
    ],
    ids=repr,
)
def test_typed_value_comes_back_as_its_type(value: Any, kind: Any) -> None:
    """With a type, the value is what that type decodes from the bytes, then as later."""
    data, back = keep_value(value, kind, LIMIT)

    assert back == value
    assert decode_value(data, kind) == value


def test_type_may_turn_one_value_into_another() -> None:
    """What `returns=` decodes is what the call gives, not what `run` returned."""
    _, back = keep_value({"number": 3}, Order, LIMIT)

    assert back == Order(3)


@pytest.mark.parametrize(
    "value, kind, why",
    [
        ("a", int, r"it does not come back as <class 'int'>: Expected `int`, got `str`"),
        ({"number": "x"}, Order, r"Expected `int`, got `str` - at `\$\.number`"),
        ({"number": 1, "lines": [2]}, Order, r"Expected `str`, got `int` - at `\$\.lines\[0\]`"),
        (Order("x"), Order, r"Expected `int`, got `str` - at `\$\.number`"),  # type: ignore[arg-type]  # msgspec checks nothing when a Struct is built
        (float("nan"), float, r"Expected `float`, got `null`"),
        ({"how": "value"}, Picky, r"too small"),
        ({"how": "key"}, Picky, r"'no such thing'"),
        ({"how": "silent"}, Picky, r"RuntimeError"),
    ],
)
def test_value_that_its_type_does_not_decode_is_refused(value: Any, kind: Any, why: str) -> None:
    """The message has msgspec's path or the reason of the type's own check, whatever that raises."""
    with pytest.raises(ValueRejectedError, match=why):
        keep_value(value, kind, LIMIT)
    with pytest.raises(ValueRejectedError, match=why):
        keep_operation(value, kind, LIMIT)


def test_typed_value_that_cannot_be_encoded_is_refused() -> None:
    """A type does not help where there is no JSON."""
    with pytest.raises(ValueRejectedError, match=r"^it cannot be encoded: "):
        keep_value(object(), Order, LIMIT)


# Limits


def test_value_is_limited_in_bytes_of_its_json() -> None:
    """The longest that fits is kept, a byte more is refused with both numbers."""
    assert len(keep_value("a" * (LIMIT - 2), None, LIMIT)[0]) == LIMIT
    with pytest.raises(ValueRejectedError, match=f"it has {LIMIT + 1} bytes as JSON, at most {LIMIT} can be kept"):
        keep_value("a" * (LIMIT - 1), None, LIMIT)


@pytest.mark.parametrize("kind", [None, Any, list[Any]])
@pytest.mark.parametrize("inside", [None, 1, "a", '["', '\\"]', "[" * 300, "]" * 300])
def test_value_is_limited_in_depth(kind: Any, inside: Any) -> None:
    """So many levels are kept and one more is refused; brackets in strings are none."""
    keep_value(nested(VALUE_DEPTH_MAX, inside), kind, 10_000)

    with pytest.raises(ValueRejectedError, match=f"nested deeper than {VALUE_DEPTH_MAX} levels"):
        keep_value(nested(VALUE_DEPTH_MAX + 1, inside), kind, 10_000)


def test_maps_count_as_levels() -> None:
    """A map inside a list inside a map is three levels."""
    value: Any = {}
    for _ in range(VALUE_DEPTH_MAX - 1):
        value = {"k": value}

    keep_value(value, None, 10_000)
    with pytest.raises(ValueRejectedError, match="nested deeper"):
        keep_value([value], None, 10_000)


def test_wide_value_is_not_deep() -> None:
    """Many brackets beside each other are one level."""
    keep_value([[] for _ in range(VALUE_DEPTH_MAX + 10)], None, 10_000)


def test_value_that_contains_itself_is_refused() -> None:
    """It has no end, and looking for the reason has one."""
    value: list[Any] = []
    value.append(value)

    with pytest.raises(ValueRejectedError, match=f"… is nested deeper than {VALUE_DEPTH_MAX} levels"):
        keep_value(value, None, LIMIT)


@pytest.mark.parametrize("kind", [None, msgspec.Raw])
@pytest.mark.parametrize("data", [b"nonsense", b'"\\x"', b"1e", b"[", b'"\xff"', b"1e999"])
def test_value_that_encodes_as_no_json_is_refused(kind: Any, data: bytes) -> None:
    """A type may give any bytes for itself, and take them back: nobody else could read the record."""
    with pytest.raises(ValueRejectedError, match=r"it does not come back: |it is no JSON: "):
        keep_value(msgspec.Raw(data), kind, LIMIT)


# Operations and requests


@pytest.mark.parametrize(
    "one, other",
    [
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ([{"x": {"a": 1, "b": 2}}], [{"x": {"b": 2, "a": 1}}]),
        ({"a": {3, 1, 2}}, {"a": {2, 3, 1}}),
        ({1: "a", 2: "b"}, {2: "b", 1: "a"}),
        ({"s": {(1, 2)}}, {"s": {(1, 2)}}),
    ],
)
def test_canonical_bytes_do_not_depend_on_order(one: Any, other: Any) -> None:
    """Equal values have equal bytes, whatever the order of their maps and sets."""
    assert encode_canonical(one) == encode_canonical(other)
    assert fingerprint(one) == fingerprint(other)


@pytest.mark.parametrize("one, other", [([1, 2], [2, 1]), ({"a": 1}, {"a": 2}), ({"a": None}, {}), (1, "1"), (1, 1.0)])
def test_canonical_bytes_tell_values_apart(one: Any, other: Any) -> None:
    """The order of a list and the type of a number are part of the value."""
    assert encode_canonical(one) != encode_canonical(other)
    assert fingerprint(one) != fingerprint(other)


@pytest.mark.parametrize(
    "one, other", [(b"a", "YQ=="), (float("nan"), [None]), ([float("nan")], [None]), ({1: "a"}, {"1": "a"}), (0, False)]
)
def test_fingerprint_tells_apart_what_json_does_not(one: Any, other: Any) -> None:
    """Another request stays another one, where its JSON would be the same."""
    assert fingerprint(one) != fingerprint(other)


@pytest.mark.parametrize("request_", [2**64, -(2**70), [2**70], {1: "a"}, {1: 2**70}])
def test_request_that_msgpack_does_not_take_is_bound_by_its_json(request_: Any) -> None:
    """It binds as any other."""
    assert fingerprint(request_) == fingerprint(request_)
    assert fingerprint([request_]) != fingerprint([[request_]])


def test_operation_is_kept_in_its_canonical_form() -> None:
    """The bytes of an operation are what a resend is compared by."""
    data, back = keep_operation({"b": 1, "a": {"d": 2, "c": 3}}, None, LIMIT)

    assert data == b'{"a":{"c":3,"d":2},"b":1}'
    assert back == {"b": 1, "a": {"d": 2, "c": 3}}


def test_operation_with_other_keys_than_strings_is_kept_by_its_type() -> None:
    """Sorting wants strings, and the type brings the numbers back."""
    data, back = keep_operation({2: "b", 10: "a"}, dict[int, str], LIMIT)

    assert data == b'{"10":"a","2":"b"}'
    assert back == {2: "b", 10: "a"}


def test_no_request_binds_nothing() -> None:
    """`None` is no fingerprint, not the fingerprint of null."""
    assert fingerprint(None) is None
    assert fingerprint([None]) == digest(b"\x91\xc0")


@pytest.mark.parametrize("request_", [object(), {"a": object()}, {(1, 2): "a"}, [10**4_300], "\ud800"])
def test_request_that_cannot_be_encoded_is_a_type_error(request_: Any) -> None:
    """It is refused before anything runs, with the way out."""
    with pytest.raises(TypeError, match=r"request= cannot be encoded as JSON: .*; pass what it is made of instead"):
        fingerprint(request_)


def test_digest_has_its_length() -> None:
    """Every digest in the journal is of the same size, and of BLAKE2b."""
    assert len(digest(b"")) == DIGEST_BYTES
    assert digest(b"abc").hex() == "cf4ab791c62b8d2b2109c90275287816"


# Decoding


@pytest.mark.parametrize("kind", [int, Order, list[Order], dict[str, int], Any, Order | None])
def test_type_that_can_be_decoded_into_is_known(kind: Any) -> None:
    """Whatever msgspec supports may be given."""
    check_type(kind, "returns")


def test_no_type_is_fine() -> None:
    """Nothing said is nothing to check."""
    check_type(None, "returns")


@pytest.mark.parametrize("kind", [5, "Nowhere", Order | Picky, list[5]])  # type: ignore[valid-type]  # that it is none is the point
def test_type_that_nothing_decodes_into_is_refused(kind: Any) -> None:
    """It would be found out only after the effect ran."""
    with pytest.raises(TypeError, match=r"^returns=.* is no type that values can be decoded into: "):
        check_type(kind, "returns")


@pytest.mark.parametrize("kind", [None, dict[str, int]])
@pytest.mark.parametrize("data", [b"", b"{", b'{"a":', b'{"a":1} 2', b"\xff"])
def test_bytes_that_are_no_json_are_told_apart_from_another_type(data: bytes, kind: Any) -> None:
    """Damage is no question of types."""
    with pytest.raises(msgspec.DecodeError) as caught:
        decode_value(data, kind)

    assert not isinstance(caught.value, msgspec.ValidationError)


@pytest.mark.parametrize("how, text", [("value", "too small"), ("key", "no such thing"), ("silent", "RuntimeError")])
def test_stored_value_that_todays_type_refuses_says_why(how: str, text: str) -> None:
    """Whatever the type's own check raises, it comes out as one error with a text."""
    with pytest.raises(NotOfTypeError, match=text):
        decode_value(b'{"how":"%s"}' % how.encode(), Picky)


@pytest.mark.parametrize("error", [RecursionError, MemoryError])
def test_want_of_stack_or_memory_is_not_blamed_on_the_type(error: type[Exception]) -> None:
    """Such an error says nothing about the value."""

    class Hungry(msgspec.Struct):
        a: int

        def __post_init__(self) -> None:
            raise error

    with pytest.raises(error):
        decode_value(b'{"a":1}', Hungry)
