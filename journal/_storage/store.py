"""The store: a journal's open file behind the narrow seam that everything above uses.

`read` runs a function over a view, `commit` takes a decision within the one write transaction that it shares with
others. The rest says who owns this handle and which other owners live.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import secrets
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import lmdb
import msgspec

from journal._core import hooks
from journal._core.payloads import digest
from journal._core.requests import RunRaisedError, Transaction
from journal._storage import files, layout, owners, registry
from journal._storage.environment import READERS_FULL, Environment, Gate, create_data_file, peek
from journal._storage.examination import examined
from journal._storage.group import Entry, GroupCommit
from journal._storage.handles import HandleLock, open_handle_lock
from journal._storage.migration import migrate
from journal._storage.replace import UNKNOWN_INCARNATION, Maker, rebuild, replace, vacuum
from journal._storage.reserve import Reserve
from journal._storage.staging import StagedFile
from journal._storage.transaction import StoreTransaction
from journal._storage.turn import Turn
from journal._storage.verify import findings
from journal._storage.views import StoreView, encode
from journal.errors import (
    CommitFailedError,
    CorruptRecordError,
    JournalBusyError,
    JournalClosedError,
    JournalForkedError,
    JournalFullError,
    JournalLockedError,
    JournalReadonlyError,
    UnsupportedFormatError,
)
from journal.options import PAGE_SCAN_RECORDS, POLL_SECONDS_MAX
from journal.records import FORMAT_VERSION, FORMAT_VERSION_OLDEST, Header, LogRecord, Phase, RestoredRow
from journal.values import Finding, Stats

if TYPE_CHECKING:
    from journal._core.states import StateAt

T = TypeVar("T")

_LOCK_DESCRIPTORS: Final = 2
"""Those of a handle that may write come first: of the owners, and of the writer's turn."""

_NO_HEADER: Final = (LookupError, TypeError)
"""What is raised by taking the first field of something else than a header."""

_SAME_PID: Final = "LMDB tells processes apart by their pids, and this one's is taken in another pid namespace"
_SHARE_PIDS: Final = (
    "let the containers share a pid namespace (docker run --pid=container:NAME or --pid=host, in Kubernetes "
    "shareProcessNamespace), or try again when the other one has ended"
)


class Store:
    """One process's handle of one journal's files.

    `remember` is given the states that a commit's decisions came to, when it is durable and before the next one begins.
    """

    def __init__(
        self,
        directory: str,
        *,
        readonly: bool,
        create: bool,
        map_size: int,
        max_size: int | None,
        wait_timeout: float,
        clock: Callable[[], int],
        remember: Callable[[dict[str, StateAt]], None] = lambda _: None,
    ) -> None:
        self.directory = directory
        self.readonly = readonly
        self._remember = remember
        self.wait_timeout = wait_timeout
        self._clock = clock
        self._pid = os.getpid()
        self._closed_because: str | None = None
        self._failure: str | None = None
        # Re-entrant, since a signal's handler may come to it while its own thread holds it.
        self._closing = threading.RLock()
        # A copy is one long read transaction: who waits until there is none must not find one, and hold up all others.
        self._copying = threading.RLock()
        _prepare_directory(directory, create=create and not readonly, clock=clock, wait_timeout=wait_timeout)
        self._data_path = os.path.join(directory, files.DATA_FILE)
        self._identities = {self._data_path: files.identity_of(self._data_path)}
        deadline = time.monotonic() + wait_timeout
        while not self._open_once(map_size, max_size, deadline):
            time.sleep(POLL_SECONDS_MAX)
        if self.header.format_version < FORMAT_VERSION and not readonly:
            try:
                self._migrate(deadline)
            except BaseException:
                self.close()
                raise

    def _open_once(self, map_size: int, max_size: int | None, deadline: float) -> bool:
        """Open the files; False where another process is in the way, which is waited for until the deadline."""
        try:
            with registry.without_fork():  # nor may this process put another file in place just now
                identity = self._identities[self._data_path] = files.identity_of(self._data_path)
                if registry.open_once(self, identity, lambda: self._open(map_size, max_size)):
                    return True
        except JournalBusyError:
            if time.monotonic() >= deadline:
                raise
            return False
        raise JournalLockedError(self.directory, self._pid)

    def _open(self, map_size: int, max_size: int | None) -> None:
        directory = self.directory
        this = weakref.ref(self)
        self._owner: owners.Owner | None = None
        self._has_owner_row = False
        self._has_new_file = False
        self._head = 0
        self._descriptors: list[int] = []
        _refuse_newer(directory)
        try:
            self._hold_file()
            self._environment = _open_environment(
                directory, readonly=self.readonly, map_size=map_size, max_size=max_size
            )
        except BaseException:
            _close_all(self._descriptors)
            raise
        self._finalizer = weakref.finalize(self, _release, self._environment, self._descriptors)
        try:
            self._read_header()
            self.restored = _read_restored(self._environment, self.header)
            self._genesis = digest(self.header.journal_id.encode())
            if not self.readonly:
                self._descriptors.append(files.open_lock_file(directory, files.TURN_FILE))
                for name in (files.TURN_FILE, files.LMDB_LOCK_FILE):
                    path = os.path.join(directory, name)
                    self._identities[path] = files.identity_of(path)
                self._turn = Turn(directory, self._descriptors[1])
                self._owner = owners.Owner(self._descriptors[0])
                self._max_size = max_size
                self._open_reserve()
        except BaseException:
            self._finalizer()
            raise
        self.group = GroupCommit(
            # Without a circle of references, so that a handle that was dropped is closed at once.
            lambda entries: cast("Store", this())._commit_batch(entries),  # noqa: SLF001 - it is our own
            self.wait_timeout,
            closed_error=lambda: JournalClosedError(directory),
            after_interrupt=lambda: cast("Store", this())._release_turn(),  # noqa: SLF001 - it is our own
        )

    def _open_reserve(self) -> None:
        descriptor = os.open(self._data_path, os.O_RDWR | os.O_CLOEXEC)
        while len(self._descriptors) > _LOCK_DESCRIPTORS:
            os.close(self._descriptors.pop())
        self._descriptors.append(descriptor)
        self._reserve = Reserve(descriptor, max_size=self._max_size)

    def _read_header(self) -> None:
        self.header = read_header(self._environment, self.directory)
        self._header_row = self._environment.read(lambda txn: bytes(txn.get(layout.HEADER_KEY) or b""))

    def _migrate(self, deadline: float) -> None:
        """Make a journal of an older format into today's, in the writer's turn; which is nothing where another did."""
        is_done = False
        while not is_done:
            try:
                self._turn.run(lambda: self._environment.write(migrate), deadline)
                is_done = True
            except lmdb.MapFullError:
                # It is one row, and what makes room can only be called once it is there.
                self._environment.grow(settles=True)
            except lmdb.Error as error:
                raise self._after_failure(error)() from error  # noqa: RSE102 - what is called makes the error
        self._read_header()

    def _hold_file(self) -> None:
        """Let nobody replace the data file while it is open here; before LMDB looks at it.

        Raises:
            JournalBusyError: somebody is just doing it, or has done it since the file was looked at.
        """
        directory = self.directory
        self._handle_lock = open_handle_lock(directory, readonly=self.readonly)
        if self._handle_lock is not None:
            self._descriptors.append(self._handle_lock.descriptor)
            self._handle_lock.share()
        if files.identity_of(self._data_path) != self._identities[self._data_path]:
            raise JournalBusyError(directory, None, "its data file was just replaced", "try again")
        if not self.readonly:
            files.clean_up(directory)

    # --- what everything above uses ----------------------------------------------------------------------------

    def check(self) -> None:
        """Refuse a closed handle, one that a fork brought into another process, and a call from inside a hook."""
        self.check_process()
        hooks.refuse_calls()
        if self._closed_because is not None:
            raise JournalClosedError(self.directory, self._closed_because)

    def check_process(self) -> None:
        """Refuse a handle that a fork brought into another process."""
        if self._pid != os.getpid():
            raise JournalForkedError(self.directory, self._pid)

    def read(self, look: Callable[[StoreView], T]) -> T:
        """What a function sees in a short read transaction.

        Raises:
            CorruptRecordError: what it looked at is damaged.
        """
        self.check()
        return self._environment.read(lambda txn: look(StoreView(txn, self._genesis)))

    def commit(self, decide: Callable[[Transaction], Any], *, settles: bool = False) -> Entry:
        """The answer of a decision and the records that it appended, when they are durable.

        `settles` marks what ends an effect already in flight: it may use the reserve below `max_size`.

        Raises:
            JournalReadonlyError, JournalFullError, JournalBusyError, CommitFailedError: nothing was written.
        """
        entry = self.entry(decide, settles=settles)
        self.group.commit_all([entry])
        entry.check()
        return entry

    def entry(
        self, decide: Callable[[Transaction], Any], *, settles: bool = False, can_withdraw: bool = False
    ) -> Entry:
        """A decision for the group's `commit_all`, which keeps its answer or error.

        Raises:
            JournalReadonlyError, JournalClosedError, JournalForkedError: this handle commits nothing.
        """
        self.check()
        if self.readonly:
            raise JournalReadonlyError(self.directory)
        return self.group.entry(decide, time_of(self._clock), settles=settles, can_withdraw=can_withdraw)

    @property
    def is_copy(self) -> bool:
        """Whether the file was, when it was opened, a copy that nobody had confirmed."""
        return self.restored is not None and not self.restored.confirmed_at

    @property
    def owner_id(self) -> int:
        """The id of this handle among the owners; 0 of a read-only one."""
        return 0 if self._owner is None else self._owner.id

    def living_pid(self, owner: int) -> int | None:
        """The process of an owner that is alive; `None` of one that is gone."""
        if owner == self.owner_id:
            return self._pid
        if not owner or self._owner is None:
            return None
        row = self.read(lambda view: view.owner(owner))
        if not self._owner.sees_alive(owner, row):
            return None
        return 0 if row is None else row.pid

    def stats(self) -> Stats:
        """Counts of records and bytes; looks at every index row, in bounded read transactions."""
        rows: Counter[bytes] = Counter()
        phases: Counter[int] = Counter()
        page = [(b"", b"")]
        while page:
            after = page[-1][0]
            page = self.read(partial(StoreView.page_of_rows, after=after, limit=PAGE_SCAN_RECORDS))
            rows.update(key[:1] for key, _ in page)
            phases.update(value[8] for key, value in page if key[:1] in (layout.UNFINISHED, layout.SETTLED))
        map_bytes, used_bytes = self._environment.sizes()
        return Stats(
            journal_id=self.header.journal_id,
            format_version=self.header.format_version,
            head=self.read(lambda view: view.head()),
            operations=rows[layout.SEQUENCE],
            streams=rows[layout.STREAM],
            effects=phases.total() - phases[Phase.CLEARED],
            unfinished=rows[layout.UNFINISHED],
            uncertain=phases[Phase.UNCERTAIN],
            steps=rows[layout.STEP],
            cursors=rows[layout.CURSOR],
            map_bytes=map_bytes,
            used_bytes=used_bytes,
            file_bytes=os.stat(self._data_path).st_size,
            commits=self.group.batch_count,
            entries=self.group.entry_count,
            pruned=rows[layout.PRUNED],
        )

    def vacuum(self) -> int:
        """Give the pages that are free back to the disk; how many bytes they are.

        Raises:
            JournalBusyError, JournalFullError, CorruptRecordError: the file is as it was.
        """
        return self._replace(vacuum(self._environment, self._genesis))

    def rebuild(self) -> None:
        """Make everything that follows from the log anew.

        Raises:
            JournalBusyError, JournalFullError, CorruptRecordError: the file is as it was.
        """
        self._replace(rebuild(self._environment, self._genesis))

    def copy_to(self, descriptor: int) -> None:
        """Write a compact copy of one state into an empty file, while others read and commit."""
        with self._copying:
            self.check()
            self._environment.copy(descriptor)

    def live_bytes(self) -> int:
        """Bytes that a compact copy has."""
        self.check()
        return self._environment.live_bytes()

    def now(self) -> int:
        """What this handle's clock says."""
        return time_of(self._clock)

    def verify(self) -> Iterator[Finding]:
        """What is wrong with the file's pages, the log and its indexes, in bounded read transactions."""
        self.check()
        return examined(self.directory, self._environment.read, self.walk)

    def walk(self) -> Iterator[Finding]:
        """What is wrong with the log and its indexes, where the file's pages are sound."""
        return findings(self.read, self._genesis)

    def close(self) -> None:
        """Close the files; twice is fine."""
        self.check_process()
        self._closed_because = self._closed_because or "it was closed"
        # One closes, and another one waits for that: the queue answers a second `close` while its last flush goes on.
        with self._closing:
            if self._finalizer.alive:
                self.group.close()
                registry.close(self._identities[self._data_path], self._close_files)

    def _close_files(self) -> None:
        self._environment.close()
        if self._handle_lock is not None:
            self._handle_lock.end()  # where this handle lingers, its owner's lock alone is kept
        self._finalizer()

    def linger(self) -> Callable[[], None]:
        """Let this owner be taken for alive after `close`, since something in flight cannot be stopped; what ends that."""
        if self._owner is None or not self._finalizer.alive:
            return lambda: None
        return registry.linger(self._owner.descriptor)

    # --- around a fork -----------------------------------------------------------------------------------------

    def before_fork(self) -> None:
        """Let no transaction of this process be open while it forks."""
        self._environment.gate.claim()

    def after_fork_in_parent(self) -> None:
        """Go on."""
        self._environment.gate.give_back()

    def after_fork_in_child(self) -> None:
        """Drop what was inherited, so that the parent's locks end with the parent and the child may open anew."""
        # Another thread may have held the gate's own lock at the fork: here it would stay locked for ever.
        self._environment.gate = Gate()
        self._finalizer()

    def _fail(self, reason: str) -> None:
        """Nothing is written through this handle any more; those that wait for a commit are told so."""
        self._failure = self._closed_because = reason

    def _release_turn(self) -> None:
        self._turn.release()

    # --- another file in the place of this one ------------------------------------------------------------------

    def _replace(self, make: Maker) -> int:
        self.check()
        if self.readonly:
            raise JournalReadonlyError(self.directory)
        lock = cast("HandleLock", self._handle_lock)  # who writes has one
        saved: list[int] = []
        deadline = time.monotonic() + self.wait_timeout

        def replace_in_turn() -> None:
            saved.append(replace(self.directory, self._environment, lock, make, self._adopt))

        def chore() -> None:
            self._check_usable()
            lock.claim()  # before the turn: who has the journal open is told of at once, and not waited for
            try:
                lock.check_alone()
                self._turn.run(replace_in_turn, deadline)
            except BaseException as error:
                if not self._environment.is_open or self._has_new_file:
                    text = f"{type(error).__name__}: {error}"
                    self._fail(f"putting another data file in place was cut off, which leaves a whole one ({text})")
                raise
            finally:
                self._has_new_file = False
                lock.share()

        with self._copying:
            self.group.run_alone(chore)
        return saved[0]

    def _adopt(self) -> None:
        """Take the file that the path names now for the one that is open."""
        self._has_new_file = True
        identity = files.identity_of(self._data_path)
        registry.rename(self._identities[self._data_path], identity)
        self._identities[self._data_path] = identity
        self._open_reserve()

    # --- the shared commit -------------------------------------------------------------------------------------

    def _commit_batch(self, entries: list[Entry]) -> None:
        try:
            self._check_usable()
            self._turn.run(lambda: self._commit_turn(entries), entries[0].deadline)
        except JournalBusyError as error:
            now = time.monotonic()
            for entry in entries:
                if entry.deadline <= now or entry is entries[0]:
                    entry.fail(JournalBusyError(error.path, error.pid, error.reason))
        except JournalClosedError as error:
            for entry in entries:
                if not entry.is_done:
                    entry.fail(JournalClosedError(error.path, error.reason))

    def _commit_turn(self, entries: list[Entry]) -> None:
        """Commit the entries together; where that is not possible, in such parts that each bad one fails alone."""
        todo = entries
        while todo:
            if self._failure is not None:
                raise JournalClosedError(self.directory, self._failure)
            try:
                if not all(entry.settles for entry in todo):
                    self._environment.leave_reserve()
                todo = self._attempt(todo)
            except lmdb.MapFullError:
                try:
                    self._environment.grow(settles=all(entry.settles for entry in todo))
                except JournalFullError as error:
                    if len(todo) == 1:
                        todo[0].fail(error)
                        return
                    for entry in todo:
                        self._commit_turn([entry])
                    return
            except _NoRoomError as error:
                self._commit_apart(todo, error.writers, self._full(error.cause))
                return
            except _OverwrittenError:
                self._fail(f"its {files.DATA_FILE} was overwritten while it was open")
            except (lmdb.Error, OSError) as error:
                reason = self._after_failure(error)
                writers = [entry for entry in todo if not entry.settles]
                if isinstance(reason(), JournalFullError) and 0 < len(writers) < len(todo):
                    self._commit_apart(todo, writers, reason)
                    return
                for entry in todo:
                    entry.fail(reason())
                return

    def _commit_apart(self, todo: list[Entry], writers: list[Entry], reason: Callable[[], Exception]) -> None:
        """Commit entries on a disk without room for some of them: those that may go on first, outcomes above all."""
        others = [entry for entry in todo if entry not in writers]
        if others:
            self._commit_turn(others)
        if len(writers) > 1 and self._keeps_reserve():
            for entry in writers:
                self._commit_turn([entry])
            return
        for entry in writers:
            entry.fail(reason())

    def _keeps_reserve(self) -> bool:
        """Whether the reserve at least is there, so that some of those that are refused together may fit alone."""
        try:
            self._reserve.keep(self._environment.sizes()[1])
        except OSError:
            return False
        return True

    def _attempt(self, entries: list[Entry]) -> list[Entry]:
        """Decide and commit the entries in one transaction; those that must go on without a spoiled one come back."""
        batch = _Batch(entries, self._genesis, self._owner, has_owner_row=self._has_owner_row)
        batch.expects(self._header_row, self._head)
        batch.keep_reserve = lambda txn, touched: self._reserve.keep(self._environment.end_after(txn, touched))
        interrupt: BaseException | None = None
        try:
            self._environment.write(batch.decide_and_commit)
        except BaseException as error:
            # After any error from a commit, an interrupt too: read again before anybody is told what happened.
            if not self._has_landed(batch):
                raise
            interrupt = None if isinstance(error, Exception) else error
        interrupt = interrupt or batch.interrupt
        if batch.spoiled is not None:
            if interrupt is not None:
                raise interrupt  # the others are the next leader's
            return [entry for entry in entries if entry is not batch.spoiled]
        batch.tell()
        self._remember(batch.states)
        self._head = batch.head
        self._has_owner_row = batch.has_owner_row
        if interrupt is not None:
            raise interrupt
        return []

    def _has_landed(self, batch: _Batch) -> bool:
        if batch.last is None:
            return False
        position, record_digest = batch.last
        with contextlib.suppress(Exception):
            frame = self._environment.read(lambda txn: StoreView(txn, self._genesis).frame(position))
            return frame.digest == record_digest
        return False

    def _after_failure(self, error: lmdb.Error | OSError) -> Callable[[], Exception]:
        """What a failed commit means: no room (try again later), or a disk that fails (this handle ends)."""
        code = getattr(error, "code", None) or getattr(error, "errno", None)
        if code in files.NO_ROOM or self._is_limited() or files.free_bytes(self.directory) < files.ROOM_BYTES:
            return self._full(error)
        text = f"{type(error).__name__}: {error}"
        self._fail(f"a commit failed ({text})")
        return lambda: CommitFailedError(self.directory, text)

    def _full(self, error: BaseException) -> Callable[[], Exception]:
        reason = f"the disk took no more ({error}), {files.free_bytes(self.directory)} bytes are free"
        if self._is_limited():
            reason += f", and files may have {_file_limit()} bytes"
        return lambda: JournalFullError(self.directory, reason)

    def _is_limited(self) -> bool:
        """Whether the data file is about as long as a file of this process may be."""
        limit = _file_limit()
        return limit != resource.RLIM_INFINITY and os.stat(self._data_path).st_size + files.ROOM_BYTES > limit

    def _check_usable(self) -> None:
        """Refuse to write after a failed flush, and into a file that the path no longer names."""
        if self._failure is not None:
            raise JournalClosedError(self.directory, self._failure)
        for path, identity in self._identities.items():
            try:
                is_same = files.identity_of(path) == identity
            except FileNotFoundError:
                is_same = False
            if not is_same:
                name = os.path.basename(path)
                reason = f"its {name} was replaced or deleted while it was open"
                self._fail(reason)
                raise JournalClosedError(self.directory, reason)


class _NoRoomError(Exception):
    """The disk has no room for what entries wrote that do not settle anything."""

    def __init__(self, writers: list[Entry], cause: OSError) -> None:
        super().__init__()
        self.writers = writers
        self.cause = cause


class _OverwrittenError(Exception):
    """The data file holds another journal, or an older state of this one, than when it was opened."""


class _Batch:
    """The decisions of one shared commit, and what became of each."""

    def __init__(
        self, entries: list[Entry], genesis: bytes, owner: owners.Owner | None, *, has_owner_row: bool
    ) -> None:
        self.spoiled: Entry | None = None
        self.last: tuple[int, bytes] | None = None
        self.states: dict[str, StateAt] = {}
        self.interrupt: BaseException | None = None
        self.has_owner_row = has_owner_row
        self.keep_reserve: Callable[[lmdb.Transaction, int], None]
        self._entries = entries
        self._genesis = genesis
        self._owner = owner
        self._answers: list[tuple[Entry, Any, list[tuple[int, LogRecord]]]] = []
        self._refusals: list[tuple[Entry, Exception]] = []

    def expects(self, header_row: bytes, head: int) -> None:
        """What the file must hold: the header that was read at open, and no fewer records than this handle has seen."""
        self._header_row = header_row
        self.head = head

    def decide_and_commit(self, txn: lmdb.Transaction) -> None:
        """Take each decision, and commit what they wrote; a spoiled one ends it before the commit."""
        view = StoreTransaction(txn, self._genesis, self._owner, has_owner_row=self.has_owner_row)
        if txn.get(layout.HEADER_KEY) != self._header_row or view.last[0] < self.head:
            raise _OverwrittenError
        writers: list[Entry] = []
        for entry in self._entries:
            if not entry.take():
                continue  # who asked for it took it back
            view.at = entry.at
            count, touched = len(view.appended), view.touched
            try:
                answer = self._decide(entry, view)
            except lmdb.Error:
                raise
            except Exception as error:  # noqa: BLE001 - a refusal is the caller's, whatever its class
                if len(view.appended) != count or isinstance(error, CorruptRecordError):
                    # It left something in the transaction, or LMDB may have ended that: the others go on without it.
                    entry.fail(error)
                    self.spoiled = entry
                    return
                self._refusals.append((entry, error))
            else:
                self._answers.append((entry, answer, view.appended[count:]))
                if view.touched != touched and not entry.settles:
                    writers.append(entry)
        if writers:
            try:
                self.keep_reserve(txn, view.touched)
            except OSError as error:
                if error.errno in files.NO_ROOM:
                    raise _NoRoomError(writers, error) from error
                raise
        if view.has_changes:
            self.last = view.last if view.appended else None
        txn.commit()  # of nothing, too: that writes nothing, and unlike an abort it waits for no reader of this process
        self.head = view.last[0]
        self.has_owner_row = view.has_owner_row
        self.states = view.states

    def _decide(self, entry: Entry, view: StoreTransaction) -> Any:
        """The answer of a decision. What a hook of it raised that is no `Exception` is its caller's.

        In the main thread that may also have been the handler of a signal, whose exception is this thread's own, and not
        for the caller for whom it just decides. A hook is pure, so it is asked again: what it raised, it raises again.
        """
        try:
            return entry.decide(view)
        except RunRaisedError as raised:
            if threading.current_thread() is not threading.main_thread():
                raise
            try:
                answer = entry.decide(view)
            except RunRaisedError as again:
                if type(again.error) is not type(raised.error):
                    self.interrupt = raised.error
                raise
            except Exception:
                self.interrupt = raised.error
                raise
            self.interrupt = raised.error
            return answer

    def tell(self) -> None:
        """Give each entry what became of it; the commit is durable.

        A refusal counts only now: it may rest on what another entry of the same commit appended.
        """
        for entry, answer, records in self._answers:
            entry.succeed(answer, records)
        while self._refusals:
            # Not kept here: what was raised in a frame of this batch leads back to it.
            entry, refusal = self._refusals.pop()
            entry.fail(refusal)


def _file_limit() -> int:
    return resource.getrlimit(resource.RLIMIT_FSIZE)[0]


def time_of(clock: Callable[[], int]) -> int:
    """What a clock says.

    Raises:
        TypeError: it is no integer of nanoseconds, which no record could hold.
        ValueError: it is before the epoch, or past what 63 bits hold.
    """
    at = clock()
    if type(at) is not int:
        raise TypeError(f"clock must give an int of nanoseconds since the epoch, not {type(at).__name__}: {at!r}")
    if not 0 <= at < 1 << 63:
        raise ValueError(f"clock must give nanoseconds since the epoch, from 0 to 2**63 - 1, not {at}")
    return at


def _prepare_directory(directory: str, *, create: bool, clock: Callable[[], int], wait_timeout: float) -> None:
    if not files.has_journal(directory):
        if not create:
            advice = "open it without readonly=True and with create=True to make one"
            raise FileNotFoundError(errno.ENOENT, f"no journal is here; {advice}", directory)
        _create(directory, clock=clock, wait_timeout=wait_timeout)
    files.check_filesystem(directory)
    files.check_data_file(directory)


def _create(directory: str, *, clock: Callable[[], int], wait_timeout: float) -> None:
    """Make a journal in an empty directory: whole, under another name, and renamed into place."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(directory, files.DIRECTORY_MODE)
        files.sync_directory(os.path.dirname(os.path.abspath(directory)))
    files.check_filesystem(directory)
    descriptor = files.open_lock_file(directory, files.TURN_FILE)
    try:
        Turn(directory, descriptor).run(lambda: _create_data(directory, clock), time.monotonic() + wait_timeout)
    finally:
        os.close(descriptor)


def _create_data(directory: str, clock: Callable[[], int]) -> None:
    if files.has_journal(directory):
        return  # another process was faster
    files.remove_new_files(directory)
    header = Header(FORMAT_VERSION, secrets.token_hex(16), time_of(clock))
    row = layout.seal(layout.HEADER_KEY, encode(header))
    try:
        with registry.without_fork():
            create_data_file(directory, files.NEW_DATA_FILE, {layout.HEADER_KEY: row})
    except lmdb.Error as error:
        free = files.free_bytes(directory)
        if getattr(error, "code", None) in files.NO_ROOM or free < files.ROOM_BYTES:
            raise JournalFullError(directory, f"the disk took no more ({error}), {free} bytes are free") from error
        raise CommitFailedError(directory, f"{type(error).__name__}: {error}") from error
    os.rename(os.path.join(directory, files.NEW_DATA_FILE), os.path.join(directory, files.DATA_FILE))
    files.sync_directory(directory)
    files.remove_new_files(directory)  # what is left of them says that the rename may not be durable


def _open_environment(directory: str, *, readonly: bool, map_size: int, max_size: int | None) -> Environment:
    try:
        return Environment(directory, readonly=readonly, map_size=map_size, max_size=max_size)
    except (lmdb.InvalidError, lmdb.CorruptedError, lmdb.VersionMismatchError) as error:
        raise UnsupportedFormatError(directory, f"a damaged data file ({error})", files.SUPPORTED) from error
    except lmdb.ReadonlyError as error:
        raise PermissionError(errno.EACCES, f"the journal's files may not be opened ({error})", directory) from error
    except lmdb.ReadersFullError as error:
        raise JournalBusyError(directory, None, READERS_FULL) from error
    except lmdb.Error as error:
        code = getattr(error, "code", None) or 0
        if code == errno.EAGAIN:
            raise JournalBusyError(directory, os.getpid(), _SAME_PID, _SHARE_PIDS) from error
        raise OSError(code, f"LMDB cannot open the data file ({error})", directory) from error


def read_header(environment: Environment | StagedFile, directory: str) -> Header:
    """What a data file says of the journal that it holds.

    Raises:
        UnsupportedFormatError: nothing, or something that this version cannot read.
    """
    try:
        raw = environment.read(lambda txn: StoreView(txn, b"").raw_header())
        if raw is None:
            raise UnsupportedFormatError(directory, "an LMDB environment without a journal's header", files.SUPPORTED)
        _check_version(directory, raw)
        return msgspec.msgpack.decode(raw, type=Header)
    except (CorruptRecordError, msgspec.DecodeError, lmdb.Error, *_NO_HEADER) as error:
        raise UnsupportedFormatError(directory, f"a damaged header ({error})", files.SUPPORTED) from error


def _check_version(directory: str, raw: bytes) -> None:
    # The version comes first in every format: it is read before anything else is believed.
    version = msgspec.msgpack.decode(raw)[0]
    if version not in range(FORMAT_VERSION_OLDEST, FORMAT_VERSION + 1):
        raise UnsupportedFormatError(directory, version, files.SUPPORTED)


def _refuse_newer(directory: str) -> None:
    """Refuse a newer format before LMDB makes its lock file beside it; where there is one, it was opened here before.

    Whatever else is wrong is told by the ordinary open, which alone may look while another process writes.
    """
    if not os.path.exists(os.path.join(directory, files.LMDB_LOCK_FILE)):
        with contextlib.suppress(lmdb.Error, MemoryError, CorruptRecordError, msgspec.DecodeError, *_NO_HEADER):
            raw = peek(directory, lambda txn: StoreView(txn, b"").raw_header())
            _check_version(directory, raw or b"")


def _read_restored(environment: Environment, header: Header) -> RestoredRow | None:
    """What a copy says of itself; of one that cannot be read, that nobody has confirmed it."""
    try:
        return environment.read(lambda txn: StoreView(txn, b"").restored())
    except CorruptRecordError:
        return RestoredRow(incarnation=UNKNOWN_INCARNATION, head=0, at=header.created_at)


def _release(environment: Environment, descriptors: list[int]) -> None:
    environment.close()
    _close_all(descriptors)


def _close_all(descriptors: list[int]) -> None:
    while descriptors:
        os.close(descriptors.pop())
