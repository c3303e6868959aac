"""The protocols that shorten a stream: `compact`, `reset`, and what they leave to be asked: `floor`, `epoch`.

A compaction is one record, and with its commit it has happened. The payloads go afterwards, in bounded transactions; a
row says how far that has come, so that whoever compacts next, in whatever process, goes on where a killed one ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final

import msgspec

from journal._core.keys import check_name, key_form, key_of, prefix_form
from journal._core.ledger import UNFINISHED
from journal._core.operations import check_stream, floor_of
from journal._core.requests import Commit, Read, Steps, Transaction, View
from journal.errors import CorruptRecordError, InvalidCompactionError, JournalFullError, Key
from journal.options import DROP_RECORDS, PAGE_RECORDS, PROOF_BYTES_MAX, STREAM_BYTES_MAX
from journal.records import CompactionRecord, DroppingRow, ResetRecord, SnapshotRow
from journal.values import Cursor

Snapshot = Callable[[str], Steps[SnapshotRow | None]]
"""The protocol that gives a stream's state after its last operation; it writes nothing."""

_OF_AN_OPERATION: Final = 3
"""The parts that the key of an operation's effect begins with: stream, epoch, op_id."""


class _Order(msgspec.Struct, frozen=True):
    """What is to be dropped, and what may be passed: names of cursors, forms of keys."""

    stream: str
    through: int
    past_cursors: frozenset[str]
    past_effects: frozenset[bytes]


class _Plan(msgspec.Struct, frozen=True):
    """What a compaction comes to: in which epoch, and where its last operation is that goes; 0 where none of it does."""

    epoch: int
    floor: int
    drops_present: bool
    """Whether operations go that could be read so far, and not those of past epochs alone."""


def compact(
    stream: Any, through: Any, past_cursors: Any, past_effects: Any, snapshot: Snapshot | None = None
) -> Steps[Cursor]:
    """The protocol of `Journal.compact`; without a `snapshot` no state is kept of what goes."""
    stream = check_stream(stream)
    if not isinstance(through, int) or isinstance(through, bool):
        raise TypeError(f"through must be a position, not {type(through).__name__}: {through!r}")
    names = [check_name(name, "a cursor's name", STREAM_BYTES_MAX) for name in _each(past_cursors, "past_cursors")]
    forms = [key_form(key) for key in _each(past_effects, "past_effects")]
    order = _Order(stream, int(through), frozenset(names), frozenset(forms))
    yield from _drop_what_is_left()
    kept: SnapshotRow | None = None
    if snapshot is not None:
        plan: _Plan | None = yield Read(partial(_plan, order=order))
        if plan is not None and plan.drops_present:
            kept = yield from snapshot(stream)
    # It makes room: where there is none for anything new it may use what is kept for outcomes, unless it needs much.
    makes_room = kept is None or len(kept.state) <= PROOF_BYTES_MAX
    yield Commit(_decide(order, kept), settles=makes_room)
    yield from _drop(stream)
    return (yield from floor(stream))


def _each(items: Any, name: str) -> Iterable[Any]:
    if isinstance(items, str | bytes) or not isinstance(items, Iterable):
        raise TypeError(f"{name} must be a collection, not {type(items).__name__}: {items!r}")
    return items


def _decide(order: _Order, kept: SnapshotRow | None) -> Callable[[Transaction], None]:
    def decide(txn: Transaction) -> None:
        plan = _plan(txn, order)
        if plan is None:
            return
        stream, through = order.stream, order.through
        if kept is not None and plan.drops_present:
            # All that goes was in the log before the state was read, and is in it. After a reset none of it is present.
            txn.save_snapshot(stream, msgspec.structs.replace(kept, at=txn.at))
        left = txn.dropping(stream) or DroppingRow(floor_of(txn, stream), through)
        txn.append(CompactionRecord(stream, plan.epoch, plan.floor, txn.at, through))
        txn.save_dropping(stream, DroppingRow(left.after, max(left.through, through)))

    return decide


def _plan(view: View, order: _Order) -> _Plan | None:
    """What a compaction comes to; `None` where there is nothing to drop.

    Raises:
        InvalidCompactionError: it is refused.
    """
    stream, through = order.stream, order.through
    row, head = view.stream(stream), view.head()
    if row is None:
        raise InvalidCompactionError(stream, "nothing was ever appended to it; name one that `streams()` lists")
    if not 1 <= through <= head:
        raise InvalidCompactionError(
            stream, f"through {through} is outside the log, which ends at {head}; pass a position from 1 to {head}"
        )
    dropped = range(floor_of(view, stream) + 1, through + 1)
    last = view.last_operation(stream, through)
    if last not in dropped:
        return None
    if last <= row.epoch_position:
        return _Plan(row.epoch, 0, drops_present=False)
    _check_cursors(view, order, last)
    _check_effects(view, order, row.epoch, dropped)
    return _Plan(row.epoch, last, drops_present=True)


def _check_cursors(view: View, order: _Order, last: int) -> None:
    """Refuse to pass an operation that a saved cursor has yet to read."""
    for name, saved in view.saved_cursors():
        if saved.stream in (None, order.stream) and saved.cursor < last and name not in order.past_cursors:
            raise InvalidCompactionError(
                order.stream,
                f"the saved cursor {name!r} is at {saved.cursor} and has yet to read its operations through {last}; "
                f"save it further on, compact through {saved.cursor} at most, or pass past_cursors=[{name!r}]",
            )


def _check_effects(view: View, order: _Order, epoch: int, dropped: range) -> None:
    """Refuse to pass an operation whose effects are not settled.

    It costs by the number of unfinished effects of the stream, however many operations there are.
    """
    stream = order.stream
    prefix = prefix_form((stream, epoch))
    after: bytes | None = b""
    while after is not None:
        page = view.effects(frozenset(UNFINISHED), prefix=prefix, after=after, limit=PAGE_RECORDS)
        after = page.through
        for state in page.states:
            if state.entry.key in order.past_effects:
                continue
            key = key_of(state.entry.key)
            position = _operation_of(view, stream, epoch, key)
            if position in dropped:
                raise InvalidCompactionError(
                    stream,
                    f"effect {key!r} of the operation at {position} is unfinished; recover, resolve or clear it, "
                    f"compact through less than {position}, or pass past_effects=[{key!r}]",
                )


def _operation_of(view: View, stream: str, epoch: int, key: Key) -> int | None:
    """The position of the operation that an effect's key names, where it names one."""
    op_id = key[_OF_AN_OPERATION - 1] if len(key) >= _OF_AN_OPERATION else None
    if not isinstance(op_id, str):
        return None
    stored = view.identity(stream, epoch, op_id)
    return None if stored is None else stored.position


def _drop_what_is_left() -> Steps[None]:
    """End the compactions that were killed; a stream that is damaged holds up no other."""
    streams: list[str] = yield Read(lambda view: view.droppings())
    for stream in streams:
        try:
            yield from _drop(stream)
        except CorruptRecordError:
            continue


def _drop(stream: str) -> Steps[None]:
    """Drop the payloads of a stream that a compaction left to be dropped; where it is full, fewer at once.

    A transaction writes its pages anew before the old ones are free, and the next one may use these.
    """
    count, is_left = DROP_RECORDS, True
    while is_left:
        try:
            is_left = yield Commit(partial(_drop_some, stream=stream, count=count), settles=True)
        except JournalFullError:
            if count == 1:
                raise
            count = max(1, count // 8)


def _drop_some(txn: Transaction, stream: str, count: int) -> bool:
    """Drop some payloads; whether some are left."""
    left = txn.dropping(stream)
    if left is None:
        return False
    row = txn.stream(stream)
    allowed = max(0 if row is None else row.epoch_position, floor_of(txn, stream))
    if left.through > allowed:
        raise CorruptRecordError(None, f"it is to be dropped through {left.through}, past its floor", stream=stream)
    reached = txn.drop_payloads(stream, left.after, left.through, count)
    is_left = reached < left.through
    txn.save_dropping(stream, DroppingRow(reached, left.through) if is_left else None)
    return is_left


def floor(stream: Any) -> Steps[Cursor]:
    """The protocol of `Journal.floor`."""
    stream = None if stream is None else check_stream(stream)
    position: int = yield Read(lambda view: floor_of(view, stream))
    return Cursor(position)


def reset(stream: Any) -> Steps[int]:
    """The protocol of `Journal.reset`."""
    stream = check_stream(stream)

    def decide(txn: Transaction) -> int:
        row = txn.stream(stream)
        if row is None:
            return 1
        txn.append(ResetRecord(stream, row.epoch + 1, txn.at))
        return row.epoch + 1

    number: int = yield Commit(decide)
    return number


def epoch(stream: Any) -> Steps[int]:
    """The protocol of `Journal.epoch`."""
    stream = check_stream(stream)
    number: int = yield Read(lambda view: 1 if (row := view.stream(stream)) is None else row.epoch)
    return number
