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
from journal._storage.views import StoreView, decode_record
from journal.errors import CorruptRecordError
from journal.options import PAGE_RECORDS
from journal.records import EffectEntry, LogRecord, OperationRecord, PrunedRecord
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
            yield from _record_findings(read, position, record, value, frame.payload)
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


def _record_findings(read: Reader, position: int, record: LogRecord, value: bytes, payload: bytes) -> Iterator[Finding]:
    if isinstance(record, PrunedRecord) and (
        record.first > position or (record.key is None) != (record.guarantee is None)
    ):
        yield Finding("log", position, "it says of pruned events what cannot be")
    if isinstance(record, OperationRecord) and digest(payload) != record.payload_hash:
        yield Finding("log", position, "its payload is not the one that was committed")
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
    if found is None:
        return "its index row is missing"
    return None if found == content else "its index row says something else"


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
    return None


def _place(view: StoreView, key: bytes, content: bytes) -> int | None:
    """The position that a row names: of a stream's row, that of the stream's first operation."""
    if key[:1] == layout.STREAM:
        return view.first_position(key[1:].decode())
    if key[:1] == layout.SEQUENCE:
        return layout.unpack_u64(key[-8:])
    if key[:1] in (layout.IDENTITY, layout.STEP, layout.UNFINISHED, layout.SETTLED, layout.PRUNED):
        return layout.unpack_u64(content[:8])
    return None
