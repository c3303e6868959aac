"""`request=`: a key is bound to what was asked."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from journal import Accepted, EffectConflictError, EffectUnresolvedError, Journal, NotPerformed

from .support import (
    Boom,
    FileRecipient,
    Key,
    Peer,
    Stub,
    accept,
    leave_failed,
    leave_open,
    leave_uncertain,
    phases,
    unused,
)

LEAVE: dict[str, Callable[..., Any]] = {
    "accepted": accept,
    "intent": leave_open,
    "failed": leave_failed,
    "uncertain": leave_uncertain,
}


class Charge(msgspec.Struct):
    amount: int


@pytest.mark.parametrize("phase", LEAVE)
def test_other_request_under_one_key_is_a_conflict(j: Journal, phase: str) -> None:
    """Another request is refused in every phase, and nothing is called or written."""
    LEAVE[phase](j, "k", request={"amount": 1})
    head, called = j.head(), unused()

    with pytest.raises(EffectConflictError) as caught:
        j.effect("k", run=called, reconcile=called, request={"amount": 2})

    assert caught.value.key == "k"
    assert (called.count, j.head()) == (0, head)


def test_same_request_is_no_conflict(j: Journal) -> None:
    """The same request in another map order is the same request, at every depth."""
    accept(j, "k", request={"amount": 1, "to": [{"name": "ann", "zip": 1}]})

    outcome = j.effect("k", run=unused(), reconcile=unused(), request={"to": [{"zip": 1, "name": "ann"}], "amount": 1})

    assert outcome == Accepted("proof", "run")


PAIRS: dict[str, tuple[Any, Any]] = {
    "number and text": (1, "1"),
    "number and bool": (1, True),
    "zero and false": (0, False),
    "order of a list": ([1, 2], [2, 1]),
    "empty list and map": ([], {}),
    "empty text and list": ("", []),
    "missing and null": ({}, {"a": None}),
    "split of text": (["ab", "c"], ["a", "bc"]),
    "key and value": ({"a": "b"}, {"b": "a"}),
    "zero and one": (0, 1),
    "above float precision": (2**53, 2**53 + 1),
    "accents": ("\u00e9", "e\u0301"),
    "nesting": ([[1], 2], [[1, 2]]),
}


@pytest.mark.parametrize("name", PAIRS)
def test_different_requests_have_different_fingerprints(j: Journal, name: str) -> None:
    """What differs is told apart, both ways round."""
    one, two = PAIRS[name]
    accept(j, "one", request=one)
    accept(j, "two", request=two)

    with pytest.raises(EffectConflictError):
        accept(j, "one", request=two)
    with pytest.raises(EffectConflictError):
        accept(j, "two", request=one)

    assert accept(j, "one", request=one) == Accepted("proof", "run")


@pytest.mark.parametrize("phase", LEAVE)
def test_none_is_not_compared(j: Journal, phase: str) -> None:
    """A call without a request takes what is on record, whatever it is bound to."""
    LEAVE[phase](j, "k", request={"amount": 1})

    j.effect("k", run=lambda: "proof", reconcile=lambda _: "proof")


def test_none_does_not_bind(j: Journal) -> None:
    """A key whose effect was made without a request takes any."""
    accept(j, "k")

    for request in ({"amount": 1}, {"amount": 2}):
        assert j.effect("k", run=unused(), reconcile=unused(), request=request) == Accepted("proof", "run")


def test_binding_outlives_every_outcome(j: Journal) -> None:
    """Attempts, reconciliations and a person's decision keep the request of the first intent."""
    leave_failed(j, "k", request="asked")
    leave_open(j, "k", request="asked")
    with pytest.raises(EffectUnresolvedError):
        j.effect("k", run=unused(), reconcile=Stub(Boom("down")), request="asked")
    record = j.record("k")
    assert record is not None
    j.resolve("k", NotPerformed("no"), expected_position=record.position, reason="r")

    with pytest.raises(EffectConflictError):
        accept(j, "k", request="other")
    assert accept(j, "k", request="asked") == Accepted("proof", "run")
    with pytest.raises(EffectConflictError):
        accept(j, "k", request="other")


def test_binding_outlives_the_handle(open_journal: Callable[..., Journal]) -> None:
    """The fingerprint is on record."""
    j = open_journal()
    accept(j, "k", request={"amount": 1})
    j.close()

    with pytest.raises(EffectConflictError):
        accept(open_journal(), "k", request={"amount": 2})


def test_request_is_taken_before_the_run(j: Journal) -> None:
    """What the run does to the request does not matter."""
    request = {"amount": 1}

    j.effect("k", run=lambda: request.update(amount=2), reconcile=unused(), request=request)

    assert j.effect("k", run=unused(), reconcile=unused(), request={"amount": 1}) == Accepted(None, "run")


@pytest.mark.parametrize("request_", [object(), {"a": object()}, len, {"a": ["\ud800"]}], ids=["1", "2", "3", "4"])
def test_request_that_cannot_be_encoded_is_a_type_error(j: Journal, request_: Any) -> None:
    """Nothing is called and nothing is written."""
    run = unused()

    with pytest.raises(TypeError):
        j.effect("k", run=run, reconcile=unused(), request=request_)
    with pytest.raises(TypeError):
        j.run_effect("k", run, request=request_)

    assert (run.count, j.head()) == (0, 0)


def test_struct_is_a_request(j: Journal) -> None:
    """A request need not come back, so anything that can be encoded binds."""
    accept(j, "k", request=Charge(1))

    assert accept(j, "k", request=Charge(1)) == Accepted("proof", "run")
    with pytest.raises(EffectConflictError):
        accept(j, "k", request=Charge(2))


@pytest.mark.parametrize("first", [0, False, "", [], {}], ids=repr)
def test_empty_request_binds(j: Journal, first: Any) -> None:
    """Only None does not bind."""
    accept(j, "k", request=first)

    with pytest.raises(EffectConflictError):
        accept(j, "k", request="something")


def test_run_effect_is_bound_too(j: Journal) -> None:
    """The fingerprint binds under both guarantees."""
    j.run_effect("k", lambda: 1, request={"a": 1})

    assert j.run_effect("k", unused(), request={"a": 1}) == 1
    with pytest.raises(EffectConflictError):
        j.run_effect("k", unused(), request={"a": 2})


def test_refused_call_leaves_no_record(j: Journal) -> None:
    """A conflict is told before anything is written."""
    accept(j, "k", request=1)

    with pytest.raises(EffectConflictError):
        accept(j, "k", request=2)

    assert phases(j, "k") == ["intent", "accepted"]


def test_set_is_the_same_request_in_every_process(start_peer: Callable[..., Peer], recipient: FileRecipient) -> None:
    """A request without an order of its own has the same fingerprint in every process, or is refused in each."""
    key: Key = "k"
    names = [f"name-{index}" for index in range(20)]
    words = []
    for seed in ("1", "2"):
        peer = start_peer("call", key=key, run=["deliver"], request_set=names, hash_seed=seed)
        peer.hear("opened")
        words.append(peer.hear("accepted", "raised"))
        peer.finish()

    assert {word["word"] for word in words} == {words[0]["word"]}
    assert [word.get("error") for word in words] in ([None, None], ["TypeError", "TypeError"])
