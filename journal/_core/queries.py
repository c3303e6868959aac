"""The protocols that only look: records, histories, lists of effects, streams."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from journal._core.keys import key_form, prefix_form
from journal._core.ledger import UNFINISHED, EffectState, event_of, last_event, record_of
from journal._core.operations import (
    check_cursor,
    check_cursor_type,
    check_limit,
    check_reach,
    check_stream,
    committed_of,
    page,
)
from journal._core.requests import DeadlineError, EffectPage, Pause, Read, Steps, StoredOperation, View
from journal._core.schemas import Schema
from journal.errors import CorruptRecordError
from journal.options import PAGE_RECORDS, WAIT_STEP_SECONDS_MAX
from journal.records import Phase
from journal.values import Committed, Cursor, EffectEvent, EffectRecord

P = TypeVar("P")
T_co = TypeVar("T_co", covariant=True)

_PHASES: Final = {
    "intent": frozenset({Phase.INTENT, Phase.RELEASED}),
    "accepted": frozenset({Phase.ACCEPTED}),
    "uncertain": frozenset({Phase.UNCERTAIN}),
    "failed": frozenset({Phase.FAILED}),
}
_EVERY_PHASE: Final = frozenset(Phase) - {Phase.CLEARED}


class Pages(Protocol[P, T_co]):
    """What is listed page by page, each page in a short read transaction of its own."""

    def next(self) -> Steps[list[P]]:
        """The next page; empty at the end."""

    def decode(self, item: P) -> T_co:
        """An item of a page as callers get it."""


class OperationPages:
    """Operations past a position, in log order, at most `limit` of them.

    Raises:
        TypeError, ValueError: an argument is of no use.
    """

    def __init__(self, stream: Any, after: int, limit: Any, schema: Schema) -> None:
        check_limit(limit)
        check_cursor_type(after)
        self._stream = None if stream is None else check_stream(stream)
        self._after = int(after)
        self._left: int | None = limit
        self._schema = schema
        self._has_ended = False

    def next(self) -> Steps[list[StoredOperation]]:
        """The next page; empty at the end."""
        while not self._has_ended and self._left != 0:
            found = yield from page(self._stream, self._after, PAGE_RECORDS if self._left is None else self._left)
            self._after, self._has_ended = found.through, found.ended
            if found.operations:
                self._left = None if self._left is None else self._left - len(found.operations)
                return found.operations
        return []

    def decode(self, item: StoredOperation) -> Committed:
        """The operation, decoded when its turn comes, so that those before one that fails are given."""
        return committed_of(item, self._schema)


class EffectPages:
    """Effects by key: of some phases, with a prefix, past a key, at most `limit` of them.

    Raises:
        ValueError: the phase is none, or a key or the limit is of no use.
        TypeError: one of them is of another type.
    """

    def __init__(self, phase: Any, prefix: Any, after: Any, limit: Any) -> None:
        check_limit(limit)
        if phase is not None and phase not in _PHASES:
            raise ValueError(f"phase must be one of {', '.join(_PHASES)}, not {phase!r}")
        self._phases = _EVERY_PHASE if phase is None else _PHASES[phase]
        self._prefix = b"" if prefix is None else prefix_form(prefix)
        self._after = b"" if after is None else key_form(after)
        self._left: int | None = limit
        self._has_ended = False

    @classmethod
    def unfinished(cls, prefix: Any) -> EffectPages:
        """The effects that wait for an outcome or another attempt."""
        pages = cls(None, prefix, None, None)
        pages._phases = frozenset(UNFINISHED)
        return pages

    def next(self) -> Steps[list[EffectRecord]]:
        """The next page; empty at the end."""
        while not self._has_ended and self._left != 0:
            count = PAGE_RECORDS if self._left is None else min(self._left, PAGE_RECORDS)
            found: EffectPage = yield Read(partial(self._look, limit=count))
            self._has_ended = found.through is None
            self._after = found.through or self._after
            if found.states:
                self._left = None if self._left is None else self._left - len(found.states)
                return [record for record in map(record_of, found.states) if record is not None]
        return []

    def _look(self, view: View, limit: int) -> EffectPage:
        return view.effects(self._phases, prefix=self._prefix, after=self._after, limit=limit)

    def decode(self, item: EffectRecord) -> EffectRecord:
        """The record itself."""
        return item


def record(key: Any) -> Steps[EffectRecord | None]:
    """The protocol of `Journal.record`."""
    form = key_form(key)
    state: EffectState | None = yield Read(partial(last_event, form=form))
    return record_of(state)


def history(key: Any) -> Steps[list[EffectEvent]]:
    """The protocol of `Journal.history`: follows the links from a key's last event to its first."""
    form = key_form(key)
    last: EffectState | None = yield Read(partial(last_event, form=form))
    states: list[EffectState] = [] if last is None else [last]
    while states and states[-1].entry.previous:
        before = states[-1].entry.previous
        try:
            states += yield Read(partial(_events_back, position=before))
        except CorruptRecordError:
            now: EffectState | None = yield Read(partial(last_event, form=form))
            if now == last:
                raise
            # It was pruned between two looks, or moved on: what it is now can be followed, or its damage told.
            last, states = now, [] if now is None else [now]
    return [event_of(state) for state in reversed(states)]


def _events_back(view: View, position: int) -> list[EffectState]:
    states: list[EffectState] = []
    while position and len(states) < PAGE_RECORDS:
        state = EffectState(position, view.effect_entry(position))
        states.append(state)
        position = state.entry.previous
    return states


def streams() -> Steps[list[str]]:
    """The protocol of `Journal.streams`."""
    names: list[str] = yield Read(lambda view: view.streams())
    return names


def head() -> Steps[int]:
    """The protocol of `Journal.head`."""
    position: int = yield Read(lambda view: view.head())
    return position


def check_from(stream: str | None, cursor: Any) -> Steps[None]:
    """Refuse a cursor from which operations cannot be read.

    Raises:
        TypeError: it is no integer.
        InvalidCursorError, CompactedCursorError: as `check_reach`.
    """
    check_cursor_type(cursor)
    yield Read(lambda view: check_reach(view, stream, cursor))


def wait(after: Any, timeout: Any) -> Steps[Cursor]:
    """The protocol of `Journal.wait`."""
    check_cursor_type(after)
    seconds = _seconds_of(timeout)
    last = yield from head()
    check_cursor(after, last)
    wait = object()
    while last <= after:
        try:
            yield Pause(wait, seconds, WAIT_STEP_SECONDS_MAX)
        except DeadlineError:
            break
        last = yield from head()
    return Cursor(last)


def _seconds_of(timeout: Any) -> float:
    if timeout is None:
        return math.inf
    is_number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
    if not is_number or not timeout >= 0:
        raise ValueError(f"timeout must be a number of seconds, 0 or more, or None, not {timeout!r}")
    return float(timeout)
