"""The ledger of effects: which event may follow which, and what the record says after it.

An effect's whole state is its last event, so a transition is one new `EffectEntry` that is computed from the one
before. `TRANSITIONS` is the law; `tests/unit/test_ledger.py` goes through all combinations.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from journal._core.keys import key_of
from journal._core.payloads import decode_value
from journal.errors import EffectPrunedError
from journal.records import EffectEntry, Guarantee, Phase, PrunedRecord, RestoredRow, Via
from journal.values import EffectEvent, EffectRecord

if TYPE_CHECKING:
    from journal._core.requests import Transaction, View

INTENT: Final = Phase.INTENT
ACCEPTED: Final = Phase.ACCEPTED
UNCERTAIN: Final = Phase.UNCERTAIN
FAILED: Final = Phase.FAILED
RELEASED: Final = Phase.RELEASED
CLEARED: Final = Phase.CLEARED
# Names of their own, here and below, are more than short: until Python 3.12 a member is looked up in its enum's class
# as slowly as a function is called, and every effect is compared with a dozen.
_RESOLVE: Final = Via.RESOLVE
_AT_MOST_ONCE: Final = Guarantee.AT_MOST_ONCE

OPEN: Final = (INTENT, RELEASED)
"""The phases in which an attempt has no outcome yet."""

UNFINISHED: Final = (INTENT, RELEASED, FAILED)
"""The phases that `unfinished` lists."""

SETTLED: Final = (ACCEPTED, UNCERTAIN)
"""The phases that no call leaves any more."""

PASSED: Final = "passed"
"""The reason on record of an effect that a walk passed before it was ever started."""

NOT_STARTED: Final = "not-started"
"""The reason on record of an intent that was committed ahead of its run and then never run."""

NEVER_RAN: Final = frozenset({PASSED, NOT_STARTED})
"""The reasons of a `failed` that no attempt stands behind."""

_EVERY_OUTCOME: Final = frozenset({ACCEPTED, UNCERTAIN, FAILED})

TRANSITIONS: Final[dict[Phase | None, frozenset[Phase]]] = {
    # Nothing on record: a first intent; or `failed`, when a walk passes an effect that was never started.
    None: frozenset({INTENT, FAILED}),
    # In flight: its outcome; given up by its process; run again, when the recipient deduplicates.
    INTENT: _EVERY_OUTCOME | {INTENT, RELEASED, CLEARED},
    RELEASED: _EVERY_OUTCOME | {INTENT, CLEARED},
    FAILED: _EVERY_OUTCOME | {INTENT, CLEARED},
    # Settled: only a person moves it, and an accepted one only by clearing.
    UNCERTAIN: _EVERY_OUTCOME | {CLEARED},
    ACCEPTED: frozenset({CLEARED}),
    # Cleared: as if nothing were on record.
    CLEARED: frozenset({INTENT, FAILED}),
}

PERSON_ONLY: Final[frozenset[tuple[Phase, Phase]]] = frozenset(
    {(UNCERTAIN, outcome) for outcome in _EVERY_OUTCOME} | {(FAILED, outcome) for outcome in _EVERY_OUTCOME}
)
"""Transitions that only `resolve` makes."""

AT_MOST_ONCE_NEVER: Final[frozenset[tuple[Phase, Phase]]] = frozenset({(INTENT, INTENT), (RELEASED, INTENT)})
"""Transitions that would run an effect again on a guess: an at-most-once intent goes through `failed` first."""


class EffectState(msgspec.Struct, frozen=True, gc=False):
    """The last event of a key, and its position; a cleared key has one too."""

    position: int
    entry: EffectEntry


class Tombstone(msgspec.Struct, frozen=True, gc=False):
    """What is left of a pruned effect, and the position at which its last event stood."""

    position: int
    record: PrunedRecord


class EffectChange(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What a call wants to add to a key's events; what it does not say is kept from the event before."""

    phase: Phase
    guarantee: Guarantee
    request: bytes | None = None
    via: Via | None = None
    proof: bytes | None = None
    reason: str | None = None
    error: str | None = None
    owner: int = 0


class BrokenTransitionError(AssertionError):
    """A bug of ours: a protocol asked for a transition that `TRANSITIONS` does not have."""


def is_allowed(before: Phase | None, after: Phase, guarantee: Guarantee, *, by_person: bool) -> bool:
    """Whether an event may follow another one."""
    if after not in TRANSITIONS[before]:
        return False
    if before is None:
        return True
    if guarantee is _AT_MOST_ONCE and (before, after) in AT_MOST_ONCE_NEVER:
        return False
    return by_person or (before, after) not in PERSON_ONLY


def next_entry(state: EffectState | None, form: bytes, change: EffectChange, at: int) -> EffectEntry:
    """The event that a change adds to a key.

    Raises:
        BrokenTransitionError: the table has no such transition.
    """
    before = state.entry if state is not None and state.entry.phase is not CLEARED else None
    phase_before = None if before is None else before.phase
    if not is_allowed(phase_before, change.phase, change.guarantee, by_person=change.via is _RESOLVE):
        raise BrokenTransitionError(f"{phase_before!r} to {change.phase!r} of {change.guarantee!r}")
    attempts = 0 if before is None else before.attempts
    owner, request = (0, None) if before is None else (before.owner, before.request)
    return EffectEntry(
        phase=change.phase,
        key=form,
        at=at,
        previous=0 if state is None else state.position,
        first_at=at if before is None else before.first_at,
        attempts=attempts + 1 if change.phase is INTENT else attempts,
        guarantee=change.guarantee,
        owner=change.owner or owner,
        request=request if change.request is None else change.request,
        via=change.via,
        proof=change.proof,
        reason=change.reason,
        error=change.error,
    )


def record_of(state: EffectState | None) -> EffectRecord | None:
    """What a key's last event says to callers; `None` where nothing is on record."""
    if state is None or state.entry.phase is CLEARED:
        return None
    entry = state.entry
    return EffectRecord(
        key=key_of(entry.key),
        guarantee=entry.guarantee.word,
        phase="intent" if entry.phase is RELEASED else entry.phase.word,
        attempts=entry.attempts,
        first_at=entry.first_at,
        last_at=entry.at,
        proof=_proof_of(entry),
        via=None if entry.via is None else entry.via.word,
        reason=entry.reason,
        error=entry.error,
        owner=owner_text(entry.owner),
        position=state.position,
    )


def event_of(state: EffectState) -> EffectEvent:
    """One event as `history` gives it."""
    entry = state.entry
    return EffectEvent(
        position=state.position,
        at=entry.at,
        key=key_of(entry.key),
        phase=entry.phase.word,
        attempt=entry.attempts,
        guarantee=entry.guarantee.word,
        via=None if entry.via is None else entry.via.word,
        proof=_proof_of(entry),
        reason=entry.reason,
        error=entry.error,
        owner=owner_text(entry.owner),
    )


def standing(state: EffectState | None, restored: RestoredRow | None) -> tuple[str, bool]:
    """The phase in which a key's last event leaves it, and whether that is doubtful.

    In a copy that nobody has confirmed, what was done after it was made is unknown: so whatever stands there from before
    is doubtful, and so is that nothing does. An effect that a walk passed was never started, and nobody asked about it:
    it stands as if there were no record.
    """
    phase = "none"
    if state is not None and state.entry.phase is not CLEARED:
        phase = "intent" if state.entry.phase is RELEASED else state.entry.phase.word
    if restored is None or restored.confirmed_at:
        return phase, False
    if state is None or phase == "none" or (state.entry.reason == PASSED and state.entry.via is None):
        return "none", True
    return phase, state.position <= restored.head


def advance(form: bytes, position: int, change: EffectChange) -> Callable[[Transaction], EffectState | None]:
    """A decision for the write transaction: add an event where the key still stands at this position (0: nowhere).

    Its answer is the new state, or `None` where somebody else moved the record: read again.
    """
    return partial(_advance, form, position, change)


def _advance(form: bytes, position: int, change: EffectChange, txn: Transaction) -> EffectState | None:
    state = txn.effect(form)
    if (0 if state is None else state.position) != position:
        return None
    if state is None:
        refuse_pruned(txn, form)
    entry = next_entry(state, form, change, txn.at)
    return EffectState(txn.append(entry), entry)


def refuse_pruned(view: View, form: bytes) -> None:
    """Refuse a key of which nothing is on record because it was pruned: that is no evidence that it did not run.

    Raises:
        EffectPrunedError: it has a tombstone.
    """
    tombstone = view.pruned(form)
    if tombstone is not None:
        raise EffectPrunedError(key_of(form), tombstone.position)


def last_event(view: View, form: bytes) -> EffectState | None:
    """The last event of a key; `None` where it never had one.

    Raises:
        EffectPrunedError: it was pruned.
    """
    state = view.effect(form)
    if state is None:
        refuse_pruned(view, form)
    return state


def release(form: bytes, owner: int, reason: str, error: str) -> Callable[[Transaction], EffectState | None]:
    """A decision that gives up an open intent of this owner; `None` where the record is no longer that."""

    def decide(txn: Transaction) -> EffectState | None:
        state = txn.effect(form)
        if state is None or state.entry.phase is not INTENT or state.entry.owner != owner:
            return None
        change = EffectChange(phase=RELEASED, guarantee=state.entry.guarantee, reason=reason, error=error)
        entry = next_entry(state, form, change, txn.at)
        return EffectState(txn.append(entry), entry)

    return decide


def withdraw(form: bytes, begun: EffectState) -> Callable[[Transaction], EffectState | None]:
    """A decision that takes back an intent which was never run; `None` where it is not what stands on record.

    Its position alone does not tell: where the commit that held it was cut off, another process may have taken that.
    """

    def decide(txn: Transaction) -> EffectState | None:
        state = txn.effect(form)
        if state != begun:
            return None
        change = EffectChange(phase=FAILED, guarantee=begun.entry.guarantee, reason=NOT_STARTED)
        entry = next_entry(state, form, change, txn.at)
        return EffectState(txn.append(entry), entry)

    return decide


def owner_text(owner: int) -> str:
    """An owner's id as records show it; empty where no intent was ever written."""
    return f"{owner:016x}" if owner else ""


def _proof_of(entry: EffectEntry) -> Any:
    return None if entry.proof is None else decode_value(entry.proof)
