"""`journal/_storage/readers.py`: the hold on LMDB's table of readers, and the slots of the dead."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import lmdb
import pytest

from journal._storage import readers
from journal._storage.files import LMDB_LOCK_FILE
from journal._storage.readers import ReaderTable
from journal._storage.turn import FLOCK
from journal.errors import JournalBusyError
from journal.options import READERS_MAX
from tests.unit.support import raising

DEAD: Final = 2**22 + 1
"""More than any process id of Linux."""


@pytest.fixture
def env(tmp_path: Path) -> Iterator[lmdb.Environment]:
    """An environment of LMDB's, with one reader's slot taken."""
    with lmdb.open(str(tmp_path), max_readers=READERS_MAX, lib_version=0) as made:
        made.begin().abort()
        yield made


@pytest.fixture
def table(env: lmdb.Environment, tmp_path: Path) -> Iterator[ReaderTable]:
    """The handle's hold on its table."""
    made = ReaderTable(str(tmp_path))
    yield made
    made.close()


@pytest.fixture
def other(env: lmdb.Environment, tmp_path: Path) -> Iterator[int]:
    """A descriptor of the lock file, as another process has it."""
    descriptor = os.open(tmp_path / LMDB_LOCK_FILE, os.O_RDWR | os.O_CLOEXEC)
    yield descriptor
    os.close(descriptor)


def is_held(descriptor: int, byte: int) -> bool:
    """Whether somebody else holds a byte, as LMDB asks."""
    asked = FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)
    kind: int = FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, asked))[0]
    return kind != fcntl.F_UNLCK


def lock(descriptor: int, byte: int, kind: int = fcntl.F_WRLCK) -> None:
    """Hold a byte."""
    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, FLOCK.pack(kind, os.SEEK_SET, byte, 1, 0))


def take_slot(descriptor: int, index: int, pid: int, transaction: int = 1) -> None:
    """Fill a slot as a reader does."""
    start = os.fstat(descriptor).st_size - READERS_MAX * 64
    os.pwrite(descriptor, transaction.to_bytes(8, "little") + pid.to_bytes(4, "little"), start + index * 64)


def pids(env: lmdb.Environment) -> list[int]:
    """The processes that LMDB itself finds in its table, without those that it was not told of."""
    return [int(line.split()[0]) for line in env.readers().splitlines()[1:]]


def test_table_is_read_as_lmdb_reads_it(env: lmdb.Environment, table: ReaderTable) -> None:
    """The place and size of its slots are LMDB's own, so this fails should they ever change."""
    transactions = [env.begin() for _ in range(3)]

    assert [pid for pid in table._pids() if pid] == [os.getpid()] * 3 == pids(env)
    assert len(table._pids()) == READERS_MAX
    for transaction in transactions:
        transaction.abort()


def test_hold_outlives_a_copy_of_the_directory(env: lmdb.Environment, table: ReaderTable, other: int) -> None:
    """It drops what LMDB holds, and not what the handle holds."""
    table.hold()

    (Path(env.path()) / LMDB_LOCK_FILE).read_bytes()

    assert is_held(other, 0)
    assert is_held(other, os.getpid())


def test_hold_is_shared_on_the_first_byte(env: lmdb.Environment, table: ReaderTable, other: int) -> None:
    """Others may open the journal."""
    table.hold()

    lock(other, 0, fcntl.F_RDLCK)


def test_nothing_is_held_after_closing(env: lmdb.Environment, table: ReaderTable, other: int) -> None:
    """Even where a child that knows nothing of it inherited the descriptor; closing again is fine."""
    table.hold()
    (Path(env.path()) / LMDB_LOCK_FILE).read_bytes()
    inherited = os.dup(table._descriptor or 0)
    table.close()
    table.close()

    assert not is_held(other, 0)
    assert not is_held(other, os.getpid())
    os.close(inherited)


def test_forked_child_lets_the_parent_keep_its_hold(
    table: ReaderTable, other: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It closes its copy of the descriptor."""
    table.hold()
    parents = os.dup(table._descriptor or 0)
    with monkeypatch.context() as patched:
        patched.setattr(os, "getpid", lambda: DEAD)
        table.close()

    assert is_held(other, 0)
    os.close(parents)


def test_table_of_the_parent_is_out_of_a_childs_reach(env: lmdb.Environment, table: ReaderTable) -> None:
    """LMDB's close would free the parent's slots in it; what the child has in its place is its own."""
    reading = env.begin()
    child = os.fork()
    if child == 0:
        table.leave_to_parent()
        is_empty = env.readers() == "(no active readers)\n"
        env.close()
        table.close()
        os._exit(0 if is_empty else 1)

    assert os.waitpid(child, 0)[1] == 0
    assert pids(env) == [os.getpid()]
    reading.abort()


def test_table_of_ones_own_is_not_left(env: lmdb.Environment, table: ReaderTable) -> None:
    """In the process that opened it nothing happens."""
    reading = env.begin()

    table.leave_to_parent()

    assert pids(env) == [os.getpid()]
    reading.abort()


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # what is risky about it is what is tested
def test_memory_that_cannot_be_replaced_is_told(table: ReaderTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """Better no close in the child than one that takes the slots of the parent."""
    monkeypatch.setattr(readers, "_mappings_of", lambda _: [(1, 2)])
    monkeypatch.setattr(os, "getpid", lambda: DEAD)

    with pytest.raises(OSError, match="Invalid argument"):
        table.leave_to_parent()


def test_slots_of_the_dead_are_freed(env: lmdb.Environment, table: ReaderTable, other: int) -> None:
    """All of them, and nobody else's."""
    table.hold()
    reading = env.begin()
    for index in (1, 2, 5):
        take_slot(other, index, DEAD)

    assert table.clear_dead() == 3

    assert [pid for pid in table._pids() if pid] == [os.getpid()]
    assert table.clear_dead() == 0
    assert not is_held(other, DEAD)
    reading.abort()


def test_slots_of_the_living_are_left(table: ReaderTable, other: int) -> None:
    """A process lives while somebody holds its byte, by whatever kind of lock."""
    take_slot(other, 1, DEAD)
    lock(other, DEAD, fcntl.F_RDLCK)

    assert table.clear_dead() == 0
    assert DEAD in table._pids()


def test_slots_of_a_predecessor_with_the_same_id_are_freed(tmp_path: Path) -> None:
    """The first process of a container is always number 1: what it left when it was killed, its successor frees."""
    lmdb.open(str(tmp_path), max_readers=READERS_MAX, lib_version=0).close()
    table = ReaderTable(str(tmp_path))
    descriptor = os.open(tmp_path / LMDB_LOCK_FILE, os.O_RDWR | os.O_CLOEXEC)
    take_slot(descriptor, 0, os.getpid())

    assert table.clear_dead() == 1
    table.close()
    os.close(descriptor)


def test_own_slots_are_never_freed(env: lmdb.Environment, table: ReaderTable) -> None:
    """Even when LMDB's own lock is gone."""
    table.hold()
    reading = env.begin()
    (Path(env.path()) / LMDB_LOCK_FILE).read_bytes()

    assert table.clear_dead() == 0
    assert os.getpid() in table._pids()
    reading.abort()


def test_table_of_another_size_is_left_alone(table: ReaderTable, other: int) -> None:
    """It was not made by this library: what lies where is not known."""
    take_slot(other, 1, DEAD)
    os.truncate(other, os.fstat(other).st_size - 64)

    assert table.clear_dead() == 0


def test_table_that_is_free_is_entered(table: ReaderTable, other: int) -> None:
    """Others may use it meanwhile."""
    fcntl.fcntl(other, fcntl.F_SETLK, FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, 0, 0, 0))  # those of the fixture's LMDB
    lock(other, 0, fcntl.F_RDLCK)

    table.check_free()


def test_table_that_another_process_is_making_is_told(table: ReaderTable, other: int) -> None:
    """LMDB would wait for it without end, were it stopped there."""
    fcntl.fcntl(other, fcntl.F_SETLK, FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, 0, 0, 0))
    lock(other, 0)

    with pytest.raises(JournalBusyError) as caught:
        table.check_free()

    assert caught.value.pid is None
    assert "opening it for the first time" in str(caught.value)


def test_process_with_the_same_id_is_told(table: ReaderTable, other: int) -> None:
    """With what to do about it."""
    fcntl.fcntl(other, fcntl.F_SETLK, FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, 0, 0, 0))
    lock(other, os.getpid(), fcntl.F_RDLCK)

    with pytest.raises(JournalBusyError) as caught:
        table.check_free()

    assert caught.value.pid == os.getpid()
    assert "--pid=" in str(caught.value)
    assert "stopped" not in str(caught.value)


def test_table_that_is_not_there_yet_is_held_once_lmdb_has_made_it(tmp_path: Path) -> None:
    """Nothing is asked of it before."""
    table = ReaderTable(str(tmp_path))
    table.check_free()
    assert table.clear_dead() == 0

    with lmdb.open(str(tmp_path), max_readers=READERS_MAX, lib_version=0) as env:
        env.begin().abort()
        table.hold()
        descriptor = os.open(tmp_path / LMDB_LOCK_FILE, os.O_RDWR | os.O_CLOEXEC)
        assert is_held(descriptor, os.getpid())
    table.close()
    os.close(descriptor)


@pytest.mark.parametrize("number", [errno.ENOENT, errno.EROFS])
def test_file_system_without_writes_needs_no_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """There LMDB does without locks."""
    table = ReaderTable(str(tmp_path))
    monkeypatch.setattr(readers.os, "open", raising(OSError(number, "no")))  # type: ignore[attr-defined]  # a module that it uses

    table.hold()
    table.close()


def test_hold_that_cannot_be_taken_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it a copy of the directory would be dangerous."""
    table = ReaderTable(str(tmp_path))
    error: Any = OSError(errno.EMFILE, "too many")
    monkeypatch.setattr(readers.os, "open", raising(error))  # type: ignore[attr-defined]  # a module that it uses

    with pytest.raises(OSError) as caught:
        table.hold()

    assert caught.value is error
