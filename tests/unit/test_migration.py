"""`journal/_storage/migration.py`: an older format becomes today's in one transaction, or stays what it is."""

from __future__ import annotations

import errno
import fcntl
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import lmdb
import msgspec
import pytest

from journal._core.operations import append
from journal._core.rules import Rules
from journal._storage import files, layout, migration, store as store_module
from journal._storage.environment import Environment
from journal._storage.store import Store
from journal._storage.views import encode
from journal.errors import (
    CommitFailedError,
    JournalBusyError,
    JournalClosedError,
    JournalFullError,
    UnsupportedFormatError,
)
from journal.records import FORMAT_VERSION
from tests.unit.golden import JOURNALS, ROWS, rows_of
from tests.unit.support import START, lmdb_error, open_store

OLD_ROWS: Final[dict[str, str]] = json.loads(ROWS.read_text(encoding="utf-8"))


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A journal of format 1."""
    shutil.copy(JOURNALS[1], tmp_path)
    return tmp_path


def with_header(directory: Path, *fields: Any) -> None:
    """Give a journal another header."""
    row = layout.seal(layout.HEADER_KEY, encode(list(fields)))
    with lmdb.open(str(directory), lib_version=0) as env, env.begin(write=True) as txn:
        txn.put(layout.HEADER_KEY, row)


def header_of(directory: Path) -> Any:
    """The fields of a journal's header."""
    row = bytes.fromhex(rows_of(directory)[layout.HEADER_KEY.hex()])
    return msgspec.msgpack.decode(layout.unseal(layout.HEADER_KEY, row))


def before_commit(monkeypatch: pytest.MonkeyPatch, does: Callable[[], None]) -> None:
    """Let something happen instead of the first write transaction."""
    write = Environment.write

    def once(environment: Environment, body: Any) -> Any:
        monkeypatch.setattr(Environment, "write", write)
        does()
        return environment.write(body)

    monkeypatch.setattr(Environment, "write", once)


def test_steps_run_in_order_in_one_transaction(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each older format's after the other; what they write is there with the new number, or not at all."""
    done = []

    def step(name: bytes) -> Callable[[lmdb.Transaction], None]:
        def write(txn: lmdb.Transaction) -> None:
            done.append(name)
            txn.put(name, b"")

        return write

    monkeypatch.setattr(migration, "STEPS", {1: step(b"one"), 2: step(b"two"), 3: step(b"three")})
    monkeypatch.setattr(migration, "FORMAT_VERSION", 4)
    with lmdb.open(str(old), lib_version=0) as env:
        with env.begin(write=True) as txn:
            migration.migrate(txn)
        with env.begin(write=True) as txn:
            migration.migrate(txn)

    assert done == [b"one", b"two", b"three"]
    assert header_of(old)[0] == 4


def test_step_that_fails_leaves_everything_as_it_was(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The handle is closed, and the next one begins anew."""

    def step(txn: lmdb.Transaction) -> None:
        txn.put(b"half", b"")
        raise ValueError("no")

    with monkeypatch.context() as patched:
        patched.setattr(migration, "STEPS", {1: step})
        with pytest.raises(ValueError, match="no"):
            open_store(old)

    assert rows_of(old) == OLD_ROWS
    open_store(old).close()
    assert header_of(old)[0] == FORMAT_VERSION


def test_field_that_a_later_version_added_stays(old: Path) -> None:
    """Only the number in the header is another one."""
    fields = header_of(old)
    with_header(old, *fields, "tomorrow")

    open_store(old).close()

    assert header_of(old) == [FORMAT_VERSION, *fields[1:], "tomorrow"]


def test_map_too_small_grows(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in any commit."""

    def raise_full() -> None:
        raise lmdb.MapFullError("full")

    before_commit(monkeypatch, raise_full)
    store = open_store(old)

    assert store.header.format_version == FORMAT_VERSION
    assert store.stats().map_bytes > 2**20
    store.close()


@pytest.mark.parametrize(
    "code, expected", [(errno.ENOSPC, JournalFullError), (errno.EIO, CommitFailedError)], ids=["full", "failing"]
)
def test_disk_that_takes_no_migration_is_told(
    old: Path, monkeypatch: pytest.MonkeyPatch, code: int, expected: type[Exception]
) -> None:
    """The journal is of its old format still, is read as ever, and migrated by the next one."""

    def fail() -> None:
        raise lmdb_error(code)

    before_commit(monkeypatch, fail)
    with pytest.raises(expected):
        open_store(old)

    assert rows_of(old) == OLD_ROWS
    for readonly, version in ((True, 1), (False, FORMAT_VERSION)):
        store = open_store(old, readonly=readonly)
        assert store.header.format_version == version
        assert store.read(lambda view: view.head()) == 33
        store.close()


def test_wait_for_the_turn_is_bounded(old: Path) -> None:
    """`JournalBusyError` after `wait_timeout`; reading needs no turn."""
    with (old / files.TURN_FILE).open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        with pytest.raises(JournalBusyError):
            open_store(old, wait_timeout=0.01)
        open_store(old, wait_timeout=0.01, readonly=True).close()

    assert rows_of(old) == OLD_ROWS
    open_store(old, wait_timeout=0.01).close()


def test_format_that_another_made_newer_meanwhile_is_refused(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is made older, and nothing written on top of it."""
    fields = header_of(old)
    newer = layout.seal(layout.HEADER_KEY, encode([FORMAT_VERSION + 1, *fields[1:]]))
    write = Environment.write

    def be_faster(environment: Environment, body: Any) -> Any:
        def put(txn: lmdb.Transaction) -> None:
            txn.put(layout.HEADER_KEY, newer)
            txn.commit()

        write(environment, put)
        return write(environment, body)

    monkeypatch.setattr(Environment, "write", be_faster)
    with pytest.raises(UnsupportedFormatError) as caught:
        open_store(old)

    assert caught.value.found == FORMAT_VERSION + 1
    assert header_of(old)[0] == FORMAT_VERSION + 1


def test_older_library_refuses_at_its_next_commit(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It finds another header than it opened, and writes nothing of a format that is no longer the file's."""
    with monkeypatch.context() as patched:
        patched.setattr(store_module, "FORMAT_VERSION", 1)
        older: Store = open_store(old)
    older._environment.write(migration.migrate)

    with pytest.raises(JournalClosedError):
        older.commit(next(append("s", [("1", None)], "", None, Rules())).decide)

    older.close()
    store = open_store(old)
    assert store.read(lambda view: view.head()) == 33
    store.close()


@pytest.mark.parametrize("was_open", [False, True])
@pytest.mark.parametrize("readonly", [False, True])
def test_newer_format_is_refused_with_its_directory_untouched(
    tmp_path: Path, *, was_open: bool, readonly: bool
) -> None:
    """No byte of a file, and no file more."""
    made = tmp_path / "made"
    open_store(made).close()
    with_header(made, FORMAT_VERSION + 1, "id", START, "more")
    directory = made
    if not was_open:
        directory = tmp_path / "copied"
        directory.mkdir()
        shutil.copy(made / files.DATA_FILE, directory)
    before = {path.name: path.read_bytes() for path in directory.iterdir()}

    with pytest.raises(UnsupportedFormatError) as caught:
        open_store(directory, readonly=readonly)

    assert caught.value.found == FORMAT_VERSION + 1
    after = {path.name: path.read_bytes() for path in directory.iterdir()}
    after.pop(files.LMDB_LOCK_FILE, None)
    before.pop(files.LMDB_LOCK_FILE, None)
    assert after == before
    assert was_open or list(directory.iterdir()) == [directory / files.DATA_FILE]
