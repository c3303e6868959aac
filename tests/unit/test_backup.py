"""`journal/_storage/copies.py`: copies in directories of their own, and all that can be in their way."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import stat
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
from journal._storage import copies, files, layout, staging
from journal._storage.environment import Environment
from journal._storage.staging import StagedFile
from journal._storage.store import Store
from journal._storage.views import encode
from journal.errors import (
    CorruptRecordError,
    JournalBusyError,
    JournalClosedError,
    JournalFullError,
    UnsupportedFormatError,
)
from journal.options import PAGE_RECORDS
from journal.records import FORMAT_VERSION, CursorRow, Guarantee, Header, Phase, RestoredRow, StepRecord
from tests.unit.support import START, Boom, InterruptAt, InThread, lines_interrupted, open_store, raising

CURSOR: Final = CursorRow(1, None, START)
STAGING: Final = ".copy.journal-copy"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A journal with an intent, whose owner has a row, and a cursor."""
    made = open_store(tmp_path / "journal")
    change = EffectChange(phase=Phase.INTENT, guarantee=Guarantee.AT_MOST_ONCE, owner=made.owner_id)
    made.commit(advance(key_form("k"), 0, change))
    made.commit(methodcaller("save_cursor", "c", CURSOR))
    yield made
    made.close()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Where the copy is to be."""
    return tmp_path / "copy"


Copier = Callable[[Store, Path], int]


def backed_up(store: Store, place: Path) -> int:
    return copies.back_up(store, str(place))


def restored(store: Store, place: Path) -> int:
    return copies.restore(store.directory, str(place), lambda: START)


@pytest.fixture(params=[backed_up, restored])
def copy(request: pytest.FixtureRequest) -> Copier:
    """Both that make a copy."""
    copier: Copier = request.param
    return copier


def append_step(store: Store, name: str) -> int:
    """Append something; its position."""
    position: int = store.commit(methodcaller("append", StepRecord(key_form(name), START, b"1"))).answer
    return position


def rows(store: Store) -> dict[bytes, bytes]:
    """Everything in an open journal."""
    found: dict[bytes, bytes] = store._environment.read(lambda txn: dict(txn.cursor()))  # type: ignore[arg-type]  # as in views
    return found


def written(store: Store, key: bytes, value: bytes) -> None:
    """Write a row past all checks."""

    def write(txn: lmdb.Transaction) -> None:
        txn.put(key, value)
        txn.commit()

    store._environment.write(write)


def names(path: Path) -> list[str]:
    return sorted(one.name for one in path.iterdir())


# What a copy is


def test_copy_holds_all_but_the_handles_and_says_what_it_is(store: Store, place: Path, copy: Copier) -> None:
    """Through the last position, private to the user, and nothing but the data file."""
    before = rows(store)

    head = copy(store, place)

    assert names(place) == [files.DATA_FILE]
    assert [stat.S_IMODE(path.stat().st_mode) for path in (place, place / files.DATA_FILE)] == [0o700, 0o600]
    assert names(place.parent) == ["copy", "journal"]
    twin = open_store(place)
    row = twin.read(lambda view: view.restored())
    kept = {key: value for key, value in before.items() if key[:1] != layout.OWNER}
    assert row is not None
    assert (head, row.head, row.at, row.confirmed_at) == (1, 1, START, 0)
    assert {key: value for key, value in rows(twin).items() if key != layout.RESTORED_KEY} == kept
    assert list(twin.verify()) == []
    assert twin.living_pid(store.owner_id) is None
    twin.close()


def test_each_copy_is_an_incarnation_of_its_own(store: Store, tmp_path: Path) -> None:
    """A copy of a confirmed copy, too."""
    found = []
    source = store
    for name in ("a", "b", "c"):
        backed_up(source, tmp_path / name)
        source = open_store(tmp_path / name)
        row = source.read(lambda view: view.restored())
        assert row is not None
        found.append(row)
        source.commit(methodcaller("save_restored", RestoredRow(row.incarnation, row.head, row.at, START)))
        append_step(source, name)
    assert [row.head for row in found] == [1, 2, 3]
    assert [row.confirmed_at for row in found] == [0, 0, 0]
    assert len({row.incarnation for row in found}) == 3


def test_empty_directory_becomes_the_copy(store: Store, place: Path, copy: Copier) -> None:
    """As a new journal would."""
    place.mkdir()

    copy(store, place)

    assert names(place) == [files.DATA_FILE]


def test_link_to_a_place_is_followed(store: Store, place: Path, tmp_path: Path, copy: Copier) -> None:
    """The copy is made beside what the link names."""
    (tmp_path / "disk").mkdir()
    place.symlink_to(tmp_path / "disk" / "new")

    copy(store, place)

    assert names(tmp_path / "disk") == ["new"]
    assert names(place) == [files.DATA_FILE]


def test_backup_from_a_read_only_handle_writes_nothing_into_the_journal(store: Store, place: Path) -> None:
    """It only reads."""
    directory = Path(store.directory)
    store.close()
    before = (directory / files.DATA_FILE).read_bytes()
    reader = open_store(directory, readonly=True)

    head = backed_up(reader, place)

    reader.close()
    assert head == 1
    assert (directory / files.DATA_FILE).read_bytes() == before


def test_restore_leaves_the_backup_as_it_is(store: Store, place: Path, tmp_path: Path) -> None:
    """Not even a lock file is made in it."""
    backed_up(store, place)
    before = (place / files.DATA_FILE).read_bytes()

    copies.restore(str(place), str(tmp_path / "again"), lambda: START)

    assert names(place) == [files.DATA_FILE]
    assert (place / files.DATA_FILE).read_bytes() == before


def test_commits_go_on_while_a_copy_is_made(store: Store, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is one state of the journal: what comes later is not in it."""
    check = StagedFile.check

    def append_then_check(file: StagedFile, genesis: bytes) -> None:
        append_step(store, "later")
        check(file, genesis)

    monkeypatch.setattr(StagedFile, "check", append_then_check)

    assert backed_up(store, place) == 1
    assert store.read(lambda view: view.head()) == 2


# What is in its way


@pytest.mark.parametrize("inside", ["", "copy", "a/copy"])
def test_place_inside_the_journal_is_refused(store: Store, inside: str, copy: Copier) -> None:
    """By whatever path."""
    directory = Path(store.directory)
    link = directory.with_name("link")
    link.symlink_to(directory)
    before = names(directory)

    for start in (directory, link):
        with pytest.raises(ValueError, match="name a directory outside"):
            copy(store, start / inside)
    assert names(directory) == before


def test_place_with_a_journal_is_refused(store: Store, place: Path, copy: Copier) -> None:
    """Nothing of it is touched."""
    open_store(place).close()
    before = names(place)

    with pytest.raises(FileExistsError, match="a journal is here; name a new or an empty directory"):
        copy(store, place)

    assert names(place) == before
    assert names(place.parent) == ["copy", "journal"]


def test_place_with_other_files_is_refused(store: Store, place: Path, copy: Copier) -> None:
    """One of them is named."""
    place.mkdir()
    (place / "letters").touch()

    with pytest.raises(FileExistsError, match=r"other files \('letters'\)"):
        copy(store, place)


def test_file_is_no_place(store: Store, place: Path, copy: Copier) -> None:
    """Nor is a path through one."""
    place.touch()

    with pytest.raises(FileExistsError, match="a file is here"):
        copy(store, place)
    with pytest.raises(NotADirectoryError, match="needs a directory to lie in, and this is a file"):
        copy(store, place / "copy")


def test_place_in_no_directory_is_refused(store: Store, tmp_path: Path, copy: Copier) -> None:
    """It is not made: a typing error would fill the wrong disk."""
    with pytest.raises(FileNotFoundError, match="make this one first"):
        copy(store, tmp_path / "nowhere" / "copy")
    assert names(tmp_path) == ["journal"]


def test_place_that_is_taken_meanwhile_is_refused(
    store: Store, place: Path, copy: Copier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is left of the copy, and nothing in the place is replaced."""
    check = StagedFile.check

    def take_then_check(file: StagedFile, genesis: bytes) -> None:
        place.mkdir()
        (place / "letters").touch()
        check(file, genesis)

    monkeypatch.setattr(StagedFile, "check", take_then_check)

    with pytest.raises(FileExistsError):
        copy(store, place)
    assert (names(place), names(place.parent)) == (["letters"], ["copy", "journal"])


def test_damaged_journal_gives_no_copy(store: Store, place: Path, copy: Copier) -> None:
    """Nothing is left of it."""
    written(store, layout.STEP + b"\x01none", b"damaged")

    with pytest.raises(CorruptRecordError):
        copy(store, place)

    assert names(place.parent) == ["journal"]


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EACCES])
@pytest.mark.parametrize("where", ["make_file", "sync_file", "sync_directory"])
def test_disk_that_fails_leaves_nothing(
    store: Store, place: Path, where: str, error: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal goes on, and so does the next copy."""
    with monkeypatch.context() as patched:
        patched.setattr(files, where, raising(OSError(error, os.strerror(error))))
        with pytest.raises(JournalFullError if error in files.NO_ROOM else OSError):
            backed_up(store, place)

    assert names(place.parent) == ["journal"]
    append_step(store, "later")
    assert backed_up(store, place) == 2


def test_copy_that_lmdb_cannot_write_leaves_nothing(store: Store, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says EIO for a full disk."""
    with monkeypatch.context() as patched:
        patched.setattr(Environment, "copy", raising(lmdb.Error("mdb_env_copyfd: Input/output error")))
        patched.setattr(files, "free_bytes", lambda _: files.ROOM_BYTES - 1)
        with pytest.raises(JournalFullError, match=f"{files.ROOM_BYTES - 1} bytes are free") as caught:
            backed_up(store, place)

    assert caught.value.path == str(place)
    assert names(place.parent) == ["journal"]


def test_copy_that_has_no_room_is_not_begun(
    store: Store, place: Path, copy: Copier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that it filled would refuse the journal's own intents, too."""
    monkeypatch.setattr(files, "free_bytes", lambda _: 5_000)

    with pytest.raises(JournalFullError, match=r"a copy needs \d+ bytes, and 5000 are free"):
        copy(store, place)
    assert names(place.parent) == ["journal"]


def test_bug_of_ours_leaves_nothing(store: Store, place: Path, copy: Copier, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it is, the next copy can be made."""
    with monkeypatch.context() as patched:
        patched.setattr(StagedFile, "check", raising(Boom("a bug")))
        with pytest.raises(Boom):
            copy(store, place)

    assert names(place.parent) == ["journal"]
    copy(store, place)


def test_closed_handle_makes_no_copy(store: Store, place: Path) -> None:
    """It says so, and makes nothing."""
    store.close()

    with pytest.raises(JournalClosedError):
        backed_up(store, place)
    assert names(place.parent) == ["journal"]


# What one that was killed left, and one that is being made


def test_what_a_killed_one_left_is_made_anew(store: Store, place: Path, copy: Copier) -> None:
    """Its name says what it is."""
    staging = place.with_name(STAGING)
    staging.mkdir()
    (staging / files.DATA_FILE).write_bytes(b"half")

    copy(store, place)

    assert names(place.parent) == ["copy", "journal"]


def test_directory_of_somebody_elses_with_that_name_is_left_alone(store: Store, place: Path, copy: Copier) -> None:
    """Nothing but a data file is ever ours."""
    staging = place.with_name(STAGING)
    staging.mkdir()
    (staging / files.DATA_FILE).touch()
    (staging / "letters").touch()

    with pytest.raises(FileExistsError, match=r"holds other files \('letters'\)"):
        copy(store, place)
    assert names(staging) == [files.DATA_FILE, "letters"]


def test_two_copies_to_one_place_are_not_made_at_once(
    store: Store, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second is told who makes the first."""
    reached, go_on = threading.Event(), threading.Event()
    check = StagedFile.check

    def slow_check(file: StagedFile, genesis: bytes) -> None:
        reached.set()
        assert go_on.wait(30)
        check(file, genesis)

    with monkeypatch.context() as patched:
        patched.setattr(StagedFile, "check", slow_check)
        first = InThread(lambda: backed_up(store, place))
        assert reached.wait(30)

        with pytest.raises(JournalBusyError, match="another copy to the same place is being made") as caught:
            backed_up(store, place)
        go_on.set()

        assert first.result() == 1
    assert caught.value.pid == os.getpid()
    with pytest.raises(FileExistsError):
        backed_up(store, place)


def test_staging_directory_that_gets_its_name_meanwhile_is_not_taken(
    store: Store, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was opened just before, and is a copy by now: another one is made, and that stays."""
    staging = place.with_name(STAGING)
    staging.mkdir()
    flock = fcntl.flock
    moved: list[bool] = []

    def move_then_lock(descriptor: int, operation: int) -> None:
        if not moved:
            moved.append(True)
            staging.rename(tmp_path / "finished")
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", move_then_lock)

    backed_up(store, place)

    assert names(tmp_path) == ["copy", "finished", "journal"]


def test_staging_directory_that_is_gone_before_it_is_opened_is_made_again(
    store: Store, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else has just ended."""
    mkdir = os.mkdir
    made: list[str] = []

    def mkdir_in_vain(path: str, mode: int) -> None:
        made.append(path)
        if len(made) > 1:
            mkdir(path, mode)

    monkeypatch.setattr(os, "mkdir", mkdir_in_vain)

    backed_up(store, place)

    assert len(made) == 2


# What can be restored


def test_journal_in_use_is_restored_while_nobody_commits(store: Store, place: Path) -> None:
    """LMDB writes into no page that its last commit can reach."""
    assert restored(store, place) == 1


def test_commit_while_the_file_is_copied_begins_it_anew(
    store: Store, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy that is kept saw no commit."""
    copyfileobj = shutil.copyfileobj
    left = [2]

    def append_then_copy(source: Any, target: Any) -> None:
        if left[0]:
            left[0] -= 1
            append_step(store, f"{left[0]}")
        copyfileobj(source, target)
        if left[0]:
            append_step(store, f"after {left[0]}")

    monkeypatch.setattr(shutil, "copyfileobj", append_then_copy)

    head = restored(store, place)

    twin = open_store(place)
    assert head == twin.read(lambda view: view.head()) == store.read(lambda view: view.head())
    assert list(twin.verify()) == []
    twin.close()


def test_journal_that_is_committed_to_all_the_time_is_refused(
    store: Store, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A backup through an open handle is what it takes."""
    copyfileobj = shutil.copyfileobj
    count = [0]

    def copy_then_append(source: Any, target: Any) -> None:
        copyfileobj(source, target)
        count[0] += 1
        append_step(store, f"{count[0]}")

    monkeypatch.setattr(shutil, "copyfileobj", copy_then_append)

    with pytest.raises(JournalBusyError, match="make a backup through an open handle"):
        restored(store, place)
    assert names(place.parent) == ["journal"]


@pytest.mark.parametrize("directory", ["nowhere", "empty"])
def test_nothing_is_restored_from_nothing(tmp_path: Path, place: Path, directory: str) -> None:
    """A missing directory, and an empty one."""
    (tmp_path / "empty").mkdir()

    with pytest.raises(FileNotFoundError, match="no journal is here to be restored"):
        copies.restore(str(tmp_path / directory), str(place), lambda: START)
    assert names(tmp_path) == ["empty"]


@pytest.mark.parametrize("content", [b"", b"\xff" * 8192, bytes(4096)])
def test_file_that_is_no_journal_is_not_restored(tmp_path: Path, place: Path, content: bytes) -> None:
    """LMDB does not see it."""
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / files.DATA_FILE).write_bytes(content)

    with pytest.raises(UnsupportedFormatError):
        copies.restore(str(tmp_path / "foreign"), str(place), lambda: START)
    assert names(tmp_path) == ["foreign"]


def test_newer_format_is_not_restored(store: Store, place: Path, copy: Copier) -> None:
    """Told by its number; nothing is left."""
    header = Header(FORMAT_VERSION + 1, "c" * 32, START)
    written(store, layout.HEADER_KEY, layout.seal(layout.HEADER_KEY, encode(header)))

    with pytest.raises(UnsupportedFormatError) as caught:
        copy(store, place)

    assert (caught.value.found, caught.value.path) == (FORMAT_VERSION + 1, store.directory)
    assert names(place.parent) == ["journal"]


def test_network_file_system_is_no_place_for_a_journal(
    store: Store, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A backup may lie there, since nobody works with it."""
    monkeypatch.setattr(files, "filesystem_of", lambda _: "nfs4")

    with pytest.raises(Exception, match="network file system"):
        restored(store, place)
    assert backed_up(store, place) == 1


def test_more_records_than_a_page_are_copied(store: Store, place: Path, copy: Copier) -> None:
    """The copy is checked page by page."""

    def append_many(txn: Any) -> None:
        for number in range(PAGE_RECORDS + 1):
            txn.append(StepRecord(key_form(f"{number}"), START, b"1"))

    store.commit(append_many)

    assert copy(store, place) == PAGE_RECORDS + 2


@pytest.mark.parametrize("module", [copies, staging])
def test_interrupt_at_any_line_leaves_a_whole_copy_or_none(
    store: Store, tmp_path: Path, copy: Copier, module: ModuleType
) -> None:
    """And stops nobody who makes the next one."""

    def run(interrupt: InterruptAt) -> None:
        place = tmp_path / f"{len(list(tmp_path.iterdir()))}"

        def cut_off() -> None:
            with contextlib.suppress(KeyboardInterrupt), interrupt:
                copy(store, place)

        # What is raised at a line of an `except` leaves its thread for ever in the midst of handling that exception.
        InThread(cut_off).result()
        if not place.exists():
            copy(store, place)
        assert names(place) == [files.DATA_FILE]
        twin = open_store(place, readonly=True)
        assert list(twin.verify()) == []
        assert twin.is_copy
        twin.close()

    assert lines_interrupted(module, run) > 10
    assert [name for name in names(tmp_path) if name.startswith(".")] == []
