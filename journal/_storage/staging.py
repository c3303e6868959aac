"""A data file in the making: written, checked and flushed under another name before it gets its own.

Nobody else knows of it, so LMDB needs no lock file beside it. A fork sees it like an open journal, since the child could
not open the file later under its own name.
"""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Callable, Iterator
from typing import TypeVar

import lmdb

from journal._storage import files, registry
from journal._storage.environment import Gate, open_alone
from journal._storage.verify import findings
from journal._storage.views import StoreView
from journal.errors import CorruptRecordError, JournalFullError
from journal.options import MAP_BYTES_MIN

T = TypeVar("T")


class StagedFile:
    """An open data file that only its maker knows."""

    def __init__(self, path: str, map_bytes: int) -> None:
        self._path = path
        self._map_bytes = map_bytes
        self._gate = Gate()

    def open(self) -> None:
        """Open it; an empty file becomes an empty table."""
        self._env = open_alone(self._path, map_bytes=self._map_bytes)

    def read(self, body: Callable[[lmdb.Transaction], T]) -> T:
        """Run a function in a read transaction."""
        with self._gate.lock(), self._env.begin() as txn:
            return body(txn)

    def write(self, body: Callable[[lmdb.Transaction], None]) -> None:
        """Run a function in a write transaction, and commit it."""
        with self._gate.lock(), self._env.begin(write=True) as txn:
            body(txn)

    def check(self, genesis: bytes) -> None:
        """Look at every record and row.

        Raises:
            CorruptRecordError: one is wrong.
        """
        for finding in findings(lambda look: self.read(lambda txn: look(StoreView(txn, genesis))), genesis):
            raise CorruptRecordError(finding.position, f"{finding.table}: {finding.problem}")

    def close(self) -> None:
        """Close it."""
        self._env.close()

    def before_fork(self) -> None:
        """Let no transaction be open while the process forks."""
        self._gate.claim()

    def after_fork_in_parent(self) -> None:
        """Go on."""
        self._gate.give_back()

    def after_fork_in_child(self) -> None:
        """Drop what was inherited."""
        self._gate = Gate()
        self._env.close()


@contextlib.contextmanager
def staged(path: str, *, more_bytes: int = MAP_BYTES_MIN) -> Iterator[StagedFile]:
    """The file at a path, open; its map has room for some more bytes. It is flushed when this ends well."""
    file = StagedFile(path, os.stat(path).st_size + more_bytes)
    identity = files.identity_of(path)
    registry.open_once(file, identity, file.open)
    try:
        yield file
    finally:
        registry.close(identity, file.close)
    files.sync_file(path)


def check_room(journal: str, directory: str, need_bytes: int) -> None:
    """Refuse to fill a disk with what could not be finished.

    Raises:
        JournalFullError: less is free.
    """
    free = files.free_bytes(directory)
    if free < need_bytes:
        raise JournalFullError(journal, f"a copy needs {need_bytes} bytes, and {free} are free")


@contextlib.contextmanager
def explained(journal: str, path: str) -> Iterator[None]:
    """What LMDB and the system say of a data file in the making, as errors of a journal."""
    try:
        yield
    except (lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.InvalidError) as error:
        raise CorruptRecordError(None, f"a page of the data file: {error}") from error
    except (lmdb.Error, OSError) as error:
        code = getattr(error, "errno", None) or getattr(error, "code", None) or 0
        free = files.free_bytes(os.path.dirname(path))
        # LMDB reports a short write as EIO, whatever the reason.
        is_short = isinstance(error, lmdb.Error) and (free < files.ROOM_BYTES or _is_limited(path))
        if is_short or code in files.NO_ROOM or isinstance(error, lmdb.MapFullError):
            raise JournalFullError(journal, f"the disk took no more ({error}), {free} bytes are free") from error
        if isinstance(error, OSError):
            raise
        raise OSError(code, f"LMDB cannot write the new data file ({error})", journal) from error


def _is_limited(path: str) -> bool:
    """Whether a file is about as large as files of this process may be."""
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    size = os.stat(path).st_size if os.path.lexists(path) else 0
    return limit != resource.RLIM_INFINITY and size + files.ROOM_BYTES > limit
