"""`journal/_core/rules.py`: a reducer, and what is asked about an operation."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from journal._core.rules import NoStates, Place, Reducer, Rules, rules_of
from journal._core.schemas import Schema
from journal._core.states import StateAt
from journal.errors import InvalidOperationError, OperationRefusedError


def add(state: int, operation: int) -> int:
    return state + operation


PLACE = Place("s", "o", None)
SUM = Reducer(lambda: 0, add, int)


def rules(**options: Any) -> Rules:
    given = {"operation": Any, "state": None, "validate": None, "authorize": None, "upcast": None, **options}
    return rules_of(*given.values(), states=NoStates())


def test_without_rules_nothing_is_judged() -> None:
    """An append then depends on identity and sequence alone."""
    assert not rules().judges
    assert rules().schema.kind is None
    assert all(rules(**one).judges for one in ({"state": SUM}, {"validate": print}, {"authorize": print}))


@pytest.mark.parametrize("one", [{"state": add}, {"validate": 3}, {"authorize": "x"}, {"operation": 3}, {"upcast": 3}])
def test_useless_rules_are_refused(one: dict[str, Any]) -> None:
    """What nobody could ask."""
    with pytest.raises(TypeError):
        rules(**one)


def test_state_of_any_type_must_come_back_equal() -> None:
    """As every value without a declared type."""
    assert Reducer(lambda: 0, add, Any).kind is None
    with pytest.raises(InvalidOperationError, match="give the reducer the state's type"):
        rules(state=Reducer(tuple, add, Any)).begin("s")


@pytest.mark.parametrize(
    "options, error",
    [
        ({"initial": 0}, TypeError),
        ({"type": 3}, TypeError),
        ({"snapshot_every": True}, TypeError),
        ({"snapshot_every": 0}, ValueError),
        ({"version": "1"}, TypeError),
        ({"version": -1}, ValueError),
    ],
)
def test_useless_reducer_is_refused(options: dict[str, Any], error: type[Exception]) -> None:
    """When it is made, with what is wrong with it."""
    with pytest.raises(error, match=f"Reducer: {next(iter(options))}"):
        Reducer(**{"initial": list, "apply": add, "type": int, **options})


def test_fold_goes_from_bytes_to_bytes() -> None:
    """The first state, and the one after an operation."""
    both = rules(state=SUM)

    assert both.begin("s") == b"0"
    assert both.apply(PLACE, b"3", 4) == b"7"


def test_error_without_an_operation_is_about_the_beginning() -> None:
    """And one of a stored operation has its position."""
    failing = rules(state=Reducer(lambda: {}["gone"], lambda *_: {}["gone"], int))  # type: ignore[index]  # it raises
    with pytest.raises(InvalidOperationError) as beginning:
        failing.begin("s")
    with pytest.raises(InvalidOperationError) as stored:
        failing.apply(Place("s", "o", 9), b"3", 4)

    assert str(beginning.value).startswith("stream 's' has no state to begin with: initial raised KeyError: 'gone'")
    assert str(stored.value).startswith(
        "operation 'o' of stream 's' at position 9 cannot be applied to the stream's state: apply raised KeyError"
    )
    assert (stored.value.position, stored.value.was_read) == (9, True)
    copied = pickle.loads(pickle.dumps(stored.value))
    assert (str(copied), copied.was_read) == (str(stored.value), True)


@pytest.mark.parametrize("answer", [False, "", "why not"])
def test_refusal_has_a_reason(answer: Any) -> None:
    """Whatever was given."""
    with pytest.raises(OperationRefusedError) as caught:
        rules(authorize=lambda *_: answer).check(PLACE, b"1", "ann", None)

    assert caught.value.reason == (answer or "authorize says no")


@pytest.mark.parametrize("answer", [None, 1, b"no"])
def test_only_true_allows(answer: Any) -> None:
    """Anything else is a mistake, which must not pass for a yes."""
    with pytest.raises(TypeError, match="authorize must give True"):
        rules(authorize=lambda *_: answer).check(PLACE, b"1", "ann", None)


def test_each_hook_gets_values_of_its_own() -> None:
    """Decoded for it alone."""
    seen: list[Any] = []

    def authorize(_: str, operation: Any, state: Any) -> bool:
        seen.append((operation, state))
        return True

    lists = Reducer(list, lambda state, _: state, list[int])
    both = rules(state=lists, authorize=authorize, validate=lambda operation, state: seen.append((operation, state)))
    both.check(PLACE, b'{"a":1}', "", b"[1]")

    assert seen == [({"a": 1}, [1])] * 2
    assert seen[0][0] is not seen[1][0]
    assert seen[0][1] is not seen[1][1]


def test_rules_without_a_memory_keep_nothing() -> None:
    """Every state is then brought up anew."""
    nothing = Rules(Schema()).states
    nothing.put("s", StateAt(1, 1, 1, 0, b"1"))

    assert nothing.get("s") is None
