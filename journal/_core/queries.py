"""The protocols that only look: records, histories, lists of effects, streams."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from journal._core.keys import key_form, prefix_form
from journal._core.ledger import UNFINISHED, EffectState, event_of, record_of
from journal._core.operations import check_cursor, check_cursor_type
from journal._core.requests import Read, Steps, View
from journal.options import PAGE_RECORDS
from journal.records import Phase
from journal.values import EffectEvent, EffectRecord

_PHASES: Final = {
    "intent": frozenset({Phase.INTENT, Phase.RELEASED}),
    "accepted": frozenset({Phase.ACCEPTED}),
    "uncertain": frozenset({Phase.UNCERTAIN}),
    "failed": frozenset({Phase.FAILED}),
}
_EVERY_PHASE: Final = frozenset(Phase) - {Phase.CLEARED}


class EffectQuery:
    """Which effects to list: phases, prefix and starting point, checked.

    Raises:
        ValueError: the phase is none, or a key is of no use.
        TypeError: a key is of another type.
    """

    def __init__(self, phase: Any, prefix: Any, after: Any) -> None:
        if phase is not None and phase not in _PHASES:
            raise ValueError(f"phase must be one of {', '.join(_PHASES)}, not {phase!r}")
        self._phases = _EVERY_PHASE if phase is None else _PHASES[phase]
        self._prefix = b"" if prefix is None else prefix_form(prefix)
        self._after = b"" if after is None else key_form(after)

    @classmethod
    def unfinished(cls, prefix: Any) -> EffectQuery:
        """The effects that wait for an outcome or another attempt."""
        query = cls(None, prefix, None)
        query._phases = frozenset(UNFINISHED)
        return query

    def next_page(self, limit: int) -> Steps[list[EffectRecord]]:
        """The next records by key, at most a page of them; empty at the end."""
        count = min(limit, PAGE_RECORDS)
        states: list[EffectState] = yield Read(
            lambda view: view.effects(self._phases, prefix=self._prefix, after=self._after, limit=count)
        )
        if states:
            self._after = states[-1].entry.key
        return [record for record in map(record_of, states) if record is not None]


def record(key: Any) -> Steps[EffectRecord | None]:
    """The protocol of `Journal.record`."""
    form = key_form(key)
    state: EffectState | None = yield Read(lambda view: view.effect(form))
    return record_of(state)


def history(key: Any) -> Steps[list[EffectEvent]]:
    """The protocol of `Journal.history`: follows the links from a key's last event to its first."""
    form = key_form(key)
    last: EffectState | None = yield Read(lambda view: view.effect(form))
    states: list[EffectState] = [] if last is None else [last]
    while states and states[-1].entry.previous:
        before = states[-1].entry.previous
        states += yield Read(partial(_events_back, position=before))
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


def check_from(cursor: Any) -> Steps[None]:
    """Refuse a cursor that is not of this journal.

    Raises:
        TypeError: it is no integer.
        InvalidCursorError: it is outside the log.
    """
    check_cursor_type(cursor)
    check_cursor(cursor, (yield from head()))
