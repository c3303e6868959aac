"""The journals that this process has open: each once, whatever its path is spelled like, and none across a fork.

A forked child must close what it inherited, or it could not open the journal for itself. LMDB's close frees every reader
slot of the process that opened, in the table that the child shares with its parent. So the parent, which has no
transaction open while it forks, begins the next one when the child has closed: the end of a pipe says so.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

from journal.options import FORK_SECONDS_MAX

if TYPE_CHECKING:
    from journal._storage.files import FileIdentity


class Opened(Protocol):
    """What has a data file open."""

    def before_fork(self) -> None:
        """Let no transaction of this process be open while it forks."""

    def after_fork_in_parent(self) -> None:
        """Go on."""

    def after_fork_in_child(self) -> None:
        """Drop what was inherited."""


_lock: Final = threading.RLock()
_open: Final[dict[FileIdentity, weakref.ref[Opened]]] = {}
_forking: list[Opened] = []
_lingering: Final[list[int]] = []
_pipe: Final[list[int]] = []


def open_once(store: Opened, identity: FileIdentity, open_files: Callable[[], None]) -> bool:
    """Open a store's files and register it; False, with nothing done, where this process has the same file open."""
    with _lock:
        other = _open.get(identity)
        if other is not None and other() is not None:
            return False
        open_files()
        _open[identity] = weakref.ref(store)
        return True


def close(identity: FileIdentity, close_files: Callable[[], Any]) -> None:
    """Close a store's files and forget it; a fork sees all of them open or none."""
    with _lock:
        close_files()
        _open.pop(identity, None)


def rename(before: FileIdentity, identity: FileIdentity) -> None:
    """Another file has taken the place of one that is open."""
    with _lock:
        _open[identity] = _open.pop(before)


def linger(descriptor: int) -> Callable[[], None]:
    """Hold what an open file's locks say, though its descriptor is closed; what ends that, which the process does too."""
    with _lock:
        kept = os.dup(descriptor)
        _lingering.append(kept)

    def end() -> None:
        with _lock:
            if kept in _lingering:  # a forked child has closed it
                _lingering.remove(kept)
                os.close(kept)

    return end


def without_fork() -> threading.RLock:
    """What to hold around files that no child may inherit: nobody could close them there."""
    return _lock


def _before_fork() -> None:
    _lock.acquire()
    for reference in _open.values():
        store = reference()
        if store is not None:
            # Noted first: what an interrupt leaves half done is given back in any case.
            _forking.append(store)
            store.before_fork()
    if _forking:
        with contextlib.suppress(OSError):  # no descriptors are left: the child is not waited for
            _pipe.extend(os.pipe())


def _after_fork_in_parent() -> None:
    # Python prints what a hook raises, and goes on: a lock that stayed taken would stop every other thread.
    try:
        if _pipe:
            _wait_for_child()
    finally:
        while _pipe:
            os.close(_pipe.pop())
        try:
            while _forking:
                _forking.pop().after_fork_in_parent()
        finally:
            _lock.release()


def _wait_for_child() -> None:
    os.close(_pipe.pop())  # the end to write on: what is left of it is the child's
    waiting = select.poll()
    waiting.register(_pipe[0], select.POLLIN)
    waiting.poll(FORK_SECONDS_MAX * 1_000)


def _after_fork_in_child() -> None:
    _open.clear()
    while _lingering:
        os.close(_lingering.pop())
    for store in _forking:
        store.after_fork_in_child()
    _forking.clear()
    while _pipe:
        os.close(_pipe.pop())
    _lock.release()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
