"""`journal/_storage/registry.py`: one handle a file, and none across a fork."""

from __future__ import annotations

import gc
import itertools
import os
import resource
import select
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

import journal
from journal._storage import environment, files, registry
from journal._storage.files import FileIdentity
from journal._storage.group import _frame_of
from tests.unit.support import PATIENCE, Boom, InThread, raising, until

NUMBERS: Final = itertools.count(1)


class Handle:
    """A store as the registry needs it, which notes what happens to it."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def before_fork(self) -> None:
        self.notes.append("before")

    def after_fork_in_parent(self) -> None:
        self.notes.append("parent")

    def after_fork_in_child(self) -> None:
        self.notes.append("child")


@pytest.fixture
def identity() -> Iterator[FileIdentity]:
    """A file that nobody else has open."""
    made = FileIdentity(-1, next(NUMBERS))
    yield made
    registry.close(made, lambda: None)


def open_once(identity: FileIdentity, handle: Any = None) -> bool:
    """Open a file, as a store does."""
    store: Any = handle or Handle()
    keep.append(store)
    return registry.open_once(store, identity, lambda: None)


keep: Final[list[Any]] = []
"""Handles that are still in use."""


def test_file_is_open_once(identity: FileIdentity) -> None:
    """A second time is refused, and nothing is opened for it."""
    assert open_once(identity)

    assert not registry.open_once(Handle(), identity, raising(AssertionError("it was opened")))


def test_other_files_are_open_beside(identity: FileIdentity) -> None:
    """Each journal by itself."""
    other = FileIdentity(-2, identity.inode)

    assert open_once(identity)
    assert open_once(other)
    registry.close(other, lambda: None)


def test_file_that_was_closed_may_be_opened_again(identity: FileIdentity) -> None:
    """Closing one that is not there is fine."""
    registry.close(identity, lambda: None)
    open_once(identity)
    registry.close(identity, lambda: None)

    assert open_once(identity)


def test_handle_that_was_dropped_is_not_in_the_way(identity: FileIdentity) -> None:
    """Nobody can close it any more."""
    open_once(identity)
    keep.clear()
    gc.collect()

    assert open_once(identity)


def test_file_that_could_not_be_opened_is_not_registered(identity: FileIdentity) -> None:
    """The next try is free."""
    store: Any = Handle()
    with pytest.raises(Boom):
        registry.open_once(store, identity, raising(Boom()))

    assert open_once(identity)


def forked(handle: Handle, *, is_child: bool) -> list[str]:
    """What a fork does to a handle, as Python calls the hooks."""
    registry._before_fork()
    if is_child:
        registry._after_fork_in_child()
    else:
        registry._after_fork_in_parent()
    return handle.notes


def test_parent_goes_on_after_a_fork(identity: FileIdentity) -> None:
    """Its handles rest meanwhile, and stay registered."""
    handle = Handle()
    open_once(identity, handle)

    assert forked(handle, is_child=False) == ["before", "parent"]
    assert not open_once(identity)


def test_child_has_no_handles(identity: FileIdentity) -> None:
    """What it inherited is dropped, and it may open for itself."""
    handle = Handle()
    open_once(identity, handle)

    assert forked(handle, is_child=True) == ["before", "child"]
    assert open_once(identity)


@pytest.mark.parametrize("is_child", [False, True])
def test_handles_that_are_gone_have_no_part_in_a_fork(identity: FileIdentity, *, is_child: bool) -> None:
    """Neither dropped nor closed ones."""
    closed, other = Handle(), FileIdentity(-2, identity.inode)
    open_once(identity)
    keep.clear()
    gc.collect()
    open_once(other, closed)
    registry.close(other, lambda: None)

    assert forked(closed, is_child=is_child) == []
    assert registry._forking == []


def test_no_handle_is_opened_during_a_fork(identity: FileIdentity) -> None:
    """Another thread waits until it is over."""
    registry._before_fork()
    opening = InThread(lambda: open_once(identity))
    assert opening._thread.is_alive()
    registry._after_fork_in_parent()

    assert opening.result() is True


def test_no_handle_is_closed_during_a_fork(identity: FileIdentity) -> None:
    """A child finds all of its files open, or none: what is half closed nobody could close there."""
    closed: list[str] = []
    open_once(identity)
    registry._before_fork()
    closing = InThread(lambda: registry.close(identity, lambda: closed.append("closed")))
    assert (closing._thread.is_alive(), closed) == (True, [])
    registry._after_fork_in_parent()
    closing.result()

    assert closed == ["closed"]


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # what is risky about it is what is tested
def test_child_opens_a_journal_that_was_being_made_at_the_fork(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not inherit the half-made file, which nobody could close there and LMDB would take for open."""
    directory = str(tmp_path / "journal")
    is_making, may_end = threading.Event(), threading.Event()
    real = environment._open

    def open_slowly(path: str, **options: Any) -> Any:
        made = real(path, **options)
        if path.endswith(files.NEW_DATA_FILE):
            is_making.set()
            assert may_end.wait(PATIENCE)
        return made

    def fork() -> int:
        pid = os.fork()
        if pid == 0:
            may_end.set()
            try:
                journal.open(directory).close()
            except BaseException:
                os._exit(1)
            os._exit(0)
        return pid

    monkeypatch.setattr(environment, "_open", open_slowly)
    making = InThread(lambda: journal.open(directory).close())
    assert is_making.wait(PATIENCE)
    forking = InThread(fork)
    until(lambda: not forking._thread.is_alive() or is_in(forking._thread, registry._before_fork))
    may_end.set()
    making.result()

    assert os.waitstatus_to_exitcode(os.waitpid(forking.result(), 0)[1]) == 0


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_parent_goes_on_when_its_child_has_closed(identity: FileIdentity) -> None:
    """LMDB's close in the child frees the parent's reader slots: no read of the parent may be under way then."""
    reading, writing = os.pipe()

    class Slow(Handle):
        def after_fork_in_child(self) -> None:
            for _ in range(1_000):
                os.sched_yield()
            os.write(writing, b"closed")

    open_once(identity, Slow())

    pid = os.fork()
    if pid == 0:
        os._exit(0)

    assert select.select([reading], [], [], 0)[0] == [reading]
    os.waitpid(pid, 0)
    os.close(reading)
    os.close(writing)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), Boom()])
def test_parent_goes_on_whatever_is_raised_while_it_waits(
    identity: FileIdentity, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """Python prints what a hook raises: a lock that stayed taken would stop all other threads."""
    handle = Handle()
    open_once(identity, handle)
    monkeypatch.setattr(registry, "_wait_for_child", raising(error))

    registry._before_fork()
    with pytest.raises(type(error)):
        registry._after_fork_in_parent()

    assert handle.notes == ["before", "parent"]
    assert (registry._pipe, registry._forking) == ([], [])
    assert InThread(lambda: open_once(FileIdentity(-3, identity.inode))).result()
    registry.close(FileIdentity(-3, identity.inode), lambda: None)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_fork_of_a_process_with_a_thousand_descriptors(identity: FileIdentity, tmp_path: Path) -> None:
    """A server has many sockets: the pipe's number is no limit."""
    open_once(identity)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 2_048), hard))
    taken = [os.open(tmp_path, os.O_RDONLY) for _ in range(1_100)]
    try:
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    assert InThread(lambda: open_once(FileIdentity(-3, identity.inode))).result()
    registry.close(FileIdentity(-3, identity.inode), lambda: None)


def test_parent_does_not_wait_without_a_pipe(identity: FileIdentity, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no descriptor is left a fork works as well."""
    handle = Handle()
    open_once(identity, handle)
    monkeypatch.setattr(os, "pipe", raising(OSError(24, "too many")))

    assert forked(handle, is_child=False) == ["before", "parent"]


def is_in(thread: threading.Thread, function: Callable[..., Any]) -> bool:
    """Whether a thread is just inside a function."""
    frame = _frame_of(thread.ident or 0)
    return frame is not None and frame.f_code is function.__code__
