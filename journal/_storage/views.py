"""The journal as one LMDB transaction sees it: rows in, records out, each checked.

A row that is not found is no proof of absence while its neighbours are damaged: a flipped byte in a key hides a row
from LMDB's search. So a miss looks at both neighbours before it is believed (`_search`); `glance` alone believes none.
"""

from __future__ import annotations

import contextlib
import heapq
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, TypeVar

import lmdb
import msgspec

from journal._core.keys import has_prefix, key_of
from journal._core.ledger import UNFINISHED as UNFINISHED_PHASES, EffectState, Tombstone
from journal._core.payloads import digest
from journal._core.requests import EffectPage, OperationPage, StoredOperation
from journal._storage import layout
from journal.errors import CompactedCursorError, CorruptRecordError, Key
from journal.options import PAGE_BYTES_MAX, PAGE_SCAN_RECORDS
from journal.records import (
    CursorRow,
    DroppingRow,
    EffectEntry,
    FloorRow,
    LogRecord,
    OperationRecord,
    OwnerRow,
    Phase,
    PrunedRecord,
    RestoredRow,
    SnapshotRow,
    StepRecord,
    StreamRow,
)

if TYPE_CHECKING:
    from journal._storage.layout import Frame

R = TypeVar("R")

decode_record: Final = msgspec.msgpack.Decoder(LogRecord).decode
decode_owner: Final = msgspec.msgpack.Decoder(OwnerRow).decode
encode: Final = msgspec.msgpack.Encoder().encode

_OPERATION_TAG: Final = 1
_POSITION_MAX: Final = 2**64 - 1
_PASSED: Final = 0
"""In the place of a position: nothing was found up to here."""

_NO_FLOOR: Final = FloorRow(0, 0)
_DAMAGED: Final = (lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.CursorFullError)


class StoreView:
    """Implements `journal._core.requests.View` over one transaction, and offers rows to the rest of the store."""

    _likely_tables = (layout.SETTLED, layout.UNFINISHED)
    """Where an effect stands, the likelier first: what is read is mostly settled."""

    def __init__(self, txn: lmdb.Transaction, genesis: bytes) -> None:
        self._txn = txn
        self._genesis = genesis
        self._searcher: Any = None

    # --- the log -----------------------------------------------------------------------------------------------

    def head(self) -> int:
        """The last position of the log."""
        return self.tail()[0]

    def tail(self) -> tuple[int, bytes]:
        """The last position of the log and its digest; 0 and the journal's own when it is empty."""
        with self._txn.cursor() as cursor:
            if not _moved(cursor.last):
                return 0, self._genesis
            key, value = _item(cursor)
            if key[:1] != layout.LOG:
                self._check_beside(cursor)
                return 0, self._genesis
            position = _position_of(key)
            try:
                return position, layout.unframe(position, value).digest
            except layout.DamagedRowError as error:
                # A damaged last record blocks its own key or stream, not the journal, where its place can be believed.
                if position > 1 and not (_moved(cursor.prev) and _item(cursor)[0] == layout.log_key(position - 1)):
                    raise CorruptRecordError(position, str(error)) from error
                return position, layout.raw_digest(value)

    def frame(self, position: int) -> Frame:
        """A log record's parts.

        Raises:
            CorruptRecordError: it is not there or damaged.
        """
        try:
            return layout.unframe(position, self._log_value(position))
        except layout.DamagedRowError as error:
            raise CorruptRecordError(position, str(error)) from error

    def record(self, position: int, form: bytes | None = None) -> LogRecord:
        """A log record's head, decoded.

        Raises:
            CorruptRecordError: it is not there, damaged, or of no kind that we know; with the key of the form, if any.
        """
        try:
            return decode_record(layout.head_of(position, self._log_value(position)))
        except CorruptRecordError as error:
            raise CorruptRecordError(position, error.reason, _key_or_none(form)) from error
        except layout.DamagedRowError as error:
            raise CorruptRecordError(position, str(error), _key_or_none(form)) from error
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise CorruptRecordError(position, f"it cannot be decoded: {error}", _key_or_none(form)) from error

    def _log_value(self, position: int) -> bytes:
        value = self._get(layout.log_key(position))
        if value is None:
            raise CorruptRecordError(position, "an index names it, and it is not in the log")
        return value

    # --- operations --------------------------------------------------------------------------------------------

    def stream(self, name: str) -> StreamRow | None:
        """A stream's row."""
        return self.row(layout.STREAM + name.encode(), StreamRow)

    def streams(self) -> list[str]:
        """The names of all streams."""
        return [key[1:].decode() for key, _ in self.rows(layout.STREAM)]

    def floor(self, name: str) -> FloorRow | None:
        """Through which position a stream's epoch is compacted."""
        # A damaged snapshot beside it can be made anew, and blocks nothing.
        return self._lone_row(layout.FLOOR + name.encode(), FloorRow)

    def floors(self) -> list[tuple[str, FloorRow]]:
        """The streams that are compacted, and through where."""
        return self._named_rows(layout.FLOOR, FloorRow)

    def dropping(self, name: str) -> DroppingRow | None:
        """The payloads of a stream that a compaction has yet to drop; a miss costs bytes at most, and is believed."""
        key = layout.DROPPING + name.encode()
        content = self.content(key)
        return None if content is None else decode_row(key, content, DroppingRow)

    def droppings(self) -> list[str]:
        """The streams of which payloads are yet to be dropped; a damaged row is its own stream's to tell."""
        found: list[str] = []
        for key, value in self._scan(layout.DROPPING, layout.DROPPING):
            with contextlib.suppress(layout.DamagedRowError):
                layout.unseal(key, value)
                found.append(key[1:].decode())
        return found

    def snapshot(self, name: str) -> SnapshotRow | None:
        """A stream's kept state. A damaged row is none, for it can be made anew; a damaged page is found by any other."""
        try:
            return self.row(layout.SNAPSHOT + name.encode(), SnapshotRow)
        except CorruptRecordError as error:
            if isinstance(error.__cause__, lmdb.Error):
                raise
            return None

    def last_operation(self, name: str, through: int) -> int:
        """The position of a stream's last operation up to a position, in whatever epoch."""
        return self._last_operation(name, through + 1)[0]

    def first_position(self, name: str) -> int:
        """The position of the stream's first operation.

        Raises:
            CorruptRecordError: it has none.
        """
        prefix = layout.stream_prefix(name)
        for key, _ in self._scan(prefix, prefix):
            return layout.unpack_u64(key[-8:])
        raise CorruptRecordError(None, "the stream has no operation", stream=name)

    def sequence(self, name: str) -> int:
        """The last sequence of the stream's epoch."""
        row = self.stream(name)
        if row is None:
            return 0
        position, content = self._last_operation(name, _POSITION_MAX)
        return layout.unpack_u64(content) if position > row.epoch_position else 0

    def _last_operation(self, name: str, before: int) -> tuple[int, bytes]:
        """The position of a stream's last operation before one, and what its row says; 0 where there is none."""
        prefix = layout.stream_prefix(name)
        with self._txn.cursor() as cursor:
            found = _moved(cursor.set_range, prefix + layout.pack_u64(before))
            if found:
                self._check_edge(cursor, prefix)
            if not _moved(cursor.prev if found else cursor.last):
                return 0, b""
            key, value = _item(cursor)
            if key > prefix + b"\xff" * 8:
                raise CorruptRecordError(None, "a search of the index came out too far", stream=name)
            if not key.startswith(prefix):
                self._check_edge(cursor, prefix)
                return 0, b""
        return layout.unpack_u64(key[-8:]), self._check_row(key, value)

    def identity(self, name: str, epoch: int, op_id: str) -> StoredOperation | None:
        """The operation that has this op_id in an epoch of the stream."""
        position = self._position(layout.identity_key(name, epoch, op_id))
        if position is None:
            return None
        stored = self.operation(position)
        if stored.head.op_id != op_id or stored.head.stream != name:
            raise CorruptRecordError(position, f"the index has it for op_id {op_id!r}", stream=name)
        return stored

    def operation(self, position: int) -> StoredOperation:
        """The operation at this position."""
        parts = self.frame(position)
        return self._stored(position, _operation_head(position, parts), parts.payload)

    def operations(self, stream: str | None, after: int, limit: int) -> OperationPage:
        """A bounded page of operations past a position, in log order."""
        return self._all_operations(after, limit) if stream is None else self._operations_of(stream, after, limit)

    def _operations_of(self, stream: str, after: int, limit: int) -> OperationPage:
        row = self.stream(stream)
        if row is None:
            return OperationPage([], after, True)
        lowest = self._floor(stream)
        prefix = layout.stream_prefix(stream)
        found: list[StoredOperation] = []
        size = 0
        first = max(after, row.epoch_position) + 1
        for key, value in self._scan(prefix + layout.pack_u64(first), prefix):
            sequence = layout.unpack_u64(self._check_row(key, value))
            position = layout.unpack_u64(key[-8:])
            if position <= lowest.floor:
                raise CompactedCursorError(after, lowest.through, stream)
            stored = self.operation(position)
            if stored.head.stream != stream or stored.head.sequence != sequence:
                raise CorruptRecordError(position, f"the index has it for stream {stream!r}", stream=stream)
            found.append(stored)
            size += stored.head.payload_bytes
            if len(found) >= limit or size >= PAGE_BYTES_MAX:
                return OperationPage(found, position, False)
        return OperationPage(found, found[-1].position if found else after, True)

    def _all_operations(self, after: int, limit: int) -> OperationPage:
        found: list[StoredOperation] = []
        size = 0
        position = after
        standings: dict[str, tuple[int, int]] = {}
        for count, (key, value) in enumerate(self._scan(layout.log_key(after + 1), layout.LOG), 1):
            expected, position = position + 1, _position_of(key)
            if position != expected and not self._is_covered(expected, position, value):
                raise CorruptRecordError(expected, "it is missing from the log")
            stored = self._operation_or_none(position, value, standings)
            if stored is not None:
                if position <= standings[stored.head.stream][1]:
                    raise CompactedCursorError(after, max(row.through for _, row in self.floors()))
                found.append(stored)
                size += stored.head.payload_bytes
            if len(found) >= limit or size >= PAGE_BYTES_MAX or count >= PAGE_SCAN_RECORDS:
                return OperationPage(found, position, False)
        return OperationPage(found, position, True)

    def _is_covered(self, first: int, position: int, value: bytes) -> bool:
        """Whether the record at a position stands for those from `first` on, which were pruned."""
        try:
            record = decode_record(layout.head_of(position, value))
        except (layout.DamagedRowError, msgspec.DecodeError, UnicodeDecodeError):
            # What it covered is no operation's if no stream has one there: a damaged record blocks no journal.
            return not any(self._has_operation(name, first, position) for name in self.streams())
        return isinstance(record, PrunedRecord) and record.first <= first

    def _has_operation(self, stream: str, first: int, last: int) -> bool:
        prefix = layout.stream_prefix(stream)
        for key, _ in self._scan(prefix + layout.pack_u64(first), prefix):
            return layout.unpack_u64(key[-8:]) <= last
        return False

    def _operation_or_none(
        self, position: int, value: bytes, standings: dict[str, tuple[int, int]]
    ) -> StoredOperation | None:
        """The operation at a position, where there is one, of its stream's present epoch."""
        try:
            parts = layout.unframe(position, value)
        except layout.DamagedRowError as error:
            # A damaged record blocks its own stream or key, not the journal: whose it is, the indexes know.
            for name in self.streams():
                row = self.stream(name)
                has_it = self._get(layout.stream_prefix(name) + layout.pack_u64(position)) is not None
                if has_it and row is not None and position > row.epoch_position:
                    raise CorruptRecordError(position, str(error), stream=name) from error
            return None
        if parts.head[1] != _OPERATION_TAG:
            return None
        head = _operation_head(position, parts)
        standing = standings.get(head.stream)
        if standing is None:
            key = layout.STREAM + head.stream.encode()
            content = self.content(key)
            if content is None:
                raise CorruptRecordError(position, "its stream has no row", stream=head.stream)
            epoch = decode_row(key, content, StreamRow).epoch
            standing = standings[head.stream] = epoch, self._floor(head.stream).floor
        return None if head.epoch < standing[0] else self._stored(position, head, parts.payload)

    def _stored(self, position: int, head: OperationRecord, payload: bytes) -> StoredOperation:
        if len(payload) != head.payload_bytes:
            if payload:
                raise CorruptRecordError(position, "its payload has another length", stream=head.stream)
            if not self._may_be_dropped(position, head):
                raise CorruptRecordError(position, "its payload is missing", stream=head.stream)
        return StoredOperation(position, head, payload)

    def _may_be_dropped(self, position: int, head: OperationRecord) -> bool:
        """Whether the journal may have dropped an operation's payload: by a compaction of this epoch, or of another."""
        row = self.stream(head.stream)
        return position <= self._floor(head.stream).floor or (row is not None and head.epoch < row.epoch)

    def _floor(self, name: str) -> FloorRow:
        """Where a stream is compacted; that it is not need not be believed, since what is there is given as it was."""
        key = layout.FLOOR + name.encode()
        content = self.content(key)
        return _NO_FLOOR if content is None else decode_row(key, content, FloorRow)

    # --- effects and steps -------------------------------------------------------------------------------------

    def effect(self, form: bytes) -> EffectState | None:
        """The last event of an effect's key."""
        likely, other = self._likely_tables
        likely_key = key = layout.form_key(likely, form)
        value = self._get(key)
        if value is None:
            key = layout.form_key(other, form)
            value = self._search(key, form)
            if value is None:
                key = likely_key
                value = self._search(key, form)
        return None if value is None else self._state(key, value, form)

    def glance(self, form: bytes) -> EffectState | None:
        """The last event of an effect's key; that there is none is not believed yet."""
        for table in self._likely_tables:
            key = layout.form_key(table, form)
            value = self._get(key)
            if value is not None:
                return self._state(key, value, form)
        return None

    def _state(self, key: bytes, value: bytes, form: bytes) -> EffectState:
        position = layout.unpack_u64(self._check_row(key, value, form)[:8])
        return EffectState(position, self._entry(position, form))

    def effect_entry(self, position: int) -> EffectEntry:
        """The effect's event at this position."""
        return self._entry(position, None)

    def effects(self, phases: frozenset[Phase], *, prefix: bytes, after: bytes, limit: int) -> EffectPage:
        """Last events of the keys in some phases with a form past `after`, by form."""
        tables = []
        if not phases.isdisjoint(UNFINISHED_PHASES):
            tables.append(layout.UNFINISHED)
        if not phases.issubset(UNFINISHED_PHASES):
            tables.append(layout.SETTLED)
        found: list[EffectState] = []
        size = 0
        for form, position in heapq.merge(*(self._forms(table, phases, prefix, after) for table in tables)):
            if position == _PASSED:
                return EffectPage(found, form)
            entry = self._entry(position, form)
            found.append(EffectState(position, entry))
            size += len(entry.proof or b"")
            if len(found) >= limit or size >= PAGE_BYTES_MAX:
                return EffectPage(found, form)
        return EffectPage(found, None)

    def step(self, form: bytes) -> StepRecord | None:
        """The recorded result of a step."""
        position = self._position(layout.form_key(layout.STEP, form), form)
        if position is None:
            return None
        record = self.record(position, form)
        if not isinstance(record, StepRecord) or record.key != form:
            raise CorruptRecordError(position, "the index has it for this step", key_of(form))
        return record

    def pruned(self, form: bytes) -> Tombstone | None:
        """What is left of a pruned effect."""
        key = digest(form)
        position = self._position(layout.PRUNED + key, form)
        if position is None:
            return None
        record = self.record(position, form)
        if not isinstance(record, PrunedRecord) or record.key != key:
            raise CorruptRecordError(position, "the index has it for this pruned effect", key_of(form))
        return Tombstone(position, record)

    def _entry(self, position: int, form: bytes | None) -> EffectEntry:
        entry = self.record(position, form)
        if not isinstance(entry, EffectEntry) or (form is not None and entry.key != form):
            raise CorruptRecordError(position, "the index has it for this effect", _key_or_none(form))
        return entry

    def _forms(
        self, table: bytes, phases: frozenset[Phase], prefix: bytes, after: bytes
    ) -> Iterator[tuple[bytes, int]]:
        """Forms and positions in the order of the forms; rows of cut forms are put into order among themselves.

        Once in a while, where only other phases were met, the form that was come to, without a position.
        """
        kept = layout.FORM_BYTES_KEPT
        start = max(prefix, after)[:kept]
        group: list[tuple[bytes, int]] = []
        passed = 0
        for key, value in self._scan(table + start, table + prefix[:kept]):
            content = self._check_row(key, value)
            form = key[1:]
            is_wanted = content[8] in phases
            passed += not is_wanted
            is_time = passed >= PAGE_SCAN_RECORDS and after < form and len(form) < kept
            if not is_wanted and not is_time:
                continue
            if group and group[0][0][:kept] != form[:kept]:
                yield from sorted(group)
                group = []
            if not is_wanted:
                passed = 0
                yield form, _PASSED
                continue
            position = layout.unpack_u64(content[:8])
            if len(form) > layout.FORM_BYTES_WHOLE:
                form = self._entry(position, None).key
            if form > after and has_prefix(form, prefix):
                if len(form) < kept:
                    yield form, position
                else:
                    group.append((form, position))
        yield from sorted(group)

    # --- the small tables --------------------------------------------------------------------------------------

    def raw_header(self) -> bytes | None:
        """The header's content, undecoded: its first field is the format's version in every format."""
        value = self._get(layout.HEADER_KEY)
        return None if value is None else self._check_row(layout.HEADER_KEY, value)

    def restored(self) -> RestoredRow | None:
        """What a file says that is a copy; damage to another row must not make every journal doubtful."""
        return self._lone_row(layout.RESTORED_KEY, RestoredRow)

    def cursor(self, name: str) -> CursorRow | None:
        """A saved cursor."""
        return self.row(layout.CURSOR + name.encode(), CursorRow)

    def saved_cursors(self) -> list[tuple[str, CursorRow]]:
        """All saved cursors."""
        return self._named_rows(layout.CURSOR, CursorRow)

    def owner(self, owner: int) -> OwnerRow | None:
        """Who an owner is."""
        return self.row(layout.OWNER + layout.pack_u64(owner), OwnerRow)

    # --- rows --------------------------------------------------------------------------------------------------

    def row(self, key: bytes, kind: type[R]) -> R | None:
        """A row outside the log, decoded."""
        value = self._search(key, None)
        return None if value is None else decode_row(key, self._check_row(key, value), kind)

    def _lone_row(self, key: bytes, kind: type[R]) -> R | None:
        """As `row`; but a damaged row beside its place refuses only where it is this one under another key."""
        if self._get(key) is not None:
            return self.row(key, kind)
        with self._txn.cursor() as cursor:
            is_there = _moved(cursor.set_range, key)
            if is_there:
                self._check_other(cursor, key)
            if _moved(cursor.prev if is_there else cursor.last):
                self._check_other(cursor, key)
        return None

    def content(self, key: bytes) -> bytes | None:
        """The content of a row outside the log."""
        value = self._get(key)
        return None if value is None else self._check_row(key, value)

    def rows(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """All rows of a small table, key and content."""
        for key, value in self._scan(prefix, prefix):
            yield key, self._check_row(key, value)

    def _named_rows(self, prefix: bytes, kind: type[R]) -> list[tuple[str, R]]:
        return [(key[1:].decode(), decode_row(key, content, kind)) for key, content in self.rows(prefix)]

    def page_of_rows(self, after: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """Rows of every table but the log past a key, as they are: for counting and verifying."""
        page: list[tuple[bytes, bytes]] = []
        for key, value in self._scan(after + b"\x00", b""):
            if key[:1] == layout.LOG or len(page) >= limit:
                break
            page.append((key, value))
        return page

    def page_of_log(self, after: int, limit: int) -> list[tuple[int, bytes]]:
        """Positions and values of log records past a position, as they are."""
        page: list[tuple[int, bytes]] = []
        size = 0
        for key, value in self._scan(layout.log_key(after + 1), layout.LOG):
            page.append((_position_of(key), value))
            size += len(value)
            if len(page) >= limit or size >= PAGE_BYTES_MAX:
                break
        return page

    def _position(self, key: bytes, form: bytes | None = None) -> int | None:
        value = self._search(key, form)
        return None if value is None else layout.unpack_u64(self._check_row(key, value, form)[:8])

    def _search(self, key: bytes, form: bytes | None) -> bytes | None:
        """The value of a row, unchecked; `None` only where the rows on both sides of its place are sound."""
        cursor = self._searcher
        if cursor is None:
            # One for all misses of a transaction, which closes it: a new one costs as much as its search.
            cursor = self._searcher = self._txn.cursor()
        try:
            is_there = cursor.set_range(key)
            if is_there:
                other, value = cursor.item()
                if other == key:
                    found: bytes = value
                    return found
                if other < key:
                    raise CorruptRecordError(None, "the index is out of order", _key_or_none(form))
                layout.check(other, value)
            is_there = cursor.prev() if is_there else cursor.last()
            if is_there:
                other, value = cursor.item()
                if other >= key:
                    raise CorruptRecordError(None, "the index is out of order", _key_or_none(form))
                layout.check(other, value)
            return None
        except layout.DamagedRowError as error:
            raise _damaged_neighbour(error, form) from error
        except _DAMAGED as error:
            raise _damaged_page(error) from error

    def _check_edge(self, cursor: lmdb.Cursor, prefix: bytes) -> None:
        """Refuse a damaged row at the edge of a scan that a flipped byte of its key may have put there.

        Then it is ours but for one byte, or it is out of order, so that it may have misled the search. Any other one is
        another's to find. In the log nothing hides: its positions have no gap.
        """
        key = _item(cursor)[0]
        is_almost_ours = sum(one != other for one, other in zip(key, prefix, strict=False)) <= 1
        if prefix != layout.LOG and (is_almost_ours or not _is_in_order(cursor)):
            self._check_beside(cursor)

    def _check_other(self, cursor: lmdb.Cursor, key: bytes) -> None:
        """Refuse a row that is this key's, but stands under a key that was damaged."""
        try:
            layout.unseal(key, _item(cursor)[1])
        except layout.DamagedRowError:
            return
        raise CorruptRecordError(None, f"a row of {layout.TABLES[key[:1]]}: its key is damaged")

    def _check_beside(self, cursor: lmdb.Cursor) -> None:
        try:
            layout.check(*_item(cursor))
        except layout.DamagedRowError as error:
            raise _damaged_neighbour(error, None) from error

    def _check_row(self, key: bytes, value: bytes, form: bytes | None = None) -> bytes:
        try:
            return layout.unseal(key, value)
        except layout.DamagedRowError as error:
            table = layout.TABLES.get(key[:1], "an unknown table")
            raise CorruptRecordError(None, f"a row of {table}: {error}", _key_or_none(form)) from error

    def _scan(self, start: bytes, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Rows in order, from a key on, that begin with a prefix.

        The rows just before and just after are looked at as well: with a flipped byte in its key, one may be ours.
        """
        with self._txn.cursor() as cursor:
            is_found = _moved(cursor.set_range, start)
            if _moved(cursor.prev if is_found else cursor.last):
                if _item(cursor)[0] >= start:
                    raise CorruptRecordError(None, "a search of the index came out too far")
                self._check_edge(cursor, prefix)
                is_found = _moved(cursor.next)
            elif is_found:
                is_found = _moved(cursor.first)
            if not is_found:
                return
            before = b""
            rows: Any = cursor  # bytes, since buffers were not asked for
            try:
                for key, value in rows:
                    if key <= before or key < start:
                        raise CorruptRecordError(None, "the rows are out of order")
                    if not key.startswith(prefix):
                        self._check_edge(cursor, prefix)
                        return
                    yield key, value
                    before = key
            except _DAMAGED as error:
                raise _damaged_page(error) from error

    def _get(self, key: bytes) -> bytes | None:
        try:
            value: Any = self._txn.get(key)  # bytes, since buffers were not asked for
        except _DAMAGED as error:
            raise _damaged_page(error) from error
        found: bytes | None = value
        return found


def _operation_head(position: int, parts: Frame) -> OperationRecord:
    try:
        head = decode_record(parts.head)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptRecordError(position, f"it cannot be decoded: {error}") from error
    if not isinstance(head, OperationRecord):
        raise CorruptRecordError(position, "it is no operation")
    return head


def decode_row(key: bytes, content: bytes, kind: type[R]) -> R:
    """The content of a row outside the log, decoded.

    Raises:
        CorruptRecordError: it is of another kind.
    """
    try:
        return msgspec.msgpack.decode(content, type=kind)
    except msgspec.DecodeError as error:
        raise CorruptRecordError(None, f"a row of {layout.TABLES[key[:1]]}: {error}") from error


def _position_of(key: bytes) -> int:
    """The position in a log record's key.

    Raises:
        CorruptRecordError: it is no such key.
    """
    if len(key) != layout.LOG_KEY_BYTES:
        raise CorruptRecordError(None, f"a record of the log has a key of {len(key)} bytes")
    return layout.position_of(key)


def _key_or_none(form: bytes | None) -> Key | None:
    return None if form is None else key_of(form)


def _damaged_neighbour(error: layout.DamagedRowError, form: bytes | None) -> CorruptRecordError:
    return CorruptRecordError(None, f"a row beside its place in the index is damaged: {error}", _key_or_none(form))


def _damaged_page(error: lmdb.Error) -> CorruptRecordError:
    return CorruptRecordError(None, f"a page of the data file: {error}")


def _item(cursor: lmdb.Cursor) -> tuple[bytes, bytes]:
    key: Any
    value: Any
    key, value = cursor.item()  # bytes, since buffers were not asked for
    return key, value


def _is_in_order(cursor: lmdb.Cursor) -> bool:
    """Whether a row stands between its neighbours; the cursor stays where it is."""
    key = _item(cursor)[0]
    if _moved(cursor.prev):
        if _item(cursor)[0] >= key:
            return False
        _moved(cursor.next)
    else:
        _moved(cursor.first)
    if _moved(cursor.next):
        is_less = key < _item(cursor)[0]
        _moved(cursor.prev)
        return is_less
    _moved(cursor.last)
    return True


def _moved(move: Any, *arguments: Any) -> bool:
    try:
        return bool(move(*arguments))
    except _DAMAGED as error:
        raise _damaged_page(error) from error
