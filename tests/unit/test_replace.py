"""`journal/_storage/replace.py`: another data file in the place of the one that is open, and all that can go wrong."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Callable, Iterator
from operator import methodcaller
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import lmdb
import pytest

from journal._core.keys import key_form
from journal._core.ledger import EffectChange, advance
from journal._core.payloads import digest
from journal._storage import files, layout, registry, replace, staging
from journal._storage.environment import Environment
from journal._storage.files import FileIdentity
from journal._storage.handles import HandleLock
from journal._storage.staging import StagedFile
from journal._storage.store import Store
from journal._storage.views import encode
from journal.errors import (
    CommitFailedError,
    CorruptRecordError,
    JournalBusyError,
    JournalClosedError,
    JournalFullError,
    JournalReadonlyError,
)
from journal.options import MAP_BYTES_MIN, MAP_RESERVE_BYTES
from journal.records import (
    CompactionRecord,
    CursorRow,
    DroppingRow,
    Guarantee,
    OperationRecord,
    Phase,
    ResetRecord,
    RestoredRow,
    SnapshotRow,
    StepRecord,
    Via,
)
from tests.unit.support import START, Boom, InterruptAt, InThread, lines_interrupted, open_store, raising

FILES: Final = {files.DATA_FILE, files.LMDB_LOCK_FILE, files.OWNERS_FILE, files.TURN_FILE}
CURSOR: Final = CursorRow(3, None, START)
SNAPSHOT: Final = SnapshotRow(1, 2, 2, 1, b"{}", START)
DROPPING: Final = DroppingRow(0, 1)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A journal with something of everything in it, and with free pages."""
    made = open_store(tmp_path / "journal")
    fill(made)
    yield made
    made.close()


def fill(store: Store) -> None:
    """Append records of each kind, and rows that do not follow from the log."""
    for number in range(1, 41):
        payload = b'"%s"' % (b"x" * 300)
        record = OperationRecord("s", 1, number, f"op-{number}", "", START, digest(payload), len(payload))
        store.commit(methodcaller("append", record, payload))
    for phases in ((Phase.INTENT,), (Phase.INTENT, Phase.ACCEPTED), (Phase.INTENT, Phase.FAILED, Phase.INTENT)):
        form, position = key_form(("k", len(phases))), 0
        for phase in phases:
            change = EffectChange(
                phase=phase,
                guarantee=Guarantee.IDEMPOTENT,
                owner=store.owner_id,
                via=None if phase is Phase.INTENT else Via.RUN,
                proof=b"1" if phase is Phase.ACCEPTED else None,
            )
            position = store.commit(advance(form, position, change)).answer.position
    store.commit(lambda txn: txn.append(StepRecord(key_form("step"), START, b"1")))
    store.commit(lambda txn: txn.save_cursor("c", CURSOR))
    store.commit(lambda txn: txn.save_snapshot("s", SNAPSHOT))
    store.commit(methodcaller("append", OperationRecord("anew", 1, 1, "1", "", START, digest(b"1"), 1), b"1"))
    store.commit(methodcaller("append", ResetRecord("anew", 2, START)))
    store.commit(methodcaller("append", OperationRecord("anew", 2, 1, "1", "", START, digest(b"1"), 1), b"1"))
    # Of the epoch after the reset, which a rebuild meets in the log.
    store.commit(lambda txn: txn.save_snapshot("anew", SnapshotRow(2, 1, txn.head(), 1, b"{}", START)))


def data(store: Store) -> Path:
    return Path(store.directory) / files.DATA_FILE


def rows(store: Store) -> dict[bytes, bytes]:
    """Everything in an open journal."""
    found: dict[bytes, bytes] = store._environment.read(lambda txn: dict(txn.cursor()))  # type: ignore[arg-type]  # as above
    return found


def names(store: Store) -> set[str]:
    return {path.name for path in Path(store.directory).iterdir()}


def written(store: Store, changes: dict[bytes, bytes | None]) -> None:
    """Write rows past all checks."""

    def write(txn: lmdb.Transaction) -> None:
        for key, value in changes.items():
            if value is None:
                txn.delete(key)
            else:
                txn.put(key, value)
        txn.commit()

    store._environment.write(write)


def can_go_on(store: Store) -> None:
    """The journal takes a record, in the file that has the name."""
    position = store.commit(lambda txn: txn.append(StepRecord(key_form("later"), START, b"2"))).answer
    assert store.read(lambda view: view.head()) == position
    assert list(store.verify()) == []


ACTS: Final[dict[str, Callable[[Store], Any]]] = {"vacuum": Store.vacuum, "rebuild": Store.rebuild}


@pytest.fixture(params=ACTS)
def act(request: pytest.FixtureRequest) -> Callable[[Store], Any]:
    """Both that replace the data file."""
    return ACTS[request.param]


# What is in the new file


def test_vacuum_keeps_every_row_and_drops_the_free_pages(store: Store) -> None:
    """It says how many bytes the disk has back."""
    before, size = rows(store), data(store).stat().st_size

    saved = store.vacuum()

    assert rows(store) == before
    assert saved == size - data(store).stat().st_size > 0
    assert names(store) == FILES
    can_go_on(store)


def test_rebuild_of_a_sound_journal_changes_no_row(store: Store) -> None:
    """What follows from the log does so as when it was written."""
    store.commit(methodcaller("append", CompactionRecord("s", 1, 1, START, 1)))
    written(store, {layout.DROPPING + b"s": layout.seal(layout.DROPPING + b"s", encode(DROPPING))})
    before = rows(store)

    store.rebuild()

    assert rows(store) == before
    assert names(store) == FILES
    can_go_on(store)


@pytest.mark.parametrize(
    "table", [layout.STREAM, layout.SEQUENCE, layout.IDENTITY, layout.STEP, layout.UNFINISHED, layout.SETTLED]
)
@pytest.mark.parametrize("damage", ["gone", "changed", "added"])
def test_rebuild_makes_a_damaged_index_anew(store: Store, table: bytes, damage: str) -> None:
    """Whatever became of its rows."""
    before = rows(store)
    keys = [key for key in before if key[:1] == table]
    damages: dict[str, dict[bytes, bytes | None]] = {
        "gone": dict.fromkeys(keys),
        "changed": {key: before[key][:-1] + b"?" for key in keys},
        "added": {table + b"\x01zz": b"?" * 13},
    }
    written(store, damages[damage])
    assert list(store.verify())

    store.rebuild()

    assert rows(store) == before
    can_go_on(store)


def test_rebuild_leaves_out_what_it_cannot_read_beside_the_log(store: Store) -> None:
    """A cursor that is gone begins at 0 again, a snapshot is folded anew; the sound ones are kept."""
    before = rows(store)
    for name in ("a", "d"):
        store.commit(methodcaller("save_cursor", name, CURSOR))
    damaged = layout.CURSOR + b"a"
    strange = layout.CURSOR + b"b"
    written(store, {damaged: b"damaged", strange: layout.seal(strange, b"\x01")})

    store.rebuild()

    assert store.read(lambda view: [view.cursor(name) for name in "abcd"]) == [None, None, CURSOR, CURSOR]
    assert {key: value for key, value in rows(store).items() if key != layout.CURSOR + b"d"} == before


def test_rebuild_keeps_what_a_copy_says_of_itself(store: Store) -> None:
    """It stays the copy that it was."""
    row = RestoredRow("c" * 32, 5, START)
    store.commit(lambda txn: txn.save_restored(row))

    store.rebuild()

    assert store.read(lambda view: view.restored()) == row


def test_rebuild_of_a_copy_that_cannot_be_read_makes_one_that_nobody_has_confirmed(store: Store) -> None:
    """It may never count as confirmed by damage."""
    written(store, {layout.RESTORED_KEY: b"damaged"})

    store.rebuild()

    row = store.read(lambda view: view.restored())
    assert row is not None
    assert (row.head, row.confirmed_at) == (store.read(lambda view: view.head()), 0)


@pytest.mark.parametrize("byte", range(len(layout.RESTORED_KEY)))
def test_copy_whose_row_cannot_be_found_is_damaged(store: Store, byte: int) -> None:
    """With a flipped byte in its key it might be taken for a journal that is no copy."""
    row = RestoredRow("c" * 32, 5, START)
    store.commit(lambda txn: txn.save_restored(row))
    key = bytearray(layout.RESTORED_KEY)
    key[byte] ^= 0x10
    path = data(store)
    store.close()
    path.write_bytes(path.read_bytes().replace(layout.RESTORED_KEY, bytes(key)))

    again = open_store(path.parent)

    assert again.is_copy
    with pytest.raises(CorruptRecordError):
        again.read(lambda view: view.restored())
    again.rebuild()
    found = again.read(lambda view: view.restored())
    assert found is not None
    assert found.confirmed_at == 0
    again.close()


def test_journal_without_any_other_row_is_no_copy(tmp_path: Path) -> None:
    """Nothing stands behind the place of the copy's row."""
    store = open_store(tmp_path / "empty")

    assert not store.is_copy
    store.close()


def test_many_rows_are_brought_over_page_by_page(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounded by their number and their bytes."""
    monkeypatch.setattr(replace, "PAGE_SCAN_RECORDS", 7)
    monkeypatch.setattr(replace, "PAGE_BYTES_MAX", 100)
    for number in range(30):
        store.commit(methodcaller("save_cursor", f"c{number:02}", CURSOR))
        store.commit(methodcaller("save_snapshot", f"s{number:02}", SNAPSHOT))
    before = rows(store)

    store.rebuild()

    assert rows(store) == before


# What is refused


@pytest.mark.parametrize("position", [1, 20, 47])
def test_damaged_log_is_refused_and_stays_as_it_is(store: Store, act: Callable[[Store], Any], position: int) -> None:
    """With the position of the record; neither a copy nor an index can mend it."""
    value = bytearray(rows(store)[layout.log_key(position)])
    value[-1] ^= 1
    written(store, {layout.log_key(position): bytes(value)})
    before, identity = rows(store), data(store).stat().st_ino

    with pytest.raises(CorruptRecordError) as caught:
        act(store)

    assert caught.value.position == position
    assert (rows(store), data(store).stat().st_ino) == (before, identity)
    assert names(store) == FILES
    store.commit(lambda txn: txn.save_cursor("later", CURSOR))


@pytest.mark.parametrize("position", [1, 20])
def test_log_with_a_gap_is_refused(store: Store, act: Callable[[Store], Any], position: int) -> None:
    """A record that is missing is none that can be made anew."""
    written(store, {layout.log_key(position): None})

    with pytest.raises(CorruptRecordError) as caught:
        act(store)

    assert caught.value.position == position


def test_log_whose_rows_are_out_of_place_is_refused(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """LMDB cannot find its way: the position is that of the first record that was not found."""
    monkeypatch.setattr(
        "journal._storage.views.StoreView.page_of_log", raising(CorruptRecordError(None, "the rows are out of order"))
    )

    with pytest.raises(CorruptRecordError) as caught:
        store.rebuild()

    assert (caught.value.position, caught.value.reason) == (1, "it cannot be found: the rows are out of order")


def test_damaged_index_is_no_file_to_copy(store: Store) -> None:
    """`vacuum` refuses what `rebuild` mends."""
    written(store, {next(key for key in rows(store) if key[:1] == layout.STEP): None})

    with pytest.raises(CorruptRecordError, match="steps: its index row is missing"):
        store.vacuum()
    store.rebuild()
    store.vacuum()


def test_read_only_handle_replaces_nothing(store: Store, act: Callable[[Store], Any]) -> None:
    """As it writes nothing."""
    store.close()
    reader = open_store(Path(store.directory), readonly=True)

    with pytest.raises(JournalReadonlyError):
        act(reader)
    reader.close()


def test_closed_handle_replaces_nothing(store: Store, act: Callable[[Store], Any]) -> None:
    """It says so."""
    store.close()

    with pytest.raises(JournalClosedError):
        act(store)


def test_file_that_was_replaced_under_the_handle_is_not_replaced(store: Store, act: Callable[[Store], Any]) -> None:
    """What the path names is not what would be copied."""
    twin = data(store).with_name("twin")
    twin.write_bytes(data(store).read_bytes())
    twin.rename(data(store))

    with pytest.raises(JournalClosedError, match="replaced or deleted"):
        act(store)


def test_copy_that_has_no_room_is_not_begun(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says how much it needs."""
    monkeypatch.setattr(files, "free_bytes", lambda _: 5_000)

    with pytest.raises(JournalFullError, match=r"a copy needs \d+ bytes, and 5000 are free"):
        store.vacuum()
    can_go_on(store)


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left on device"), OSError(errno.EIO, "Input/output error")]
)
@pytest.mark.parametrize("place", ["make_file", "sync_file"])
def test_disk_that_fails_while_the_file_is_made_changes_nothing(
    store: Store, act: Callable[[Store], Any], place: str, error: OSError, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Full or broken: nothing is left of the new file, and the journal goes on."""
    with monkeypatch.context() as patched:
        patched.setattr(files, place, raising(error))
        with pytest.raises(JournalFullError if error.errno == errno.ENOSPC else OSError):
            act(store)

    assert names(store) == FILES
    can_go_on(store)


@pytest.mark.parametrize("free, expected", [(files.ROOM_BYTES, OSError), (files.ROOM_BYTES - 1, JournalFullError)])
def test_copy_that_lmdb_cannot_write_changes_nothing(
    store: Store, free: int, expected: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says EIO for a full disk: the file system is asked."""
    with monkeypatch.context() as patched:
        patched.setattr(files, "free_bytes", lambda _: free)
        patched.setattr(Environment, "copy", raising(lmdb.Error("mdb_env_copyfd: Input/output error")))
        with pytest.raises(expected):
            store.vacuum()

    assert names(store) == FILES
    can_go_on(store)


def test_rebuilt_file_that_outgrows_its_map_is_told(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is changed."""
    with monkeypatch.context() as patched:
        patched.setattr(StagedFile, "write", raising(lmdb.MapFullError("mdb_put: Environment mapsize limit reached")))
        with pytest.raises(JournalFullError):
            store.rebuild()
    can_go_on(store)


def test_damaged_page_is_told_as_damage(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """LMDB finds it while it copies."""
    monkeypatch.setattr(Environment, "copy", raising(lmdb.CorruptedError("mdb_env_copyfd: located page was wrong")))

    with pytest.raises(CorruptRecordError, match="a page of the data file"):
        store.vacuum()
    can_go_on(store)


def test_other_handle_is_in_the_way(store: Store, act: Callable[[Store], Any]) -> None:
    """Whoever it is; afterwards it goes."""
    other = files.open_lock_file(store.directory, files.OWNERS_FILE)
    HandleLock(store.directory, other).share()

    with pytest.raises(JournalBusyError, match="holds it open"):
        act(store)
    can_go_on(store)

    os.close(other)
    act(store)


@pytest.mark.parametrize("looks", [1, 2])
def test_handle_without_a_lock_of_ours_is_in_the_way(
    store: Store, act: Callable[[Store], Any], looks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that comes while the file is made: LMDB has let go of the old one, and takes it up again."""
    left = [looks]

    def check(lock: HandleLock) -> None:
        left[0] -= 1
        if not left[0]:
            raise JournalBusyError(store.directory, 4_321, "it is held open")

    monkeypatch.setattr(HandleLock, "check_alone", check)

    with pytest.raises(JournalBusyError, match="4321"):
        act(store)

    assert names(store) == FILES
    can_go_on(store)


# The moment in which it takes the place


def test_rename_that_fails_leaves_the_old_file_open(
    store: Store, act: Callable[[Store], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory that may not be changed, a disk that fails."""
    identity = data(store).stat().st_ino
    with monkeypatch.context() as patched:
        patched.setattr(os, "rename", raising(PermissionError(errno.EACCES, "Permission denied")))
        with pytest.raises(PermissionError):
            act(store)

    assert data(store).stat().st_ino == identity
    assert names(store) == FILES
    can_go_on(store)


@pytest.mark.parametrize("error", [OSError(errno.EIO, "Input/output error"), KeyboardInterrupt()])
def test_directory_that_cannot_be_flushed_ends_the_handle(
    store: Store, act: Callable[[Store], Any], error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is committed to a file whose name might be lost with the power; who opens next flushes it first."""
    before = rows(store)
    with monkeypatch.context() as patched:
        patched.setattr(files, "sync_directory", raising(error))
        with pytest.raises(type(error)):
            act(store)

    with pytest.raises(JournalClosedError, match="cut off, which leaves a whole one"):
        store.read(lambda view: view.head())
    assert names(store) == FILES | {files.NEW_LOCK_FILE}

    store.close()
    again = open_store(Path(store.directory))
    assert names(again) == FILES
    assert rows(again) == before
    can_go_on(again)
    again.close()


def test_file_that_cannot_be_opened_again_ends_the_handle(
    store: Store, act: Callable[[Store], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is whole, and whoever opens the journal next has it."""
    before = rows(store)
    with monkeypatch.context() as patched:
        patched.setattr(Environment, "_open", raising(lmdb.MemoryError("mdb_env_open: Cannot allocate memory")))
        with pytest.raises(OSError, match="Cannot allocate memory"):
            act(store)

    with pytest.raises(JournalClosedError, match="Cannot allocate memory"):
        store.read(lambda view: view.head())
    with pytest.raises(JournalClosedError, match="Cannot allocate memory"):
        store.commit(lambda txn: None)
    store.close()
    again = open_store(Path(store.directory))
    assert rows(again) == before
    again.close()


def test_new_file_is_opened_with_the_map_that_was_there(tmp_path: Path, act: Callable[[Store], Any]) -> None:
    """Grown as it was, and bounded as it was."""
    store = open_store(tmp_path / "j", map_size=MAP_BYTES_MIN, max_size=4 * MAP_BYTES_MIN)
    fill(store)
    store._environment.grow(settles=False)
    size = store._environment.sizes()[0]

    act(store)

    assert store._environment.sizes()[0] == size == 2 * MAP_BYTES_MIN
    assert size > MAP_RESERVE_BYTES
    store.close()


def test_registry_knows_the_new_file(store: Store, act: Callable[[Store], Any]) -> None:
    """This process still opens the journal once."""
    act(store)
    status = data(store).stat()
    identity = FileIdentity(status.st_dev, status.st_ino)

    assert not registry.open_once(store, identity, raising(AssertionError("it was opened")))


# Beside others


def test_readers_go_on_while_the_file_is_made(
    store: Store, act: Callable[[Store], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commits wait for it, and come after it."""
    reached, go_on = threading.Event(), threading.Event()
    check = StagedFile.check

    def slow_check(file: StagedFile, genesis: bytes) -> None:
        reached.set()
        assert go_on.wait(30)
        check(file, genesis)

    monkeypatch.setattr(StagedFile, "check", slow_check)
    head = store.read(lambda view: view.head())
    acting = InThread(lambda: act(store))
    assert reached.wait(30)

    committing = InThread(lambda: store.commit(lambda txn: txn.append(StepRecord(key_form("x"), START, b"1"))).answer)
    seen = store.read(lambda view: view.head())
    go_on.set()

    assert seen == head
    acting.result()
    assert committing.result() == head + 1
    can_go_on(store)


def test_two_threads_replace_it_one_after_the_other(store: Store) -> None:
    """Neither sees what the other makes."""
    before = rows(store)

    acts: list[Callable[[], Any]] = [store.vacuum, store.rebuild, store.vacuum]
    calls = [InThread(act) for act in acts]
    for call in calls:
        call.result()

    assert rows(store) == before
    can_go_on(store)


def test_close_waits_for_it(store: Store, act: Callable[[Store], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """As for a commit that is under way."""
    reached, go_on = threading.Event(), threading.Event()
    check = StagedFile.check

    def slow_check(file: StagedFile, genesis: bytes) -> None:
        reached.set()
        assert go_on.wait(30)
        check(file, genesis)

    monkeypatch.setattr(StagedFile, "check", slow_check)
    acting = InThread(lambda: act(store))
    assert reached.wait(30)
    closing = InThread(store.close)
    go_on.set()

    acting.result()
    closing.join()
    assert names(store) == FILES


def test_what_a_killed_one_left_goes_with_the_next_open(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The directory is flushed before what says that it may have to be; a reader leaves it alone."""
    store.close()
    directory = Path(store.directory)
    order: list[list[str]] = []
    (directory / files.NEW_DATA_FILE).write_bytes(b"half")
    (directory / files.NEW_LOCK_FILE).touch()
    monkeypatch.setattr(
        files, "sync_directory", lambda path: order.append(sorted(one.name for one in Path(path).iterdir()))
    )

    open_store(directory, readonly=True).close()
    assert order == []
    open_store(directory).close()

    assert [files.NEW_LOCK_FILE in listed for listed in order] == [True]
    assert names(store) == FILES


def test_commit_that_failed_before_keeps_the_file(store: Store, act: Callable[[Store], Any]) -> None:
    """No later success on top of a failed flush."""
    store._after_failure(lmdb.Error("mdb_txn_commit: Input/output error"))

    with pytest.raises((JournalClosedError, CommitFailedError)):
        act(store)


def test_error_of_ours_gives_the_lock_back(
    store: Store, act: Callable[[Store], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it is."""
    with monkeypatch.context() as patched:
        patched.setattr(StagedFile, "check", raising(Boom("a bug")))
        with pytest.raises(Boom):
            act(store)

    other = HandleLock(store.directory, files.open_lock_file(store.directory, files.OWNERS_FILE))
    other.share()
    os.close(other.descriptor)
    can_go_on(store)


@pytest.mark.parametrize("module", [replace, staging])
def test_interrupt_at_any_line_leaves_a_journal_that_goes_on(
    tmp_path: Path, act: Callable[[Store], Any], module: ModuleType
) -> None:
    """In this handle, or where that has ended, in the next one."""

    def run(interrupt: InterruptAt) -> None:
        directory = tmp_path / f"{len(list(tmp_path.iterdir()))}"
        store = open_store(directory)
        store.commit(methodcaller("append", StepRecord(key_form("step"), START, b"1")))
        with contextlib.suppress(KeyboardInterrupt), interrupt:
            act(store)
        try:
            can_go_on(store)
        except JournalClosedError:
            store.close()
            store = open_store(directory)
            can_go_on(store)
        act(store)
        assert names(store) == FILES
        store.close()

    assert lines_interrupted(module, run) > 10


def test_replacing_waits_for_a_copy(store: Store, act: Callable[[Store], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it holds up anybody: the others read and commit on."""
    reached, go_on = threading.Event(), threading.Event()
    copy = Environment.copy

    def slow_copy(environment: Environment, descriptor: int) -> None:
        reached.set()
        assert go_on.wait(30)
        copy(environment, descriptor)

    with monkeypatch.context() as patched:
        patched.setattr(Environment, "copy", slow_copy)
        descriptor = files.make_file(str(data(store).with_name("a copy")))
        copying = InThread(lambda: store.copy_to(descriptor))
        assert reached.wait(30)
        acting = InThread(lambda: act(store))
        can_go_on(store)
        go_on.set()
        copying.result()
        acting.result()

    os.close(descriptor)
    data(store).with_name("a copy").unlink()
    assert names(store) == FILES
