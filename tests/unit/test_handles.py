"""`journal/_storage/handles.py`: the lock that every open handle shares, and who replaces the data file has alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from journal._storage import files, handles
from journal._storage.handles import HandleLock, open_handle_lock
from journal.errors import JournalBusyError
from tests.unit.support import open_store

OTHER_PID = 4_321


@pytest.fixture
def locks(tmp_path: Path) -> Iterator[tuple[HandleLock, HandleLock]]:
    """Two handles: descriptions of their own are to the kernel what other processes' are."""
    made = []
    for _ in range(2):
        lock = open_handle_lock(str(tmp_path), readonly=False)
        assert lock is not None
        made.append(lock)
    yield made[0], made[1]
    for lock in made:
        os.close(lock.descriptor)


def test_handles_share_the_lock_and_one_alone_claims_it(locks: tuple[HandleLock, HandleLock]) -> None:
    """A refused claim keeps the share."""
    one, other = locks
    one.share()
    other.share()

    for lock in locks:
        with pytest.raises(JournalBusyError, match=r"another process holds it open.*close it there"):
            lock.claim()
    other.end()
    one.claim()

    with pytest.raises(JournalBusyError, match=r"being replaced.*try again when that has ended"):
        other.share()
    one.share()
    other.share()


def test_who_holds_it_open_is_named_where_lmdb_says_so(
    locks: tuple[HandleLock, HandleLock], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel names no holder of such a lock as ours."""
    one, other = locks
    one.share()
    other.share()
    monkeypatch.setattr(handles, "sharers_of_first_byte", lambda path: [OTHER_PID] * path.endswith("lock.mdb"))

    with pytest.raises(JournalBusyError) as caught:
        one.claim()

    assert caught.value.pid == OTHER_PID
    assert f"it is held open by process {OTHER_PID}" in str(caught.value)


def test_handle_without_the_lock_is_seen_by_lmdbs(
    locks: tuple[HandleLock, HandleLock], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read-only one in a directory whose files it may not open."""
    monkeypatch.setattr(handles, "sharers_of_first_byte", lambda path: [OTHER_PID])

    with pytest.raises(JournalBusyError, match=str(OTHER_PID)):
        locks[0].check_alone()


def test_read_only_handle_makes_no_file_and_does_without(tmp_path: Path) -> None:
    """A backup has none, and a read-only file system can have none."""
    assert open_handle_lock(str(tmp_path), readonly=True) is None
    assert list(tmp_path.iterdir()) == []


def test_read_only_handle_shares_it_by_a_descriptor_that_cannot_write(tmp_path: Path) -> None:
    """It holds off who would replace the file."""
    (tmp_path / files.OWNERS_FILE).touch(0o400)
    reader = open_handle_lock(str(tmp_path), readonly=True)
    assert reader is not None
    reader.share()
    writer = open_handle_lock(str(tmp_path), readonly=False)
    assert writer is not None

    with pytest.raises(JournalBusyError):
        writer.claim()

    with pytest.raises(OSError, match="Bad file descriptor"):
        os.write(reader.descriptor, b"x")
    for lock in (reader, writer):
        os.close(lock.descriptor)


@pytest.mark.parametrize("readonly", [False, True])
def test_open_store_holds_it(tmp_path: Path, *, readonly: bool) -> None:
    """From before LMDB opens the file until after it has closed it, whatever lingers."""
    open_store(tmp_path).close()
    store = open_store(tmp_path, readonly=readonly)
    lock = open_handle_lock(str(tmp_path), readonly=False)
    assert lock is not None

    with pytest.raises(JournalBusyError):
        lock.claim()
    end = store.linger()
    store.close()
    lock.claim()

    end()
    os.close(lock.descriptor)


@pytest.mark.parametrize("readonly", [False, True])
def test_newcomer_waits_for_who_replaces_the_file(tmp_path: Path, *, readonly: bool) -> None:
    """For as long as it was told to wait."""
    open_store(tmp_path).close()
    lock = open_handle_lock(str(tmp_path), readonly=False)
    assert lock is not None
    lock.claim()

    with pytest.raises(JournalBusyError, match="being replaced"):
        open_store(tmp_path, readonly=readonly, wait_timeout=0.01)

    os.close(lock.descriptor)
    open_store(tmp_path, readonly=readonly, wait_timeout=0.01).close()
    assert not os.path.lexists(tmp_path / files.NEW_DATA_FILE)


def test_newcomer_whose_file_was_replaced_looks_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has looked at a file that is gone by the time that it has the lock."""
    open_store(tmp_path).close()
    data = tmp_path / files.DATA_FILE
    share = HandleLock.share
    replaced: list[int] = []

    def replace_then_share(lock: HandleLock) -> None:
        if not replaced:
            replaced.append(data.stat().st_ino)
            (tmp_path / "twin").write_bytes(data.read_bytes())
            (tmp_path / "twin").rename(data)
        share(lock)

    monkeypatch.setattr(HandleLock, "share", replace_then_share)

    store = open_store(tmp_path)

    assert data.stat().st_ino != replaced[0]
    store.commit(lambda txn: None)  # it would refuse a file that is not the one that was opened
    store.close()
