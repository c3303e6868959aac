"""The handle lock: every open handle of a journal shares it, and who puts another data file in place has it alone.

It is an open file description lock on the first byte of `owners.lock`, where no owner's id is. A handle that only reads
takes it as well, through a descriptor that cannot write; where the file is missing or may not be opened it does without,
and is seen by the lock that LMDB holds for it. A forked child shares the description until it has closed it, and closing
it there does not end the parent's lock.

Source: fcntl(2), "Open file description locks (non-POSIX)".
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from typing import Final

from journal._storage import files
from journal._storage.turn import FLOCK, sharers_of_first_byte
from journal.errors import JournalBusyError

_FIRST_BYTE: Final = 0
_REPLACED: Final = "its data file is being replaced (vacuum or rebuild) by another process"
_WAIT: Final = "try again when that has ended"
_HELD: Final = "it is held open"
_HELD_UNSEEN: Final = "another process holds it open"
_CLOSE: Final = "close it there, then try again"


class HandleLock:
    """One handle's share of the lock."""

    def __init__(self, directory: str, descriptor: int) -> None:
        self.descriptor = descriptor
        self._directory = directory

    def share(self) -> None:
        """Say that this handle is open, or that it no longer replaces anything.

        Raises:
            JournalBusyError: another process is replacing the data file.
        """
        try:
            self._set(fcntl.F_RDLCK)
        except BlockingIOError:
            raise JournalBusyError(self._directory, None, _REPLACED, _WAIT) from None

    def claim(self) -> None:
        """Have it alone, without waiting; `share` gives it back.

        Raises:
            JournalBusyError: another process has the journal open.
        """
        try:
            self._set(fcntl.F_WRLCK)
        except BlockingIOError:
            self.check_alone()
            raise JournalBusyError(self._directory, None, _HELD_UNSEEN, _CLOSE) from None

    def check_alone(self) -> None:
        """Refuse where LMDB's own lock says that another process has the journal open.

        Raises:
            JournalBusyError: one has.
        """
        for pid in sharers_of_first_byte(os.path.join(self._directory, files.LMDB_LOCK_FILE)):
            raise JournalBusyError(self._directory, pid, _HELD, _CLOSE)

    def end(self) -> None:
        """Let others replace the data file, though somebody may keep the description open."""
        self._set(fcntl.F_UNLCK)

    def _set(self, kind: int) -> None:
        fcntl.fcntl(self.descriptor, fcntl.F_OFD_SETLK, FLOCK.pack(kind, os.SEEK_SET, _FIRST_BYTE, 1, 0))


def open_handle_lock(directory: str, *, readonly: bool) -> HandleLock | None:
    """The lock of a new handle, not taken yet; `None` of a read-only one that cannot have it."""
    if not readonly:
        return HandleLock(directory, files.open_lock_file(directory, files.OWNERS_FILE))
    with contextlib.suppress(OSError):
        path = os.path.join(directory, files.OWNERS_FILE)
        return HandleLock(directory, os.open(path, os.O_RDONLY | os.O_CLOEXEC))
    return None
