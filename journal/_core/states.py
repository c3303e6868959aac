"""States of streams: how one is brought to the head of its stream, asked within an append, and kept.

`state_n = kept(apply(state_{n-1}, operation_n))`, where kept means encoded and decoded again. So the log alone says what
a state is: whatever was remembered, kept as a snapshot or folded anew, by whichever process, comes to the same bytes.

What is remembered of a stream is a true statement about a prefix of one of its epochs, and no more. Every use of it looks
in its own transaction whether the epoch is still that one, and folds what came after.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from operator import methodcaller
from typing import Any, TypeGuard

import msgspec

from journal._core import hooks
from journal._core.keys import check_name
from journal._core.payloads import decode_value
from journal._core.requests import Decide, OperationPage, Read, Steps, StoredOperation, Transaction, View
from journal._core.rules import Place, Reducer, Rules
from journal.errors import CompactedCursorError, CorruptRecordError, InvalidOperationError
from journal.options import PAGE_RECORDS, STREAM_BYTES_MAX
from journal.records import SnapshotRow
from journal.values import Cursor, Finding, Loaded


class StateAt(msgspec.Struct, frozen=True):
    """A stream's state after the operation at `position`, as JSON.

    `kept` is the sequence of the snapshot last seen, 0 where none was; `None` where that is of no use and to be replaced.
    """

    epoch: int
    sequence: int
    position: int
    kept: int | None
    state: bytes


class Draft(msgspec.Struct, frozen=True):
    """An operation that can be kept: its canonical JSON, the hash that identifies it, and the value as it comes back."""

    op_id: str
    payload: bytes
    payload_hash: bytes
    operation: Any


class Tail(msgspec.Struct, frozen=True):
    """A stream's page of operations after what is known of its state, and where that is to begin when nothing is."""

    epoch: int
    sequence: int
    at: StateAt | None
    snapshot: SnapshotRow | None
    page: OperationPage


class TooFarError(Exception):
    """What is remembered of a state lies too far behind to be brought up inside a transaction: come nearer first."""


# --- outside transactions ------------------------------------------------------------------------------------------


def load(stream: Any, rules: Rules) -> Steps[Loaded[Any]]:
    """The protocol of `Journal.load`."""
    stream = check_name(stream, "stream", STREAM_BYTES_MAX)
    if rules.reducer is None:
        raise TypeError("load needs a reducer: open the journal with state=journal.Reducer(...)")
    at = yield from approach(stream, rules)
    return Loaded(decode_value(at.state, rules.reducer.kind), Cursor(at.position), at.sequence)


def snapshot_through(stream: str, rules: Rules) -> Steps[SnapshotRow | None]:
    """A stream's state after its last operation, as a row for `save_snapshot`; `None` without a reducer or operations.

    Raises:
        InvalidOperationError: an operation can be neither decoded nor applied.
        CorruptRecordError: a record is damaged, or what the state is made of was compacted away.
    """
    if rules.reducer is None:
        return None
    at = yield from approach(stream, rules)
    return _row_of(at, rules.reducer) if at.sequence else None


def snapshot_finding(stream: str, rules: Rules) -> Steps[Finding | None]:
    """What is wrong with a stream's snapshot, held against its operations folded anew; `None` where nothing is.

    Of a snapshot of another version, or of a stream that is compacted, nothing can be said: what it is made of is gone.
    """
    row: SnapshotRow | None = yield Read(partial(_refoldable, stream=stream, rules=rules))
    if row is None:
        return None
    problem: str | None = None
    try:
        at: StateAt = yield Decide(_beginning, (stream, row.epoch, rules))
        while at.position < row.position:
            page: OperationPage = yield Read(methodcaller("operations", stream, at.position, PAGE_RECORDS))
            operations = [stored for stored in page.operations if stored.position <= row.position]
            if not operations:
                break
            at = yield Decide(_fold, (stream, at, operations, rules))
        if (at.position, at.sequence) != (row.position, row.sequence) or not _is_same(at.state, row.state):
            problem = "it is not what the operations of its stream come to"
    except (CompactedCursorError, CorruptRecordError, InvalidOperationError) as error:
        problem = f"what it is made of cannot be folded anew: {error}"
    if problem is None or (yield Read(partial(_refoldable, stream=stream, rules=rules))) != row:
        return None  # or between two of our transactions the stream moved on
    return Finding("snapshots", row.position, problem)


def _refoldable(view: View, *, stream: str, rules: Rules) -> SnapshotRow | None:
    row = view.stream(stream)
    snapshot = view.snapshot(stream)
    is_whole = row is not None and view.floor(stream) is None and _is_of(snapshot, row.epoch, _reducer(rules))
    return snapshot if is_whole else None


def _is_same(state: bytes, other: bytes) -> bool:
    try:
        return bool(decode_value(state) == decode_value(other))
    except msgspec.DecodeError:
        return False


def approach(stream: str, rules: Rules) -> Steps[StateAt]:
    """A stream's state after its last operation, page by page, no more than a page of it in any one transaction.

    Raises:
        InvalidOperationError, CorruptRecordError: as `snapshot_through`.
    """
    at = rules.states.get(stream)
    trusts_snapshot = True
    while True:
        tail: Tail = yield Read(partial(_look, stream=stream, rules=rules, at=at, trusts_snapshot=trusts_snapshot))
        reached: StateAt | None = yield Decide(_follow, (stream, tail, rules))
        if reached is None:
            trusts_snapshot = False
            continue
        at = reached if trusts_snapshot else msgspec.structs.replace(reached, kept=None)
        rules.states.put(stream, at)
        if tail.page.ended:
            _check_whole(stream, at, tail.sequence)
            return at


def _look(view: View, *, stream: str, rules: Rules, at: StateAt | None, trusts_snapshot: bool) -> Tail:
    reducer = _reducer(rules)
    row = view.stream(stream)
    epoch = 1 if row is None else row.epoch
    floor = _floor(view, stream)
    sequence = view.sequence(stream)
    if at is not None and (at.epoch != epoch or at.position < floor):
        at = None
    snapshot = None
    if trusts_snapshot and (at is None or sequence - at.sequence > reducer.snapshot_every):
        snapshot = _snapshot_before(view, stream, epoch, reducer)
        if snapshot is not None and (
            snapshot.position < floor or (at is not None and snapshot.sequence <= at.sequence)
        ):
            snapshot = None
    if at is None and snapshot is None and floor:
        raise CorruptRecordError(
            None,
            f"its state cannot be rebuilt: no snapshot can be read by this reducer (version {reducer.version}), and its "
            f"operations through position {floor} were compacted away",
            stream=stream,
        )
    start = snapshot or at
    page = view.operations(stream, 0 if start is None else start.position, PAGE_RECORDS)
    return Tail(epoch, sequence, at, snapshot, page)


def _floor(view: View, stream: str) -> int:
    row = view.floor(stream)
    return 0 if row is None else row.floor


def _snapshot_before(view: View, stream: str, epoch: int, reducer: Reducer) -> SnapshotRow | None:
    """The snapshot that a fold may begin with. One that cannot be read is none: it was made from the log."""
    try:
        row = view.snapshot(stream)
    except CorruptRecordError:
        return None
    return row if _is_of(row, epoch, reducer) else None


def _follow(stream: str, tail: Tail, rules: Rules) -> StateAt | None:
    """The state after a page; `None` where the snapshot that it begins with does not decode."""
    at = tail.at
    if tail.snapshot is not None:
        at = _restored(tail.snapshot, rules)
        if at is None:
            return None
    return _fold(stream, at or _beginning(stream, tail.epoch, rules), tail.page.operations, rules)


def _restored(row: SnapshotRow, rules: Rules) -> StateAt | None:
    try:
        hooks.call(decode_value, row.state, _reducer(rules).kind)
    except Exception:  # noqa: BLE001 - today's type reads it no more, whatever it raises
        return None
    return StateAt(row.epoch, row.sequence, row.position, row.sequence, row.state)


# --- inside the write transaction ----------------------------------------------------------------------------------


def judge(
    txn: Transaction, stream: str, drafts: Iterable[Draft], actor: str, rules: Rules, *, near: StateAt | None
) -> StateAt | None:
    """What a stream's state will be after new operations, each of them allowed; `None` without a reducer.

    Of what comes back the state holds, and how long ago the last snapshot was; its place is the one before them.

    Raises:
        InvalidOperationError, OperationRefusedError: an operation is refused.
        TooFarError: neither `near` nor what is remembered is near enough.
    """
    if rules.reducer is None:
        for new in drafts:
            rules.check(Place(stream, new.op_id, None), new.payload, actor, None)
        return None
    at = _current(txn, stream, rules, near)
    state = at.state
    for new in drafts:
        place = Place(stream, new.op_id, None)
        rules.check(place, new.payload, actor, state)
        state = rules.apply(place, state, rules.schema.decode(new.payload))
    return msgspec.structs.replace(at, state=state)


def keep(txn: Transaction, stream: str, at: StateAt, rules: Rules) -> None:
    """Remember a state that this transaction came to, with a snapshot of it where the last one is too long ago."""
    reducer = _reducer(rules)
    kept = at.kept
    if kept is not None and at.sequence - kept >= reducer.snapshot_every:
        # Another process may have kept one meanwhile.
        present = txn.snapshot(stream)
        kept = present.sequence if _is_of(present, at.epoch, reducer) else 0
    if kept is None or at.sequence - kept >= reducer.snapshot_every:
        save_snapshot(txn, stream, _row_of(at, reducer))
        kept = at.sequence
    txn.states[stream] = msgspec.structs.replace(at, kept=kept)


def save_snapshot(txn: Transaction, stream: str, row: SnapshotRow) -> None:
    """Keep a state, in the place of what was kept before; the row's epoch must be the stream's."""
    txn.save_snapshot(stream, msgspec.structs.replace(row, at=txn.at))


def _current(txn: Transaction, stream: str, rules: Rules, near: StateAt | None) -> StateAt:
    """A stream's state after its last operation."""
    row = txn.stream(stream)
    epoch = 1 if row is None else row.epoch
    sequence = txn.sequence(stream)
    known = [
        at for at in (txn.states.get(stream), rules.states.get(stream), near) if at is not None and at.epoch == epoch
    ]
    if known:
        at = max(known, key=lambda one: one.sequence)
    elif sequence == 0:
        at = _beginning(stream, epoch, rules)
    else:
        raise TooFarError
    if at.sequence < sequence:
        floor = txn.floor(stream)
        if floor is not None and at.position < floor.floor:
            raise TooFarError
        page = txn.operations(stream, at.position, PAGE_RECORDS)
        if not page.ended:
            raise TooFarError
        at = _fold(stream, at, page.operations, rules)
    _check_whole(stream, at, sequence)
    txn.states[stream] = at
    return at


# --- both ----------------------------------------------------------------------------------------------------------


def _beginning(stream: str, epoch: int, rules: Rules) -> StateAt:
    return StateAt(epoch, 0, 0, 0, rules.begin(stream))


def _fold(stream: str, at: StateAt, operations: list[StoredOperation], rules: Rules) -> StateAt:
    state, sequence, position = at.state, at.sequence, at.position
    for stored in operations:
        sequence += 1
        position = stored.position
        if (stored.head.epoch, stored.head.sequence) != (at.epoch, sequence):
            raise CorruptRecordError(position, f"the stream has no operation of sequence {sequence}", stream=stream)
        place = Place(stream, stored.head.op_id, position)
        state = rules.apply(place, state, rules.schema.operation_of(stored))
    return StateAt(at.epoch, sequence, position, at.kept, state)


def _check_whole(stream: str, at: StateAt, sequence: int) -> None:
    if at.sequence != sequence:
        problem = f"its operations lead to sequence {at.sequence}, and its index says {sequence}"
        raise CorruptRecordError(None, problem, stream=stream)


def _row_of(at: StateAt, reducer: Reducer) -> SnapshotRow:
    return SnapshotRow(at.epoch, at.sequence, at.position, reducer.version, at.state, at=0)


def _reducer(rules: Rules) -> Reducer:
    assert rules.reducer is not None  # noqa: S101 - a bug of ours: nothing comes to a state without one
    return rules.reducer


def _is_of(row: SnapshotRow | None, epoch: int, reducer: Reducer) -> TypeGuard[SnapshotRow]:
    return row is not None and (row.epoch, row.version) == (epoch, reducer.version)
