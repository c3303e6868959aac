"""Processes in pid namespaces of their own, as containers that share a volume have them: the same pid may be there twice.

The function runs as the process that it was started as, one or two forks further down, so it speaks with its parent as
every other child does. Killing that process ends its namespace.
"""

import ctypes
import os
import signal
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

CLONE_NEWNS = 0x00020000
CLONE_NEWPID = 0x20000000
MS_REC = 16384
MS_PRIVATE = 1 << 18
PR_SET_PDEATHSIG = 1


def in_container(pid: int, target: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> None:
    """In a child: calls `target` with a given pid, 1 or 2, in a new pid namespace, and returns when it has ended."""
    libc = ctypes.CDLL(None, use_errno=True)
    _must(libc.unshare(CLONE_NEWPID | CLONE_NEWNS))

    def first() -> None:
        _must(libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL))
        _must(libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None))
        _must(libc.mount(b"proc", b"/proc", b"proc", 0, None))
        if pid == 1:
            call()
        else:
            _fork(call)

    def call() -> None:
        assert os.getpid() == pid
        target(*args, **kwargs)

    _fork(first)


def can_make_containers() -> bool:
    """In a child: whether this user may make a pid namespace here."""
    return bool(ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWPID | CLONE_NEWNS) == 0)


def _fork(target: Callable[[], None]) -> None:
    child = os.fork()
    if child == 0:
        target()
        os._exit(0)  # what it raises goes on upwards, and is told as what any child raises
    if os.waitpid(child, 0)[1] != 0:
        os._exit(1)


def _must(answer: int) -> None:
    if answer != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
