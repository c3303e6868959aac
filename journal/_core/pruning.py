"""The protocol of `prune_effects`, and what takes the place of pruned events in the log.

A pruned effect leaves a tombstone: one record in the log, which names the key by its digest, and one index row. It is
exact where a time would not be, so a key is refused for as long as its tombstone stands, whatever clocks said. The
transactions are bounded, and each key goes whole or not at all, only where its last event is the one that was looked at.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import msgspec

from journal._core.ledger import ACCEPTED, CLEARED, EffectState, Tombstone, record_of
from journal._core.requests import Commit, Decide, EffectPage, Note, Read, RunRaisedError, Steps, Transaction, View
from journal.errors import JournalFullError
from journal.options import PAGE_RECORDS, PRUNE_EFFECTS_MAX, PRUNE_EVENTS_MAX
from journal.records import EffectEntry, PrunedRecord
from journal.values import EffectRecord

_PRUNED_PHASES: Final = frozenset({ACCEPTED, CLEARED})
"""Accepted effects leave a tombstone; a cleared key is new work anyhow, and leaves nothing."""


class Run(msgspec.Struct, frozen=True):
    """A record of the log that covers `record.first` up to `position`, with the digest that stands there in the chain."""

    position: int
    digest: bytes
    record: PrunedRecord

    def reaching_from(self, first: int) -> Run:
        """The same, covering from another position on."""
        return Run(self.position, self.digest, msgspec.structs.replace(self.record, first=first))


def covering(own: Run, before: Run | None, after: Run | None, head: int) -> tuple[Run, list[int]]:
    """What a record of pruned events is put as between its neighbours, and the positions whose records it replaces.

    A record that names no key is taken in by the one after it, so that each tombstone stands for all that is pruned
    before it. The log's last record stays alone: who appends next must be able to believe its place, even when it is
    damaged, and believes it where the record before stands just before it. Over a gap nothing is put together.
    """
    gone: list[int] = []
    if (
        before is not None
        and before.record.key is None
        and before.position + 1 == own.record.first
        and own.position != head
    ):
        gone.append(before.position)
        own = own.reaching_from(before.record.first)
    if (
        after is not None
        and own.record.key is None
        and own.position + 1 == after.record.first
        and after.position != head
    ):
        gone.append(own.position)
        own = after.reaching_from(own.record.first)
    return own, gone


class _Old(msgspec.Struct, frozen=True):
    """A key that may be pruned, as it was looked at."""

    form: bytes
    position: int


def prune_effects(settled_before: Any, keep: Any) -> Steps[int]:
    """The protocol of `Journal.prune_effects`."""
    check_time(settled_before, "settled_before")
    if keep is not None and not callable(keep):
        raise TypeError(f"keep must be a predicate over the record, or None, not {keep!r}")
    # Who may not write hears of it before `keep` is asked.
    yield Commit(_nothing)
    count = 0
    after: bytes | None = b""
    while after is not None:
        page: EffectPage = yield Read(partial(_old_effects, before=settled_before, after=after), is_long=True)
        after = page.through
        old: list[_Old] = []
        for state in page.states:
            is_kept = yield from _is_kept(state, keep)
            if not is_kept:
                old.append(_Old(state.entry.key, state.position))
        count += yield from _prune_all(old)
    if count:
        yield Note("info", "effects_pruned", {"count": count, "settled_before": settled_before})
    return count


def check_time(time: Any, name: str) -> None:
    """Refuse what is no time.

    Raises:
        TypeError: it is no integer.
        ValueError: it is before the epoch, or past what 63 bits hold.
    """
    if not isinstance(time, int) or isinstance(time, bool):
        raise TypeError(f"{name} must be an int of nanoseconds since the epoch, not {type(time).__name__}: {time!r}")
    if not 0 <= time < 1 << 63:
        raise ValueError(f"{name} must be nanoseconds since the epoch, from 0 to 2**63 - 1, not {time}")


def _nothing(_: Transaction) -> None:
    """Write nothing."""


def _old_effects(view: View, *, before: int, after: bytes) -> EffectPage:
    page = view.effects(_PRUNED_PHASES, prefix=b"", after=after, limit=PAGE_RECORDS)
    return EffectPage([state for state in page.states if state.entry.at < before], page.through)


def _is_kept(state: EffectState, keep: Callable[[EffectRecord], Any] | None) -> Steps[bool]:
    record = record_of(state)
    if keep is None or record is None:
        return False
    try:
        return bool((yield Decide(keep, (record,))))
    except Exception as error:
        raise RunRaisedError(error) from error


def _prune_all(old: list[_Old]) -> Steps[int]:
    """Prune in transactions that are as large as the room allows; how many effects went."""
    count, size = 0, PRUNE_EFFECTS_MAX
    while old:
        try:
            # The smallest may use the reserve: pruning is what makes room.
            looked, pruned = yield Commit(partial(_prune_some, old[:size]), settles=size == 1)
        except JournalFullError:
            if size == 1:
                raise
            size //= 2
            continue
        old = old[looked:]
        count += pruned
        size = min(2 * size, PRUNE_EFFECTS_MAX)
    return count


def _prune_some(old: list[_Old], txn: Transaction) -> tuple[int, int]:
    """A decision that prunes what still stands as it was looked at; how many keys it came to, and effects it pruned."""
    pruned = events = 0
    for looked, seen in enumerate(old):
        if events >= PRUNE_EVENTS_MAX:
            return looked, pruned
        state = txn.effect(seen.form)
        if state is not None and state.position == seen.position:
            events += txn.prune(state)
            pruned += state.entry.phase is ACCEPTED
    return len(old), pruned


def revive(form: bytes, reason: str) -> Callable[[Transaction], bool]:
    """A decision that takes a pruned effect's tombstone away, so that the next call is new work; whether one was there.

    The record in the log keeps its place and names no key any more: what it says and the index rows stay one.
    """
    return partial(_revive, form, reason)


def _revive(form: bytes, reason: str, txn: Transaction) -> bool:
    tombstone: Tombstone | None = None if txn.effect(form) is not None else txn.pruned(form)
    if tombstone is None or tombstone.record.guarantee is None:
        return False
    txn.append(
        EffectEntry(
            phase=CLEARED,
            key=form,
            at=txn.at,
            previous=0,
            first_at=txn.at,
            attempts=0,
            guarantee=tombstone.record.guarantee,
            owner=0,
            reason=reason,
        )
    )
    txn.forget(tombstone)
    return True
