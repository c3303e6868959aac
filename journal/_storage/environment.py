"""One LMDB environment: its settings, its transactions, and the growth of its map.

Transactions of this process share the gate; a resize of the map, a close and a fork have it alone, since LMDB
invalidates every live transaction at a resize and a child must not inherit one half done.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, Final, TypeVar

import lmdb

from journal._storage.files import FILE_MODE, LMDB_LOCK_FILE
from journal._storage.turn import holder_of_first_byte
from journal.errors import JournalBusyError, JournalClosedError, JournalFullError
from journal.options import (
    MAP_BYTES_MIN,
    MAP_RESERVE_BYTES,
    POLL_SECONDS_MAX,
    READERS_MAX,
    SPARE_READERS,
    SWEEP_SECONDS,
)

T = TypeVar("T")

_BEGIN_TRIES: Final = 100
_PAGE_BYTES: Final = 4_096
_FREE_LIST_PAGES: Final = 16
"""More than the table of free pages has been seen to renew in one commit."""
_META_PAGES: Final = 2
READERS_FULL: Final = f"all {READERS_MAX} reader slots are taken by living processes"
_BEING_MADE: Final = "LMDB's lock file is just being made"
_PROT_NONE: Final = 0
"""Addresses without memory behind them, which count against no limit but that of addresses."""


class Gate:
    """Threads pass side by side, or one alone.

    Each thread has a lock of its own, which it holds while it is inside; who wants to be alone takes them all. That is
    cheap for those who pass, and safe against an interrupt: `with` takes and leaves a lock in one step. Who is inside may
    also have the gate shut for a moment.
    """

    def __init__(self) -> None:
        self._own = threading.local()
        self._registering = threading.RLock()
        self._locks: weakref.WeakSet[threading.RLock] = weakref.WeakSet()
        self._claimed: list[threading.RLock] = []
        self._is_wanted = False
        self._shutting = threading.RLock()
        self._is_shut = False

    def lock(self) -> threading.RLock:
        """The lock that the current thread holds while it is inside."""
        try:
            own: threading.RLock = self._own.lock
        except AttributeError:
            with self._registering:
                own = threading.RLock()
                self._locks.add(own)
                self._own.lock = own
        if (self._is_wanted or self._is_shut) and not own._is_owned():  # type: ignore[attr-defined]  # noqa: SLF001 - as threading itself asks
            # Who wants to be alone would never get this thread's lock, were it taken again at once.
            with self._registering:
                pass
            with self._shutting:
                pass
        return own

    def alone(self, body: Callable[[], None]) -> None:
        """Wait until everybody is out, and do something while nobody can come in."""
        with self._registering:
            try:
                self._is_wanted = True
                self._claim_others()
                body()
            finally:
                try:
                    self._give_back_others()
                except BaseException:  # an interrupt in its midst: once more, it can be done again
                    self._give_back_others()
                    raise

    def shut(self, body: Callable[[], None]) -> None:
        """Do something while nobody new comes in, for who is inside himself; the others inside go on and leave.

        It has a lock of its own: who wants to be alone holds the other one, and waits until the caller of this is out.
        """
        with self._shutting:
            try:
                self._is_shut = True
                body()
            finally:  # left undone by an interrupt, it makes newcomers look at a free lock until the next time
                self._is_shut = False

    def claim(self) -> None:
        """Begin to be alone; `give_back` ends it, in the same thread."""
        self._registering.acquire()
        self._is_wanted = True
        self._claim_others()

    def give_back(self) -> None:
        """End being alone; where `claim` was interrupted, too."""
        self._give_back_others()
        with contextlib.suppress(RuntimeError):
            self._registering.release()

    def _claim_others(self) -> None:
        for lock in list(self._locks):
            # Noted first: what an interrupt leaves behind is given back in any case.
            self._claimed.append(lock)
            lock.acquire()

    def _give_back_others(self) -> None:
        self._is_wanted = False
        while self._claimed:
            with contextlib.suppress(RuntimeError):  # an interrupt came before it was taken
                self._claimed[-1].release()
            self._claimed.pop()


class Environment:
    """The open data file of one journal."""

    def __init__(self, directory: str, *, readonly: bool, map_size: int, max_size: int | None) -> None:
        self.directory = directory
        self.gate = Gate()
        self._readonly = readonly
        self._max_size = max_size
        self._map_bytes = map_size if max_size is None else min(map_size, max_size - MAP_RESERVE_BYTES)
        self._env: lmdb.Environment | None = None
        self._open()
        self._sweep()

    def _open(self) -> None:
        maker = holder_of_first_byte(os.path.join(self.directory, LMDB_LOCK_FILE))
        if maker is not None:
            # LMDB would wait for it without end. The lock is not asked for by a descriptor: closing that would drop ours.
            raise JournalBusyError(self.directory, maker, _BEING_MADE)
        self._env = _open_any_size(self.directory, readonly=self._readonly, map_bytes=self._map_bytes)
        self._table = self.read(lambda txn: self._require().open_db(None, txn=txn, create=False))

    def read(self, body: Callable[[lmdb.Transaction], T]) -> T:
        """Run a function in a read transaction; nothing of LMDB's may leave it."""
        return self._transact(body, write=False)

    def write(self, body: Callable[[lmdb.Transaction], T]) -> T:
        """Run a function in the write transaction, which it commits; what it leaves uncommitted is dropped.

        The writer's turn must be held.
        """

        def body_then_drop(txn: lmdb.Transaction) -> T:
            try:
                return body(txn)
            finally:
                # After a commit this does nothing; leaving a `with` without it would commit. LMDB's binding lets an
                # abort wait for a moment in which no other thread is in a call: who reads on and on leaves it none.
                self.gate.shut(txn.abort)

        if time.monotonic() >= self._sweep_at:
            # By who commits, since it is commits that cannot use the pages again which a dead reader keeps.
            self._sweep()
        return self._transact(body_then_drop, write=True)

    def _transact(self, body: Callable[[lmdb.Transaction], T], *, write: bool) -> T:
        for _ in range(_BEGIN_TRIES):
            try:
                with self.gate.lock(), self._require().begin(write=write) as txn:
                    return body(txn)
            except lmdb.MapResizedError:
                # Another process made the map larger: adopt its size.
                self.gate.alone(lambda: self._require().set_mapsize(0))
            except lmdb.BadRslotError:
                # A slot that was kept for this read was taken away: begin with another one.
                continue
            except lmdb.ReadersFullError:
                if not self._sweep():
                    time.sleep(POLL_SECONDS_MAX)
        raise JournalBusyError(self.directory, None, READERS_FULL)

    def _sweep(self) -> int:
        """Free the reader slots of dead processes; how many there were."""
        with self.gate.lock():
            self._sweep_at = time.monotonic() + SWEEP_SECONDS
            cleared: int = self._require().reader_check()
            return cleared

    def grow(self, *, settles: bool) -> None:
        """Make the map larger; its last part is kept for what settles an effect already in flight.

        Raises:
            JournalFullError: the map has reached its ceiling.
        """
        size: int = self._require().info()["map_size"]
        ceiling = self._max_size
        if ceiling is not None and not settles:
            ceiling -= MAP_RESERVE_BYTES
        larger = 2 * size if ceiling is None else min(2 * size, ceiling)
        if larger <= size:
            reason = f"its map has reached max_size={self._max_size} bytes, of which {size} are in use"
            raise JournalFullError(self.directory, reason)
        _check_address_space(self.directory, larger - size)
        try:
            self.gate.alone(lambda: self._require().set_mapsize(larger))
        except lmdb.Error as error:
            raise JournalFullError(self.directory, f"its map cannot grow to {larger} bytes ({error})") from error

    def leave_reserve(self) -> None:
        """Make the map as small as it is without the reserve, which this or another process used for an outcome."""
        if self._max_size is not None:
            size = self._max_size - MAP_RESERVE_BYTES
            if self._require().info()["map_size"] > size:
                self.gate.alone(lambda: self._require().set_mapsize(size))

    def sizes(self) -> tuple[int, int]:
        """Bytes of the map, and bytes of the pages in use or free within the file."""
        with self.gate.lock():
            env = self._require()
            info = env.info()
            page_bytes: int = env.stat()["psize"]
            return info["map_size"], (info["last_pgno"] + 1) * page_bytes

    def end_after(self, txn: lmdb.Transaction, touched: int) -> int:
        """The offset up to which the data file's pages may reach when a transaction that touched some rows commits."""
        env = self._require()
        before, after = env.stat(), txn.stat(self._table)
        pages_before, pages_after = _pages_of(before), _pages_of(after)
        # A row that is written anew renews its page and those above it; the list of free pages takes some itself.
        renewed = min(pages_before, touched * after["depth"]) + _FREE_LIST_PAGES
        last: int = env.info()["last_pgno"]
        return (last + 1 + max(0, pages_after - pages_before) + renewed) * int(before["psize"])

    def live_bytes(self) -> int:
        """Bytes that a compact copy has: without the pages that are free within the file."""
        with self.gate.lock():
            stat = self._require().stat()
            pages: int = stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]
            return (pages + _META_PAGES) * int(stat["psize"])

    def copy(self, descriptor: int) -> None:
        """Write a compact copy of one state into an empty file, while others read and commit; not flushed yet."""
        self.read(lambda txn: self._require().copyfd(descriptor, compact=True, txn=txn))

    def replace(self, put_in_place: Callable[[], None]) -> None:
        """Close the file, let another one take its place, and open that, while no transaction of this process is open.

        Where it does not come to that, the file that was there is opened again. What cannot be opened again is closed.
        """

        def close_and_open() -> None:
            self._map_bytes = self._require().info()["map_size"]
            self._close()
            try:
                put_in_place()
            finally:
                self._open()

        self.gate.alone(close_and_open)

    @property
    def is_open(self) -> bool:
        """Whether there is a file to read and write."""
        return self._env is not None

    def close(self) -> None:
        """Close the environment when every transaction of this process has ended; twice is fine."""
        self.gate.alone(self._close)

    def _close(self) -> None:
        env, self._env = self._env, None
        if env is not None:
            env.close()

    def _require(self) -> lmdb.Environment:
        if self._env is None:
            raise JournalClosedError(self.directory)
        return self._env


def _pages_of(stat: Any) -> int:
    pages: int = stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]
    return pages


def _check_address_space(directory: str, more_bytes: int) -> None:
    """Refuse a growth that the process has no addresses for: LMDB would drop the old map before it tries the new one.

    Raises:
        JournalFullError: there is no room (ulimit -v, a sandbox).
    """
    try:
        mmap.mmap(-1, more_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=_PROT_NONE).close()
    except (OSError, ValueError, OverflowError) as error:
        reason = f"this process has no {more_bytes} bytes of address space left for its map ({error})"
        raise JournalFullError(directory, reason) from error


def create_data_file(directory: str, name: str, rows: dict[bytes, bytes]) -> None:
    """Make a new data file with some rows, flushed; its name is given by the caller, who renames it into place."""
    path = os.path.join(directory, name)
    env = _open(path, readonly=False, map_bytes=MAP_BYTES_MIN, subdir=False, create=True)
    try:
        with env.begin(write=True) as txn:
            for key, value in rows.items():
                txn.put(key, value)
    finally:
        env.close()


def peek(directory: str, look: Callable[[lmdb.Transaction], T]) -> T:
    """What a function sees in a data file that nobody has open, without the lock file that LMDB would make beside it."""
    with (
        _open(directory, readonly=True, map_bytes=MAP_BYTES_MIN, lock=False) as env,
        env.begin() as txn,
    ):
        return look(txn)


def open_alone(path: str, *, map_bytes: int) -> lmdb.Environment:
    """A data file in the making, which nobody else knows of, without a lock file beside it."""
    return _open(path, readonly=False, map_bytes=map_bytes, subdir=False, create=True, lock=False)


def _open_any_size(directory: str, *, readonly: bool, map_bytes: int) -> lmdb.Environment:
    while True:
        try:
            return _open(directory, readonly=readonly, map_bytes=map_bytes)
        except (lmdb.MemoryError, MemoryError):
            # The process may not have so much address space (ulimit -v, some sandboxes): begin smaller, and grow.
            if map_bytes <= MAP_BYTES_MIN:
                raise
            map_bytes //= 2


def _open(
    path: str, *, readonly: bool, map_bytes: int, subdir: bool = True, create: bool = False, lock: bool = True
) -> lmdb.Environment:
    return lmdb.open(
        path,
        # Round up to whole pages: LMDB takes any number and uses no part of a page.
        map_size=-(-map_bytes // _PAGE_BYTES) * _PAGE_BYTES,
        subdir=subdir,
        readonly=readonly,
        create=create,
        mode=FILE_MODE,
        # One durability. There is no switch to weaken it: an intent is on the disk before its effect runs.
        sync=True,
        metasync=True,
        # A writable map turns a full disk into a SIGBUS, and a stray write into damage.
        writemap=False,
        map_async=False,
        # Read-ahead is for scans; effects are looked up at random.
        readahead=False,
        max_readers=READERS_MAX,
        # To take a slot is to hold a lock without a bounded wait: a process that is stopped just then would stop every
        # reader. So slots are kept for the next read.
        max_spare_txns=SPARE_READERS,
        max_dbs=0,
        lock=lock,
        # Two engines are linked in, and an environment variable can change the default: name the one of our format.
        lib_version=0,
    )
