"""`journal/errors.py`: every error keeps its facts, survives pickling, and says what happened and what comes next."""

from __future__ import annotations

import copy
import inspect
import pickle
from typing import Any, Final

import pytest

from journal import errors
from journal.errors import (
    CommitFailedError,
    CompactedCursorError,
    CorruptRecordError,
    EffectConflictError,
    EffectFailedError,
    EffectInFlightError,
    EffectPrunedError,
    EffectUnresolvedError,
    IdentityConflictError,
    InvalidCompactionError,
    InvalidCursorError,
    InvalidOperationError,
    JournalBusyError,
    JournalClosedError,
    JournalError,
    JournalForkedError,
    JournalFullError,
    JournalLockedError,
    JournalReadonlyError,
    NotPerformed,
    OperationRefusedError,
    SequenceConflictError,
    UnsupportedFilesystemError,
    UnsupportedFormatError,
)
from journal.values import EffectRecord
from tests.unit.support import START

RECORD: Final = EffectRecord(
    ("mail", 7), "at_most_once", "intent", 1, START, START, None, None, "run-failed", "Boom: 500", f"{5:016x}", 9
)
IDEMPOTENT: Final = EffectRecord("k", "idempotent", "intent", 1, START, START, None, None, None, None, f"{5:016x}", 9)

# Each error with the facts that it must keep under these names, words that its message must hold, and the next step.
CASES: Final[list[tuple[JournalError, dict[str, Any], list[str], str]]] = [
    (
        IdentityConflictError("orders", "order-7", 4),
        {"stream": "orders", "op_id": "order-7", "position": 4},
        ["'orders'", "'order-7'", "position 4"],
        "choose a new op_id",
    ),
    (
        SequenceConflictError("orders-7", 12, 11),
        {"stream": "orders-7", "sequence": 12, "expected": 11},
        ["'orders-7'", "sequence 12", "expected 11"],
        "read it again and retry",
    ),
    (
        InvalidOperationError("orders", "order-7", "Expected `int` - at `$.n`"),
        {"stream": "orders", "op_id": "order-7", "reason": "Expected `int` - at `$.n`", "position": None},
        ["'orders'", "'order-7'", "at `$.n`", "nothing was written"],
        "correct the operation",
    ),
    (
        InvalidOperationError("orders", "order-7", "Expected `int`", 4),
        {"stream": "orders", "op_id": "order-7", "reason": "Expected `int`", "position": 4},
        ["'orders'", "'order-7'", "position 4", "Expected `int`"],
        "with a type that reads it",
    ),
    (
        OperationRefusedError("orders", "order-7", "ann", "not hers"),
        {"stream": "orders", "op_id": "order-7", "actor": "ann", "reason": "not hers"},
        ["'orders'", "'order-7'", "'ann'", "not hers", "nothing was written"],
        "as an actor who may",
    ),
    (InvalidCursorError(9, 4), {"cursor": 9, "head": 4}, ["cursor 9", "ends at 4"], "pass one from 0 to 4"),
    (
        CompactedCursorError(3, 7),
        {"cursor": 3, "floor": 7, "stream": None},
        ["cursor 3", "floor 7", "the log"],
        "start from 7 or later",
    ),
    (
        CompactedCursorError(3, 7, "orders"),
        {"cursor": 3, "floor": 7, "stream": "orders"},
        ["cursor 3", "floor 7", "'orders'"],
        "start from 7 or later",
    ),
    (
        InvalidCompactionError("orders", "cursor 'reader' is at 3"),
        {"stream": "orders", "reason": "cursor 'reader' is at 3"},
        ["'orders'", "cursor 'reader' is at 3"],
        "",
    ),
    (
        EffectUnresolvedError(("mail", 7), "run-failed", RECORD),
        {"key": ("mail", 7), "reason": "run-failed", "record": RECORD},
        ["('mail', 7)", "run-failed", "may or may not have happened"],
        "call again to ask the recipient",
    ),
    (
        EffectUnresolvedError("k", "outcome-unrecorded", IDEMPOTENT),
        {"key": "k", "reason": "outcome-unrecorded", "record": IDEMPOTENT},
        ["'k'", "outcome-unrecorded"],
        "call again to run it once more under the same key",
    ),
    (
        EffectUnresolvedError("k", "uncertain"),
        {"key": "k", "reason": "uncertain", "record": None},
        ["'k'", "uncertain", "no result"],
        "or clear it",
    ),
    (
        EffectFailedError("k", "NotPerformed: refused", RECORD),
        {"key": "k", "reason": "NotPerformed: refused", "record": RECORD},
        ["'k'", "NotPerformed: refused"],
        "call again",
    ),
    (
        EffectConflictError("k", "it was begun for another request", RECORD),
        {"key": "k", "reason": "it was begun for another request", "record": RECORD},
        ["'k'", "it was begun for another request", "nothing was written"],
        "read its record",
    ),
    (
        EffectInFlightError(("mail", 7), 4_321, RECORD),
        {"key": ("mail", 7), "pid": 4_321, "record": RECORD},
        ["('mail', 7)", "process 4321"],
        "call again when it has ended",
    ),
    (
        EffectPrunedError(("mail", 7), 12),
        {"key": ("mail", 7), "position": 12},
        ["('mail', 7)", "position 12"],
        "look it up at the recipient",
    ),
    (
        CorruptRecordError(4, "its checksum is wrong"),
        {"position": 4, "reason": "its checksum is wrong", "key": None, "stream": None},
        ["position 4", "its checksum is wrong"],
        "run verify",
    ),
    (
        CorruptRecordError(None, "a row", ("mail", 7)),
        {"position": None, "reason": "a row", "key": ("mail", 7), "stream": None},
        ["('mail', 7)", "a row"],
        "run verify",
    ),
    (
        CorruptRecordError(4, "a row", None, "orders"),
        {"position": 4, "reason": "a row", "key": None, "stream": "orders"},
        ["position 4", "'orders'", "a row"],
        "run verify",
    ),
    (
        JournalFullError("/j", "its map has reached max_size"),
        {"path": "/j", "reason": "its map has reached max_size"},
        ["'/j'", "its map has reached max_size", "nothing was written"],
        "make room",
    ),
    (JournalLockedError("/j", 4_321), {"path": "/j", "pid": 4_321}, ["'/j'", "4321"], "pass that handle on"),
    (
        JournalClosedError("/j"),
        {"path": "/j", "reason": "it was closed"},
        ["'/j'", "it was closed"],
        "open the journal again",
    ),
    (
        JournalClosedError("/j", "its file was replaced"),
        {"path": "/j", "reason": "its file was replaced"},
        ["'/j'", "its file was replaced"],
        "open the journal again",
    ),
    (
        JournalForkedError("/j", 4_321),
        {"path": "/j", "pid": 4_321},
        ["'/j'", "process 4321"],
        "open it again in this process",
    ),
    (JournalReadonlyError("/j"), {"path": "/j"}, ["'/j'", "read-only"], "open it without readonly=True"),
    (
        JournalBusyError("/j", 4_321),
        {"path": "/j", "pid": 4_321},
        ["'/j'", "process 4321", "nothing was written"],
        "try again",
    ),
    (JournalBusyError("/j", None), {"path": "/j", "pid": None}, ["'/j'", "nothing was written"], "try again"),
    (
        UnsupportedFormatError("/j", "a journal of format 2", "a journal of format 1"),
        {"path": "/j", "found": "a journal of format 2", "supported": "a journal of format 1"},
        ["'/j'", "a journal of format 2", "a journal of format 1", "nothing was changed"],
        "check the path",
    ),
    (
        UnsupportedFilesystemError("/j", "nfs4"),
        {"path": "/j", "filesystem": "nfs4"},
        ["'/j'", "nfs4"],
        "move it to a local disk",
    ),
    (
        CommitFailedError("/j", "Error: Input/output error"),
        {"path": "/j", "reason": "Error: Input/output error"},
        ["'/j'", "Input/output error"],
        "check the disk",
    ),
]
ALL: Final = [case[0] for case in CASES]


@pytest.mark.parametrize("error, facts, words, step", CASES, ids=[type(error).__name__ for error in ALL])
def test_error_keeps_its_facts_and_says_the_next_step(
    error: JournalError, facts: dict[str, Any], words: list[str], step: str
) -> None:
    """The attributes of the contract, and a message that names the values before it says what to do."""
    message = str(error)

    assert {name: getattr(error, name) for name in facts} == facts
    assert [word for word in words if word not in message] == []
    assert step in message
    assert all(message.index(word) <= message.rindex(step) + len(step) for word in words)


@pytest.mark.parametrize("error", ALL, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("copied", [lambda error: pickle.loads(pickle.dumps(error)), copy.copy, copy.deepcopy])
def test_error_survives_pickling(error: JournalError, copied: Any) -> None:
    """With every fact, its message and its class: it may come from another process."""
    twin = copied(error)

    assert type(twin) is type(error)
    assert vars(twin) == vars(error)
    assert (str(twin), twin.args) == (str(error), error.args)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_error_survives_every_protocol_of_pickle(protocol: int) -> None:
    """Old ones are still in use between processes."""
    error = EffectUnresolvedError(("mail", 7), "run-failed", "record")

    twin = pickle.loads(pickle.dumps(error, protocol))

    assert vars(twin) == vars(error)


def classes() -> list[type[JournalError]]:
    """Every public error of the journal."""
    return [
        value
        for name, value in vars(errors).items()
        if inspect.isclass(value) and issubclass(value, JournalError) and not name.startswith("_")
    ]


def test_every_error_is_tested_here() -> None:
    """A new one gets its line above."""
    assert {type(error) for error in ALL} == set(classes()) - {JournalError}


def test_no_named_error_is_another_ones_parent() -> None:
    """Who catches one means that one: siblings differ in what the caller does."""
    for one in classes():
        parents = [parent for parent in classes() if parent is not one and issubclass(one, parent)]
        assert parents == ([] if one is JournalError else [JournalError])


def test_not_performed_is_no_error_of_the_journal() -> None:
    """It is a statement of the recipient: no `except JournalError` may swallow it."""
    assert not issubclass(NotPerformed, JournalError)
    assert issubclass(NotPerformed, Exception)


@pytest.mark.parametrize("why", ["", "connection refused"])
def test_not_performed_says_why(why: str) -> None:
    """As its text and as its attribute, after pickling too."""
    said = NotPerformed(why) if why else NotPerformed()

    assert (said.why, str(said)) == (why, why)
    assert pickle.loads(pickle.dumps(said)).why == why


def test_not_performed_takes_what_exceptions_take() -> None:
    """Any values: the first says why, as text."""
    said = NotPerformed(404, "not found")

    assert (said.why, said.args) == ("404", (404, "not found"))
    twin = pickle.loads(pickle.dumps(said))
    assert (twin.why, twin.args) == (said.why, said.args)
