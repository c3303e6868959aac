"""The journals that this process has open: each once, whatever its path is spelled like, and none across a fork."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from journal._storage.files import FileIdentity
    from journal._storage.store import Store

_lock: Final = threading.RLock()
_open: Final[dict[FileIdentity, weakref.ref[Store]]] = {}
_forking: list[Store] = []
_lingering: Final[list[int]] = []


def open_once(store: Store, identity: FileIdentity, open_files: Callable[[], None]) -> bool:
    """Open a store's files and register it; False, with nothing done, where this process has the same file open."""
    with _lock:
        other = _open.get(identity)
        if other is not None and other() is not None:
            return False
        open_files()
        _open[identity] = weakref.ref(store)
        return True


def forget(identity: FileIdentity) -> None:
    """The store of this file was closed."""
    with _lock:
        _open.pop(identity, None)


def linger(descriptor: int) -> None:
    """Hold what an open file's locks say until this process ends; its descriptor may be closed."""
    with _lock:
        _lingering.append(os.dup(descriptor))


def _before_fork() -> None:
    _lock.acquire()
    for reference in _open.values():
        store = reference()
        if store is not None:
            store.before_fork()
            _forking.append(store)


def _after_fork_in_parent() -> None:
    for store in _forking:
        store.after_fork_in_parent()
    _forking.clear()
    _lock.release()


def _after_fork_in_child() -> None:
    _open.clear()
    while _lingering:
        os.close(_lingering.pop())
    for store in _forking:
        store.after_fork_in_child()
    _forking.clear()
    _lock.release()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
