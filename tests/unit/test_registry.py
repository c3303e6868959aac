"""`journal/_storage/registry.py`: one handle a file, and none across a fork."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Iterator
from typing import Any, Final

import pytest

from journal._storage import registry
from journal._storage.files import FileIdentity
from tests.unit.support import Boom, InThread, raising

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
    registry.forget(made)


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

    assert not registry.open_once(Handle(), identity, raising(AssertionError("it was opened")))  # type: ignore[arg-type]  # as the registry needs it


def test_other_files_are_open_beside(identity: FileIdentity) -> None:
    """Each journal by itself."""
    other = FileIdentity(-2, identity.inode)

    assert open_once(identity)
    assert open_once(other)
    registry.forget(other)


def test_file_that_was_closed_may_be_opened_again(identity: FileIdentity) -> None:
    """Forgetting one that is not there is fine."""
    registry.forget(identity)
    open_once(identity)
    registry.forget(identity)

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
    registry.forget(other)

    assert forked(closed, is_child=is_child) == []
    assert registry._forking == []


def test_no_handle_is_opened_during_a_fork(identity: FileIdentity) -> None:
    """Another thread waits until it is over."""
    registry._before_fork()
    opening = InThread(lambda: open_once(identity))
    assert opening._thread.is_alive()
    registry._after_fork_in_parent()

    assert opening.result() is True
