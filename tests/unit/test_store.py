"""`journal/_storage/store.py`: opening, creating, and the shared commit with everything that can go wrong in it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gc
import os
import resource
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import lmdb
import pytest

from journal._core.keys import key_form
from journal._core.ledger import EffectChange, advance
from journal._core.operations import append, save_cursor
from journal._core.rules import Rules
from journal._storage import environment, files, layout, store as store_module
from journal._storage.environment import create_data_file
from journal._storage.group import Entry
from journal._storage.store import Store
from journal._storage.views import encode
from journal.errors import (
    CommitFailedError,
    CorruptRecordError,
    JournalBusyError,
    JournalClosedError,
    JournalForkedError,
    JournalFullError,
    JournalLockedError,
    JournalReadonlyError,
    SequenceConflictError,
    UnsupportedFormatError,
)
from journal.options import DISK_RESERVE_BYTES, MAP_BYTES_MIN, MAP_RESERVE_BYTES
from journal.records import FORMAT_VERSION, Guarantee, Header, Phase, StepRecord
from journal.values import Committed
from tests.unit.golden import JOURNAL
from tests.unit.support import START, Boom, InThread, lmdb_error, open_store, raising, until, unused

EIO: Final = 5
ENOSPC: Final = 28


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Where a journal may be made."""
    return tmp_path / "journal"


@pytest.fixture
def opened(directory: Path) -> Iterator[Callable[..., Store]]:
    """Opens the journal; closed at the end."""
    found: list[Store] = []

    def open_it(**options: Any) -> Store:
        found.append(open_store(directory, **options))
        return found[-1]

    yield open_it
    for one in found:
        one.close()


@pytest.fixture
def store(opened: Callable[..., Store]) -> Store:
    """A new journal, open."""
    return opened()


def appending(op_id: str, operation: Any = None, *, stream: str = "s", expected: int | None = None) -> Any:
    """The decision of an append."""
    return next(append(stream, [(op_id, operation)], "", expected, Rules())).decide


def entry(decide: Callable[[Any], Any], *, settles: bool = False, seconds: float = 30.0) -> Entry:
    """One caller's entry in a batch."""
    return Entry(decide, START, time.monotonic() + seconds, settles=settles)


def op_ids(store: Store) -> list[str]:
    """The operations that are there."""
    return [stored.head.op_id for stored in store.read(lambda view: view.operations(None, 0, 100)).operations]


class Commits:
    """Stands between a store and its write transactions: what each commit does instead, in order.

    An exception is raised instead of the commit; a function is given the real commit.
    """

    def __init__(self, store: Store, *instead: Any) -> None:
        self._write = store._environment.write
        self._instead = list(instead)
        self.count = 0
        made: Any = store._environment
        made.write = self._wrapped

    def _wrapped(self, body: Callable[[Any], Any]) -> Any:
        return self._write(lambda txn: body(_Transaction(txn, self)))

    def commit(self, commit: Callable[[], None]) -> None:
        self.count += 1
        does = self._instead.pop(0) if self._instead else None
        if does is None:
            commit()
        elif isinstance(does, BaseException):
            raise does
        else:
            does(commit)


class _Transaction:
    """A write transaction with another commit."""

    def __init__(self, txn: lmdb.Transaction, commits: Commits) -> None:
        self._txn = txn
        self._commits = commits

    def __getattr__(self, name: str) -> Any:
        return getattr(self._txn, name)

    def commit(self) -> None:
        self._commits.commit(self._txn.commit)


def landing(error: BaseException) -> Callable[[Callable[[], None]], None]:
    """A commit that is done, and raises all the same."""

    def does(commit: Callable[[], None]) -> None:
        commit()
        raise error

    return does


# Making one


def test_new_journal_is_whole_and_private(opened: Callable[..., Store], directory: Path) -> None:
    """A header of its own, the lock files beside it, nothing of the making left, all for the user alone."""
    store = opened(clock=lambda: START)

    assert store.header == Header(FORMAT_VERSION, store.header.journal_id, START)
    assert len(bytes.fromhex(store.header.journal_id)) == 16
    names = {path.name: stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()}
    assert set(names) == {files.DATA_FILE, files.LMDB_LOCK_FILE, files.TURN_FILE, files.OWNERS_FILE}
    assert set(names.values()) == {0o600}
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700


def test_journals_have_ids_of_their_own(tmp_path: Path) -> None:
    """However many are made."""
    ids = set()
    for number in range(3):
        store = open_store(tmp_path / str(number))
        ids.add(store.header.journal_id)
        store.close()

    assert len(ids) == 3


def test_making_that_was_cut_short_is_done_again(opened: Callable[..., Store], directory: Path) -> None:
    """What it left is no journal, and is removed."""
    directory.mkdir()
    for name in (files.NEW_DATA_FILE, files.NEW_LOCK_FILE, files.TURN_FILE):
        (directory / name).write_bytes(b"half")

    store = opened()

    assert not (directory / files.NEW_DATA_FILE).exists()
    assert store.read(lambda view: view.head()) == 0


def test_journal_that_another_process_made_meanwhile_is_opened(
    opened: Callable[..., Store], directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was faster to the turn."""
    real = files.has_journal
    looks: list[bool] = []

    def has_journal(path: str) -> bool:
        found = real(path)
        looks.append(found)
        if len(looks) == 1:
            shutil.copy(JOURNAL, directory / files.DATA_FILE)
        return found

    directory.mkdir()
    monkeypatch.setattr(files, "has_journal", has_journal)

    store = opened()

    assert looks == [False, True]
    assert store.read(lambda view: view.head()) == 33


@pytest.mark.parametrize("options", [{"create": False}, {"readonly": True}, {"readonly": True, "create": True}])
@pytest.mark.parametrize("is_empty", [False, True])
def test_journal_is_not_made_where_it_is_not_to_be(
    opened: Callable[..., Store], directory: Path, options: dict[str, Any], *, is_empty: bool
) -> None:
    """Nothing is left behind."""
    if is_empty:
        directory.mkdir()

    with pytest.raises(FileNotFoundError):
        opened(**options)

    assert directory.exists() is is_empty
    assert not is_empty or list(directory.iterdir()) == []


def test_missing_parent_is_told(tmp_path: Path) -> None:
    """It is not made."""
    with pytest.raises(FileNotFoundError):
        open_store(tmp_path / "missing" / "journal")


@pytest.mark.parametrize(
    "error, free, expected",
    [
        (lmdb_error(ENOSPC), 10**9, JournalFullError),
        (lmdb_error(EIO), 0, JournalFullError),
        (lmdb_error(EIO), 10**9, CommitFailedError),
    ],
)
def test_disk_that_does_not_take_a_new_journal_is_told(
    opened: Callable[..., Store],
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    free: int,
    expected: type[Exception],
) -> None:
    """Full or failing; the next try may succeed."""
    with monkeypatch.context() as patched:
        patched.setattr(store_module, "create_data_file", raising(error))
        patched.setattr(files, "free_bytes", lambda _: free)
        with pytest.raises(expected):
            opened()

    opened()


# Opening


def test_journal_is_opened_once_in_a_process(store: Store, directory: Path, tmp_path: Path) -> None:
    """Whatever the path is spelled like; after closing it may be opened again."""
    (tmp_path / "link").symlink_to(directory)
    for spelling in (directory, tmp_path / "link", directory / ".." / directory.name):
        with pytest.raises(JournalLockedError) as caught:
            open_store(spelling)
        assert caught.value.pid == os.getpid()

    store.close()
    open_store(tmp_path / "link").close()


def test_handle_that_was_dropped_is_closed(directory: Path) -> None:
    """Its files, its lock and its place in the registry."""
    store = open_store(directory)
    descriptors = list(store._descriptors)
    del store
    gc.collect()

    for descriptor in descriptors:
        with pytest.raises(OSError):
            os.fstat(descriptor)
    open_store(directory).close()


def rewritten(directory: Path, key: bytes, value: bytes | None) -> None:
    """Change a row of a data file, with LMDB alone."""
    with lmdb.open(str(directory), lib_version=0) as env, env.begin(write=True) as txn:
        if value is None:
            txn.delete(key)
        else:
            txn.put(key, value)


@pytest.mark.parametrize(
    "value, found",
    [
        (layout.seal(layout.HEADER_KEY, encode([3, "id", START])), "a journal of format 3"),
        (layout.seal(layout.HEADER_KEY, encode([3])), "a journal of format 3"),
        (layout.seal(layout.HEADER_KEY, encode({"format": 3})), "a damaged header"),
        (layout.seal(layout.HEADER_KEY, encode([])), "a damaged header"),
        (layout.seal(layout.HEADER_KEY, encode([1, 7, START])), "a damaged header"),
        (layout.seal(layout.HEADER_KEY, b"\xc1"), "a damaged header"),
        (b"unsealed", "a damaged header"),
        (None, "an LMDB environment without a journal's header"),
    ],
)
@pytest.mark.parametrize("readonly", [False, True])
def test_header_that_is_not_ours_is_refused(
    opened: Callable[..., Store], directory: Path, value: bytes | None, found: str, *, readonly: bool
) -> None:
    """A newer format is told by its number, before anything else is believed; the file is untouched."""
    open_store(directory).close()
    rewritten(directory, layout.HEADER_KEY, value)
    before = (directory / files.DATA_FILE).read_bytes()

    with pytest.raises(UnsupportedFormatError) as caught:
        opened(readonly=readonly)

    assert found in str(caught.value)
    assert (directory / files.DATA_FILE).read_bytes() == before
    rewritten(directory, layout.HEADER_KEY, layout.seal(layout.HEADER_KEY, encode([1, "id", START])))
    opened(readonly=readonly)


@pytest.mark.parametrize(
    "error, expected",
    [
        (lmdb.InvalidError("bad"), UnsupportedFormatError),
        (lmdb.CorruptedError("bad"), UnsupportedFormatError),
        (lmdb.VersionMismatchError("bad"), UnsupportedFormatError),
        (lmdb.ReadonlyError("Permission denied"), PermissionError),
        (lmdb.ReadersFullError("full"), JournalBusyError),
        (lmdb_error(errno.EAGAIN, lmdb.LockError), JournalBusyError),
        (lmdb_error(errno.EMFILE), OSError),
        (lmdb.Error("something else"), OSError),
    ],
)
def test_error_of_lmdb_at_open_says_what_it_means(
    opened: Callable[..., Store],
    directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    expected: type[Exception],
) -> None:
    """None of them comes out as it is, and the next try is free."""
    open_store(directory).close()
    with monkeypatch.context() as patched:
        patched.setattr(environment, "_open", raising(error))
        with pytest.raises(expected) as caught:
            opened(wait_timeout=0.01)
    assert type(caught.value) is expected
    assert caught.value.__cause__ is error

    opened()


def open_descriptors() -> set[str]:
    """What this process has open, by number and name."""
    found = set()
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # that of this very look
            found.add(f"{path.name} {path.readlink()}")
    return found


def test_handle_that_cannot_be_opened_leaves_nothing_open(
    opened: Callable[..., Store], directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No descriptor, no environment, no lock."""
    open_store(directory).close()
    before = open_descriptors()
    with monkeypatch.context() as patched:
        patched.setattr(store_module.owners, "Owner", raising(Boom("no lock")))  # type: ignore[attr-defined]  # a module that it uses
        with pytest.raises(Boom):
            opened()

    assert open_descriptors() == before
    opened()


# Committing


def test_commit_gives_the_answer_and_the_records(store: Store) -> None:
    """When they are durable, with the time of the clock."""
    done = store.commit(appending("1", {"a": 1}))

    assert done.answer == [Committed("s", 1, 1, "1", "", START, {"a": 1})]
    assert [position for position, _ in done.records] == [1]
    assert op_ids(store) == ["1"]


def test_decision_that_changes_nothing_writes_nothing(store: Store) -> None:
    """There is nothing to flush: LMDB's last transaction is the one before."""

    def last_txn() -> int:
        return int(store._environment._require().info()["last_txnid"])

    before = last_txn()

    assert store.commit(lambda txn: txn.head()).answer == 0
    assert last_txn() == before
    store.commit(appending("1"))
    assert last_txn() == before + 1


def test_entries_of_a_batch_share_one_commit(store: Store) -> None:
    """Each has its own answer, records and time, and sees what the ones before it wrote."""
    commits = Commits(store)
    batch = [entry(appending("1")), entry(lambda txn: txn.head()), entry(appending("2"))]
    batch[2].at = START + 5

    store._commit_batch(batch)

    assert commits.count == 1
    assert [one.answer if isinstance(one.answer, int) else one.answer[0].at for one in batch] == [START, 1, START + 5]
    assert [[position for position, _ in one.records] for one in batch] == [[1], [], [2]]


def test_refused_entry_leaves_the_rest_of_its_batch(store: Store) -> None:
    """It fails alone, with its own exception."""
    error = Boom("refused")
    batch = [entry(appending("1")), entry(raising(error)), entry(appending("2", expected=7)), entry(appending("3"))]

    store._commit_batch(batch)

    assert [one.error for one in batch][:2] == [None, error]
    assert isinstance(batch[2].error, SequenceConflictError)
    assert batch[3].error is None
    assert op_ids(store) == ["1", "3"]


def test_entry_that_raised_after_it_wrote_is_taken_out(store: Store) -> None:
    """The others are decided again without it: nothing of it is kept, and no position is lost."""

    def spoil(txn: Any) -> None:
        txn.append(StepRecord(b"\x01k", txn.at, b"1"))
        raise Boom("half")

    batch = [entry(appending("1")), entry(spoil), entry(appending("2"))]

    store._commit_batch(batch)

    assert [type(one.error) for one in batch] == [type(None), Boom, type(None)]
    assert [one.answer[0].position for one in (batch[0], batch[2])] == [1, 2]
    assert list(store.verify()) == []


def test_entry_that_met_damage_is_taken_out(store: Store) -> None:
    """LMDB may have ended the transaction in which it did."""
    batch = [entry(appending("1")), entry(raising(CorruptRecordError(7, "damaged"))), entry(appending("2"))]

    store._commit_batch(batch)

    assert isinstance(batch[1].error, CorruptRecordError)
    assert op_ids(store) == ["1", "2"]


def test_refusal_counts_only_with_the_commit_that_it_rests_on(store: Store) -> None:
    """It may rest on what another entry wrote: where that one is not committed, it is decided anew."""
    commits = Commits(store, lmdb.MapFullError("full"), lmdb.MapFullError("full"))
    store._environment.grow = raising(JournalFullError("/j", "no room"))  # type: ignore[method-assign]  # a map that cannot grow
    first, second = entry(appending("1")), entry(appending("2", expected=0))

    store._commit_batch([first, second])

    assert isinstance(first.error, JournalFullError)
    assert (second.error, second.answer[0].op_id) == (None, "2")
    assert (commits.count, op_ids(store)) == (3, ["2"])


def test_clock_must_give_nanoseconds(opened: Callable[..., Store]) -> None:
    """What no record could hold is wrong use, told before anything is written."""
    times: list[Any] = [START]
    store = opened(clock=lambda: times[0])

    for wrong, error in (
        (1.5, TypeError),
        (None, TypeError),
        (True, TypeError),
        ("now", TypeError),
        (-1, ValueError),
        (2**63, ValueError),
    ):
        times[0] = wrong
        with pytest.raises(error, match="clock must give"):
            store.commit(appending("1"))
    times[0] = 2**63 - 1

    assert store.commit(appending("1")).answer[0].at == 2**63 - 1


def test_owner_is_on_record_once_with_its_first_intent(store: Store) -> None:
    """So that other processes can see whether it lives."""

    def intent(key: str) -> Any:
        change = EffectChange(phase=Phase.INTENT, guarantee=Guarantee.AT_MOST_ONCE, owner=store.owner_id)
        return advance(key_form(key), 0, change)

    store.commit(appending("1"))
    assert store.read(lambda view: view.owner(store.owner_id)) is None

    store.commit(intent("a"))
    store.commit(intent("b"))

    row = store.read(lambda view: view.owner(store.owner_id))
    assert row is not None
    assert row.pid == os.getpid()


# Commits that fail


def test_failed_flush_ends_the_handle(store: Store, opened: Callable[..., Store]) -> None:
    """Nothing of it counts as recorded, nothing is written on top of it, and after closing it may be opened again."""
    store.commit(appending("0"))
    Commits(store, lmdb_error(EIO))
    batch = [entry(appending("1")), entry(appending("2"))]

    store._commit_batch(batch)

    for one in batch:
        assert isinstance(one.error, CommitFailedError)
        assert "Input/output error" in one.error.reason
    assert batch[0].error is not batch[1].error
    for use in (lambda: store.commit(appending("3")), lambda: store.read(lambda view: view.head())):
        with pytest.raises(JournalClosedError, match="a commit failed"):
            use()
    store.close()
    assert op_ids(opened()) == ["0"]


def test_those_that_wait_behind_a_failed_flush_are_refused(store: Store) -> None:
    """No success on top of it, for whoever had come into the queue before."""
    late = [entry(appending("2")), entry(appending("3"))]

    def fail(commit: Callable[[], None]) -> None:
        raise lmdb_error(EIO)

    Commits(store, fail)
    store._commit_batch([entry(appending("1"))])

    store._commit_batch(late)

    assert [type(one.error) for one in late] == [JournalClosedError, JournalClosedError]


def test_entries_that_are_tried_one_by_one_stop_at_a_failed_flush(store: Store) -> None:
    """The first of them failed: the others are not written on top of it."""
    Commits(store, lmdb.MapFullError("full"), lmdb_error(EIO))
    store._environment.grow = raising(JournalFullError("/j", "no room"))  # type: ignore[method-assign]  # a map that cannot grow
    batch = [entry(appending("1")), entry(appending("2")), entry(appending("3"))]

    store._commit_batch(batch)

    assert [type(one.error) for one in batch] == [CommitFailedError, JournalClosedError, JournalClosedError]


@pytest.mark.parametrize(
    "code, free, limit",
    [(ENOSPC, 10**9, resource.RLIM_INFINITY), (EIO, 10, resource.RLIM_INFINITY), (EIO, 10**9, 10**6)],
)
def test_full_disk_does_not_end_the_handle(
    store: Store, monkeypatch: pytest.MonkeyPatch, code: int, free: int, limit: int
) -> None:
    """LMDB reports a short write as EIO: the file system and the process's limit are asked."""
    monkeypatch.setattr(files, "free_bytes", lambda _: free)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    Commits(store, lmdb_error(code))

    with pytest.raises(JournalFullError) as caught:
        store.commit(appending("1"))

    assert f"{free} bytes are free" in caught.value.reason
    assert (f"files may have {limit} bytes" in caught.value.reason) is (limit == 10**6)
    assert store.commit(appending("2")).answer[0].position == 1
    assert op_ids(store) == ["2"]


def test_failed_commit_that_landed_is_told_as_done(store: Store) -> None:
    """After any error the state is read again before anybody is told what happened."""
    Commits(store, landing(lmdb_error(EIO)))

    assert store.commit(appending("1")).answer[0].position == 1
    assert op_ids(store) == ["1"]


def test_failed_commit_that_cannot_be_read_again_counts_as_failed(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody can say that it is there."""
    Commits(store, landing(lmdb_error(EIO)))
    monkeypatch.setattr(store._environment, "read", raising(lmdb.PanicError("gone")))

    with pytest.raises(CommitFailedError):
        store.commit(appending("1"))


def test_failed_commit_without_records_counts_as_failed(store: Store) -> None:
    """A cursor leaves no record to look for: saving it again is harmless."""
    store.commit(appending("1"))
    Commits(store, landing(lmdb_error(EIO)))

    with pytest.raises(CommitFailedError):
        store.commit(next(save_cursor("reader", 1, None)).decide)


@pytest.mark.parametrize("is_landed", [False, True])
def test_interrupt_of_a_flush_is_raised_when_it_is_known(store: Store, *, is_landed: bool) -> None:
    """It is not swallowed, and no commit is half known: what landed is told to its entry, the rest was not written."""
    interrupt = KeyboardInterrupt()
    Commits(store, landing(interrupt) if is_landed else interrupt)
    own, other = entry(appending("1")), entry(appending("2"))

    with pytest.raises(KeyboardInterrupt):
        store._commit_batch([own, other])

    assert [own.is_done, other.is_done] == [is_landed, is_landed]
    assert op_ids(store) == (["1", "2"] if is_landed else [])
    assert store.commit(appending("3")).answer[0].position == (3 if is_landed else 1)


def test_interrupted_caller_gives_the_turn_back(store: Store) -> None:
    """The next one finds it free."""
    Commits(store, KeyboardInterrupt())

    with pytest.raises(KeyboardInterrupt):
        store.commit(appending("1"))

    assert InThread(lambda: store.commit(appending("2")).answer[0].position).result() == 1


def test_map_grows_by_itself(store: Store) -> None:
    """Unseen by the callers, each of which is decided once more."""
    size = store.stats().map_bytes

    for number in range(8):
        store.commit(appending(f"{number}", "v" * 500_000))

    assert store.stats().map_bytes > size
    assert len(op_ids(store)) == 8


@pytest.mark.parametrize("is_batch", [False, True])
def test_map_at_its_ceiling_refuses_all_but_outcomes(opened: Callable[..., Store], *, is_batch: bool) -> None:
    """Who does not fit fails alone, what settles an effect in flight uses the reserve, and the journal stays readable."""
    store = opened(map_size=MAP_BYTES_MIN, max_size=MAP_BYTES_MIN + MAP_RESERVE_BYTES)
    fitting = 0
    with pytest.raises(JournalFullError):
        for number in range(1_000):
            store.commit(appending(f"{number}", "v" * 30_000))
            fitting += 1
    large, outcome = entry(appending("large", "v" * 100_000)), entry(appending("outcome", "v" * 20_000), settles=True)

    store._commit_batch([large, outcome] if is_batch else [outcome])

    assert outcome.error is None
    assert not is_batch or isinstance(large.error, JournalFullError)
    assert len(op_ids(store)) == min(fitting + 1, 100)
    with pytest.raises(JournalFullError):
        store.commit(appending("another", "v" * 30_000))
    assert list(store.verify()) == []


# The files


@pytest.mark.parametrize("name", [files.DATA_FILE, files.TURN_FILE, files.LMDB_LOCK_FILE])
@pytest.mark.parametrize("is_replaced", [False, True])
def test_file_that_was_replaced_or_deleted_ends_the_handle(
    store: Store, directory: Path, name: str, *, is_replaced: bool
) -> None:
    """A commit into what the path no longer names would be lost, or meet another writer."""
    store.commit(appending("1"))
    if is_replaced:
        shutil.copy(directory / name, directory / "copy")
        (directory / "copy").rename(directory / name)
    else:
        (directory / name).unlink()

    for _ in range(2):
        with pytest.raises(JournalClosedError, match=f"its {name} was replaced or deleted"):
            store.commit(appending("2"))
    store.close()


@pytest.mark.parametrize("is_older", [False, True])
def test_data_file_that_was_overwritten_in_place_ends_the_handle(
    store: Store, directory: Path, tmp_path: Path, *, is_older: bool
) -> None:
    """With another journal, or an older state of this one: the next commit would build on that."""
    other = tmp_path / "other.mdb"
    if is_older:
        store.commit(appending("1"))
        shutil.copy(directory / files.DATA_FILE, other)
        store.commit(appending("2"))
    else:
        store.commit(appending("1"))
        shutil.copy(JOURNAL, other)
    with (directory / files.DATA_FILE).open("r+b") as file:
        file.write(other.read_bytes())

    with pytest.raises(JournalClosedError, match="was overwritten while it was open"):
        store.commit(appending("3"))

    store.close()


def test_turn_that_another_holds_too_long_is_told(opened: Callable[..., Store], directory: Path) -> None:
    """With its process; nothing was written, and the next try may succeed."""
    store = opened(wait_timeout=0.01)
    descriptor = os.open(directory / files.TURN_FILE, os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        with pytest.raises(JournalBusyError) as caught:
            store.commit(appending("1"))
    finally:
        os.close(descriptor)

    assert caught.value.pid == os.getpid()
    assert store.commit(appending("2")).answer[0].position == 1


def test_deadline_of_the_leader_is_not_that_of_the_others(store: Store, directory: Path) -> None:
    """Only who has waited long enough is told that it was too long."""
    descriptor = os.open(directory / files.TURN_FILE, os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    batch = [entry(appending("1"), seconds=0), entry(appending("2"), seconds=-1), entry(appending("3"))]
    try:
        store._commit_batch(batch)
    finally:
        os.close(descriptor)

    assert [type(one.error) for one in batch] == [JournalBusyError, JournalBusyError, type(None)]
    assert [one.is_done for one in batch] == [True, True, False]


# Handles


def test_readonly_handle_reads_and_does_not_write(opened: Callable[..., Store], directory: Path) -> None:
    """It is no owner, and sees none."""
    writing = open_store(directory)
    writing.commit(appending("1"))
    owner = writing.owner_id
    writing.close()

    store = opened(readonly=True)

    assert op_ids(store) == ["1"]
    with pytest.raises(JournalReadonlyError):
        store.commit(unused)
    assert store.owner_id == 0
    assert store.living_pid(owner) is None


def test_closed_handle_refuses(store: Store) -> None:
    """Everything but closing it again."""
    store.close()
    store.close()

    for use in (
        lambda: store.commit(unused),
        lambda: store.read(unused),
        store.verify,
        store.stats,
        store.check,
    ):
        with pytest.raises(JournalClosedError) as caught:
            use()
        assert caught.value.reason == "it was closed"


def test_handle_in_a_forked_child_refuses(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """It names the process that opened it; that one goes on."""
    own = os.getpid()
    with monkeypatch.context() as child:
        child.setattr(os, "getpid", lambda: own + 1)
        for use in (lambda: store.commit(unused), lambda: store.read(unused), store.check, store.close):
            with pytest.raises(JournalForkedError) as caught:
                use()
            assert caught.value.pid == own

    assert store.commit(appending("1")).answer[0].position == 1


def test_fork_waits_until_no_transaction_is_open(store: Store) -> None:
    """And lets them go on in the parent."""
    store.before_fork()
    reading = InThread(lambda: store.read(lambda view: view.head()))
    assert reading._thread.is_alive()
    store.after_fork_in_parent()

    assert reading.result() == 0


def test_child_drops_what_it_inherited(directory: Path) -> None:
    """The environment and the descriptors, so that the parent's locks end with the parent."""
    store = open_store(directory)
    descriptors = list(store._descriptors)
    store.before_fork()

    store.after_fork_in_child()

    for descriptor in descriptors:
        with pytest.raises(OSError):
            os.fstat(descriptor)
    store.close()


def test_owner_of_this_handle_lives(store: Store) -> None:
    """By its own pid, without a look."""
    assert store.owner_id != 0
    assert store.living_pid(store.owner_id) == os.getpid()
    assert store.living_pid(0) is None
    assert store.living_pid(store.owner_id + 1) is None


def test_other_owner_lives_while_its_lock_is_held(store: Store, directory: Path) -> None:
    """Told by its row's pid, or 0 where it has none."""
    descriptor = os.open(directory / files.OWNERS_FILE, os.O_RDWR)
    other = store_module.owners.Owner(descriptor)  # type: ignore[attr-defined]  # a module that it uses
    assert store.living_pid(other.id) == 0

    key = layout.OWNER + layout.pack_u64(other.id)

    def put_row(txn: Any) -> None:
        txn._put_row(key, encode(other.row))

    store.commit(put_row)
    assert store.living_pid(other.id) == os.getpid()

    os.close(descriptor)
    assert store.living_pid(other.id) is None


def test_stats_count_what_is_there(store: Store) -> None:
    """Rows of each kind, and how commits were shared."""
    store._commit_batch([entry(appending("1")), entry(appending("2"))])
    store.commit(appending("1", stream="t"))
    for number, phase in enumerate([Phase.INTENT, Phase.FAILED, Phase.CLEARED]):
        form = key_form(f"{number}")
        for one in (Phase.INTENT, *([phase] if phase is not Phase.INTENT else [])):
            state = store.read(lambda view, form=form: view.effect(form))  # type: ignore[misc]  # mypy cannot infer a default
            change = EffectChange(phase=one, guarantee=Guarantee.AT_MOST_ONCE, owner=store.owner_id)
            store.commit(advance(form, 0 if state is None else state.position, change))
    store.commit(lambda txn: txn.append(StepRecord(key_form("step"), txn.at, b"1")))
    store.commit(next(save_cursor("reader", 1, None)).decide)

    stats = store.stats()

    assert (stats.operations, stats.streams, stats.steps, stats.cursors) == (3, 2, 1, 1)
    assert (stats.effects, stats.unfinished, stats.uncertain) == (2, 2, 0)
    assert stats.head == 9
    assert (stats.journal_id, stats.format_version) == (store.header.journal_id, FORMAT_VERSION)
    assert stats.used_bytes <= stats.map_bytes
    assert stats.used_bytes + DISK_RESERVE_BYTES <= stats.file_bytes


def test_shared_commits_are_counted(store: Store) -> None:
    """The mean size of a group."""
    for number in range(3):
        store.commit(appending(f"{number}"))

    stats = store.stats()

    assert (stats.commits, stats.entries) == (3, 3)


def test_rows_that_nobody_reads_do_not_stop_the_count(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counting looks at keys, in pages; damage is for `verify` to find."""
    store.commit(appending("1"))
    monkeypatch.setattr(store_module, "PAGE_SCAN_RECORDS", 1)

    assert store.stats().operations == 1


def test_new_data_file_has_one_row(tmp_path: Path) -> None:
    """The header, and nothing that a reader would not expect."""
    create_data_file(str(tmp_path), files.DATA_FILE, {layout.HEADER_KEY: b"row"})

    with lmdb.open(str(tmp_path), readonly=True, lock=False, lib_version=0) as env, env.begin() as txn:
        assert dict(txn.cursor()) == {layout.HEADER_KEY: b"row"}


def test_waiters_of_a_handle_that_is_closed_are_committed(store: Store, directory: Path) -> None:
    """Closing waits for those that are in the queue."""
    descriptor = os.open(directory / files.TURN_FILE, os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    first = InThread(lambda: store.commit(appending("1")))
    until(lambda: store.group._leader is not None)
    second = InThread(lambda: store.commit(appending("2")))
    until(lambda: store.group._waiting)
    closing = InThread(store.close)
    until(lambda: len(store.group._waiting) == 2)
    os.close(descriptor)

    assert [one.answer[0].op_id for one in (first.result(), second.result())] == ["1", "2"]
    closing.result()
    reopened = open_store(directory)
    assert op_ids(reopened) == ["1", "2"]
    reopened.close()
