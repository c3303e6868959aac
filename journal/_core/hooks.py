"""Calls of the pure functions that a journal is opened with: of a reducer, `validate`, `authorize`, `upcast`.

They may be called inside the write transaction, where a call of the journal would wait for itself. So while one runs,
every call of a journal from its context is refused (`refuse_calls`, which the store asks).
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final, TypeVar

from journal._core.requests import RunRaisedError

T = TypeVar("T")


class _Mark:
    """One call of a hook; a context that was copied in it may outlive it."""

    __slots__ = ("is_over",)

    def __init__(self) -> None:
        self.is_over = False


_inside: Final[ContextVar[_Mark | None]] = ContextVar("journal_hook", default=None)


def call(hook: Callable[..., T], *arguments: Any) -> T:
    """What a hook gives."""
    mark = _Mark()
    token = _inside.set(mark)
    try:
        return hook(*arguments)
    finally:
        mark.is_over = True
        _inside.reset(token)


def refuse_calls() -> None:
    """Refuse a call that comes from inside a hook.

    Raises:
        RuntimeError: it does.
    """
    mark = _inside.get()
    if mark is not None and not mark.is_over:
        raise RuntimeError(
            "a function that the journal was opened with (of its reducer, validate, authorize, upcast) may not call a "
            "journal: it may run inside the transaction that such a call would wait for; decide by its arguments alone"
        )


def guarded(decide: Callable[[], T]) -> T:
    """What a part of a decision gives that calls hooks, inside the write transaction; all of it counts as one.

    A type's own code, which runs when a state is decoded, may not call a journal there either.
    What a hook raises that is no `Exception` refuses its own operation, and is raised where that was appended: it ends
    neither the thread that commits for others nor what they append.
    """
    try:
        return call(decide)
    except Exception:
        raise
    except BaseException as error:
        raise RunRaisedError(error) from error
