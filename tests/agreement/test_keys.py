"""Keys: which there are, that no two of them meet, and what is refused."""

from collections.abc import Callable
from typing import Any

import pytest

from journal import (
    Accepted,
    Committed,
    EffectConflictError,
    EffectFailedError,
    EffectUnresolvedError,
    Journal,
    NotPerformed,
    Uncertain,
)

from .support import Boom, Key, Stub, accept, leave_failed, unused

DISTINCT: list[Key] = [
    "a",
    "A",
    "a ",
    "a\x00",
    "a\x001",
    '["a",1]',
    '["a", 1]',
    "('a', 1)",
    '"a"',
    "1",
    ("a",),
    ("a", 1),
    ("a", "1"),
    ("a", -1),
    ("a", 1, 1),
    ("a1",),
    ("a\x00", 1),
    ("a", "\x00", 1),
    (1,),
    ("1",),
    (1, "a"),
    (0,),
    (-1,),
    (2**31,),
    (2**63 - 1,),
    (-(2**63),),
    (2**53,),
    (2**53 + 1,),
    ('a","b',),
    ("a", "b"),
    ("a,b",),
    "\u00e9",
    "e\u0301",
    "\U0001f600",
    "x" * 510,
    "x" * 511,
    "x" * 512,
    "x" * 600 + "a",
    "x" * 600 + "b",
    ("x" * 600, 1),
    ("x" * 600, 2),
    ("x" * 600, "1"),
    ("x" * 4000,),
    "x" * 4096,
    "\x00",
    "\n",
    " ",
]


def test_no_two_keys_meet(j: Journal) -> None:
    """Each key has its own record, given back as it was given, in every place."""
    for index, key in enumerate(DISTINCT):
        assert accept(j, key, index) == Accepted(index, "run")

    for index, key in enumerate(DISTINCT):
        record = j.record(key)
        assert record is not None
        assert (record.key, record.proof, record.attempts) == (key, index, 1)
        assert type(record.key) is type(key)
        if isinstance(key, tuple):
            assert [type(part) for part in record.key] == [type(part) for part in key]
        assert [e.key for e in j.history(key)] == [key, key]
    assert sorted(map(repr, (r.key for r in j.effects()))) == sorted(map(repr, DISTINCT))


def test_no_two_steps_meet(j: Journal) -> None:
    """The keys of steps are told apart as those of effects."""
    for index, key in enumerate(DISTINCT):
        assert j.step(key, Stub(index)) == index

    for index, key in enumerate(DISTINCT):
        assert j.step(key, unused()) == index


@pytest.mark.parametrize("key", ["k", ("k", 1), '["k",1]', "x" * 600, ("x" * 600, 7)], ids=lambda key: repr(key)[:20])
def test_errors_give_the_key_as_it_was_given(j: Journal, key: Key) -> None:
    """A str stays a str, and a tuple a tuple, in every error."""
    with pytest.raises(EffectUnresolvedError) as unresolved:
        j.effect(key, run=Stub(Boom("boom")), reconcile=unused())
    with pytest.raises(EffectConflictError) as conflict:
        j.run_effect(key, unused())
    j.clear_effect(key, reason="r")
    with pytest.raises(EffectFailedError) as failed:
        j.effect(key, run=Stub(NotPerformed("no")), reconcile=unused())

    for caught in (unresolved, conflict, failed):
        error: Any = caught.value
        assert error.key == key
        assert type(error.key) is type(key)


METHODS: dict[str, Callable[[Journal, Any], Any]] = {
    "effect": lambda j, key: j.effect(key, run=unused(), reconcile=unused()),
    "run_effect": lambda j, key: j.run_effect(key, unused()),
    "step": lambda j, key: j.step(key, unused()),
    "record": lambda j, key: j.record(key),
    "history": lambda j, key: j.history(key),
    "resolve": lambda j, key: j.resolve(key, Uncertain(), expected_position=0, reason="r"),
    "clear_effect": lambda j, key: j.clear_effect(key, reason="r"),
}

REFUSED: dict[str, Any] = {
    "empty": "",
    "too long": "x" * 4097,
    "too many bytes": "é" * 2049,
    "surrogate": "a\ud800",
    "surrogate inside": ("a", "\udfff"),
    "empty tuple": (),
    "tuple too long": ("x" * 5000,),
    "tuple of too many": tuple(range(5000)),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("method", METHODS)
def test_impossible_key_is_a_value_error(j: Journal, method: str, name: str) -> None:
    """Empty, too long or no UTF-8: `ValueError` before anything is called or written."""
    with pytest.raises(ValueError):
        METHODS[method](j, REFUSED[name])

    assert j.head() == 0


WRONG: dict[str, Any] = {
    "bool part": ("a", True),
    "only bool": (False,),
    "none": None,
    "bytes": b"k",
    "int": 1,
    "list": ["a", 1],
    "float part": ("a", 1.5),
    "none part": ("a", None),
    "nested": ("a", ("b",)),
    "bytes part": (b"a",),
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("method", METHODS)
def test_key_of_another_type_is_wrong_use(j: Journal, method: str, name: str) -> None:
    """A key is a str or a tuple of str and int; `bool` is refused although it is an int."""
    with pytest.raises((TypeError, ValueError)):
        METHODS[method](j, WRONG[name])

    assert j.head() == 0


@pytest.mark.parametrize("key", ["x" * 4096, "é" * 2048, "😀" * 1024, "x"], ids=["ascii", "two", "four", "one"])
def test_longest_and_shortest_key_are_taken(j: Journal, key: str) -> None:
    """1 to 4,096 bytes of UTF-8, both included."""
    accept(j, key)

    assert [r.key for r in j.effects()] == [key]


def test_key_is_chosen_before_the_clock_or_the_recipient(j: Journal) -> None:
    """Whether a tuple is written by hand or made, equal tuples are one key."""
    parts = ["order", 7]
    accept(j, tuple(parts), "m-1")  # type: ignore[arg-type]  # the wrong type is what is tested

    assert j.effect(("order", 7), run=unused(), reconcile=unused()) == Accepted("m-1", "run")


def test_effect_key_of_an_operation(j: Journal) -> None:
    """`effect_key` gives stream, epoch, op_id, action and subject, and works as a key."""
    c = j.append("orders", 1, op_id="o-1")
    assert isinstance(c, Committed)

    key = c.effect_key("mail", "customer", 7)

    assert (key[0], key[2:]) == ("orders", ("o-1", "mail", "customer", 7))
    assert isinstance(key[1], int)
    assert c.effect_key("mail") == key[:4]
    accept(j, key)
    assert [r.key for r in j.effects(prefix=("orders",))] == [key]


def test_effect_key_is_the_same_for_every_answer(j: Journal) -> None:
    """The first answer, a resend and a reader make the same key."""
    answers = [j.append("s", 1, op_id="1"), j.append("s", 1, op_id="1"), *j.read()]

    assert len({c.effect_key("mail") for c in answers if isinstance(c, Committed)}) == 1


def test_effects_share_one_key_space(j: Journal) -> None:
    """`effect` and `run_effect` of one key are the same effect."""
    leave_failed(j, "k")

    with pytest.raises(EffectConflictError):
        j.run_effect("k", unused())


@pytest.mark.parametrize("prefix", ["\ud800", ("a", "\ud800"), ("a", True), 1, b"a"], ids=repr)
def test_impossible_prefix_is_wrong_use(j: Journal, prefix: Any) -> None:
    """A prefix and a place in the order are made of what keys are made of."""
    accept(j, "k")

    with pytest.raises((TypeError, ValueError)):
        j.unfinished(prefix=prefix)
    with pytest.raises((TypeError, ValueError)):
        list(j.effects(prefix=prefix))
    with pytest.raises((TypeError, ValueError)):
        list(j.effects(after=prefix))
