"""`journal/values.py` and `journal/records.py`: what is handed out, equal by what it says, and the words on disk."""

from __future__ import annotations

import copy
import pickle
from typing import Any, Final

import msgspec
import pytest

from journal.records import Guarantee, Phase, Via
from journal.values import (
    Accepted,
    AlreadyCommitted,
    Committed,
    Cursor,
    EffectEvent,
    EffectRecord,
    Finding,
    Found,
    Stats,
    Uncertain,
)
from tests.unit.support import START

COMMITTED: Final = Committed("orders", 3, 9, "order-7", "ann", START, {"n": 7}, epoch=2)
VALUES: Final[list[msgspec.Struct]] = [
    COMMITTED,
    AlreadyCommitted("orders", 3, 9, "order-7", "ann"),
    Accepted("m-1", "run"),
    Uncertain(),
    Found(None),
    EffectRecord("k", "at_most_once", "intent", 1, START, START, None, None, None, None, "", 9),
    EffectEvent(9, START, "k", "intent", 1, "at_most_once", None, None, None, None, ""),
    Finding("log", 4, "its checksum is wrong"),
    Stats("id", 1, *range(14)),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_value_is_frozen_and_equal_by_what_it_says(value: msgspec.Struct) -> None:
    """A copy is equal, and nobody can change it under another."""
    twins: list[Any] = [copy.deepcopy(value), pickle.loads(pickle.dumps(value)), msgspec.structs.replace(value)]

    assert twins == [value] * 3
    for name in value.__struct_fields__ or ("anything",):
        with pytest.raises(AttributeError):
            setattr(value, name, None)


def test_outcomes_match_by_their_parts() -> None:
    """As callers write it."""
    outcomes: list[Accepted[Any] | Uncertain] = [Accepted("m-1", "reconcile"), Uncertain()]
    seen: list[Any] = []
    for outcome in outcomes:
        match outcome:
            case Accepted(proof, via):
                seen.append((proof, via))
            case Uncertain():
                seen.append("uncertain")

    assert seen == [("m-1", "reconcile"), "uncertain"]
    assert Accepted("m-1", "run") != Accepted("m-1", "reconcile")
    assert outcomes[0] != outcomes[1]


def test_outcome_of_a_person_is_via_resolve() -> None:
    """`Accepted(proof)` is what a person gives to `resolve`."""
    assert Accepted("m-1").via == "resolve"


@pytest.mark.parametrize(
    "subject, key",
    [
        ((), ("orders", 2, "order-7", "mail")),
        (("ann",), ("orders", 2, "order-7", "mail", "ann")),
        (("ann", 3), ("orders", 2, "order-7", "mail", "ann", 3)),
    ],
)
def test_key_of_an_operations_effect_names_its_epoch(
    subject: tuple[str | int, ...], key: tuple[str | int, ...]
) -> None:
    """So that after a reset the same op_id is new work."""
    assert COMMITTED.effect_key("mail", *subject) == key


def test_operation_is_of_the_first_epoch_and_new_unless_told() -> None:
    """Nothing said."""
    committed = Committed("s", 1, 1, "1", "", START, None)

    assert (committed.repeated, committed.epoch) == (False, 1)


def test_cursor_is_an_int() -> None:
    """In every respect, and shown as what it is."""
    cursor = Cursor(7)

    assert cursor == 7
    assert (repr(cursor), str(cursor), f"{cursor}") == ("Cursor(7)", "7", "7")
    assert cursor + 1 == 8
    assert pickle.loads(pickle.dumps(cursor)) == cursor
    assert msgspec.json.encode([int(cursor)]) == b"[7]"


def test_words_are_those_of_the_contract() -> None:
    """The numbers are on disk: none is ever given another meaning."""
    assert {phase.word: int(phase) for phase in Phase} == {
        "intent": 1,
        "accepted": 2,
        "uncertain": 3,
        "failed": 4,
        "released": 5,
        "cleared": 6,
    }
    assert {guarantee.word: int(guarantee) for guarantee in Guarantee} == {"at_most_once": 1, "idempotent": 2}
    assert {via.word: int(via) for via in Via} == {"run": 1, "reconcile": 2, "resolve": 3}
