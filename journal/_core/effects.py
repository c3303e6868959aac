"""The protocols of effects: `effect` and `run_effect`.

`settle` is the one that matters: it brings a key to its outcome by the table of `recovery.decisions`, and everything
that calls a recipient goes through it. Its order must not change: the intent is durable before `run` is called, and
what `run` returned is committed before anything else happens.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial
from operator import methodcaller
from typing import Any, Final

import msgspec

from journal._core.keys import key_form
from journal._core.ledger import (
    ACCEPTED,
    CLEARED,
    FAILED,
    INTENT,
    NEVER_RAN,
    SETTLED,
    UNCERTAIN,
    EffectChange,
    EffectState,
    advance,
    last_event,
    record_of,
    refuse_pruned,
    release,
    standing,
    withdraw,
)
from journal._core.payloads import NotOfTypeError, ValueRejectedError, check_type, decode_value, fingerprint, keep_value
from journal._core.requests import (
    Ask,
    Call,
    Commit,
    DeadlineError,
    Decide,
    Enter,
    Flight,
    IsAlive,
    Note,
    Pause,
    Read,
    RunRaisedError,
    Steps,
    Transaction,
)
from journal._core.texts import error_text
from journal.errors import (
    EffectConflictError,
    EffectFailedError,
    EffectInFlightError,
    EffectPrunedError,
    EffectUnresolvedError,
    JournalError,
    JournalFullError,
    JournalReadonlyError,
    Key,
    NotPerformed,
)
from journal.options import (
    PROOF_BYTES_MAX,
    RECONCILE_TIMEOUT_SECONDS,
    VALUE_BYTES_MAX,
)
from journal.records import EffectEntry, Guarantee, RestoredRow, Via
from journal.values import Accepted, EffectRecord, Found, Uncertain
from recovery import Holder, Verdict, decide

_verdict: Final = cache(decide)
"""The table's answers: it has few rows, and is asked for every effect."""
_UNKNOWN_HERE: Final = (
    "this journal is a copy (incarnation {}, made at position {}), what was done after it was made is unknown here, and "
    "there is no reconcile to ask; see at the recipient what was done, then call confirm_restored()"
)
_NUMBER: Final = int | float
_START: Final = Verdict.START
_NOBODY: Final = Holder.NOBODY
_RUN: Final = Via.RUN
_AT_MOST_ONCE: Final = Guarantee.AT_MOST_ONCE
_IDEMPOTENT: Final = Guarantee.IDEMPOTENT


class EffectCall(msgspec.Struct, frozen=True, kw_only=True):
    """One call for an effect, its arguments checked and its request fingerprinted."""

    key: Key
    form: bytes
    guarantee: Guarantee
    run: Callable[[], Any]
    reconcile: Callable[..., Any] | None
    request: bytes | None
    returns: Any
    reconcile_timeout: float
    retry_failed: bool | Callable[[EffectRecord], bool] = True

    @property
    def value_bytes_max(self) -> int:
        """The limit of what its run may return: a proof, or a result."""
        return PROOF_BYTES_MAX if self.guarantee is _AT_MOST_ONCE else VALUE_BYTES_MAX


class Begun(msgspec.Struct, frozen=True):
    """An intent that is durable already: committed together with the outcome of the effect before."""

    call: EffectCall
    flight: Any
    state: EffectState


class Outcome(msgspec.Struct, frozen=True):
    """What is on record at the end of `settle`, how this call came to it, and what was begun in the same commit."""

    state: EffectState
    how: str
    begun: Begun | None = None


def effect_call(
    key: Any,
    *,
    run: Any,
    reconcile: Any,
    request: Any,
    returns: Any,
    reconcile_timeout: Any = RECONCILE_TIMEOUT_SECONDS,
    retry_failed: Any = True,
) -> EffectCall:
    """The call, checked; with a `reconcile` it is at most once, without idempotent.

    Raises:
        TypeError, ValueError: an argument is of no use; nothing was read.
    """
    form = key_form(key)
    if not callable(run):
        raise TypeError(f"run must be a function of no arguments, not {type(run).__name__}: {run!r}")
    if reconcile is not None and not callable(reconcile):
        raise TypeError(f"reconcile must be a function of one signal, not {type(reconcile).__name__}: {reconcile!r}")
    check_seconds(reconcile_timeout, "reconcile_timeout")
    if returns is not None:
        check_type(returns, "returns")
    if not isinstance(retry_failed, bool) and not callable(retry_failed):
        raise TypeError(f"retry_failed must be a bool or a predicate over the record, not {retry_failed!r}")
    return EffectCall(
        key=key,
        form=form,
        guarantee=_IDEMPOTENT if reconcile is None else _AT_MOST_ONCE,
        run=run,
        reconcile=reconcile,
        request=None if request is None else fingerprint(request),
        returns=returns,
        reconcile_timeout=reconcile_timeout,
        retry_failed=retry_failed,
    )


def check_reconcile(reconcile: Any) -> Any:
    """A reconcile that is given.

    Raises:
        TypeError: it is `None`.
    """
    if reconcile is None:
        raise TypeError("effect needs a reconcile; for a recipient that deduplicates by the key use run_effect")
    return reconcile


def effect(call: EffectCall, owner: int, *, is_copy: bool = False) -> Steps[Accepted[Any] | Uncertain]:
    """The protocol of `Journal.effect`; a copy is one that nobody had confirmed when the journal was opened."""
    outcome = yield from settle(call, owner, is_copy=is_copy)
    entry = outcome.state.entry
    if entry.phase is UNCERTAIN:
        return Uncertain()
    assert entry.via is not None  # noqa: S101 - every accepted entry says how it is known
    return Accepted(_answer(call.key, entry, call.returns), entry.via.word)


def run_effect(call: EffectCall, owner: int, *, is_copy: bool = False) -> Steps[Any]:
    """The protocol of `Journal.run_effect`."""
    outcome = yield from settle(call, owner, is_copy=is_copy)
    return _answer(call.key, outcome.state.entry, call.returns)


def settle(
    call: EffectCall,
    owner: int,
    *,
    begun: Begun | None = None,
    following: EffectCall | None = None,
    is_copy: bool = False,
) -> Steps[Outcome]:
    """Bring a key to its outcome, or raise why there is none.

    `begun` is this call's intent where it is durable already; `following` a call whose first attempt comes next, whose
    intent may share the commit of this one's acceptance.
    """
    state: EffectState | None = None
    flight: Flight | None = None if begun is None else begun.flight
    while flight is None:
        # Where nothing is found, the intent's commit looks again, and more closely.
        state = yield Read(methodcaller("glance", call.form))
        check_binding(call, state)
        if state is not None and state.entry.phase in SETTLED:
            yield _reused(call, state)
            return _settled(call, state, "reused")
        try:
            flight = yield Enter("effect", call.key, call.form, call.guarantee, call.request)
        except JournalReadonlyError:
            # No commit of an intent will tell whether it was pruned.
            yield Read(partial(last_event, form=call.form))
            raise
    attempt = _Attempt(call, owner, following, is_copy=is_copy)
    # Act for the key, and let go of it whatever happens.
    try:
        outcome = yield from (attempt.settle(seen=state) if begun is None else attempt.run(begun.state))
    except Exception as error:
        # Those who joined shared the call of the user's function, not what stopped this caller before it.
        is_shared = attempt.has_called or isinstance(error, EffectInFlightError)
        flight.end(error if is_shared else None)
        raise
    except GeneratorExit:
        flight.end(attempt.cut_off_error())
        raise
    except BaseException as error:
        yield from attempt.release_when_cut_off(error)
        flight.end(attempt.cut_off_error())
        raise
    flight.end()
    return outcome


def check_binding(call: EffectCall, state: EffectState | None) -> None:
    """Refuse a call for something else under the same key.

    Raises:
        EffectConflictError: the record has another guarantee or request.
    """
    if state is None or state.entry.phase is CLEARED:
        return
    entry = state.entry
    if entry.guarantee is not call.guarantee:
        reason = f"it was begun as {entry.guarantee.word}, this call is {call.guarantee.word}"
    elif call.request is not None and entry.request is not None and call.request != entry.request:
        reason = "it was begun for another request than that of this call"
    else:
        return
    raise EffectConflictError(call.key, reason, record_of(state))


class _Attempt:
    """What one call does while it alone acts for its key in this process."""

    def __init__(self, call: EffectCall, owner: int, following: EffectCall | None, *, is_copy: bool) -> None:
        self.call = call
        self.has_called = False
        self._is_copy = is_copy
        self._has_begun = False
        self._probed: EffectState | None = None
        self._owner = owner
        self._following = following

    def settle(self, seen: EffectState | None) -> Steps[Outcome]:
        """Follow the table until there is an outcome; `seen` is what stood on record before the flight began."""
        call = self.call
        # Another flight may have ended since; where nothing was found, the intent's commit will tell.
        state: EffectState | None = None if seen is None else (yield _look_up(call.form))
        while True:
            check_binding(call, state)
            record = record_of(state)
            pid: int | None = None
            # A flight of this process would have been joined, so an intent of our own is nobody's.
            if state is not None and state.entry.phase is INTENT and state.entry.owner != self._owner:
                pid = yield IsAlive(state.entry.owner)
            holder = _NOBODY if pid is None else Holder.ELSEWHERE
            restored: RestoredRow | None = (yield Read(methodcaller("restored"))) if self._is_copy else None
            phase, is_doubtful = standing(state, restored)
            verdict = _verdict(call.guarantee.word, phase, holder, is_doubtful)
            outcome: Outcome | None = None
            if verdict is _START:
                begun = yield from self._start(state, record)
                if begun is not None:
                    return (yield from self.run(begun))
            elif verdict is Verdict.WAIT:
                yield from self._wait(pid or 0, record)
            elif verdict is Verdict.PROBE:
                outcome = yield from self._probe(state)
            elif verdict is Verdict.FORBID:
                assert restored is not None  # noqa: S101 - the table forbids in a copy alone
                raise EffectConflictError(call.key, _UNKNOWN_HERE.format(restored.incarnation, restored.head), record)
            else:
                assert state is not None  # noqa: S101 - the table asks and answers only where something is on record
                if verdict is Verdict.ASK:
                    outcome = yield from self._ask(state)
                else:
                    yield _reused(call, state)
                    outcome = _settled(call, state, "reused")
            if outcome is not None:
                return outcome
            state = yield _look_up(call.form)

    def _wait(self, pid: int, record: EffectRecord | None) -> Steps[None]:
        try:
            yield Pause(self)
        except DeadlineError:
            raise EffectInFlightError(self.call.key, pid, record) from None

    def _start(self, state: EffectState | None, record: EffectRecord | None) -> Steps[EffectState | None]:
        """Commit the next intent; `None` where the record no longer stands as it did."""
        call = self.call
        if record is not None and record.phase == "failed" and record.reason not in NEVER_RAN:
            yield from self._check_retry(record)
        before = 0 if state is None else state.position
        change = EffectChange(phase=INTENT, guarantee=call.guarantee, owner=self._owner, request=call.request)
        self._has_begun = True
        begun: EffectState | None = yield Commit(advance(call.form, before, change))
        return begun

    def _probe(self, state: EffectState | None) -> Steps[Outcome | None]:
        """Commit the next intent, and ask the recipient whether another journal's run came before it."""
        call = self.call
        before = 0 if state is None else state.position
        change = EffectChange(phase=INTENT, guarantee=call.guarantee, owner=self._owner, request=call.request)

        def begin_and_look(txn: Transaction) -> tuple[EffectState | None, bool]:
            # Another process may have confirmed the copy since.
            _, is_doubtful = standing(txn.effect(call.form), txn.restored())
            return advance(call.form, before, change)(txn), is_doubtful

        self._has_begun = True
        begun: EffectState | None
        begun, is_doubtful = yield Commit(begin_and_look)
        if begun is None:
            return None
        if not is_doubtful:
            return (yield from self.run(begun))
        self._probed = begun
        return (yield from self._ask(begun))

    def _check_retry(self, record: EffectRecord) -> Steps[None]:
        allowed = self.call.retry_failed
        if callable(allowed):
            allowed = yield Decide(allowed, (record,))
        if not allowed:
            raise EffectFailedError(self.call.key, record.error or record.reason or "failed", record)

    def release_when_cut_off(self, error: BaseException) -> Steps[None]:
        """Where an intent of this call is on record without an outcome, let everybody ask about it."""
        if self._has_begun:
            yield from self._release("run-failed", error_text(error))

    def cut_off_error(self) -> EffectUnresolvedError | None:
        """What those who joined are told when this call was cut off; nothing, where it had called nobody."""
        return EffectUnresolvedError(self.call.key, "run-failed") if self.has_called else None

    def run(self, begun: EffectState) -> Steps[Outcome]:
        """Call `run` for an intent that is durable, and record what came of it."""
        call = self.call
        self.has_called = self._has_begun = True
        try:
            value = yield Call(call.run)
        except NotPerformed as error:
            return (yield from self._fail(begun, error, is_absent=call.guarantee is _AT_MOST_ONCE))
        except Exception as error:
            if call.guarantee is _IDEMPOTENT:
                return (yield from self._fail(begun, error, is_absent=False))
            raise (yield from self._give_up("run-failed", error, begun)) from error
        outcome = yield from self._accept(begun, value, _RUN)
        return outcome if outcome is not None else (yield from self._moved_on())

    def _fail(self, begun: EffectState, error: Exception, *, is_absent: bool) -> Steps[Outcome]:
        """Record a `failed`, and raise what the caller gets for it; or give what somebody else decided meanwhile."""
        reason = "not-performed" if is_absent else "run-failed"
        change = EffectChange(
            phase=FAILED, guarantee=self.call.guarantee, via=_RUN, reason=reason, error=error_text(error)
        )
        state: EffectState | None = yield from self._commit_outcome(begun, change)
        if state is None:
            return (yield from self._moved_on())
        if is_absent:
            raise EffectFailedError(self.call.key, error_text(error), record_of(state)) from error
        raise RunRaisedError(error)

    def _ask(self, state: EffectState) -> Steps[Outcome | None]:
        """Ask the recipient about an open intent, and record its verdict where the intent still stands."""
        call, entry = self.call, state.entry
        assert call.reconcile is not None  # noqa: S101 - the table asks for at-most-once effects alone
        ask = Ask(call.reconcile, call.key, entry.attempts, entry.first_at, call.reconcile_timeout)
        self.has_called = True
        try:
            answer = yield ask
        except NotPerformed as error:
            return (yield from self._run_after_absence(state, error))
        except DeadlineError as error:
            raise (yield from self._could_not_ask("reconcile-timeout", state, error)) from error
        except Exception as error:
            raise (yield from self._could_not_ask("reconcile-failed", state, error)) from error
        if answer is None:
            change = EffectChange(phase=UNCERTAIN, guarantee=call.guarantee, via=Via.RECONCILE)
            settled: EffectState | None = yield from self._commit_outcome(state, change)
            return None if settled is None else _settled(call, settled, "uncertain")
        return (yield from self._accept(state, answer.proof if isinstance(answer, Found) else answer, Via.RECONCILE))

    def _run_after_absence(self, state: EffectState, error: NotPerformed) -> Steps[Outcome | None]:
        """The recipient proved that nothing happened: `failed` and the next intent in one commit, then run."""
        call = self.call
        failed = EffectChange(
            phase=FAILED, guarantee=call.guarantee, via=Via.RECONCILE, reason="not-performed", error=error_text(error)
        )
        again = EffectChange(phase=INTENT, guarantee=call.guarantee, owner=self._owner, request=call.request)

        def decide_both(txn: Transaction) -> EffectState | None:
            first = advance(call.form, state.position, failed)(txn)
            return None if first is None else advance(call.form, first.position, again)(txn)

        self._has_begun = True
        begun: EffectState | None = yield Commit(decide_both)
        return None if begun is None else (yield from self.run(begun))

    def _accept(self, begun: EffectState, value: Any, via: Via) -> Steps[Outcome | None]:
        """Record a proof; `None` where the record no longer stands as it did."""
        call = self.call
        try:
            proof, _ = keep_value(value, call.returns, call.value_bytes_max)
        except ValueRejectedError as error:
            if via is Via.RECONCILE:
                raise (yield from self._could_not_ask("proof-rejected", begun, error)) from error
            raise (yield from self._give_up("proof-rejected", error, begun)) from error
        change = EffectChange(phase=ACCEPTED, guarantee=call.guarantee, via=via, proof=proof)
        how = "ran" if via is _RUN else "reconciled"
        if self._following is not None:
            flight = yield from self._enter(self._following)
            if flight is not None:
                return (yield from self._accept_and_begin(begun, change, how, self._following, flight))
        state: EffectState | None = yield from self._commit_outcome(begun, change)
        return None if state is None else _settled(call, state, how)

    def _enter(self, following: EffectCall) -> Steps[Flight | None]:
        try:
            flight: Flight | None = yield Enter(
                "effect", following.key, following.form, following.guarantee, following.request, wait=False
            )
        except JournalError:
            return None
        return flight

    def _accept_and_begin(
        self, begun: EffectState, change: EffectChange, how: str, following: EffectCall, flight: Flight
    ) -> Steps[Outcome | None]:
        """Commit this effect's acceptance and the intent of the next one together."""
        form, owner, is_copy = self.call.form, self._owner, self._is_copy

        ahead: EffectState | None = None

        def decide_both(txn: Transaction) -> tuple[EffectState | None, EffectState | None]:
            nonlocal ahead
            accepted = advance(form, begun.position, change)(txn)
            ahead = None if accepted is None else _begin_if_startable(following, owner, txn, is_copy=is_copy)
            return accepted, ahead

        try:
            accepted, next_begun = yield Commit(decide_both)
        except JournalFullError:
            # The reserve is for outcomes: the next one's intent has to wait for room.
            flight.end()
            state: EffectState | None = yield from self._commit_outcome(begun, change)
            return None if state is None else _settled(self.call, state, how)
        except Exception as error:
            flight.end()
            raise (yield from self._give_up("outcome-unrecorded", error, begun)) from error
        except GeneratorExit:
            raise
        except BaseException:
            if ahead is not None:
                yield Commit(withdraw(following.form, ahead), settles=True)
            raise
        if next_begun is None:
            flight.end()
            return None if accepted is None else _settled(self.call, accepted, how)
        return Outcome(accepted, how, Begun(following, flight, next_begun))

    def _commit_outcome(self, begun: EffectState, change: EffectChange) -> Steps[EffectState | None]:
        """Commit an outcome; where it cannot be written, the intent stands and nothing runs a second time."""
        try:
            state: EffectState | None = yield Commit(advance(self.call.form, begun.position, change), settles=True)
        except Exception as error:
            raise (yield from self._give_up("outcome-unrecorded", error, begun)) from error
        return state

    def _moved_on(self) -> Steps[Outcome]:
        """Somebody else decided while this call was running: give what is on record."""
        call = self.call
        state: EffectState | None = yield Read(partial(last_event, form=call.form))
        if state is not None and state.entry.phase in SETTLED:
            return _settled(call, state, "reused")
        record = record_of(state)
        if record is not None and record.phase == "failed":
            raise EffectFailedError(call.key, record.error or record.reason or "failed", record)
        raise EffectUnresolvedError(call.key, "outcome-unrecorded", record)

    def _give_up(self, reason: str, error: BaseException, begun: EffectState) -> Steps[EffectUnresolvedError]:
        """The intent stands, and everybody may ask about it; the error that says so."""
        released = yield from self._release(reason, error_text(error))
        return EffectUnresolvedError(self.call.key, reason, record_of(released or begun))

    def _release(self, reason: str, text: str) -> Steps[EffectState | None]:
        try:
            state: EffectState | None = yield Commit(release(self.call.form, self._owner, reason, text), settles=True)
        except Exception:  # noqa: BLE001 - whatever it was, the caller is told the reason that came first
            # It could not even be given up on record. This handle knows, since no flight has it any more; other
            # processes learn it when the handle closes.
            yield Note("warning", "effect_unresolved", {"key": self.call.key, "reason": reason, "error": text})
            return None
        return state

    def _could_not_ask(self, reason: str, state: EffectState, error: Exception) -> Steps[EffectUnresolvedError]:
        """Could not ask is not "not there": nothing is recorded; the error that says so.

        But an intent that this very call wrote is given up, or other processes would wait for its living owner.
        """
        if state is self._probed:
            return (yield from self._give_up(reason, error, state))
        facts = {"key": self.call.key, "position": state.position, "reason": reason, "error": error_text(error)}
        yield Note("warning", "effect_unresolved", facts)
        return EffectUnresolvedError(self.call.key, reason, record_of(state))


def check_seconds(seconds: Any, name: str) -> None:
    """Refuse what is no span of time.

    Raises:
        ValueError: it is no positive finite number.
    """
    is_number = isinstance(seconds, _NUMBER) and not isinstance(seconds, bool)
    if not is_number or not 0 < seconds < math.inf:
        raise ValueError(f"{name} must be a positive finite number of seconds, not {seconds!r}")


def _look_up(form: bytes) -> Read:
    return Read(methodcaller("effect", form))


def _begin_if_startable(call: EffectCall, owner: int, txn: Transaction, *, is_copy: bool) -> EffectState | None:
    state = txn.effect(call.form)
    if is_copy and standing(state, txn.restored())[1]:
        return None  # its recipient is asked first, or it is refused
    try:
        check_binding(call, state)
        if state is None:
            refuse_pruned(txn, call.form)
    except (EffectConflictError, EffectPrunedError):
        return None
    if state is not None and state.entry.phase not in (CLEARED, FAILED):
        return None
    change = EffectChange(phase=INTENT, guarantee=call.guarantee, owner=owner, request=call.request)
    return advance(call.form, 0 if state is None else state.position, change)(txn)


def _settled(call: EffectCall, state: EffectState, how: str) -> Outcome:
    if state.entry.phase is UNCERTAIN and call.guarantee is _IDEMPOTENT:
        raise EffectUnresolvedError(call.key, "uncertain", record_of(state))
    return Outcome(state, how)


def _reused(call: EffectCall, state: EffectState) -> Note:
    return Note("debug", "effect_reused", {"key": call.key, "position": state.position})


def _answer(key: Key, entry: EffectEntry, returns: Any) -> Any:
    return decoded(key, b"null" if entry.proof is None else entry.proof, returns)


def decoded(key: Key, data: bytes, returns: Any) -> Any:
    try:
        return decode_value(data, returns)
    except NotOfTypeError as error:
        raise TypeError(f"what is on record of {key!r} cannot be read as {returns!r}: {error}") from error
