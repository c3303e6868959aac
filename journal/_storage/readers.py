"""LMDB's table of readers (`lock.mdb`): this process's own hold on it, and the slots of the dead.

LMDB knows who uses a file by record locks of the older kind (F_SETLK): on the first byte, which all share, and on the
byte at the offset of each process's id. The kernel drops them when the process closes any descriptor of the file, as a
copy of the directory made inside it does. The next process to open the journal would then take itself for the first and
empty the table, others would take this process's readers for dead, and pages in use would be written over. So each
handle holds the same bytes once more, by a descriptor of its own (F_OFD_SETLK), which is closed after LMDB's.

A dead reader's slot keeps every page that was in use when it died. Who holds the byte of a process's id knows that it is
dead, and that no new one with this id takes a slot meanwhile: all clearing is done that way, so no two disturb each
other. LMDB's own way (`reader_check`) needs an open environment, which a full table refuses, and skips the slots that a
predecessor with the same id left, as the first process of a container finds them after a restart.

A child that a fork made must close what it inherited, or it could not open the journal for itself; and LMDB's close frees
every slot of the process that opened, in the table that the child shares with its parent, who may be reading. So the
child first puts empty memory of its own in the place of the table.

Source: LMDB 0.9 `mdb.c`, "Reader Lock Table"; fcntl(2), "Open file description locks (non-POSIX)".
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
from typing import Final

from journal._storage.files import LMDB_LOCK_FILE
from journal._storage.turn import FLOCK
from journal.errors import JournalBusyError
from journal.options import READERS_MAX

_IN_USE: Final = 0
"""The byte that every user of the table shares; the first one has it alone while it makes the table."""

_SLOT_BYTES: Final = 64
_SLOT_PID_OFFSET: Final = 8
_PID_BYTES: Final = 4
_FREE: Final = bytes(_PID_BYTES)
_HEAD_BYTES: Final = (128, 192)
"""What precedes the slots, by the size of a mutex: another size of the file is not one that we know."""

_MAP_FIXED: Final = 0x10
"""Of mmap(2): put it where it is told to, in place of what is there."""

_BEING_MADE: Final = "another process is just opening it for the first time"
_SAME_PID: Final = "LMDB tells processes apart by their pids, and this one's is taken in another pid namespace"
_SHARE_PIDS: Final = (
    "let the containers share a pid namespace (docker run --pid=container:NAME or --pid=host, in Kubernetes "
    "shareProcessNamespace), or try again when the other one has ended"
)


class ReaderTable:
    """One handle's hold on the table; made before LMDB opens the file, closed after it has closed it."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._pid = os.getpid()
        self._is_held = False
        self._descriptor: int | None = None
        with contextlib.suppress(OSError):  # LMDB will say what is wrong, or make the file
            self._open()

    def check_free(self) -> None:
        """Refuse where LMDB would wait without end, or fail.

        Raises:
            JournalBusyError: a process makes the table just now, or one of another pid namespace has this one's id.
        """
        maker = self._holder(_IN_USE, fcntl.F_RDLCK)
        if maker is not None:
            raise JournalBusyError(self._directory, maker if maker > 0 else None, _BEING_MADE)
        if self._holder(self._pid, fcntl.F_WRLCK) is not None:
            raise same_pid_error(self._directory)

    def hold(self) -> None:
        """Hold what LMDB holds, now that it has a slot for this process."""
        if self._descriptor is None:
            try:
                self._open()
            except OSError as error:
                if error.errno in (errno.ENOENT, errno.EROFS):
                    return  # a file system that takes no writes, where LMDB does without locks
                raise
        # LMDB's lock on the id excludes every other one: it is made one that can be shared.
        self._set(fcntl.F_SETLK, fcntl.F_RDLCK, self._pid)
        self._set(fcntl.F_OFD_SETLK, fcntl.F_RDLCK, self._pid)
        self._set(fcntl.F_OFD_SETLK, fcntl.F_RDLCK, _IN_USE)
        self._is_held = True

    def clear_dead(self) -> int:
        """Free the slots of processes that are dead; how many there were."""
        cleared = 0
        for pid in set(self._pids()) - {0, self._pid if self._is_held else 0}:
            try:
                with contextlib.suppress(BlockingIOError):  # somebody holds it, so it lives
                    self._set(fcntl.F_OFD_SETLK, fcntl.F_WRLCK, pid)
                    cleared += self._clear(pid)
            finally:
                self._set(fcntl.F_OFD_SETLK, fcntl.F_UNLCK, pid)
        return cleared

    def leave_to_parent(self) -> None:
        """In a forked child, let LMDB close its environment without touching the table; elsewhere nothing."""
        if self._descriptor is None or os.getpid() == self._pid:
            return
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
        for start, end in _mappings_of(self._descriptor):
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED
            if libc.mmap(start, end - start, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0) != start:
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), self._directory)

    def close(self) -> None:
        """Let go of the table; twice is fine. A forked child only closes what it inherited."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is None:
            return
        if os.getpid() == self._pid:
            # The lock would last as long as a child that inherited the descriptor and knows nothing of it.
            fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, 0, 0, 0))
        os.close(descriptor)

    def _open(self) -> None:
        self._descriptor = os.open(os.path.join(self._directory, LMDB_LOCK_FILE), os.O_RDWR | os.O_CLOEXEC)

    def _clear(self, pid: int) -> int:
        assert self._descriptor is not None  # noqa: S101 - a bug of ours: its byte is locked
        slots = [index for index, other in enumerate(self._pids()) if other == pid]
        for index in slots:
            os.pwrite(self._descriptor, _FREE, self._head_bytes() + index * _SLOT_BYTES + _SLOT_PID_OFFSET)
        return len(slots)

    def _pids(self) -> list[int]:
        """The process of each slot, 0 of a free one."""
        if self._descriptor is None or self._head_bytes() not in _HEAD_BYTES:
            return []
        table = os.pread(self._descriptor, READERS_MAX * _SLOT_BYTES, self._head_bytes())
        words = memoryview(table).cast("i")
        return words[_SLOT_PID_OFFSET // _PID_BYTES :: _SLOT_BYTES // _PID_BYTES].tolist()

    def _head_bytes(self) -> int:
        assert self._descriptor is not None  # noqa: S101 - a bug of ours: the file is open
        return os.fstat(self._descriptor).st_size - READERS_MAX * _SLOT_BYTES

    def _holder(self, byte: int, kind: int) -> int | None:
        """Whose lock is in the way of one of ours (-1 where the kernel does not say); `None` where none is."""
        if self._descriptor is None:
            return None
        found = fcntl.fcntl(self._descriptor, fcntl.F_OFD_GETLK, FLOCK.pack(kind, os.SEEK_SET, byte, 1, 0))
        lock = FLOCK.unpack(found)
        return None if lock[0] == fcntl.F_UNLCK else lock[4]

    def _set(self, command: int, kind: int, byte: int) -> None:
        assert self._descriptor is not None  # noqa: S101 - a bug of ours: the file is open
        fcntl.fcntl(self._descriptor, command, FLOCK.pack(kind, os.SEEK_SET, byte, 1, 0))


def _mappings_of(descriptor: int) -> list[tuple[int, int]]:
    """Where this process has a file mapped, shared and for writing: first address and the one after the last."""
    inode = str(os.fstat(descriptor).st_ino)
    found = []
    with contextlib.suppress(OSError), open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        for line in maps:
            addresses, rights, _, _, other, *name = line.split(maxsplit=5)
            # The device is not compared: some file systems show another one here than to stat.
            if rights == "rw-s" and other == inode and LMDB_LOCK_FILE in "".join(name):
                start, _, end = addresses.partition("-")
                found.append((int(start, 16), int(end, 16)))
    return found


def same_pid_error(directory: str) -> JournalBusyError:
    """What a process is told whose pid another one has, in another pid namespace."""
    return JournalBusyError(directory, os.getpid(), _SAME_PID, _SHARE_PIDS)
