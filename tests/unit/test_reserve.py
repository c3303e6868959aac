"""`journal/_storage/reserve.py`: what is allocated past a data file's last page, and what a full disk makes of a commit."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from journal._core.keys import key_form
from journal._core.ledger import EffectChange, advance
from journal._core.operations import append
from journal._core.rules import Rules
from journal._storage.group import Entry
from journal._storage.reserve import Reserve
from journal._storage.store import Store
from journal.errors import CommitFailedError, JournalClosedError, JournalFullError
from journal.options import DISK_RESERVE_BYTES, DISK_RETRY_BYTES, DISK_STEP_BYTES
from journal.records import Guarantee, Phase, SnapshotRow
from tests.unit.support import START, lmdb_error, open_store, raising

MIB: Final = 1024 * 1024


class Disk:
    """Stands in front of `os.posix_fallocate`: allows files up to a size, and notes what it was asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, limit: int = 1 << 40, code: int = errno.ENOSPC) -> None:
        self.limit = limit
        self.code = code
        self.asked: list[tuple[int, int]] = []
        self._real = os.posix_fallocate
        monkeypatch.setattr(os, "posix_fallocate", self)

    def __call__(self, descriptor: int, offset: int, length: int) -> None:
        self.asked.append((offset, length))
        if offset + length > self.limit:
            raise OSError(self.code, os.strerror(self.code))
        self._real(descriptor, offset, length)


@pytest.fixture
def descriptor(tmp_path: Path) -> Iterator[int]:
    """A file of 8,192 bytes."""
    path = tmp_path / "file"
    path.write_bytes(b"x" * 8192)
    opened = os.open(path, os.O_RDWR)
    yield opened
    os.close(opened)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    """A disk of any size."""
    return Disk(monkeypatch)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A new journal, open."""
    opened = open_store(tmp_path / "journal", map_size=16 * MIB)
    yield opened
    opened.close()


def appending(op_id: str, size: int = 10) -> Callable[[Any], Any]:
    """The decision of an append."""
    decide: Callable[[Any], Any] = next(append("s", [(op_id, "v" * size)], "", None, Rules())).decide
    return decide


def entry(op_id: str, size: int = 10, *, settles: bool = False) -> Entry:
    """An append in the queue."""
    return Entry(appending(op_id, size), START, 1e18, settles=settles)


def op_ids(store: Store) -> list[str]:
    """What is on record."""
    page = store.read(lambda view: view.operations(None, 0, 1_000))
    return [stored.head.op_id for stored in page.operations]


# The file


def test_reserve_is_allocated_with_a_step_more(descriptor: int, disk: Disk) -> None:
    """On the disk, not as a hole, and once for all that it is enough for."""
    reserve = Reserve(descriptor, max_size=None)

    for end in (8192, 8193, 8192 + DISK_STEP_BYTES):
        reserve.keep(end)

    size = 8192 + DISK_RESERVE_BYTES + DISK_STEP_BYTES
    status = os.fstat(descriptor)
    assert (status.st_size, len(disk.asked)) == (size, 1)
    assert status.st_blocks * 512 >= size
    reserve.keep(8193 + DISK_STEP_BYTES)
    assert len(disk.asked) == 2
    assert os.pread(descriptor, 8192, 0) == b"x" * 8192


def test_what_another_process_allocated_counts(descriptor: int, disk: Disk) -> None:
    """The file's own size says so."""
    Reserve(descriptor, max_size=None).keep(8192)
    disk.asked.clear()

    Reserve(descriptor, max_size=None).keep(9000)

    assert disk.asked == []


def test_holes_of_a_copied_file_are_filled_once(descriptor: int, disk: Disk) -> None:
    """A copy that left out zeros holds no room, however long it is."""
    os.truncate(descriptor, 2 * MIB)
    assert os.fstat(descriptor).st_blocks * 512 < MIB
    reserve = Reserve(descriptor, max_size=None)

    reserve.keep(8192)
    reserve.keep(9000)

    assert os.fstat(descriptor).st_blocks * 512 >= 2 * MIB
    assert os.fstat(descriptor).st_size == 2 * MIB
    assert len(disk.asked) == 1


def test_where_no_step_more_fits_the_reserve_alone_will_do(descriptor: int, disk: Disk) -> None:
    """The last of the disk is used."""
    disk.limit = 8192 + DISK_RESERVE_BYTES

    Reserve(descriptor, max_size=None).keep(8192)

    assert os.fstat(descriptor).st_size == disk.limit


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_disk_without_room_is_told_until_there_is_room(descriptor: int, disk: Disk, code: int) -> None:
    """Nothing is remembered of a refusal."""
    disk.limit, disk.code = 8192 + DISK_RESERVE_BYTES - 1, code
    reserve = Reserve(descriptor, max_size=None)

    for _ in range(2):
        with pytest.raises(OSError, match=os.strerror(code)) as caught:
            reserve.keep(8192)
        assert caught.value.errno == code
    disk.limit = 1 << 40
    reserve.keep(8192)

    assert os.fstat(descriptor).st_size > 8192 + DISK_RESERVE_BYTES


def test_who_needs_less_does_not_slip_in_after_a_refusal(descriptor: int, disk: Disk) -> None:
    """Some room has to be made first; then it is a disk as any other."""
    disk.limit = 8192 + DISK_RESERVE_BYTES
    reserve = Reserve(descriptor, max_size=None)
    with pytest.raises(OSError, match="No space left"):
        reserve.keep(8193)

    with pytest.raises(OSError, match="No space left"):
        reserve.keep(8192)
    disk.limit += DISK_RETRY_BYTES
    reserve.keep(8192)
    reserve.keep(8192 + DISK_RETRY_BYTES)

    assert os.fstat(descriptor).st_size == disk.limit


def test_disk_that_fails_is_told_at_once(descriptor: int, disk: Disk) -> None:
    """Not asked again for less."""
    disk.limit, disk.code = 0, errno.EIO

    with pytest.raises(OSError, match="Input/output error"):
        Reserve(descriptor, max_size=None).keep(8192)

    assert len(disk.asked) == 1


def test_nothing_is_allocated_past_the_map(descriptor: int, disk: Disk) -> None:
    """Where nothing can be written."""
    reserve = Reserve(descriptor, max_size=MIB)

    reserve.keep(MIB - 4096)
    reserve.keep(MIB + 4096)

    assert os.fstat(descriptor).st_size == MIB + DISK_STEP_BYTES
    assert len(disk.asked) == 1


def test_without_allocation_zeros_are_written(descriptor: int, disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Past the end alone; and a disk that takes a part of them has no room."""
    disk.limit, disk.code = 0, errno.EOPNOTSUPP
    reserve = Reserve(descriptor, max_size=None)

    reserve.keep(8192)

    size = 8192 + DISK_RESERVE_BYTES + DISK_STEP_BYTES
    assert os.pread(descriptor, size + 1, 0) == b"x" * 8192 + bytes(size - 8192)
    monkeypatch.setattr(os, "pwrite", lambda *_: 7)
    with pytest.raises(OSError, match="No space left"):
        reserve.keep(size)


# Commits


def test_new_journal_has_no_reserve_until_something_is_written(store: Store) -> None:
    """Opening writes nothing."""
    assert store.stats().file_bytes < DISK_RESERVE_BYTES
    store.commit(appending("1"))
    assert store.stats().used_bytes + DISK_RESERVE_BYTES <= store.stats().file_bytes <= MIB


def test_reserve_stands_after_each_commit(store: Store) -> None:
    """Whatever it wrote: many small rows, one large one, a row in the place of a large one."""
    sizes = [10, 5_000, 300_000, 10, 1_000_000]
    for number, size in enumerate(sizes):
        store.commit(appending(f"{number}", size))
        stats = store.stats()
        assert stats.used_bytes + DISK_RESERVE_BYTES <= stats.file_bytes
    store._commit_batch([entry(f"many-{number}", 600) for number in range(900)])
    for version in range(3):
        row = SnapshotRow(1, 1, 1, version, b"1" * 500_000, START)
        store.commit(lambda txn, row=row: txn.save_snapshot("s", row))  # type: ignore[misc]  # mypy cannot infer a default
        stats = store.stats()
        assert stats.used_bytes + DISK_RESERVE_BYTES <= stats.file_bytes


def test_full_disk_refuses_all_but_outcomes(store: Store, disk: Disk) -> None:
    """In one batch: what settles goes through, what changes nothing is answered, the rest has written nothing."""
    store.commit(appending("1"))
    disk.limit = store.stats().used_bytes
    while store.stats().used_bytes + DISK_RESERVE_BYTES + 200_000 < store.stats().file_bytes:
        store.commit(appending(f"filler-{store.stats().head}", 20_000))
    before = op_ids(store)
    batch = [entry("new-1", 300_000), entry("outcome", settles=True), entry("1"), entry("new-2", 300_000)]

    store._commit_batch(batch)

    for refused in (batch[0], batch[3]):
        assert isinstance(refused.error, JournalFullError)
        assert "No space left" in refused.error.reason
    assert batch[0].error is not batch[3].error
    assert (batch[1].error, batch[2].error) == (None, None)
    assert batch[2].answer[0].position == 1
    assert op_ids(store) == [*before, "outcome"]
    assert list(store.verify()) == []


def test_those_that_fit_alone_are_committed(store: Store, disk: Disk) -> None:
    """A large one that has no room does not take the small ones of its batch with it."""
    store.commit(appending("1"))
    disk.limit = store.stats().file_bytes
    batch = [entry("large", 2 * MIB), entry("small")]

    store._commit_batch(batch)

    assert isinstance(batch[0].error, JournalFullError)
    assert batch[1].error is None
    assert op_ids(store) == ["1", "small"]


def test_when_there_is_room_again_it_goes_on(store: Store, disk: Disk) -> None:
    """Nothing has to be called."""
    disk.limit = 0
    with pytest.raises(JournalFullError):
        store.commit(appending("1"))
    disk.limit = 1 << 40

    store.commit(appending("1"))

    assert op_ids(store) == ["1"]


def test_effect_in_flight_is_recorded_out_of_the_reserve(store: Store, disk: Disk) -> None:
    """Though nothing can be allocated."""
    form = key_form("k")
    intent = EffectChange(phase=Phase.INTENT, guarantee=Guarantee.AT_MOST_ONCE, owner=store.owner_id)
    store.commit(advance(form, 0, intent))
    disk.limit = 0

    accepted = EffectChange(phase=Phase.ACCEPTED, guarantee=Guarantee.AT_MOST_ONCE, owner=store.owner_id, proof=b"1")
    store.commit(advance(form, 1, accepted), settles=True)

    state = store.read(lambda view: view.effect(form))
    assert state is not None
    assert state.entry.phase is Phase.ACCEPTED


def test_disk_that_fails_to_allocate_ends_the_handle(store: Store, disk: Disk) -> None:
    """As a failed flush does: no later success on top of it."""
    disk.limit, disk.code = 0, errno.EIO

    with pytest.raises(CommitFailedError):
        store.commit(appending("1"))

    disk.limit = 1 << 40
    with pytest.raises(JournalClosedError):
        store.commit(appending("2"))


def test_full_disk_that_the_commit_meets_fails_no_outcome(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where allocation promised too much: outcomes are tried once more, without the rest of their batch."""
    write = store._environment.write
    monkeypatch.setattr(store._environment, "write", raising(lmdb_error(errno.ENOSPC)))
    commits: list[int] = []
    apart = store._commit_apart

    def commit_apart(*arguments: Any) -> None:
        commits.append(len(arguments[1]))
        monkeypatch.setattr(store._environment, "write", write)
        apart(*arguments)

    monkeypatch.setattr(store, "_commit_apart", commit_apart)
    batch = [entry("new"), entry("outcome", settles=True)]

    store._commit_batch(batch)

    assert commits == [1]
    assert isinstance(batch[0].error, JournalFullError)
    assert batch[1].error is None
    assert op_ids(store) == ["outcome"]
