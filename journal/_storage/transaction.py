"""The write transaction: appends records to the log, with the index rows that follow from each.

What a record does to the indexes is said once, in `index_rows`; `verify` compares the same rows with the file.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

import lmdb
import msgspec

from journal._core.ledger import CLEARED, INTENT, UNFINISHED as UNFINISHED_PHASES, EffectState, Tombstone
from journal._core.payloads import digest
from journal._core.pruning import Run, covering
from journal._storage import layout
from journal._storage.owners import Owner
from journal._storage.views import StoreView, decode_owner, decode_record, encode
from journal.errors import CorruptRecordError
from journal.options import PAGE_BYTES_MAX
from journal.records import (
    CompactionRecord,
    CursorRow,
    DroppingRow,
    EffectEntry,
    FloorRow,
    LogRecord,
    OperationRecord,
    PrunedRecord,
    ResetRecord,
    RestoredRow,
    SnapshotRow,
    StreamRow,
)

if TYPE_CHECKING:
    from journal._core.states import StateAt

ROW_PAGE_BYTES: Final = 4_096
"""A row that is so long has pages of its own."""

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
        self.touched = 0
        """How many rows were written or deleted, and how many whole pages with them."""
        self.has_owner_row = has_owner_row
        self.last = self.tail()
        self._owner = owner
        self._has_no_pruned = False

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
        self.touched += 1
        self.last = position, record_digest
        self.appended.append((position, record))
        self._index(position, record)
        return position

    def replay(self, position: int, record: LogRecord, value: bytes) -> None:
        """Put a record of another file as it stands there, with all index rows that follow from it."""
        if not self._txn.put(layout.log_key(position), value, append=True):
            raise _refused(layout.LOG)
        self._index(position, record)

    def _index(self, position: int, record: LogRecord) -> None:
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

    def save_cursor(self, name: str, row: CursorRow) -> None:
        """Put a cursor's row."""
        self._put_row(layout.CURSOR + name.encode(), encode(row))

    def save_snapshot(self, name: str, row: SnapshotRow) -> None:
        """Put a stream's kept state in the place of the one before."""
        self._put_row(layout.SNAPSHOT + name.encode(), encode(row))

    def pruned(self, form: bytes) -> Tombstone | None:
        """What is left of a pruned effect; where nothing was ever pruned, one look is enough for a shared commit."""
        if self._has_no_pruned:
            return None
        found = super().pruned(form)
        if found is None:
            # The search has left its cursor at the row before the place.
            cursor = self._searcher
            is_beside = cursor.key()[:1] == layout.PRUNED or (cursor.next() and cursor.key()[:1] == layout.PRUNED)
            self._has_no_pruned = not is_beside
        return found

    def prune(self, state: EffectState) -> int:
        """Put what is left of a key into the place of its events, of which this is the last; how many there were."""
        position, entry = state.position, state.entry
        form = entry.key
        record = PrunedRecord(position, self.at)
        if entry.phase is not CLEARED:
            record = PrunedRecord(position, self.at, digest(form), entry.guarantee)
        self._delete_row(layout.form_key(layout.SETTLED, form))
        for key, content in index_rows(position, record):
            self._put_row(key, content)
        self._cover(position, record)
        self._has_no_pruned = False
        count = 1
        while entry.previous:
            position = entry.previous
            entry = self._entry(position, form)
            self._cover(position, PrunedRecord(position, self.at))
            count += 1
        return count

    def forget(self, tombstone: Tombstone) -> None:
        """Let what is left of a pruned effect name no key any more."""
        position, record = tombstone.position, tombstone.record
        for key, _ in index_rows(position, record):
            self._delete_row(key)
        self._cover(position, PrunedRecord(record.first, record.at))

    def _cover(self, position: int, record: PrunedRecord) -> None:
        """Put what is left of pruned events in the place of a record; its digest stays, for the next link of the chain."""
        own = Run(position, self.frame(position).digest, record)
        run, gone = covering(own, *self._runs_beside(position), self.last[0])
        for place in gone:
            self._delete_row(layout.log_key(place))
        value = layout.frame(run.position, run.digest, encode(run.record), b"")
        if not self._txn.put(layout.log_key(run.position), value):
            raise _refused(layout.LOG)
        self.has_changes = True
        self.touched += 1

    def _runs_beside(self, position: int) -> tuple[Run | None, Run | None]:
        with self._txn.cursor() as cursor:
            beside: list[Run | None] = []
            for move in (cursor.prev, cursor.next):
                cursor.set_key(layout.log_key(position))
                row: Any = cursor.item() if move() else None  # bytes, since buffers were not asked for
                beside.append(None if row is None else _run_of(*row))
        return beside[0], beside[1]

    def save_dropping(self, name: str, row: DroppingRow | None) -> None:
        """Put the row of payloads that are yet to be dropped, or take it away."""
        key = layout.DROPPING + name.encode()
        if row is None:
            self._delete_row(key)
        else:
            self._put_row(key, encode(row))

    def drop_payloads(self, name: str, after: int, through: int, count: int) -> int:
        """Drop the payloads of a stream's next operations, at most `count`; the position reached.

        Raises:
            CorruptRecordError: the index is damaged, or names a record that is not in the log.
        """
        prefix = layout.stream_prefix(name)
        positions: list[int] = []
        for key, value in self._scan(prefix + layout.pack_u64(after + 1), prefix):
            self._check_row(key, value)
            positions.append(layout.unpack_u64(key[-8:]))
            if positions[-1] > through or len(positions) > count:
                break
        size = 0
        for index, position in enumerate(positions):
            if position > through:
                return through
            if index == count or size >= PAGE_BYTES_MAX:
                return position - 1
            size += self._drop_payload(name, position)
        return through

    def _drop_payload(self, name: str, position: int) -> int:
        """Keep of an operation's record all that the chain and its identity need; how many bytes that freed."""
        try:
            parts = layout.unframe(position, self._log_value(position))
            head = decode_record(parts.head)
        except (layout.DamagedRowError, msgspec.DecodeError, UnicodeDecodeError):
            return 0  # `verify` finds it as it is
        if not isinstance(head, OperationRecord) or head.stream != name:
            raise CorruptRecordError(position, f"the index has it for stream {name!r}", stream=name)
        if parts.payload:
            key = layout.log_key(position)
            if not self._txn.put(key, layout.frame(position, parts.digest, parts.head, b"")):
                raise _refused(key[:1])
            self.has_changes = True
            self.touched += 1
        return len(parts.payload)

    def save_restored(self, row: RestoredRow) -> None:
        """Put what a copy says of itself."""
        self._put_row(layout.RESTORED_KEY, encode(row))

    def _drop_old_row(self, entry: EffectEntry) -> None:
        """An effect has one index row, in one of two tables: take it out of the other one."""
        other = layout.SETTLED if entry.phase in UNFINISHED_PHASES else layout.UNFINISHED
        self._txn.delete(layout.form_key(other, entry.key))
        self.touched += 1

    def _put_owner_row(self) -> None:
        """Say who this owner is, once; and forget the dead, whom nobody will find alive without a row either."""
        if self._owner is not None:
            for key, value in list(self._scan(layout.OWNER, layout.OWNER)):
                with contextlib.suppress(layout.DamagedRowError):  # a damaged row of another's is not ours to judge
                    row = decode_owner(layout.unseal(key, value))
                    if self._owner.can_forget(layout.unpack_u64(key[1:]), row):
                        self._txn.delete(key)
                        self.touched += 1
            self._put_row(layout.OWNER + layout.pack_u64(self._owner.id), encode(self._owner.row))
            self.has_owner_row = True

    def _delete_row(self, key: bytes) -> None:
        self._txn.delete(key)
        self.has_changes = True
        self.touched += 1

    def _put_row(self, key: bytes, content: bytes) -> None:
        if not self._txn.put(key, layout.seal(key, content)):
            raise _refused(key[:1])
        self.has_changes = True
        self.touched += 1 + len(content) // ROW_PAGE_BYTES


def _run_of(key: bytes, value: bytes) -> Run | None:
    """A row of the log that stands for pruned events; a damaged one is left to whoever verifies."""
    if key[:1] != layout.LOG:
        return None
    try:
        frame = layout.unframe(layout.position_of(key), value)
        record = decode_record(frame.head)
    except (layout.DamagedRowError, msgspec.DecodeError, UnicodeDecodeError):
        return None
    return Run(layout.position_of(key), frame.digest, record) if isinstance(record, PrunedRecord) else None


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
        return [(layout.FLOOR + record.stream.encode(), encode(FloorRow(record.floor, position, record.through)))]
    if isinstance(record, ResetRecord):
        return [(layout.STREAM + record.stream.encode(), encode(StreamRow(record.epoch, position)))]
    if isinstance(record, PrunedRecord):
        return [] if record.key is None else [(layout.PRUNED + record.key, place)]
    return [(layout.form_key(layout.STEP, record.key), place)]
