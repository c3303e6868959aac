"""Copies of a journal, each in a directory of its own: `backup` of one that is open, `restore` of one that lies there.

A copy is made beside its place, under a name that begins with a dot, and renamed when it is whole, checked and flushed.
It holds a data file and nothing else. It says of itself that it is a copy, and forgets the handles of the journal that it
was made of: none of them will ever come to it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from typing import Final

import lmdb

from journal._core.payloads import digest
from journal._storage import files, layout
from journal._storage.staging import check_room, explained, staged
from journal._storage.store import Store, read_header, time_of
from journal._storage.turn import holder_of
from journal._storage.views import StoreView, encode
from journal.errors import JournalBusyError
from journal.records import RestoredRow

_COPY_TRIES: Final = 3
_BEING_MADE: Final = "another copy to the same place is being made"
_WAIT: Final = "try again when that has ended"
_WRITTEN_TO: Final = "it is being written to"
_STOP: Final = "close it, or make a backup through an open handle"
_INCARNATION_BYTES: Final = 16


def back_up(store: Store, target: str) -> int:
    """Make a copy of an open journal; the last position of its log."""
    own, place = os.path.realpath(store.directory), os.path.realpath(target)
    _refuse_inside(place, own)
    return _make(store.directory, place, store.copy_to, at=store.now(), need_bytes=store.live_bytes())


def restore(backup: str, target: str, clock: Callable[[], int]) -> int:
    """Make a journal of a copy, or of any journal, that nobody commits to; the last position of its log."""
    own, place = os.path.realpath(backup), os.path.realpath(target)
    if not files.has_journal(backup):
        raise FileNotFoundError(errno.ENOENT, "no journal is here to be restored", backup)
    _refuse_inside(place, own)
    files.check_filesystem(os.path.dirname(place))
    files.check_data_file(backup)
    size = os.stat(os.path.join(backup, files.DATA_FILE)).st_size
    return _make(backup, place, lambda descriptor: _copy_still(backup, descriptor), at=time_of(clock), need_bytes=size)


def _refuse_inside(place: str, own: str) -> None:
    if place == own or place.startswith(own.rstrip("/") + "/"):
        raise ValueError(f"{place!r} lies in the journal that is to be copied, {own!r}; name a directory outside of it")


def _make(source: str, target: str, fill: Callable[[int], None], *, at: int, need_bytes: int) -> int:
    """Make a copy beside the target, and give it its name when it is whole; the last position of its log."""
    _check_target(target)
    check_room(target, os.path.dirname(target), need_bytes)
    with _staging_directory(target) as directory:
        path = os.path.join(directory, files.DATA_FILE)
        with explained(target, path):
            head = _write(source, path, fill, at)
            files.sync_directory(directory)
            _check_target(target)
            os.rename(directory, target)
    files.sync_directory(os.path.dirname(target))
    return head


def _write(source: str, path: str, fill: Callable[[int], None], at: int) -> int:
    """Fill a data file, let it know that it is a copy, and check it; the last position of its log."""
    descriptor = files.make_file(path)
    try:
        fill(descriptor)
    finally:
        os.close(descriptor)
    files.check_data_file(os.path.dirname(path))
    with staged(path) as copy:
        genesis = digest(read_header(copy, source).journal_id.encode())
        copy.write(lambda txn: _mark(txn, genesis, at))
        copy.check(genesis)
        return copy.read(lambda txn: StoreView(txn, genesis).head())


def _mark(txn: lmdb.Transaction, genesis: bytes, at: int) -> None:
    view = StoreView(txn, genesis)
    for key, _ in list(view.rows(layout.OWNER)):
        txn.delete(key)
    row = RestoredRow(incarnation=secrets.token_hex(_INCARNATION_BYTES), head=view.head(), at=at)
    txn.put(layout.RESTORED_KEY, layout.seal(layout.RESTORED_KEY, encode(row)))


def _check_target(target: str) -> None:
    """Refuse a place that is taken, or that is nowhere.

    Raises:
        FileExistsError: something is there.
        FileNotFoundError, NotADirectoryError: it is in no directory.
    """
    parent = os.path.dirname(target)
    if not os.path.isdir(parent):
        if os.path.lexists(parent):
            raise NotADirectoryError(errno.ENOTDIR, "the copy needs a directory to lie in, and this is a file", parent)
        raise FileNotFoundError(errno.ENOENT, "the copy needs a directory to lie in; make this one first", parent)
    try:
        names = os.listdir(target)
    except FileNotFoundError:
        return
    except NotADirectoryError:
        raise FileExistsError(errno.EEXIST, "a file is here; name a new or an empty directory", target) from None
    if names:
        what = "a journal" if files.DATA_FILE in names else f"a directory of other files ({min(names)!r})"
        raise FileExistsError(errno.EEXIST, f"{what} is here; name a new or an empty directory", target)


@contextlib.contextmanager
def _staging_directory(target: str) -> Iterator[str]:
    """A directory beside the target that this call alone has; what is still there at the end is removed."""
    directory = os.path.join(os.path.dirname(target), f".{os.path.basename(target)}.journal-copy")
    descriptor = _claim(directory)
    try:
        _empty(directory)
        yield directory
    finally:
        if _is_at(descriptor, directory):  # it has not got its name
            with contextlib.suppress(OSError):  # what was in the way before is still
                _empty(directory)
                os.rmdir(directory)
        # A forked child may have the description for a while: the lock ends here.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def _claim(directory: str) -> int:
    while True:
        with contextlib.suppress(FileExistsError):
            os.mkdir(directory, files.DIRECTORY_MODE)
        with contextlib.suppress(FileNotFoundError):
            descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is_at(descriptor, directory):
                    return descriptor
            except BlockingIOError:
                pid = holder_of(descriptor)
                os.close(descriptor)
                raise JournalBusyError(directory, pid, _BEING_MADE, _WAIT) from None
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)  # who had it before has just given it its name


def _is_at(descriptor: int, path: str) -> bool:
    """Whether a path names what a descriptor has open."""
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    return False


def _empty(directory: str) -> None:
    """Remove what a copy that was cut short left.

    Raises:
        FileExistsError: it is something else.
    """
    others = set(os.listdir(directory)) - {files.DATA_FILE}
    if others:
        raise FileExistsError(errno.EEXIST, f"the place to make a copy holds other files ({min(others)!r})", directory)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.join(directory, files.DATA_FILE))


def _copy_still(backup: str, descriptor: int) -> None:
    """Copy a data file as it is, without LMDB, which would leave a lock file beside it.

    LMDB writes into no page that its last commit can reach. So a copy is whole where no commit came while it was made.

    Raises:
        JournalBusyError: somebody commits.
    """
    path = os.path.join(backup, files.DATA_FILE)
    for _ in range(_COPY_TRIES):
        before = files.state_of(backup)
        os.lseek(descriptor, 0, os.SEEK_SET)
        os.ftruncate(descriptor, 0)
        with open(path, "rb") as source, open(descriptor, "wb", closefd=False) as copy:
            shutil.copyfileobj(source, copy)
        if files.state_of(backup) == before:
            return
    raise JournalBusyError(backup, None, _WRITTEN_TO, _STOP)
