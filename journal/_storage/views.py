"""The journal as one LMDB transaction sees it: rows in, records out, each checked.

A row that is not found is no proof of absence while its neighbours are damaged: a flipped byte in a key hides a row
from LMDB's search. So a miss looks at both neighbours before it is believed (`_search`); `glance` alone believes none.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, TypeVar

import lmdb
import msgspec

from journal._core.keys import has_prefix, key_of
from journal._core.ledger import UNFINISHED as UNFINISHED_PHASES, EffectState
from journal._core.payloads import digest
from journal._core.requests import EffectPage, OperationPage, StoredOperation
from journal._storage import layout
from journal.errors import CorruptRecordError, Key
from journal.options import PAGE_BYTES_MAX, PAGE_SCAN_RECORDS
from journal.records import (
    CursorRow,
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
_PASSED: Final = 0
"""In the place of a position: nothing was found up to here."""

_DAMAGED: Final = (lmdb.CorruptedError, lmdb.PageNotFoundError)


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
            position = layout.position_of(key)
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
        return self.row(layout.FLOOR + name.encode(), FloorRow)

    def snapshot(self, name: str) -> SnapshotRow | None:
        """A stream's kept state. A damaged row is none, for it can be made anew; a damaged page is found by any other."""
        try:
            return self.row(layout.SNAPSHOT + name.encode(), SnapshotRow)
        except CorruptRecordError as error:
            if isinstance(error.__cause__, lmdb.Error):
                raise
            return None

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
        prefix = layout.stream_prefix(name)
        with self._txn.cursor() as cursor:
            found = _moved(cursor.set_range, prefix + b"\xff" * 8)
            if found:
                self._check_edge(cursor, prefix)
            if not _moved(cursor.prev if found else cursor.last):
                return 0
            key, value = _item(cursor)
            if not key.startswith(prefix):
                self._check_edge(cursor, prefix)
                return 0
        content = self._check_row(key, value)
        if layout.unpack_u64(key[-8:]) <= row.epoch_position:
            return 0
        return layout.unpack_u64(content)

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
        return self._stored(position, self.frame(position))

    def operations(self, stream: str | None, after: int, limit: int) -> OperationPage:
        """A bounded page of operations past a position, in log order."""
        return self._all_operations(after, limit) if stream is None else self._operations_of(stream, after, limit)

    def _operations_of(self, stream: str, after: int, limit: int) -> OperationPage:
        row = self.stream(stream)
        if row is None:
            return OperationPage([], after, True)
        prefix = layout.stream_prefix(stream)
        found: list[StoredOperation] = []
        size = 0
        first = max(after, row.epoch_position) + 1
        for key, value in self._scan(prefix + layout.pack_u64(first), prefix):
            sequence = layout.unpack_u64(self._check_row(key, value))
            position = layout.unpack_u64(key[-8:])
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
        for position, (key, value) in enumerate(self._scan(layout.log_key(after + 1), layout.LOG), after + 1):
            if layout.position_of(key) != position:
                raise CorruptRecordError(position, "it is missing from the log")
            stored = self._operation_or_none(position, value)
            if stored is not None:
                found.append(stored)
                size += stored.head.payload_bytes
            if len(found) >= limit or size >= PAGE_BYTES_MAX or position - after >= PAGE_SCAN_RECORDS:
                return OperationPage(found, position, False)
        return OperationPage(found, position, True)

    def _operation_or_none(self, position: int, value: bytes) -> StoredOperation | None:
        try:
            parts = layout.unframe(position, value)
        except layout.DamagedRowError as error:
            # A damaged record blocks its own stream or key, not the journal: whose it is, the indexes know.
            for name in self.streams():
                if self._get(layout.stream_prefix(name) + layout.pack_u64(position)) is not None:
                    raise CorruptRecordError(position, str(error), stream=name) from error
            return None
        if parts.head[1] != _OPERATION_TAG:
            return None
        return self._stored(position, parts)

    def _stored(self, position: int, parts: Frame) -> StoredOperation:
        try:
            head = decode_record(parts.head)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise CorruptRecordError(position, f"it cannot be decoded: {error}") from error
        if not isinstance(head, OperationRecord):
            raise CorruptRecordError(position, "it is no operation")
        if len(parts.payload) != head.payload_bytes:
            raise CorruptRecordError(position, "its payload has another length", stream=head.stream)
        return StoredOperation(position, head, parts.payload)

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
        for form, position in heapq.merge(*(self._forms(table, phases, prefix, after) for table in tables)):
            if position == _PASSED:
                return EffectPage(found, form)
            found.append(EffectState(position, self._entry(position, form)))
            if len(found) >= limit:
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

    def pruned(self, form: bytes) -> PrunedRecord | None:
        """What is left of a pruned effect."""
        key = digest(form)
        position = self._position(layout.PRUNED + key, form)
        if position is None:
            return None
        record = self.record(position, form)
        if not isinstance(record, PrunedRecord) or record.key != key:
            raise CorruptRecordError(position, "the index has it for this pruned effect", key_of(form))
        return record

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
        """What a file says that is a copy."""
        return self.row(layout.RESTORED_KEY, RestoredRow)

    def cursor(self, name: str) -> CursorRow | None:
        """A saved cursor."""
        return self.row(layout.CURSOR + name.encode(), CursorRow)

    def owner(self, owner: int) -> OwnerRow | None:
        """Who an owner is."""
        return self.row(layout.OWNER + layout.pack_u64(owner), OwnerRow)

    # --- rows --------------------------------------------------------------------------------------------------

    def row(self, key: bytes, kind: type[R]) -> R | None:
        """A row outside the log, decoded."""
        value = self._search(key, None)
        if value is None:
            return None
        try:
            return msgspec.msgpack.decode(self._check_row(key, value), type=kind)
        except msgspec.DecodeError as error:
            raise CorruptRecordError(None, f"a row of {layout.TABLES[key[:1]]}: {error}") from error

    def content(self, key: bytes) -> bytes | None:
        """The content of a row outside the log."""
        value = self._get(key)
        return None if value is None else self._check_row(key, value)

    def rows(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """All rows of a small table, key and content."""
        for key, value in self._scan(prefix, prefix):
            yield key, self._check_row(key, value)

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
        for key, value in self._scan(layout.log_key(after + 1), layout.LOG):
            page.append((layout.position_of(key), value))
            if len(page) >= limit:
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
