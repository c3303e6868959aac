"""The writer's turn: a lock of our own in front of LMDB's, with a bounded and interruptible wait.

LMDB's writer mutex has neither, and a copy of the directory made inside a process drops the record locks that LMDB
relies on. `flock` is dropped by neither, and the kernel releases it when its holder dies.

Who waits holds the place in front (a lock on the file's first byte), which everybody takes before the turn itself: so
a process that commits without a pause does not overtake one that waits. The place is a courtesy and bounded: where its
holder is stopped, the others contend for the turn directly, and ask for the place again only after a while.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import struct
import time
from collections.abc import Callable, Iterator
from typing import Final

from journal.errors import JournalBusyError
from journal.options import COURTESY_SECONDS, DISTRUST_SECONDS, POLL_SECONDS_MAX, POLL_SECONDS_MIN

FLOCK: Final = struct.Struct("hhqqi4x")
"""`struct flock` of 64-bit Linux: type, whence, start, length, pid."""

_PAUSE_SHARE: Final = 1 / 8
"""How much of the time that it has waited who waits sleeps before it looks again."""

_UNSEEN: Final = "the writer's turn is held by a process that is not to be seen from here (another pid namespace)"


class Turn:
    """The turn of one handle, taken by one thread at a time."""

    def __init__(self, directory: str, descriptor: int) -> None:
        self._directory = directory
        self._descriptor = descriptor
        self._courteous_from = 0.0

    def run(self, body: Callable[[], None], deadline: float) -> None:
        """Do something in the turn; `deadline` is in `time.monotonic()` seconds.

        Raises:
            JournalBusyError: another process held it until the deadline.
        """
        try:
            self._wait(deadline)
            self._set_place(fcntl.F_UNLCK)
            body()
        except BaseException:
            self.release()
            raise
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def _wait(self, deadline: float) -> None:
        now = time.monotonic()
        is_polite = now < self._courteous_from or _poll(self._take_place, min(deadline, now + COURTESY_SECONDS))
        tries = _poll(self._take_turn, deadline)
        if not tries:
            pid = holder_of(self._descriptor)
            raise JournalBusyError(self._directory, pid) if pid else JournalBusyError(self._directory, None, _UNSEEN)
        if tries == 1 and not is_polite:
            # Who has the place does not take a turn that is free: it is stopped.
            self._courteous_from = time.monotonic() + DISTRUST_SECONDS

    def release(self) -> None:
        """Give back whatever is held of the turn; nothing is fine."""
        self._set_place(fcntl.F_UNLCK)
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def _take_turn(self) -> None:
        fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _take_place(self) -> None:
        self._set_place(fcntl.F_WRLCK)

    def _set_place(self, kind: int) -> None:
        fcntl.fcntl(self._descriptor, fcntl.F_OFD_SETLK, FLOCK.pack(kind, os.SEEK_SET, 0, 1, 0))


def _poll(take: Callable[[], None], deadline: float) -> int:
    """Try to take a lock until the deadline; how many tries it took, 0 where it was not taken."""
    begun = time.monotonic()
    for tries in itertools.count(1):
        try:
            take()
        except BlockingIOError:
            now = time.monotonic()
            if now >= deadline:
                break
        else:
            return tries
        # In proportion to the wait so far: who has waited must not sleep through the moment, nor wake for minutes on end.
        time.sleep(min(max(POLL_SECONDS_MIN, (now - begun) * _PAUSE_SHARE), POLL_SECONDS_MAX))
    return 0


def holder_of(descriptor: int) -> int | None:
    """The process that holds the `flock` of a file; `None` where the kernel does not say."""
    return next(_holders("FLOCK", "WRITE", f":{os.fstat(descriptor).st_ino}"), None)


def holder_of_first_byte(path: str) -> int | None:
    """The process that has the first byte of a file for itself by a record lock; `None` where none is seen to."""
    with contextlib.suppress(OSError):
        return next(_holders("POSIX", "WRITE", f":{os.stat(path).st_ino}"), None)
    return None


def sharers_of_first_byte(path: str) -> list[int]:
    """The other processes that share the first byte of a file by a record lock, as far as they are to be seen."""
    with contextlib.suppress(OSError):
        status = os.stat(path)
        device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
        pids = _holders("POSIX", "READ", f"{device}:{status.st_ino}")
        return [pid for pid in pids if pid != os.getpid()]
    return []


def _holders(kind: str, access: str, file: str) -> Iterator[int]:
    """Those that hold a lock of a kind from a file's first byte on, as the kernel lists them.

    `file` is how the kernel names the file, or the end of that.
    """
    with contextlib.suppress(OSError), open("/proc/locks", encoding="utf-8") as locks:
        for line in locks:
            fields = line.split()
            place = (fields[1], fields[3], fields[6])
            if place == (kind, access, "0") and fields[5].endswith(file) and fields[4] != "0":
                yield int(fields[4])
