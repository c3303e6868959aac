"""The protocol of `Journal.recover`: answers the walker's questions from the journal, and carries out what it orders."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from typing import Any, Final

from journal._core.effects import Begun, EffectCall, Outcome, check_binding, effect_call, settle
from journal._core.ledger import PASSED, EffectChange, EffectState, advance, record_of, withdraw
from journal._core.operations import (
    check_cursor,
    check_cursor_type,
    check_limit,
    check_stream,
    committed_of,
    page,
)
from journal._core.requests import Commit, Decide, Note, Progress, Read, RunRaisedError, Steps, StoredOperation
from journal.errors import (
    CorruptRecordError,
    EffectConflictError,
    EffectFailedError,
    EffectInFlightError,
    EffectUnresolvedError,
)
from journal.options import PAGE_RECORDS
from journal.records import Guarantee, Phase
from recovery import Ending, Fact, Fetch, Intent, Look, Operation, Pass, Report, Settle, Settled, walk
from recovery.walker import Consult, check_policies

_STOP_REASONS: Final[dict[type[Exception], str]] = {
    EffectFailedError: "failed",
    EffectInFlightError: "in_flight",
    EffectConflictError: "conflict",
    CorruptRecordError: "corrupt",
}


def recover(
    from_cursor: Any,
    *,
    intents: Any,
    stream: Any,
    on_unresolved: Any,
    on_uncertain: Any,
    concurrency: Any,
    limit: Any,
    progress: Any,
    kind: Any,
    owner: int,
    check: Callable[[Intent], None],
) -> Steps[Settled]:
    """The protocol of `Journal.recover`; `check` refuses an intent whose functions its driver cannot call."""
    check_cursor_type(from_cursor)
    check_limit(limit)
    check_limit(concurrency, "concurrency")
    check_policies(on_unresolved, on_uncertain)
    stream = None if stream is None else check_stream(stream)
    if not callable(intents):
        raise TypeError(f"intents must be a function of one operation, not {intents!r}")
    if concurrency != 1:
        raise ValueError(f"concurrency={concurrency} is not supported yet, only 1")
    from_cursor = int(from_cursor)
    head: int = yield Read(lambda view: view.head())
    check_cursor(from_cursor, head)
    walker = walk(from_cursor, intents=intents, on_unresolved=on_unresolved, on_uncertain=on_uncertain, limit=limit)
    hand = _Hand(stream, from_cursor, kind=kind, owner=owner, progress=progress, check=check)
    try:
        settled = yield from _follow(walker, hand)
    except GeneratorExit:
        raise
    except BaseException:
        yield from hand.withdraw()
        raise
    yield _note_of(settled)
    return settled


def _follow(walker: Generator[Any, Any, Settled], hand: _Hand) -> Steps[Settled]:
    try:
        question = next(walker)
        while True:
            try:
                answer = yield from hand.answer(question)
            except Exception as error:  # noqa: BLE001 - the walker decides what an exception means
                question = walker.throw(error)
            else:
                question = walker.send(answer)
    except StopIteration as end:
        settled: Settled = end.value
        return settled


class _Hand:
    """What the walker's questions mean here."""

    def __init__(
        self,
        stream: str | None,
        after: int,
        *,
        kind: Any,
        owner: int,
        progress: Callable[..., Any] | None,
        check: Callable[[Intent], None],
    ) -> None:
        self._stream = stream
        self._after = after
        self._kind = kind
        self._owner = owner
        self._progress = progress
        self._check = check
        self._page: deque[StoredOperation] = deque()
        self._has_ended = False
        self._begun: Begun | None = None

    def answer(self, question: Any) -> Steps[Any]:
        """The answer to one of the walker's questions."""
        if isinstance(question, Look):
            return (yield from self._look(question.intent))
        if isinstance(question, Consult):
            return (yield Decide(question.function, question.arguments))
        if isinstance(question, Fetch):
            return (yield from self._fetch())
        if isinstance(question, Settle):
            return (yield from self._settle(question))
        if isinstance(question, Pass):
            return (yield from self._pass(question.fact.call))
        return (yield from self._report(question))

    def withdraw(self) -> Steps[None]:
        """Take back an intent that was committed ahead and never run: it is known not to have been performed."""
        begun, self._begun = self._begun, None
        if begun is None:
            return
        try:
            yield Commit(withdraw(begun.call.form, begun.state), settles=True)
        finally:
            begun.flight.end()

    def _fetch(self) -> Steps[Operation | None]:
        while not self._page:
            if self._has_ended:
                return None
            found = yield from page(self._stream, self._after, PAGE_RECORDS)
            self._page.extend(found.operations)
            self._after, self._has_ended = found.through, found.ended
        committed = committed_of(self._page.popleft(), self._kind)
        return Operation(committed.position, committed.stream, committed.op_id, committed)

    def _look(self, intent: Intent) -> Steps[Fact]:
        call = _call(intent)
        try:
            state: EffectState | None = yield Read(lambda view: view.effect(call.form))
        except CorruptRecordError:
            return Fact("broken", None, call)
        try:
            check_binding(call, state)
        except EffectConflictError:
            return Fact("broken", record_of(state), call)
        if state is not None and state.entry.phase is Phase.ACCEPTED:
            return Fact("accepted", None, call)
        self._check(intent)
        record = record_of(state)
        if record is not None and record.phase == "uncertain" and call.guarantee is Guarantee.IDEMPOTENT:
            return Fact("uncertain", record, call, EffectUnresolvedError(call.key, "uncertain", record))
        return Fact("none" if record is None else record.phase, record, call)

    def _settle(self, order: Settle) -> Steps[Ending]:
        call: EffectCall = order.fact.call
        following: EffectCall | None = None if order.following is None else order.following.call
        # What was begun ahead is what the walk settles next: it stops nowhere in between.
        begun, self._begun = self._begun, None
        try:
            outcome: Outcome = yield from settle(call, self._owner, begun=begun, following=following)
        except RunRaisedError as raised:
            return Ending("failed", raised.error)
        except EffectUnresolvedError as error:
            return Ending("uncertain" if error.reason == "uncertain" else "unresolved", error, error.record)
        except tuple(_STOP_REASONS) as error:
            return Ending(_STOP_REASONS[type(error)], error)
        self._begun = outcome.begun
        if outcome.state.entry.phase is Phase.UNCERTAIN:
            return Ending("uncertain", record=record_of(outcome.state))
        return Ending(outcome.how)

    def _pass(self, call: EffectCall) -> Steps[None]:
        try:
            state: EffectState | None = yield Read(lambda view: view.effect(call.form))
        except CorruptRecordError:
            return
        if record_of(state) is None:
            change = EffectChange(phase=Phase.FAILED, guarantee=call.guarantee, request=call.request, reason=PASSED)
            yield Commit(advance(call.form, 0 if state is None else state.position, change))

    def _report(self, report: Report) -> Steps[None]:
        if self._progress is not None:
            yield Progress(self._progress, report.cursor, report.is_last)


def _call(intent: Intent) -> EffectCall:
    return effect_call(
        intent.key,
        run=intent.run,
        reconcile=intent.reconcile,
        request=intent.request,
        returns=intent.returns,
        reconcile_timeout=intent.reconcile_timeout,
    )


def _note_of(settled: Settled) -> Note:
    facts: dict[str, Any] = {
        "cursor": int(settled),
        "ran": settled.ran,
        "reused": settled.reused,
        "reconciled": settled.reconciled,
        "uncertain": settled.uncertain,
        "passed": settled.passed,
    }
    stop = settled.stopped
    if stop is None:
        return Note("info", "recovery_settled", facts)
    facts |= {"position": stop.position, "stream": stop.stream, "op_id": stop.op_id, "key": stop.key}
    return Note("warning", "recovery_stopped", facts | {"reason": stop.reason})
