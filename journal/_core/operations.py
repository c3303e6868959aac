"""The protocols of operations: `append`, `append_all`, and the bounded pages of `read`.

An append decides inside the write transaction, in the order of the contract: the identity first, then the expected
sequence, then what the rules say (`journal._core.states`), then the commit. What is refused consumes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import msgspec

from journal._core.hooks import guarded
from journal._core.keys import check_name
from journal._core.payloads import NotOfTypeError, ValueRejectedError, digest, keep_operation
from journal._core.requests import Commit, OperationPage, Read, Steps, StoredOperation, Transaction, View
from journal._core.rules import Rules
from journal._core.schemas import Schema
from journal._core.states import Draft, StateAt, TooFarError, approach, judge, keep
from journal.errors import (
    CompactedCursorError,
    CorruptRecordError,
    IdentityConflictError,
    InvalidCursorError,
    InvalidOperationError,
    SequenceConflictError,
)
from journal.options import (
    ACTOR_BYTES_MAX,
    OP_ID_BYTES_MAX,
    PAGE_RECORDS,
    STREAM_BYTES_MAX,
    VALUE_BYTES_MAX,
)
from journal.records import CursorRow, OperationRecord
from journal.values import AlreadyCommitted, Committed, Cursor


def append(
    stream: Any, operations: Iterable[tuple[Any, Any]], actor: Any, expected: Any, rules: Rules
) -> Steps[list[Committed | AlreadyCommitted]]:
    """The protocol of `Journal.append_all`, and of `append` with one operation."""
    stream = check_stream(stream)
    actor = check_name(actor, "actor", ACTOR_BYTES_MAX, empty=True)
    check_expected(expected)
    drafts = [draft(stream, *_pair(item), rules.schema) for item in operations]
    if not drafts:
        return []
    near: StateAt | None = None
    answers: list[StoredOperation | Committed | AlreadyCommitted] | None = None
    while answers is None:
        try:
            answers = yield Commit(_decide_append(stream, drafts, actor, expected, rules, near=near))
        except TooFarError:
            near = yield from approach(stream, rules)
    return [
        committed_of(answer, rules.schema, is_repeated=True) if isinstance(answer, StoredOperation) else answer
        for answer in answers
    ]


def _pair(item: Any) -> tuple[Any, Any]:
    if not isinstance(item, tuple | list) or len(item) != 2:
        raise TypeError(f"operations are pairs of op_id and operation, not {type(item).__name__}: {item!r}")
    return item[0], item[1]


def draft(stream: str, op_id: Any, operation: Any, schema: Schema) -> Draft:
    """An operation made ready to be appended.

    Raises:
        InvalidOperationError: it could not be read back as the declared type.
    """
    op_id = check_name(op_id, "op_id", OP_ID_BYTES_MAX)
    try:
        payload, decoded = keep_operation(operation, schema.kind, VALUE_BYTES_MAX)
        if schema.upcasts:
            decoded = schema.decode(payload)  # as in every later answer
    except (ValueRejectedError, NotOfTypeError) as error:
        raise InvalidOperationError(stream, op_id, str(error)) from error
    return Draft(op_id, payload, digest(payload), decoded)


def _decide_append(
    stream: str, drafts: list[Draft], actor: str, expected: int | None, rules: Rules, *, near: StateAt | None
) -> Callable[[Transaction], list[StoredOperation | Committed | AlreadyCommitted]]:
    def decide(txn: Transaction) -> list[StoredOperation | Committed | AlreadyCommitted]:
        row = txn.stream(stream)
        epoch = 1 if row is None else row.epoch
        known = [None if row is None else txn.identity(stream, epoch, new.op_id) for new in drafts]
        fresh: dict[str, Draft] = {}
        for new, stored in zip(drafts, known, strict=True):
            if stored is not None:
                first_hash, first_actor, position = stored.head.payload_hash, stored.head.actor, stored.position
            else:
                first = fresh.setdefault(new.op_id, new)
                first_hash, first_actor, position = first.payload_hash, actor, 0
            if (first_hash, first_actor) != (new.payload_hash, actor) and not (
                stored is not None
                and first_actor == actor
                and guarded(partial(rules.schema.is_same, stored, new.payload))
            ):
                raise IdentityConflictError(stream, new.op_id, position)
        sequence = txn.sequence(stream)
        if fresh and expected is not None and expected != sequence:
            raise SequenceConflictError(stream, sequence, expected)
        state: StateAt | None = None
        if fresh and rules.judges:
            state = guarded(partial(judge, txn, stream, fresh.values(), actor, rules, near=near))
        answers: list[StoredOperation | Committed | AlreadyCommitted] = []
        committed: dict[str, Committed] = {}
        lowest = txn.floor(stream) if any(known) else None
        for new, stored in zip(drafts, known, strict=True):
            if stored is not None:
                is_compacted = lowest is not None and stored.position <= lowest.floor
                answers.append(_already_committed(stored) if is_compacted else stored)
            elif new.op_id in committed:
                answers.append(msgspec.structs.replace(committed[new.op_id], repeated=True))
            else:
                sequence += 1
                record = OperationRecord(
                    stream, epoch, sequence, new.op_id, actor, txn.at, new.payload_hash, len(new.payload)
                )
                position = txn.append(record, new.payload)
                answer = Committed(stream, sequence, position, new.op_id, actor, txn.at, new.operation, epoch=epoch)
                committed[new.op_id] = answer
                answers.append(answer)
        if state is not None:
            keep(txn, stream, msgspec.structs.replace(state, sequence=sequence, position=txn.head()), rules)
        return answers

    return decide


def _already_committed(stored: StoredOperation) -> AlreadyCommitted:
    head = stored.head
    return AlreadyCommitted(head.stream, head.sequence, stored.position, head.op_id, head.actor)


def committed_of(stored: StoredOperation, schema: Schema, *, is_repeated: bool = False) -> Committed:
    """A stored operation as callers get it.

    Raises:
        InvalidOperationError: today's type does not decode it.
        CorruptRecordError: its payload is no JSON.
    """
    head = stored.head
    return Committed(
        head.stream,
        head.sequence,
        stored.position,
        head.op_id,
        head.actor,
        head.at,
        schema.operation_of(stored),
        is_repeated,
        head.epoch,
    )


def page(stream: str | None, after: int, limit: int) -> Steps[OperationPage]:
    """The next page of operations, at most `limit` of them and within the bounds of a page."""
    found: OperationPage = yield Read(lambda view: view.operations(stream, after, min(limit, PAGE_RECORDS)))
    return found


def save_cursor(name: Any, cursor: Any, stream: Any) -> Steps[None]:
    """The protocol of `Journal.save_cursor`."""
    name = check_name(name, "a cursor's name", STREAM_BYTES_MAX)
    stream = None if stream is None else check_stream(stream)
    check_cursor_type(cursor)

    def decide(txn: Transaction) -> None:
        check_cursor(cursor, txn.head())
        txn.save_cursor(name, CursorRow(int(cursor), stream, txn.at))

    yield Commit(decide)


def cursor(name: Any) -> Steps[Cursor]:
    """The protocol of `Journal.cursor`."""
    name = check_name(name, "a cursor's name", STREAM_BYTES_MAX)
    row: CursorRow | None = yield Read(lambda view: view.cursor(name))
    return Cursor(0 if row is None else row.cursor)


def check_stream(stream: Any) -> str:
    """A stream's name, checked.

    Raises:
        TypeError, ValueError: as `check_name`.
    """
    return check_name(stream, "stream", STREAM_BYTES_MAX)


def check_expected(expected: Any) -> None:
    """Refuse an `expected` that no stream could be at.

    Raises:
        TypeError: it is no integer.
        ValueError: it is negative.
    """
    if expected is None:
        return
    if not isinstance(expected, int) or isinstance(expected, bool):
        raise TypeError(f"expected must be an int or None, not {type(expected).__name__}: {expected!r}")
    if expected < 0:
        raise ValueError(f"expected must be a sequence, 0 or more, not {expected}")


def check_cursor_type(value: Any) -> None:
    """Refuse a cursor that is no integer.

    Raises:
        TypeError: it is none.
    """
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"a cursor is an int, not {type(value).__name__}: {value!r}")


def check_cursor(value: int, head: int) -> None:
    """Refuse a cursor outside the log.

    Raises:
        InvalidCursorError: it is negative or past the head.
    """
    if not 0 <= value <= head:
        raise InvalidCursorError(value, head)


def check_reach(view: View, stream: str | None, cursor: int) -> None:
    """Refuse a cursor from which operations cannot be read.

    Raises:
        InvalidCursorError: it is outside the log.
        CompactedCursorError: an operation past it was compacted.
    """
    check_cursor(cursor, view.head())
    try:
        floors = [row for _, row in view.floors()] if stream is None else [view.floor(stream)]
    except CorruptRecordError:
        return  # it blocks its own stream, and a page that comes to that tells it
    for row in floors:
        if row is not None and cursor < row.floor:
            raise CompactedCursorError(cursor, floor_of(view, stream), stream)


def floor_of(view: View, stream: str | None) -> int:
    """The position through which a stream is compacted, or the highest of all streams; 0 where nothing is."""
    if stream is None:
        return max((row.through for _, row in view.floors()), default=0)
    row = view.floor(stream)
    return 0 if row is None else row.through


def check_limit(limit: Any) -> None:
    """Refuse a limit below 1.

    Raises:
        TypeError: it is neither an integer nor `None`.
        ValueError: it is below 1.
    """
    if limit is not None:
        check_count(limit, "limit")


def check_count(count: Any, name: str) -> None:
    """Refuse a number of things below 1.

    Raises:
        TypeError: it is no integer.
        ValueError: it is below 1.
    """
    if not isinstance(count, int) or isinstance(count, bool):
        raise TypeError(f"{name} must be an int, not {type(count).__name__}: {count!r}")
    if count < 1:
        raise ValueError(f"{name} must be 1 or more, not {count}")
