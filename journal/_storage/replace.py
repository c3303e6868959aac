"""Puts another data file in the place of the one that is open: `vacuum` and `rebuild`.

The new file is made beside the old one, checked and flushed, while other threads read on. Then, for a moment in which no
transaction of this process is open, LMDB lets go of the old file, the new one is renamed over it, and LMDB opens that.
No other process may have the journal open: LMDB's lock file says of readers and transactions what holds for one file only.
Who is killed in between leaves the old file or the new one, and both hold the same records.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import lmdb
import msgspec

from journal._storage import files, layout, registry
from journal._storage.environment import Environment
from journal._storage.handles import HandleLock
from journal._storage.staging import StagedFile, check_room, explained, staged
from journal._storage.transaction import StoreTransaction
from journal._storage.views import StoreView, decode_record, encode
from journal.errors import CorruptRecordError
from journal.options import MAP_BYTES_MIN, PAGE_BYTES_MAX, PAGE_SCAN_RECORDS
from journal.records import CursorRow, DroppingRow, OwnerRow, RestoredRow, SnapshotRow

UNKNOWN_INCARNATION: Final = "0" * 32
"""Stands for the id of a copy whose own cannot be read."""

Maker = Callable[[str], None]
"""Makes the new data file at a path, whole and flushed."""

_KEPT: Final[dict[bytes, Any]] = {
    layout.CURSOR: CursorRow,
    layout.OWNER: OwnerRow,
    layout.SNAPSHOT: SnapshotRow,
    layout.DROPPING: DroppingRow,
}
"""The tables, beside the header, that do not follow from the log."""

_GROWTH: Final = 3
"""How many times larger than the old file a rebuilt one may be: its pages are filled in another order."""


def replace(directory: str, environment: Environment, lock: HandleLock, make: Maker, adopt: Callable[[], None]) -> int:
    """Make a new data file and put it in place; by how many bytes it is smaller.

    The handle lock and the writer's turn must be held. `adopt` is called when the new file has its name.

    Raises:
        JournalBusyError, JournalFullError, CorruptRecordError: the old file is in place, as it was.
    """
    data = os.path.join(directory, files.DATA_FILE)
    new = os.path.join(directory, files.NEW_DATA_FILE)
    old = files.identity_of(data)

    def put_in_place() -> None:
        lock.check_alone()
        # Says, where this process dies, that the rename may not be durable: who opens next sees to that.
        os.close(files.make_file(os.path.join(directory, files.NEW_LOCK_FILE)))
        os.rename(new, data)
        adopt()
        files.sync_directory(directory)

    files.clean_up(directory)
    before = os.stat(data).st_size
    try:
        with explained(directory, new):
            make(new)
            after = os.stat(new).st_size
            with registry.without_fork():
                environment.replace(put_in_place)
    except BaseException:
        if files.identity_of(data) == old:
            files.remove_new_files(directory)
        raise
    files.remove_new_files(directory)
    return before - after


def vacuum(environment: Environment, genesis: bytes) -> Maker:
    """Makes a copy without the pages that are free."""

    def make(path: str) -> None:
        check_room(environment.directory, environment.directory, environment.live_bytes())
        descriptor = files.make_file(path)
        try:
            environment.copy(descriptor)
        finally:
            os.close(descriptor)
        with staged(path) as copy:
            copy.check(genesis)

    return make


def rebuild(environment: Environment, genesis: bytes) -> Maker:
    """Makes a file with the same log, and with tables that follow from it anew."""

    def make(path: str) -> None:
        os.close(files.make_file(path))
        with staged(path, more_bytes=_GROWTH * environment.sizes()[1] + MAP_BYTES_MIN) as new:
            _keep_header(environment, new, genesis)
            _replay_log(environment, new, genesis)
            # After the log, in which a reset takes the snapshot of its stream away.
            for table, kind in _KEPT.items():
                _keep_rows(environment, new, table, kind)
            new.check(genesis)

    return make


def _keep_header(environment: Environment, new: StagedFile, genesis: bytes) -> None:
    """Keep what the file says of the journal; of a copy that cannot be read, that it is one which nobody has confirmed."""

    def look(txn: lmdb.Transaction) -> tuple[bytes | None, RestoredRow | None]:
        view = StoreView(txn, genesis)
        try:
            return view.raw_header(), view.restored()
        except CorruptRecordError:
            return view.raw_header(), RestoredRow(UNKNOWN_INCARNATION, view.head(), 0)

    header, restored = environment.read(look)

    def put(txn: lmdb.Transaction) -> None:
        txn.put(layout.HEADER_KEY, layout.seal(layout.HEADER_KEY, header or b""))
        if restored is not None:
            txn.put(layout.RESTORED_KEY, layout.seal(layout.RESTORED_KEY, encode(restored)))

    new.write(put)


def _keep_rows(environment: Environment, new: StagedFile, table: bytes, kind: Any) -> None:
    after = table
    while page := environment.read(partial(_page_of_rows, table=table, kind=kind, after=after)):
        new.write(partial(_put_all, rows=page))
        after = page[-1][0]


def _page_of_rows(txn: lmdb.Transaction, table: bytes, kind: Any, after: bytes) -> list[tuple[bytes, bytes]]:
    page: list[tuple[bytes, bytes]] = []
    size = 0
    for key, value in _sound_rows(txn, table, kind, after):
        page.append((key, value))
        size += len(value)
        if len(page) >= PAGE_SCAN_RECORDS or size >= PAGE_BYTES_MAX:
            break
    return page


def _put_all(txn: lmdb.Transaction, rows: list[tuple[bytes, bytes]]) -> None:
    for key, value in rows:
        txn.put(key, value)


def _sound_rows(txn: lmdb.Transaction, table: bytes, kind: Any, after: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The rows of a table past a key that can be read; a damaged one, which may be of any table, ends nothing."""
    with txn.cursor() as cursor:
        if not cursor.set_range(after + b"\x00"):
            return
        rows: Any = cursor  # bytes, since buffers were not asked for
        for key, value in rows:
            if key <= after:
                return  # the rows are out of order: nothing that follows can be found in its place
            try:
                content = layout.unseal(key, value)
            except layout.DamagedRowError:
                if key[:1] == layout.LOG:
                    return
                continue
            if key[:1] != table:
                return
            try:
                msgspec.msgpack.decode(content, type=kind)
            except msgspec.DecodeError:
                continue
            yield key, value


def _replay_log(environment: Environment, new: StagedFile, genesis: bytes) -> None:
    after = 0
    while page := _page_of_log(environment, genesis, after):
        new.write(lambda txn: _replay_page(StoreTransaction(txn, genesis, None, has_owner_row=True), page))
        after = page[-1][0]


def _page_of_log(environment: Environment, genesis: bytes, after: int) -> list[tuple[int, bytes]]:
    try:
        return environment.read(lambda txn: StoreView(txn, genesis).page_of_log(after, PAGE_SCAN_RECORDS))
    except CorruptRecordError as error:
        raise CorruptRecordError(after + 1, f"it cannot be found: {error.reason}") from error


def _replay_page(txn: StoreTransaction, page: list[tuple[int, bytes]]) -> None:
    for position, value in page:
        try:
            record = decode_record(layout.head_of(position, value))
        except (layout.DamagedRowError, msgspec.DecodeError, UnicodeDecodeError) as error:
            raise CorruptRecordError(position, str(error)) from error
        txn.replay(position, record, value)
