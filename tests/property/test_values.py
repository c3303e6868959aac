"""Values and requests, whatever they are: what comes back, and what is the same."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings, strategies as st

from journal import (
    Accepted,
    Committed,
    EffectConflictError,
    EffectUnresolvedError,
    IdentityConflictError,
    InvalidOperationError,
    Journal,
)

from .scripts import open_quietly

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(),
)
values: st.SearchStrategy[Any] = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=5), inner, max_size=4)),
    max_leaves=12,
)
# What must be refused, alone as inside of something; each may come back as something else, or not at all.
strangers: st.SearchStrategy[Any] = st.one_of(
    st.just(float("nan")),
    st.tuples(values),
    st.sets(st.integers(), min_size=1),
    st.dictionaries(st.integers(), st.none(), min_size=1, max_size=2),
    st.datetimes(),
    st.dates(),
    st.uuids(),
    st.decimals(allow_nan=False),
    st.just("\ud800"),
)


@contextmanager
def fresh() -> Iterator[Journal]:
    """Gives a journal of its own."""
    with tempfile.TemporaryDirectory() as directory, open_quietly(Path(directory) / "journal") as j:
        yield j


def shape(value: Any) -> Any:
    """Gives a value with the type of each part, for 1, 1.0 and True are equal."""
    if isinstance(value, list):
        return [shape(part) for part in value]
    if isinstance(value, dict):
        return {name: shape(part) for name, part in value.items()}
    return (type(value).__name__, repr(value))


def reordered(value: Any) -> Any:
    """Gives the same value with its maps in the other order."""
    if isinstance(value, list):
        return [reordered(part) for part in value]
    if isinstance(value, dict):
        return {name: reordered(value[name]) for name in reversed(value)}
    return value


def _never(*_: object) -> Any:
    raise AssertionError("this must not be called")


@given(values)
@settings(max_examples=150)
def test_value_comes_back_as_it_was_from_everywhere(value: Any) -> None:
    """The first answer, a later one, another handle's, a record's and a reader's are the same value."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "journal"
        with open_quietly(path) as j:
            outcome = j.effect("e", run=lambda: value, reconcile=_never)
            assert isinstance(outcome, Accepted)
            committed = j.append("s", value, op_id="1")
            assert isinstance(committed, Committed)
            answers = [outcome.proof, committed.operation, j.run_effect("r", lambda: value), j.step("p", lambda: value)]
            again = j.effect("e", run=_never, reconcile=_never)
            assert isinstance(again, Accepted)
            answers += [again.proof, j.run_effect("r", _never), j.step("p", _never)]
        with open_quietly(path) as j:
            record = j.record("e")
            assert record is not None
            answers += [record.proof, j.history("e")[-1].proof, j.run_effect("r", _never), j.step("p", _never)]
            answers += [c.operation for c in j.read()]

    assert [shape(answer) for answer in answers] == [shape(value)] * len(answers)


@given(strangers, st.integers(0, 2))
@settings(max_examples=150)
def test_value_that_would_come_back_otherwise_is_refused_everywhere(stranger: Any, depth: int) -> None:
    """Alone or inside of something, by every method, with nothing but intents on record."""
    value = stranger
    for _ in range(depth):
        value = {"inside": [value]}
    with fresh() as j:
        with pytest.raises(EffectUnresolvedError):
            j.effect("e", run=lambda: value, reconcile=_never)
        with pytest.raises(EffectUnresolvedError):
            j.run_effect("r", lambda: value)
        with pytest.raises(TypeError):
            j.step("p", lambda: value)
        with pytest.raises(InvalidOperationError):
            j.append("s", value, op_id="1")

        assert [r.phase for r in j.effects()] == ["intent", "intent"]
        assert list(j.read()) == []


@given(values)
@settings(max_examples=150)
def test_order_of_a_map_is_no_part_of_a_request_or_payload(value: Any) -> None:
    """The same value in another map order is the same request and the same payload."""
    with fresh() as j:
        j.effect("e", run=lambda: 1, reconcile=_never, request=value)
        j.append("s", value, op_id="1")

        assert j.effect("e", run=_never, reconcile=_never, request=reordered(value)) == Accepted(1, "run")
        assert j.append("s", reordered(value), op_id="1").repeated  # type: ignore[union-attr]  # the test knows that it is not None


@given(values, values)
@settings(max_examples=200)
def test_different_values_are_different_requests_and_payloads(one: Any, two: Any) -> None:
    """Two values that differ, be it in a type, never have the same fingerprint."""
    assume(shape(one) != shape(two))
    # -0.0 and 0.0, 1 and 1.0 are equal in Python; whether they are one request the contract does not say.
    assume(one != two or isinstance(one, bool) != isinstance(two, bool))
    with fresh() as j:
        if one is not None and two is not None:
            j.effect("e", run=lambda: 1, reconcile=_never, request=one)
            with pytest.raises(EffectConflictError):
                j.effect("e", run=_never, reconcile=_never, request=two)
        j.append("s", one, op_id="1")
        with pytest.raises(IdentityConflictError):
            j.append("s", two, op_id="1")


@given(st.lists(st.tuples(st.text(min_size=1, max_size=4), st.text(min_size=1, max_size=600)), max_size=12))
@settings(max_examples=100)
def test_identity_is_the_whole_stream_and_op_id(pairs: list[tuple[str, str]]) -> None:
    """Whatever streams and op_ids are called, each pair is one operation, and a stream reads as it was written."""
    written: dict[tuple[str, str], int] = {}
    with fresh() as j:
        for stream, op_id in pairs:
            is_known = (stream, op_id) in written
            c = j.append(stream, [stream, op_id], op_id=op_id)
            assert isinstance(c, Committed)
            assert c.repeated == is_known
            assert written.setdefault((stream, op_id), c.position) == c.position

        assert j.streams() == sorted({stream for stream, _ in pairs})
        assert [[c.stream, c.op_id] for c in j.read()] == [c.operation for c in j.read()] == list(map(list, written))
        for stream in j.streams():
            own = [c.op_id for c in j.read(stream)]
            assert own == [op_id for s, op_id in written if s == stream]
            assert [c.sequence for c in j.read(stream)] == list(range(1, len(own) + 1))
