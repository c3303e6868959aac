"""The writer's turn: a lock of our own in front of LMDB's, with a bounded and interruptible wait.

LMDB's writer mutex has neither, and a copy of the directory made inside a process drops the record locks that LMDB
relies on. `flock` is dropped by neither, and the kernel releases it when its holder dies.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator

from journal.errors import JournalBusyError
from journal.options import POLL_SECONDS_MAX, POLL_SECONDS_MIN


class Turn:
    """The turn of one handle, taken by one thread at a time."""

    def __init__(self, directory: str, descriptor: int) -> None:
        self._directory = directory
        self._descriptor = descriptor

    @contextlib.contextmanager
    def taken(self, deadline: float) -> Iterator[None]:
        """Hold the turn; `deadline` is in `time.monotonic()` seconds.

        Raises:
            JournalBusyError: another process held it until the deadline.
        """
        pause = POLL_SECONDS_MIN
        while not self._try():
            if time.monotonic() >= deadline:
                raise JournalBusyError(self._directory, holder_of(self._descriptor))
            time.sleep(pause)
            pause = min(2 * pause, POLL_SECONDS_MAX)
        try:
            yield
        finally:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def _try(self) -> bool:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def holder_of(descriptor: int) -> int | None:
    """The process that holds the `flock` of a file; `None` where the kernel does not say."""
    inode = os.fstat(descriptor).st_ino
    with contextlib.suppress(OSError), open("/proc/locks", encoding="utf-8") as locks:
        for line in locks:
            fields = line.split()
            if fields[1] == "FLOCK" and fields[5].rpartition(":")[2] == str(inode):
                return int(fields[4])
    return None
