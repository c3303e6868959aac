"""Owners: which open handle an intent belongs to, and whether that handle still lives.

Each handle that may write is an owner. Its id is a random number, and while it lives it holds the kernel's lock on
the byte at that offset of `owners.lock` (an open file description lock, F_OFD_SETLK: the kernel releases it at the
process's death, and closing another descriptor of the file does not drop it). One file serves all owners, so nothing
is left behind that somebody would have to clean up. A forked child inherits the description, so the child closes it
at once (`os.register_at_fork`), and a second witness decides where a child of another kind kept it: the process's pid
with its start time, when boot and pid namespace are the same.

Source: fcntl(2), "Open file description locks (non-POSIX)".
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from typing import Final

from journal._storage.turn import FLOCK
from journal.records import OwnerRow

_OWNER_BITS: Final = 62


class Owner:
    """One handle's hold on its own byte of the owners' file."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.id = self._claim()
        self.row = OwnerRow(
            pid=os.getpid(),
            started=_started(os.getpid()),
            boot=_boot(),
            namespace=_namespace(),
            lock_inode=os.fstat(descriptor).st_ino,
        )

    def _claim(self) -> int:
        while True:
            owner = secrets.randbits(_OWNER_BITS) or 1
            with contextlib.suppress(BlockingIOError):
                fcntl.fcntl(self.descriptor, fcntl.F_OFD_SETLK, FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, owner, 1, 0))
                return owner

    def sees_alive(self, other: int, row: OwnerRow | None) -> bool:
        """Whether another owner lives, as far as this one can see; itself it does not see."""
        return is_alive(self.descriptor, other, row)

    def can_forget(self, other: int, row: OwnerRow) -> bool:
        """Whether another owner is gone, and would be seen to be without its row as well."""
        return not _is_locked(self.descriptor, other) and not self.sees_alive(other, row)


def is_alive(descriptor: int, owner: int, row: OwnerRow | None) -> bool:
    """Whether another owner than ours lives, as seen from our descriptor of the owners' file."""
    is_locked = _is_locked(descriptor, owner)
    if row is None:
        return is_locked
    if is_locked:
        return _process_runs(row) is not False
    # The file was deleted and made anew under a living owner: then only the second witness knows.
    return os.fstat(descriptor).st_ino != row.lock_inode and _process_runs(row) is True


def _is_locked(descriptor: int, owner: int) -> bool:
    lock = FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, owner, 1, 0)
    kind: int = FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, lock))[0]
    return kind != fcntl.F_UNLCK


def _process_runs(row: OwnerRow) -> bool | None:
    """Whether the very process of an owner runs; `None` where it cannot be seen from here."""
    if not row.boot or row.boot != _boot() or row.namespace != _namespace() or not row.started:
        return None
    return _started(row.pid) == row.started


def _started(pid: int) -> int:
    """When a process started, in clock ticks since boot; 0 where there is none, or it is a zombie."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        # The second field is the command in parentheses and may hold anything, a parenthesis too.
        fields = file.read().rpartition(")")[2].split()
        return 0 if fields[0] in "ZX" else int(fields[19])
    return 0


def _boot() -> str:
    with contextlib.suppress(OSError), open("/proc/sys/kernel/random/boot_id", encoding="utf-8") as file:
        return file.read().strip()
    return ""


def _namespace() -> int:
    with contextlib.suppress(OSError):
        return os.stat("/proc/self/ns/pid").st_ino
    return 0
