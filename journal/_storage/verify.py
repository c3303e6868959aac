"""Checks the log against its digest chain, and the indexes against the log in both directions.

Everything is read in bounded transactions and nothing is changed. The log is walked once: each record's own checks,
its link to the one before, its index rows, its place in its stream or among its key's events. Then every index row is
held against the record that it names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import msgspec

from journal._core.payloads import digest
from journal._storage import layout
from journal._storage.transaction import index_rows
from journal._storage.views import StoreView, decode_record, decode_row
from journal.errors import CorruptRecordError
from journal.options import PAGE_RECORDS
from journal.records import (
    CompactionRecord,
    DroppingRow,
    EffectEntry,
    FloorRow,
    LogRecord,
    OperationRecord,
    PrunedRecord,
    StreamRow,
)
from journal.values import Finding

Reader = Callable[[Callable[[StoreView], Any]], Any]


def findings(read: Reader, genesis: bytes) -> Iterator[Finding]:
    """Everything that is wrong, in the order of the log and then of the index rows."""
    try:
        head: int = read(lambda view: view.head())
    except CorruptRecordError as error:
        yield Finding("log", error.position, error.reason)
        head = error.position or 0
    yield from _log_findings(read, genesis, head)
    yield from _row_findings(read)


def _log_findings(read: Reader, genesis: bytes, head: int) -> Iterator[Finding]:
    payloads = Payloads(read)
    yield from _walk(read, genesis, head, payloads)
    yield from payloads.end(head)


def _walk(read: Reader, genesis: bytes, head: int, payloads: Payloads) -> Iterator[Finding]:
    expected, before = 1, genesis
    while expected <= head:
        try:
            page = read(partial(StoreView.page_of_log, after=expected - 1, limit=PAGE_RECORDS))
        except CorruptRecordError as error:
            yield Finding("log", expected, error.reason)
            return
        if not page:
            break
        for position, value in page:
            if position > head:
                return
            frame, record, problem = _parts(position, value)
            first = record.first if isinstance(record, PrunedRecord) else position
            if first > expected:
                yield Finding("log", expected, f"records {expected} to {first - 1} are missing")
                before = b""
            elif first < expected:
                yield from _cover_findings(read, first, position)
            expected = position + 1
            if frame is None or record is None:
                yield Finding("log", position, problem)
                # The frame may still say its digest; where it does not, the next link is found broken, too.
                before = layout.raw_digest(value)
                continue
            # A record that stands for others has the digest of the one that stood there: the next link begins with it.
            is_link = before and not isinstance(record, PrunedRecord)
            if is_link and layout.chain(before, position, frame.head) != frame.digest:
                yield Finding("log", position, "its digest does not follow from the record before")
            before = frame.digest
            yield from payloads.findings(position, record, frame.payload)
            yield from _record_findings(read, position, record, value)
    if expected <= head:
        yield Finding("log", expected, f"records {expected} to {head} are missing")


def _parts(position: int, value: bytes) -> tuple[layout.Frame | None, LogRecord | None, str]:
    """A record's frame and what it says, or what is wrong with it."""
    try:
        frame = layout.unframe(position, value)
        return frame, decode_record(frame.head), ""
    except (layout.DamagedRowError, msgspec.DecodeError, UnicodeDecodeError) as error:
        return None, None, str(error)


def _cover_findings(read: Reader, first: int, position: int) -> Iterator[Finding]:
    """Hold a record that stands for earlier ones, which the walk has passed, against what stands there now."""
    try:
        page = read(partial(StoreView.page_of_log, after=max(first, 1) - 1, limit=1))
    except CorruptRecordError as error:
        yield Finding("log", position, error.reason)
        return
    if first < 1 or any(other < position for other, _ in page):
        yield Finding("log", position, f"it stands for records from {first} on, of which others are there")


def _record_findings(read: Reader, position: int, record: LogRecord, value: bytes) -> Iterator[Finding]:
    if isinstance(record, PrunedRecord) and (
        record.first > position or (record.key is None) != (record.guarantee is None)
    ):
        yield Finding("log", position, "it says of pruned events what cannot be")
    for key, content in index_rows(position, record):
        try:
            problem = read(
                partial(_row_problem, key=key, content=content, record=record, position=position, value=value)
            )
        except CorruptRecordError as error:
            problem = error.reason
        if problem:
            yield Finding(layout.TABLES[key[:1]], position, problem)


def _row_problem(
    view: StoreView, *, key: bytes, content: bytes, record: LogRecord, position: int, value: bytes
) -> str | None:
    try:
        problem = _fault_of_rows(view, key, content, record, position)
    except CorruptRecordError as error:
        problem = error.reason
    if problem and view.page_of_log(position - 1, 1) != [(position, value)]:
        return None  # it was pruned between two of our transactions
    return problem


def _fault_of_rows(view: StoreView, key: bytes, content: bytes, record: LogRecord, position: int) -> str | None:
    if isinstance(record, EffectEntry):
        state = view.effect(record.key)
        if state is None:
            return "its effect has no index row"
        if record.previous:
            before = view.effect_entry(record.previous)
            if before.key != record.key or record.previous >= position:
                return f"its previous event at {record.previous} is of another effect"
        if view.pruned(record.key) is not None:
            return "its effect is on record, and pruned as well"
        # Only the key's last event has a row.
        return "its effect's index row names an earlier event" if state.position < position else None
    found = view.content(key)
    if found == content or _is_superseded(view, key, found, position):
        return None
    return "its index row is missing" if found is None else "its index row says something else"


def _is_superseded(view: StoreView, key: bytes, found: bytes | None, position: int) -> bool:
    """Whether a later record says how a stream stands: the row then names that one, and is held against it."""
    if key[:1] not in (layout.STREAM, layout.FLOOR):
        return False
    row = view.stream(key[1:].decode())
    if row is not None and row.epoch_position > position:
        return True
    return found is not None and key[:1] == layout.FLOOR and decode_row(key, found, FloorRow).position > position


def _row_findings(read: Reader) -> Iterator[Finding]:
    after = b""
    while True:
        try:
            page = read(partial(StoreView.page_of_rows, after=after, limit=PAGE_RECORDS))
        except CorruptRecordError as error:
            yield Finding("log", None, error.reason)
            return
        if not page:
            return
        after = page[-1][0]
        for key, value in page:
            table = layout.TABLES.get(key[:1])
            if table is None:
                yield Finding("unknown", None, f"a row with the prefix {key[:1]!r}")
                continue
            try:
                content = layout.unseal(key, value)
                problem = read(partial(_row_fault, key=key, content=content))
            except (layout.DamagedRowError, CorruptRecordError) as error:
                problem = error.reason if isinstance(error, CorruptRecordError) else str(error)
            if problem:
                yield Finding(table, None, problem)


def _row_fault(view: StoreView, key: bytes, content: bytes) -> str | None:
    """What is wrong with a row of an index, held against the record that it names."""
    if view.content(key) != content:
        return None  # between two of our transactions the row moved on
    if key[:1] == layout.DROPPING:
        return _dropping_fault(view, key[1:].decode(), decode_row(key, content, DroppingRow))
    position = _place(view, key, content)
    if position is None:
        return None
    record = view.record(position)
    if (key, content) not in index_rows(position, record):
        return f"it is not what the record at position {position} says"
    if isinstance(record, EffectEntry):
        last = view.effect(record.key)
        if last is None or last.position != position:
            return f"it names position {position}, which is not the last event of its key"
    if isinstance(record, CompactionRecord):
        row = view.stream(record.stream)
        if row is None or row.epoch_position > position:
            return f"it names position {position}, and the stream was reset after that"
    return None


def _dropping_fault(view: StoreView, name: str, row: DroppingRow) -> str | None:
    stream, floor = view.stream(name), view.floor(name)
    through = max(0 if stream is None else stream.epoch_position, 0 if floor is None else floor.through)
    return None if row.after < row.through <= through else f"it goes through {row.through}, and {through} is the floor"


def _place(view: StoreView, key: bytes, content: bytes) -> int | None:
    """The position that a row names: of a stream that never was reset, that of its first operation."""
    if key[:1] == layout.STREAM:
        return decode_row(key, content, StreamRow).epoch_position or view.first_position(key[1:].decode())
    if key[:1] == layout.FLOOR:
        return decode_row(key, content, FloorRow).position
    if key[:1] == layout.SEQUENCE:
        return layout.unpack_u64(key[-8:])
    if key[:1] in (layout.IDENTITY, layout.STEP, layout.UNFINISHED, layout.SETTLED, layout.PRUNED):
        return layout.unpack_u64(content[:8])
    return None


class Payloads:
    """Holds the payload of each operation, or that it has none, against what compactions dropped.

    Whether a compaction of an epoch that has ended dropped a payload only its record says, which stands later in the log.
    So of each stream is kept what is missing of such epochs, up to the highest, until the log is at its end.
    """

    def __init__(self, read: Reader) -> None:
        self._read = read
        self._missing: dict[str, int] = {}
        self._dropped: dict[str, int] = {}

    def findings(self, position: int, record: LogRecord, payload: bytes) -> Iterator[Finding]:
        """What is wrong with a record's payload."""
        if isinstance(record, CompactionRecord):
            self._dropped[record.stream] = max(record.through, self._dropped.get(record.stream, 0))
        if not isinstance(record, OperationRecord):
            return
        if payload and digest(payload) != record.payload_hash:
            yield Finding("log", position, "its payload is not the one that was committed")
            return
        try:
            problem = self._read(partial(self._problem, position=position, record=record, is_there=bool(payload)))
        except CorruptRecordError:
            return  # a row of its stream is damaged, and found as such
        if problem:
            yield Finding("log", position, problem)

    def _problem(self, view: StoreView, position: int, record: OperationRecord, *, is_there: bool) -> str | None:
        floor = view.floor(record.stream)
        is_compacted = floor is not None and position <= floor.floor
        if is_there:
            left = view.dropping(record.stream) if is_compacted else None
            is_left = left is not None and left.after < position <= left.through
            # Between two of our transactions it may have been dropped.
            if is_compacted and not is_left and view.frame(position).payload:
                return "its payload was compacted, is still there, and nothing says that it is to be dropped"
        elif not is_compacted:
            row = view.stream(record.stream)
            if row is None or record.epoch >= row.epoch:
                return "its payload is missing, and no compaction dropped it"
            self._missing[record.stream] = position
        return None

    def end(self, head: int) -> Iterator[Finding]:
        """What is missing of epochs that have ended, and no compaction dropped."""
        if any(position > self._dropped.get(name, 0) for name, position in self._missing.items()):
            self._look_past(head)
        for name, position in self._missing.items():
            if position > self._dropped.get(name, 0):
                yield Finding("log", position, "its payload is missing, and no compaction dropped it")

    def _look_past(self, head: int) -> None:
        """A compaction may have come while the log was walked."""
        position = head
        while page := self._read(partial(StoreView.page_of_log, after=position, limit=PAGE_RECORDS)):
            for position, value in page:
                try:
                    record = decode_record(layout.head_of(position, value))
                except (layout.DamagedRowError, msgspec.DecodeError, UnicodeDecodeError):
                    continue
                if isinstance(record, CompactionRecord):
                    self._dropped[record.stream] = max(record.through, self._dropped.get(record.stream, 0))
