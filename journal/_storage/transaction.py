"""The write transaction: appends records to the log, with the index rows that follow from each.

What a record does to the indexes is said once, in `index_rows`; `verify` compares the same rows with the file.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

import lmdb

from journal._core.ledger import INTENT, UNFINISHED as UNFINISHED_PHASES
from journal._storage import layout
from journal._storage.owners import Owner
from journal._storage.views import StoreView, decode_owner, encode
from journal.records import (
    CompactionRecord,
    CursorRow,
    EffectEntry,
    FloorRow,
    LogRecord,
    OperationRecord,
    PrunedRecord,
    ResetRecord,
    SnapshotRow,
    StreamRow,
)

if TYPE_CHECKING:
    from journal._core.states import StateAt

_FIRST_EPOCH: Final = StreamRow(epoch=1, epoch_position=0)


class StoreTransaction(StoreView):
    """Implements `journal._core.requests.Transaction`."""

    # Most decisions about an effect that is on record are about an outcome.
    _likely_tables = (layout.UNFINISHED, layout.SETTLED)

    def __init__(self, txn: lmdb.Transaction, genesis: bytes, owner: Owner | None, *, has_owner_row: bool) -> None:
        super().__init__(txn, genesis)
        self.at = 0
        self.appended: list[tuple[int, LogRecord]] = []
        self.states: dict[str, StateAt] = {}
        self.has_changes = False
        self.has_owner_row = has_owner_row
        self.last = self.tail()
        self._owner = owner

    def append(self, record: LogRecord, payload: bytes = b"") -> int:
        """Put a record at the end of the log, with all index rows that follow from it."""
        position, before = self.last[0] + 1, self.last[1]
        head = encode(record)
        record_digest = layout.chain(before, position, head)
        if not self._txn.put(
            layout.log_key(position), layout.frame(position, record_digest, head, payload), append=True
        ):
            raise _refused(layout.LOG)
        self.has_changes = True
        self.last = position, record_digest
        self.appended.append((position, record))
        if isinstance(record, EffectEntry):
            if record.previous:
                self._drop_old_row(record)
            if record.phase is INTENT and not self.has_owner_row:
                self._put_owner_row()
        elif isinstance(record, ResetRecord):
            for table in (layout.FLOOR, layout.SNAPSHOT):
                self._delete_row(table + record.stream.encode())
        for key, content in index_rows(position, record):
            self._put_row(key, content)
        return position

    def save_cursor(self, name: str, row: CursorRow) -> None:
        """Put a cursor's row."""
        self._put_row(layout.CURSOR + name.encode(), encode(row))

    def save_snapshot(self, name: str, row: SnapshotRow) -> None:
        """Put a stream's kept state in the place of the one before."""
        self._put_row(layout.SNAPSHOT + name.encode(), encode(row))

    def _drop_old_row(self, entry: EffectEntry) -> None:
        """An effect has one index row, in one of two tables: take it out of the other one."""
        other = layout.SETTLED if entry.phase in UNFINISHED_PHASES else layout.UNFINISHED
        self._txn.delete(layout.form_key(other, entry.key))

    def _put_owner_row(self) -> None:
        """Say who this owner is, once; and forget the dead, whom nobody will find alive without a row either."""
        if self._owner is not None:
            for key, value in list(self._scan(layout.OWNER, layout.OWNER)):
                with contextlib.suppress(layout.DamagedRowError):  # a damaged row of another's is not ours to judge
                    row = decode_owner(layout.unseal(key, value))
                    if self._owner.can_forget(layout.unpack_u64(key[1:]), row):
                        self._txn.delete(key)
            self._put_row(layout.OWNER + layout.pack_u64(self._owner.id), encode(self._owner.row))
            self.has_owner_row = True

    def _delete_row(self, key: bytes) -> None:
        self._txn.delete(key)
        self.has_changes = True

    def _put_row(self, key: bytes, content: bytes) -> None:
        if not self._txn.put(key, layout.seal(key, content)):
            raise _refused(key[:1])
        self.has_changes = True


def _refused(table: bytes) -> lmdb.Error:
    return lmdb.CorruptedError(f"LMDB would not put a row of {layout.TABLES[table]} in its place")


def index_rows(position: int, record: LogRecord) -> list[tuple[bytes, bytes]]:
    """The index rows that a record brings: keys and contents (of an effect, only where it is the key's last event)."""
    place = layout.pack_u64(position)
    if isinstance(record, EffectEntry):
        table = layout.UNFINISHED if record.phase in UNFINISHED_PHASES else layout.SETTLED
        return [(layout.form_key(table, record.key), place + bytes([record.phase]))]
    if isinstance(record, OperationRecord):
        rows = [
            (layout.stream_prefix(record.stream) + place, layout.pack_u64(record.sequence)),
            (layout.identity_key(record.stream, record.epoch, record.op_id), place),
        ]
        if record.sequence == 1 and record.epoch == 1:
            rows.append((layout.STREAM + record.stream.encode(), encode(_FIRST_EPOCH)))
        return rows
    if isinstance(record, CompactionRecord):
        return [(layout.FLOOR + record.stream.encode(), encode(FloorRow(record.floor, position)))]
    if isinstance(record, ResetRecord):
        return [(layout.STREAM + record.stream.encode(), encode(StreamRow(record.epoch, position)))]
    if isinstance(record, PrunedRecord):
        return [] if record.key is None else [(layout.PRUNED + record.key, place)]
    return [(layout.form_key(layout.STEP, record.key), place)]
