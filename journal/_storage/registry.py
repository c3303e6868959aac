"""The journals that this process has open: each once, whatever its path is spelled like, and none across a fork."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from journal._storage.files import FileIdentity
    from journal._storage.store import Store

_lock: Final = threading.Lock()
_open: Final[dict[FileIdentity, weakref.ref[Store]]] = {}
_forking: list[Store] = []


@contextlib.contextmanager
def claimed(store: Store, identity: FileIdentity) -> Iterator[int | None]:
    """Register a store while it opens; gives this process's pid instead where the same file is open already."""
    with _lock:
        other = _open.get(identity)
        if other is not None and other() is not None:
            yield os.getpid()
            return
        yield None
        _open[identity] = weakref.ref(store)


def forget(identity: FileIdentity) -> None:
    """The store of this file was closed."""
    with _lock:
        _open.pop(identity, None)


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
    for store in _forking:
        store.after_fork_in_child()
    _forking.clear()
    _lock.release()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
