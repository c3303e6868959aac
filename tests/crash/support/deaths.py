"""Where a process dies, or stands still: at the n-th of the places that a fuse has been told to count.

A seam tells the fuse of places inside the journal; each is wrapped in the child alone, which then lives one call.
"""

import contextlib
import fcntl
import os
import pathlib
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import journal
from journal._drive.tasks import TaskDriver
from journal._drive.threads import ThreadDriver
from journal._storage.environment import Environment
from journal._storage.group import GroupCommit
from journal._storage.staging import StagedFile
from tests.agreement.loops import AsyncFacade
from tests.crash.support.processes import die, say_parent
from tests.crash.support.service import Delivery, World

NEVER = 0


class Fuse:
    """Counts places while it burns, and ends the process at the `length`-th of them; `NEVER` only counts."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.count = 0
        self._burns = False

    @contextlib.contextmanager
    def burning(self) -> Iterator[None]:
        """Only what happens inside is counted."""
        self._burns = True
        try:
            yield
        finally:
            self._burns = False

    def reach(self, place: str) -> None:
        """One place more; says its name to the parent before dying there."""
        if not self._burns:
            return
        self.count += 1
        if self.count == self.length:
            say_parent(place)
            die()


class Halt(Fuse):
    """Stops the process at the `length`-th place of some name; it goes on when it is sent SIGCONT."""

    def __init__(self, place: str, length: int = 1) -> None:
        super().__init__(length)
        self.place = place

    def reach(self, place: str) -> None:
        """One place more; says its name to the parent before standing still there."""
        if not self._burns or place != self.place:
            return
        self.count += 1
        if self.count == self.length:
            say_parent(place)
            os.kill(os.getpid(), signal.SIGSTOP)


class DyingLogger:
    """A logger that tells each event as a place: the moment after a commit and before the call's answer."""

    def __init__(self, reach: Callable[[str], None]) -> None:
        self.reach = reach

    def debug(self, event: str, **facts: Any) -> None:
        self.reach(event)

    info = warning = error = debug


def around(owner: Any, name: str, fuse: Fuse, describe: Callable[..., str]) -> None:
    """Makes the places before and after each call of a method known to the fuse."""
    original = getattr(owner, name)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        place = describe(*args, **kwargs)
        fuse.reach(f"before {place}")
        try:
            return original(*args, **kwargs)
        finally:
            fuse.reach(f"after {place}")

    setattr(owner, name, wrapped)


def seam_of_steps(fuse: Fuse) -> None:
    """Before and after each step of a generator: reads, commits and calls of users' code alike."""
    around(ThreadDriver, "perform", fuse, lambda driver, request: type(request).__name__)


def seam_of_tasks(fuse: Fuse) -> None:
    """Before and after each step of a generator, where each call is a task of an event loop."""
    run = TaskDriver.run

    def watched_run(driver: TaskDriver, protocol: Any) -> Any:
        return run(driver, watched(protocol, fuse))

    TaskDriver.run = watched_run  # type: ignore[method-assign, assignment]  # in this child alone
    World.open = open_on_a_loop  # type: ignore[method-assign, assignment]  # as above


def open_on_a_loop(world: World, **options: Any) -> Any:
    """An `AsyncJournal` with the methods of `Journal`."""
    return AsyncFacade().open(world.path, operation=Delivery, **options)


def watched(protocol: Any, fuse: Fuse) -> Any:
    """A generator that tells the fuse of each request of another one, and of each answer."""
    try:
        request = next(protocol)
        while True:
            fuse.reach(f"before {type(request).__name__}")
            try:
                answer = yield request
            except BaseException as error:
                fuse.reach(f"after {type(request).__name__}")
                request = protocol.throw(error)
            else:
                fuse.reach(f"after {type(request).__name__}")
                request = protocol.send(answer)
    except StopIteration as end:
        return end.value


def seam_of_commits(fuse: Fuse) -> None:
    """Inside the storage: around the write transaction, after each put, around LMDB's commit, before waiters are told."""
    write = Environment.write

    def watched_write(environment: Environment, body: Callable[[Any], Any]) -> Any:
        def watched_body(txn: Any) -> Any:
            fuse.reach("after begin")
            return body(WatchedTransaction(txn, fuse))

        fuse.reach("before begin")
        value = write(environment, watched_body)
        fuse.reach("after the transaction")
        return value

    Environment.write = watched_write  # type: ignore[method-assign, assignment]  # in this child alone
    around(GroupCommit, "_lead", fuse, lambda *arguments: "leading a batch")


class WatchedTransaction:
    """A write transaction of LMDB's that tells the fuse of its writes."""

    def __init__(self, txn: Any, fuse: Fuse) -> None:
        self._txn = txn
        self._fuse = fuse

    def __getattr__(self, name: str) -> Any:
        return getattr(self._txn, name)

    def put(self, *arguments: Any, **options: Any) -> bool:
        is_put: bool = self._txn.put(*arguments, **options)
        self._fuse.reach("after a put")
        return is_put

    def delete(self, *arguments: Any, **options: Any) -> bool:
        is_deleted: bool = self._txn.delete(*arguments, **options)
        self._fuse.reach("after a delete")
        return is_deleted

    def commit(self) -> None:
        self._fuse.reach("before LMDB's commit")
        self._txn.commit()
        self._fuse.reach("after LMDB's commit")


def seam_of_files(fuse: Fuse) -> None:
    """Before and after each thing that is done to a file or its locks, and each use of a data file in the making."""
    for name in ("rename", "fsync", "unlink", "mkdir", "rmdir", "open", "close"):
        around(os, name, fuse, lambda *arguments, name=name, **_: f"{name} {arguments[:2]}")
    for name in ("fcntl", "flock"):
        around(fcntl, name, fuse, lambda *arguments, name=name: f"{name} {arguments[1:2]}")
    for owner, names in ((Environment, ("copy", "_open", "_close")), (StagedFile, ("open", "write", "check", "close"))):
        for name in names:
            around(owner, name, fuse, lambda *_, name=name: name)


def seam_of_lines(fuse: Fuse) -> None:
    """Each line of the journal's own code, in whatever protocol, transaction or clean-up it stands."""
    folder = str(pathlib.Path(journal.__file__).parent)

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        if not frame.f_code.co_filename.startswith(folder):
            return None
        if event == "line":
            fuse.reach(f"{frame.f_code.co_filename.removeprefix(folder)}:{frame.f_lineno}")
        return trace

    sys.settrace(trace)


SEAMS: dict[str, Callable[[Fuse], None]] = {
    "steps": seam_of_steps,
    "tasks": seam_of_tasks,
    "commits": seam_of_commits,
    "lines": seam_of_lines,
}
