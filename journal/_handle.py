"""One open journal, over which the faces `Journal` and `AsyncJournal` are: its options checked, its files open."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from typing import Any, NoReturn, TypeVar, cast

from journal._core import hooks
from journal._core.compaction import Snapshot
from journal._core.effects import check_seconds
from journal._core.queries import streams
from journal._core.requests import Steps
from journal._core.rules import Rules, rules_of
from journal._core.states import snapshot_finding, snapshot_through
from journal._drive.calls import ThreadCall
from journal._drive.common import is_coroutine_function
from journal._drive.threads import ThreadDriver
from journal._flights import Flights, Waiter, own_waiter
from journal._logs import Log, check_logger
from journal._states import States
from journal._storage.copies import back_up, restore as restore_copy
from journal._storage.examination import examine
from journal._storage.store import Store
from journal.options import MAP_BYTES_MAX, MAP_BYTES_MIN, STATES_BYTES_MAX, STATES_MAX
from journal.records import RestoredRow
from journal.values import Cursor, Finding

T = TypeVar("T")


class Handle:
    """The store of one journal, what this process has in flight, and where it logs."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        operation: Any,
        state: Any,
        validate: Any,
        authorize: Any,
        upcast: Any,
        readonly: bool,
        create: bool,
        map_size: int,
        max_size: int | None,
        wait_timeout: float,
        clock: Callable[[], int],
        logger: Any,
    ) -> None:
        _check_options(map_size, max_size, wait_timeout, clock)
        check_logger(logger)
        states = States(bytes_max=STATES_BYTES_MAX, count_max=STATES_MAX)
        self.rules = rules_of(operation, state, validate, authorize, upcast, states=states)
        _refuse_coroutine_functions(self.rules)
        self.store = Store(
            _directory(path),
            readonly=readonly,
            create=create,
            map_size=map_size,
            max_size=max_size,
            wait_timeout=wait_timeout,
            clock=clock,
            remember=states.put_all,
        )
        self.flights = Flights(self.store.directory)
        self.log = Log(logger, self.store.header.journal_id)
        self.is_closing = False
        if self.store.is_copy and not readonly:
            row = cast("RestoredRow", self.store.restored)
            self.log.emit("warning", "journal_restored", incarnation=row.incarnation, head=row.head)

    @property
    def snapshot(self) -> Snapshot | None:
        """The protocol that gives the state which a compaction keeps; `None` without a reducer."""
        return None if self.rules.reducer is None else partial(snapshot_through, rules=self.rules)

    def run(self, protocol: Steps[T]) -> T:
        """What a protocol returns, run in this thread."""
        self.store.check()
        return ThreadDriver(self.store, self.flights, self.log).run(protocol)

    def backup(self, directory: str | os.PathLike[str]) -> Cursor:
        """Make a copy in another directory; the last position of its log."""
        self.store.check()
        return Cursor(back_up(self.store, _directory(directory)))

    def verify(self, *, deep: bool) -> Iterator[Finding]:
        """What is wrong with the file, the log and the indexes, and with `deep` with the snapshots of states.

        Raises:
            TypeError: `deep` without a reducer, or it is no bool.
        """
        if not isinstance(deep, bool):
            raise TypeError(f"deep must be a bool, not {type(deep).__name__}: {deep!r}")
        if deep and self.rules.reducer is None:
            raise TypeError("verify(deep=True) folds states anew: open the journal with state=journal.Reducer(...)")
        findings = self.store.verify()
        return chain(findings, self._snapshot_findings()) if deep else findings

    def _snapshot_findings(self) -> Iterator[Finding]:
        for stream in self.run(streams()):
            finding = self.run(snapshot_finding(stream, self.rules))
            if finding is not None:
                yield finding

    def close(self) -> None:
        """Wait for what is in flight, and close the files; twice is fine.

        Raises:
            RuntimeError: it would wait for its own caller.
        """
        waiter = own_waiter()
        if self.begin_close(waiter, is_blocking=True):
            waiter.acquire()
        self.store.close()

    def when_nothing_is_in_flight(self, calls: Iterable[ThreadCall], then: Callable[[], None]) -> None:
        """Do something when these calls have ended and nothing is in flight any more, in a thread that waits for it."""

        def wait() -> None:
            for call in calls:
                call.join()
            waiter = own_waiter()
            if self.flights.close(waiter, is_blocking=True):
                waiter.acquire()
            then()

        threading.Thread(target=wait, name="journal-close", daemon=True).start()

    def begin_close(self, waiter: Waiter, *, is_blocking: bool) -> bool:
        """Let nothing new begin; whether the waiter has to wait for what is in flight.

        Raises:
            RuntimeError: the caller would wait for itself.
        """
        self.store.check_process()
        hooks.refuse_calls()
        must_wait = self.flights.close(waiter, is_blocking=is_blocking)
        self.is_closing = True
        return must_wait


def restore(
    backup: str | os.PathLike[str], path: str | os.PathLike[str], *, clock: Callable[[], int] = time.time_ns
) -> Cursor:
    """Make a journal of a backup, in a directory that is new or empty; the last position of its log.

    The copy is made beside `path`, verified and flushed, and gets its name when it is whole; the backup is left as it is.
    Any journal can be copied like that while nobody commits to it. What it makes knows that it is a copy: see
    `Journal.confirm_restored`.

    Args:
        backup: What `Journal.backup` made, or another journal's directory.
        path: Where the journal is to be; its parent must exist.
        clock: The time, in nanoseconds since the epoch.

    Raises:
        FileNotFoundError: no journal is in `backup`, or the parent of `path` is missing.
        FileExistsError: something is at `path`.
        ValueError: `path` lies in `backup`.
        UnsupportedFormatError: `backup` holds something else, a newer format, or a damaged data file.
        UnsupportedFilesystemError: `path` lies on a network file system.
        CorruptRecordError: a record is damaged.
        JournalBusyError: somebody commits to `backup`, or makes a copy at the same path.
        JournalFullError: there is no room for it.
    """
    _check_clock(clock)
    return Cursor(restore_copy(_directory(backup), _directory(path), clock))


class Face:
    """What `Journal` and `AsyncJournal` have in common; `journal.open` and `journal.open_async` make them."""

    def __init__(self, handle: Handle) -> None:
        if not isinstance(handle, Handle):
            raise TypeError("journal.open(path) and journal.open_async(path) open a journal, its class does not")
        self._handle = handle
        self._store = handle.store

    def __reduce__(self) -> NoReturn:
        """Refused: a copy would be another process's, or a second one that is closed by itself."""
        raise TypeError(
            "an open journal can be neither pickled nor copied; pass its path, and open it where it is used"
        )

    def __repr__(self) -> str:
        """Where it is, and whether it is open."""
        name = type(self).__name__.lstrip("_")
        return f"<{name} {self.path!r}{' (closed)' if self._handle.is_closing else ''}>"

    @property
    def path(self) -> str:
        """The journal's directory, absolute."""
        return self._store.directory

    @property
    def journal_id(self) -> str:
        """The journal's own id, 32 hexadecimal digits."""
        return self._store.header.journal_id


def verify_path(path: str | os.PathLike[str]) -> Iterator[Finding]:
    """What is wrong with the journal in a directory, which nobody here need have open.

    Raises:
        FileNotFoundError: no data file is there.
    """
    return examine(_directory(path))


def _directory(path: Any) -> str:
    text = os.fsdecode(path)
    if not text:
        raise ValueError("path must name a directory, not be empty")
    if "\x00" in text or any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError(f"path must be UTF-8 without a null character, which LMDB can take: {path!r}")
    return os.path.abspath(text)


def _refuse_coroutine_functions(rules: Rules) -> None:
    functions: dict[str, Any] = {"validate": rules.validate, "authorize": rules.authorize}
    if rules.reducer is not None:
        functions |= {"the reducer's initial": rules.reducer.initial, "the reducer's apply": rules.reducer.apply}
    functions |= {f"upcast= of {tag!r}": function for tag, function in rules.schema.upcasts.items()}
    for name, hook in functions.items():
        if is_coroutine_function(hook):
            raise TypeError(f"{name} is a coroutine function; it decides at once, so pass a plain function")


def _check_options(map_size: Any, max_size: Any, wait_timeout: Any, clock: Any) -> None:
    for name, value in (("map_size", map_size), ("max_size", max_size)):
        if value is None and name == "max_size":
            continue
        if not isinstance(value, int) or isinstance(value, bool):
            raise TypeError(f"{name} must be a number of bytes, not {type(value).__name__}: {value!r}")
        if not MAP_BYTES_MIN <= value <= MAP_BYTES_MAX:
            raise ValueError(f"{name} must be from {MAP_BYTES_MIN} to {MAP_BYTES_MAX} bytes, not {value}")
    check_seconds(wait_timeout, "wait_timeout")
    _check_clock(clock)


def _check_clock(clock: Any) -> None:
    if not callable(clock):
        raise TypeError(f"clock must be a function that gives nanoseconds, not {clock!r}")
