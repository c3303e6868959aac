"""Values: what comes back, decoded the first time as every time, and what is refused."""

import datetime
import decimal
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from journal import Accepted, EffectUnresolvedError, Journal

from .support import Peer, Stub, accept, leave_open, nested, phases, unused


class Receipt(msgspec.Struct):
    id: str
    lines: list[int] = []


@dataclass
class Plain:
    id: str


PLAIN: dict[str, Any] = {
    "none": None,
    "true": True,
    "false": False,
    "zero": 0,
    "negative": -1,
    "above float precision": 2**53 + 1,
    "largest": 2**63 - 1,
    "smallest": -(2**63),
    "unsigned": 2**64 - 1,
    "float": 0.1,
    "whole float": 1.0,
    "large float": 1e300,
    "negative zero": -0.0,
    "empty text": "",
    "text": "é😀\x00\n\"'\\",
    "list": [1, "2", None, True, 1.5],
    "map": {"a": {"b": [1, {"c": None}]}, "": 0, "é": "é"},
    "number as text": "1",
    "date as text": "2024-01-01T00:00:00Z",
    "bytes as text": "aGVsbG8=",
}


def reconciled(j: Journal, value: Any, returns: Any) -> tuple[Any, Any]:
    """Gives the proof that a reconcile found, and the one that is on record then."""
    leave_open(j, "k")
    outcomes: list[Any] = [
        j.effect("k", run=unused(), reconcile=reconcile, returns=returns) for reconcile in (Stub(value), unused())
    ]
    return (outcomes[0].proof, outcomes[1].proof)


# How a value travels through each method: the first answer and the later one.
ROUTES: dict[str, Callable[[Journal, Any, Any], tuple[Any, Any]]] = {
    "effect": lambda j, value, returns: (
        j.effect("k", run=lambda: value, reconcile=unused(), returns=returns).proof,  # type: ignore[union-attr]  # the test knows that it is not None
        j.effect("k", run=unused(), reconcile=unused(), returns=returns).proof,  # type: ignore[union-attr]  # the test knows that it is not None
    ),
    "reconcile": reconciled,
    "run_effect": lambda j, value, returns: (
        j.run_effect("k", lambda: value, returns=returns),
        j.run_effect("k", unused(), returns=returns),
    ),
    "step": lambda j, value, returns: (
        j.step("k", lambda: value, returns=returns),
        j.step("k", unused(), returns=returns),
    ),
}


def shape(value: Any) -> Any:
    """Gives a value with the type of each part, for 1, 1.0 and True are equal."""
    if isinstance(value, list):
        return [shape(part) for part in value]
    if isinstance(value, dict):
        return {name: shape(part) for name, part in value.items()}
    return (type(value), repr(value))


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("route", ROUTES)
def test_plain_value_comes_back_as_it_was(j: Journal, route: str, name: str) -> None:
    """What JSON knows comes back equal and of the same type, the first time as later."""
    if route == "reconcile" and PLAIN[name] is None:
        return  # None says that there is no record; `Found` is for that

    first, later = ROUTES[route](j, PLAIN[name], None)

    assert shape(first) == shape(later) == shape(PLAIN[name])


UNEQUAL: dict[str, Any] = {
    "nan": float("nan"),
    "tuple": (1, 2),
    "set": {1, 2},
    "frozenset": frozenset("a"),
    "datetime": datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC),
    "date": datetime.date(2024, 1, 1),
    "timedelta": datetime.timedelta(seconds=1),
    "int key": {1: 2},
    "tuple key": {(1, 2): 3},
    "none key": {None: 1},
    "struct": Receipt("m-1"),
    "dataclass": Plain("m-1"),
    "uuid": uuid.UUID(int=1),
    "decimal": decimal.Decimal("1.5"),
    "object": object(),
    "function": len,
    "lone surrogate": "\ud800",
    "surrogate key": {"\ud800": 1},
    "too deep": nested(129),
}


@pytest.mark.parametrize("name", UNEQUAL)
@pytest.mark.parametrize("inside", [False, True], ids=["alone", "inside"])
def test_value_that_would_not_come_back_equal_is_rejected(j: Journal, name: str, inside: bool) -> None:
    """Without `returns=` nothing is kept that would come back as something else."""
    value = {"field": [UNEQUAL[name]]} if inside else UNEQUAL[name]

    with pytest.raises(EffectUnresolvedError) as effect:
        j.effect("e", run=lambda: value, reconcile=unused())
    with pytest.raises(EffectUnresolvedError) as run_effect:
        j.run_effect("r", lambda: value)
    with pytest.raises(TypeError):
        j.step("s", lambda: value)

    assert effect.value.reason == run_effect.value.reason == "proof-rejected"
    assert "accepted" not in phases(j, "e") + phases(j, "r")
    assert j.step("s", lambda: "nothing was recorded") == "nothing was recorded"


@pytest.mark.parametrize("name", ["bytes", "infinity", "huge int"])
@pytest.mark.parametrize("route", ROUTES)
def test_value_comes_back_equal_or_is_rejected(j: Journal, route: str, name: str) -> None:
    """Whether an encoding knows them or not, these never come back as something else."""
    value = {"bytes": b"\x00\xff", "infinity": float("inf"), "huge int": 2**80}[name]

    try:
        first, later = ROUTES[route](j, value, None)
    except (EffectUnresolvedError, TypeError):
        return

    assert first == later == value


def message(error: BaseException) -> str:
    """Gives what is told, over all causes."""
    return f"{error} {error.__cause__}"


def test_rejection_names_the_path_and_the_way_out(j: Journal) -> None:
    """The message has the path of the part that would not come back, and the advice to pass `returns=`."""
    value = {"fine": 1, "amounts": [1, (2, 3)]}

    with pytest.raises(EffectUnresolvedError) as effect:
        j.effect("e", run=lambda: value, reconcile=unused())
    with pytest.raises(TypeError) as step:
        j.step("s", lambda: value)

    for error in (effect.value, step.value):
        assert "amounts" in message(error)
        assert "returns=" in message(error)


# returns=

DECLARED: dict[str, tuple[Any, Any, Any]] = {
    "struct": (Receipt, Receipt("m-1", [1, 2]), Receipt("m-1", [1, 2])),
    "struct from map": (Receipt, {"id": "m-1"}, Receipt("m-1", [])),
    "dataclass": (Plain, Plain("m-1"), Plain("m-1")),
    "tuple": (tuple[int, str], (1, "a"), (1, "a")),
    "tuple from list": (tuple[int, ...], [1, 2], (1, 2)),
    "set": (set[int], {1, 2}, {1, 2}),
    "datetime": (
        datetime.datetime,
        datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC),
        datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC),
    ),
    "date": (datetime.date, datetime.date(2024, 1, 1), datetime.date(2024, 1, 1)),
    "bytes": (bytes, b"\x00\xff", b"\x00\xff"),
    "uuid": (uuid.UUID, uuid.UUID(int=1), uuid.UUID(int=1)),
    "decimal": (decimal.Decimal, decimal.Decimal("1.50"), decimal.Decimal("1.50")),
    "int keys": (dict[int, str], {1: "a"}, {1: "a"}),
    "optional": (Receipt | None, Receipt("m-1"), Receipt("m-1")),
    "int": (int, 5, 5),
    "float from int": (float, 5, 5.0),
    "list of structs": (list[Receipt], [{"id": "a"}, Receipt("b")], [Receipt("a"), Receipt("b")]),
}


@pytest.mark.parametrize("name", DECLARED)
@pytest.mark.parametrize("route", ROUTES)
def test_declared_value_comes_back_as_declared(j: Journal, route: str, name: str) -> None:
    """`returns=T` decodes into `T`, the first time as on every later call."""
    declared, given, expected = DECLARED[name]

    first, later = ROUTES[route](j, given, declared)

    assert first == later == expected
    assert type(first) is type(later) is type(expected)


@pytest.mark.parametrize("name", ["wrong field", "wrong type", "missing field"])
def test_value_that_does_not_decode_as_declared_is_rejected(j: Journal, name: str) -> None:
    """What is not a `T` once it is decoded cannot be kept, with the path of the bad part."""
    value: Any = {"wrong field": Receipt(1), "wrong type": "m-1", "missing field": {"lines": [1]}}[name]  # type: ignore[arg-type]  # the wrong type is what is tested

    with pytest.raises(EffectUnresolvedError) as effect:
        j.effect("e", run=lambda: value, reconcile=unused(), returns=Receipt)
    with pytest.raises(EffectUnresolvedError) as run_effect:
        j.run_effect("r", lambda: value, returns=Receipt)
    with pytest.raises(TypeError):
        j.step("s", lambda: value, returns=Receipt)

    assert effect.value.reason == run_effect.value.reason == "proof-rejected"
    assert j.effect("e", run=unused(), reconcile=Stub({"id": "x"}), returns=Receipt) == Accepted(
        Receipt("x"), "reconcile"
    )


def test_declared_value_is_kept_as_its_encoding(j: Journal) -> None:
    """Without `returns=` a later call gives the value as it was encoded."""
    j.run_effect("k", lambda: Receipt("m-1", [1]), returns=Receipt)

    assert j.run_effect("k", unused()) == {"id": "m-1", "lines": [1]}
    record = j.record("k")
    assert record is not None
    assert record.proof == {"id": "m-1", "lines": [1]}


# Detached


@pytest.mark.parametrize("route", ["effect", "run_effect", "step"])
def test_answer_is_detached_from_what_the_run_returned(j: Journal, route: str) -> None:
    """Changing what the run returned, or an answer, changes no other answer."""
    given = {"list": [1]}

    first, later = ROUTES[route](j, given, None)

    given["list"].append(2)
    first["list"].append(3)
    assert later == {"list": [1]}
    assert ROUTES[route](j, None, None) == ({"list": [1]}, {"list": [1]})


def test_records_are_detached(j: Journal) -> None:
    """Changing the proof of a record changes nothing on record."""
    accept(j, "k", {"list": [1]})
    record = j.record("k")
    assert record is not None
    record.proof["list"].append(2)
    j.history("k")[-1].proof["list"].append(2)

    assert j.effect("k", run=unused(), reconcile=unused()) == Accepted({"list": [1]}, "run")


# Sizes and depths


def test_proof_of_its_size_is_kept_and_a_larger_one_rejected(j: Journal) -> None:
    """A proof is an identity and no payload: 65,536 bytes."""
    assert accept(j, "fits", "x" * 65_000) == Accepted("x" * 65_000, "run")

    with pytest.raises(EffectUnresolvedError) as caught:
        accept(j, "large", "x" * 65_537)

    assert caught.value.reason == "proof-rejected"


def test_size_counts_bytes(j: Journal) -> None:
    """Two bytes a character make half as many characters."""
    assert accept(j, "fits", "é" * 32_000) == Accepted("é" * 32_000, "run")

    with pytest.raises(EffectUnresolvedError):
        accept(j, "large", "é" * 33_000)


@pytest.mark.parametrize("route", ROUTES)
def test_value_of_128_levels_is_kept(j: Journal, route: str) -> None:
    """128 levels come back, of lists as of maps."""
    value = nested(128)

    assert ROUTES[route](j, value, None) == (value, value)


def test_operations_and_requests_nest_as_deep(j: Journal) -> None:
    """128 levels are allowed wherever a value is given."""
    j.append("s", nested(128), op_id="1")
    accept(j, "k", request=nested(128))

    assert [c.operation for c in j.read()] == [nested(128)]
    assert accept(j, "k", request=nested(128)) == Accepted("proof", "run")


def test_depth_far_beyond_the_limit_is_refused_without_harm(start_peer: Callable[..., Peer]) -> None:
    """A value that nests 100,000 levels is refused like one of 129, and never ends the process."""
    peer = start_peer("try_values")
    peer.hear("opened")
    said = {answer["method"]: answer for answer in [peer.hear("raised") for _ in range(5)]}

    assert said["append"]["error"] == "InvalidOperationError"
    assert (said["effect"]["error"], said["effect"]["reason"]) == ("EffectUnresolvedError", "proof-rejected")
    assert said["request"]["error"] in ("TypeError", "ValueError")
    assert (said["run_effect"]["error"], said["run_effect"]["reason"]) == ("EffectUnresolvedError", "proof-rejected")
    assert said["step"]["error"] == "TypeError"
    peer.finish()


def test_value_that_contains_itself_is_refused(j: Journal) -> None:
    """A cycle is deeper than any limit."""
    cycle: list[Any] = []
    cycle.append(cycle)

    with pytest.raises(EffectUnresolvedError):
        j.effect("k", run=lambda: cycle, reconcile=unused())
    with pytest.raises(TypeError):
        j.step("k", lambda: cycle)

    assert "accepted" not in phases(j, "k")
