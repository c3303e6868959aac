"""The protocols of a person's decisions: `resolve` and `clear_effect`."""

from __future__ import annotations

from functools import partial
from typing import Any

from journal._core.keys import key_form
from journal._core.ledger import EffectChange, EffectState, advance, last_event, next_entry, record_of
from journal._core.payloads import ValueRejectedError, keep_value
from journal._core.pruning import revive
from journal._core.requests import Commit, Enter, Flight, IsAlive, Read, Steps, Transaction
from journal._core.texts import error_text
from journal.errors import EffectConflictError, EffectInFlightError, EffectPrunedError, NotPerformed
from journal.options import PROOF_BYTES_MAX, REASON_BYTES_MAX
from journal.records import Phase, Via
from journal.values import Accepted, Uncertain


def resolve(key: Any, outcome: Any, expected_position: Any, reason: Any) -> Steps[None]:
    """The protocol of `Journal.resolve`: a person's decision, made against a record that the person has seen."""
    form = key_form(key)
    check_reason(reason)
    if not isinstance(expected_position, int) or isinstance(expected_position, bool):
        raise TypeError(f"expected_position must be the record's position, an int, not {expected_position!r}")
    facts = _resolution(outcome)

    def decide_resolution(txn: Transaction) -> EffectState:
        state = last_event(txn, form)
        record = record_of(state)
        if record is None or state is None:
            raise EffectConflictError(key, "nothing is on record to be resolved")
        if state.position != expected_position:
            raise EffectConflictError(
                key, f"its record is at position {state.position}, expected {expected_position}", record
            )
        if record.phase == "accepted":
            raise EffectConflictError(key, "it is accepted, which nobody can change; clear it to begin anew", record)
        change = EffectChange(guarantee=state.entry.guarantee, via=Via.RESOLVE, reason=reason, **facts)
        entry = next_entry(state, form, change, txn.at)
        return EffectState(txn.append(entry), entry)

    yield Commit(decide_resolution, settles=True)


def clear_effect(key: Any, reason: Any, owner: int) -> Steps[None]:
    """The protocol of `Journal.clear_effect`."""
    form = key_form(key)
    check_reason(reason)
    while True:
        try:
            state: EffectState | None = yield Read(partial(last_event, form=form))
        except EffectPrunedError:
            if (yield Commit(revive(form, reason))):
                return
            continue  # somebody else was faster
        record = record_of(state)
        if state is None or record is None:
            return
        flight: Flight | None = yield Enter("effect", key, form, None, None, wait=False)
        if flight is None:
            own_pid: int = yield IsAlive(owner)
            raise EffectInFlightError(key, own_pid, record)
        try:
            if state.entry.phase is Phase.INTENT and state.entry.owner != owner:
                pid: int | None = yield IsAlive(state.entry.owner)
                if pid is not None:
                    raise EffectInFlightError(key, pid, record)
            change = EffectChange(phase=Phase.CLEARED, guarantee=state.entry.guarantee, reason=reason)
            cleared: EffectState | None = yield Commit(advance(form, state.position, change))
        finally:
            flight.end()
        if cleared is not None:
            return


def check_reason(reason: Any) -> None:
    """Refuse a decision without a reason.

    Raises:
        TypeError: it is no string.
        ValueError: it is empty or too long.
    """
    if not isinstance(reason, str):
        raise TypeError(f"reason must be a str, not {type(reason).__name__}: {reason!r}")
    try:
        size = len(reason.encode())
    except UnicodeEncodeError as error:
        raise ValueError(f"reason holds a lone surrogate: {reason!r}") from error
    if not reason.strip() or size > REASON_BYTES_MAX:
        raise ValueError(f"reason must say why, in 1 to {REASON_BYTES_MAX} bytes of UTF-8, not {reason[:40]!r}")


def _resolution(outcome: Any) -> dict[str, Any]:
    if isinstance(outcome, Accepted):
        try:
            proof, _ = keep_value(outcome.proof, None, PROOF_BYTES_MAX)
        except ValueRejectedError as error:
            raise TypeError(f"the proof cannot be kept: {error}") from error
        return {"phase": Phase.ACCEPTED, "proof": proof}
    if isinstance(outcome, Uncertain):
        return {"phase": Phase.UNCERTAIN}
    if isinstance(outcome, NotPerformed):
        return {"phase": Phase.FAILED, "error": error_text(outcome)}
    raise TypeError(f"outcome must be Accepted(proof), Uncertain() or NotPerformed(why), not {outcome!r}")
