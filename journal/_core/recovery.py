"""The protocol of `Journal.recover`: answers the walker's questions from the journal, and carries out what it orders.

One after the other, one walk goes over all operations. With several in flight, each operation has a walk of its own in a
protocol that is spawned for it, and `recovery.lanes` says which may begin and what their ends come to.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from typing import Any, Final, TypeVar

import msgspec

from journal._core.effects import Begun, EffectCall, Outcome, check_binding, effect_call, settle
from journal._core.ledger import PASSED, EffectChange, EffectState, Tombstone, advance, record_of, withdraw
from journal._core.operations import (
    check_count,
    check_cursor_type,
    check_limit,
    check_stream,
    committed_of,
    page,
)
from journal._core.queries import check_from
from journal._core.requests import (
    Ask,
    Await,
    Call,
    Commit,
    Decide,
    Ended,
    Enter,
    Note,
    Progress,
    Read,
    RunRaisedError,
    Spawn,
    Steps,
    StoredOperation,
    View,
)
from journal._core.schemas import Schema
from journal.errors import (
    CorruptRecordError,
    EffectConflictError,
    EffectFailedError,
    EffectInFlightError,
    EffectPrunedError,
    EffectUnresolvedError,
)
from journal.options import PAGE_RECORDS
from journal.records import Guarantee, Phase
from journal.values import Committed
from recovery import Ending, Fact, Fetch, Intent, Look, Operation, Pass, Report, Settle, Settled, walk
from recovery.lanes import Lanes
from recovery.walker import Consult, HaltedError, check_policies

T = TypeVar("T")

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
    schema: Schema,
    owner: int,
    check: Callable[[Intent], None],
    is_copy: bool = False,
) -> Steps[Settled]:
    """The protocol of `Journal.recover`; `check` refuses an intent whose functions its driver cannot call."""
    check_cursor_type(from_cursor)
    check_limit(limit)
    check_count(concurrency, "concurrency")
    check_policies(on_unresolved, on_uncertain)
    stream = None if stream is None else check_stream(stream)
    if not callable(intents):
        raise TypeError(f"intents must be a function of one operation, not {intents!r}")
    if progress is not None and not callable(progress):
        raise TypeError(f"progress must be a function of cursor and head, not {progress!r}")
    from_cursor = int(from_cursor)
    yield from check_from(stream, from_cursor)
    pages = _Pages(stream, from_cursor, schema)
    if concurrency == 1:
        walker = walk(from_cursor, intents=intents, on_unresolved=on_unresolved, on_uncertain=on_uncertain, limit=limit)
        settled = yield from _walk_all(walker, _Hand(pages.fetch, owner, check, progress, is_copy=is_copy))
    else:
        policies = _Policies(intents, on_unresolved, on_uncertain)
        lanes = Lanes(from_cursor, concurrency)
        beside = _Beside(
            lanes, pages, policies, limit=limit, progress=progress, owner=owner, check=check, is_copy=is_copy
        )
        settled = yield from beside.walk()
    yield _note_of(settled)
    return settled


def _walk_all(walker: Generator[Any, Any, Settled], hand: _Hand) -> Steps[Settled]:
    """One walk over everything, effect after effect."""
    try:
        return (yield from _follow(walker, hand))
    except GeneratorExit:
        raise
    except BaseException:
        yield from hand.withdraw()
        raise


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


class _Pages:
    """The operations after a cursor, read in bounded pages."""

    def __init__(self, stream: str | None, after: int, schema: Schema) -> None:
        self._stream = stream
        self._after = after
        self._schema = schema
        self._page: deque[StoredOperation] = deque()
        self._has_ended = False

    def fetch(self) -> Steps[Operation | None]:
        """The next operation, or `None` at the end."""
        while not self._page:
            if self._has_ended:
                return None
            found = yield from page(self._stream, self._after, PAGE_RECORDS)
            self._page.extend(found.operations)
            self._after, self._has_ended = found.through, found.ended
        committed = committed_of(self._page.popleft(), self._schema)
        return Operation(committed.position, committed.stream, committed.op_id, committed)


class _Hand:
    """What the walker's questions mean here."""

    def __init__(
        self,
        fetch: Callable[[], Steps[Operation | None]],
        owner: int,
        check: Callable[[Intent], None],
        progress: Callable[..., Any] | None = None,
        *,
        is_copy: bool,
    ) -> None:
        self._is_copy = is_copy
        self._fetch = fetch
        self._owner = owner
        self._check = check
        self._progress = progress
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

    def _look(self, intent: Intent) -> Steps[Fact]:
        call = _call(intent)
        state: EffectState | None
        tombstone: Tombstone | None
        try:
            state, tombstone = yield Read(lambda view: _what_is_left(view, call.form))
        except CorruptRecordError:
            return Fact("broken", None, call)
        if tombstone is not None:
            # What was pruned was accepted.
            return Fact("accepted" if tombstone.record.guarantee is call.guarantee else "broken", None, call)
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
            outcome: Outcome = yield from self._act(
                settle(call, self._owner, begun=begun, following=following, is_copy=self._is_copy)
            )
        except RunRaisedError as raised:
            return Ending("failed", raised.error)
        except EffectPrunedError as error:
            # Since the walk looked it was settled and pruned; or it was begun with the other guarantee.
            return Ending("conflict", error) if order.fact.phase == "broken" else Ending("reused")
        except EffectUnresolvedError as error:
            return Ending("uncertain" if error.reason == "uncertain" else "unresolved", error, error.record)
        except tuple(_STOP_REASONS) as error:
            return Ending(_STOP_REASONS[type(error)], error)
        self._begun = outcome.begun
        if outcome.state.entry.phase is Phase.UNCERTAIN:
            return Ending("uncertain", record=record_of(outcome.state))
        return Ending(outcome.how)

    def _act(self, steps: Steps[Outcome]) -> Steps[Outcome]:
        """Bring an effect to its outcome; where others are in flight, it may come to nothing."""
        return steps

    def _pass(self, call: EffectCall) -> Steps[None]:
        try:
            state: EffectState | None = yield Read(lambda view: view.effect(call.form))
        except CorruptRecordError:
            return
        if record_of(state) is None:
            change = EffectChange(phase=Phase.FAILED, guarantee=call.guarantee, request=call.request, reason=PASSED)
            try:
                yield Commit(advance(call.form, 0 if state is None else state.position, change))
            except EffectPrunedError:
                return  # it was accepted, and needs nobody to find it

    def _report(self, report: Report) -> Steps[None]:
        if self._progress is not None:
            yield Progress(self._progress, report.cursor, report.is_last)


class _Policies(msgspec.Struct, frozen=True):
    """What the caller of a walk decides."""

    intents: Callable[[Committed], Iterable[Intent]]
    on_unresolved: Any
    on_uncertain: Any


class _Beside:
    """A walk with several operations in flight: begins each in its turn, and puts together what they came to."""

    def __init__(
        self,
        lanes: Lanes,
        pages: _Pages,
        policies: _Policies,
        *,
        limit: int | None,
        progress: Callable[..., Any] | None,
        owner: int,
        check: Callable[[Intent], None],
        is_copy: bool,
    ) -> None:
        self._is_copy = is_copy
        self._lanes = lanes
        self._pages = pages
        self._policies = policies
        self._left = limit
        self._progress = progress
        self._owner = owner
        self._check = check

    def walk(self) -> Steps[Settled]:
        """Everything that is to be walked, up to the first stop or error once all before it have ended."""
        lanes = self._lanes
        try:
            while lanes.may_start or lanes.in_flight:
                if lanes.may_start:
                    yield from self._start_next()
                else:
                    yield from self._await_one()
        except BaseException:
            # Cut off here, or ended from outside: what is in flight is recorded, and nothing more starts.
            lanes.halt()
            raise
        settled = lanes.result()
        yield from self._tell(is_last=True)
        return settled

    def _start_next(self) -> Steps[None]:
        lanes = self._lanes
        try:
            operation = None if self._left == 0 else (yield from self._pages.fetch())
            if operation is None:
                lanes.has_no_more()
                return
            if self._left is not None:
                self._left -= 1
            implied = yield Decide(self._policies.intents, (operation.committed,))
            yield from self._start(operation, implied)
        except Exception as error:  # noqa: BLE001 - the user's own, or the store's; raised when those before have ended
            lanes.fail_next(error)

    def _start(self, operation: Operation, implied: Any) -> Steps[None]:
        """Walk over an operation here for as long as that only looks; what acts, or calls the user, runs beside."""
        lanes, position = self._lanes, operation.position
        walking = self._walk_one(operation, implied)
        walked: Settled | None = None
        request: Any = None
        try:
            request = next(walking)
            while isinstance(request, Read):
                try:
                    answer = yield request
                except Exception as error:  # noqa: BLE001 - the walk decides what an exception means
                    request = walking.throw(error)
                else:
                    request = walking.send(answer)
        except StopIteration as end:
            walked = end.value
        if walked is None:
            yield Spawn(_go_on(walking, request), position)
        lanes.start(position)
        if walked is not None:
            yield from self._settle(position, walked)

    def _await_one(self) -> Steps[None]:
        ended: Ended = yield Await()
        if ended.error is not None:
            self._lanes.fail(ended.tag, ended.error)
        else:
            yield from self._settle(ended.tag, ended.value)

    def _settle(self, position: int, walked: Settled) -> Steps[None]:
        if self._lanes.settle(position, walked):
            try:
                yield from self._tell(is_last=False)
            except Exception as error:  # noqa: BLE001 - the user's own; raised when what is in flight has ended
                self._lanes.fail_here(error)
                self._progress = None

    def _tell(self, *, is_last: bool) -> Steps[None]:
        if self._progress is not None:
            yield Progress(self._progress, self._lanes.cursor, is_last)

    def _walk_one(self, operation: Operation, implied: Any) -> Steps[Settled]:
        """The walk over one operation, beside those over others."""
        policies, lanes, position = self._policies, self._lanes, operation.position
        hand = _HandOfOne(
            operation, implied, self._owner, self._check, lambda: lanes.is_halted(position), is_copy=self._is_copy
        )
        walker = walk(
            position - 1,
            intents=hand.give_implied,
            on_unresolved=policies.on_unresolved,
            on_uncertain=policies.on_uncertain,
            limit=1,
        )
        try:
            settled = yield from _follow(walker, hand)
        except GeneratorExit:
            raise
        except BaseException as error:
            lanes.halt_by(position, error)
            # The user's iterator ends with the walk over it, and not when somebody lets go of the error.
            walker.close()
            yield from hand.withdraw()
            raise
        if settled.stopped is not None:
            lanes.halt_after(position)
        yield from hand.withdraw()
        return settled


class _HandOfOne(_Hand):
    """What the questions of a walk over one operation mean; where it is halted, it begins nothing more."""

    def __init__(
        self,
        operation: Operation,
        implied: Any,
        owner: int,
        check: Callable[[Intent], None],
        is_halted: Callable[[], bool],
        *,
        is_copy: bool,
    ) -> None:
        super().__init__(lambda: _give(operation), owner, check, is_copy=is_copy)
        self._implied = implied
        self._is_halted = is_halted

    def give_implied(self, _: Any) -> Any:
        """What the user's `intents` gave before, once: the error of an effect may keep this hand, and not that."""
        implied, self._implied = self._implied, None
        return implied

    def answer(self, question: Any) -> Steps[Any]:
        """As the other hand's, while it goes on."""
        if not isinstance(question, Report):
            self._check_goes_on()
        if isinstance(question, Consult) and question.function == self.give_implied:
            # It calls nobody.
            return question.function(*question.arguments)
        return (yield from super().answer(question))

    def _act(self, steps: Steps[Outcome]) -> Steps[Outcome]:
        """It may have to wait for others before it begins anything, and be halted meanwhile."""
        has_begun = False
        try:
            request = next(steps)
            while True:
                try:
                    if not has_begun and isinstance(request, Commit):
                        self._check_goes_on()
                    has_begun = has_begun or isinstance(request, Commit | Call | Ask)
                    answer = yield request
                    # A flight that it was given is the steps' to end: what they ask next is looked at.
                    if not has_begun and not isinstance(request, Enter):
                        self._check_goes_on()
                except BaseException as error:  # noqa: BLE001 - the steps decide what it means
                    request = steps.throw(error)
                else:
                    request = steps.send(answer)
        except StopIteration as end:
            outcome: Outcome = end.value
            return outcome

    def _check_goes_on(self) -> None:
        if self._is_halted():
            raise HaltedError


def _what_is_left(view: View, form: bytes) -> tuple[EffectState | None, Tombstone | None]:
    state = view.effect(form)
    return state, view.pruned(form) if state is None else None


def _go_on(steps: Steps[T], request: Any) -> Steps[T]:
    """The rest of a protocol that has asked for this and was not answered."""
    try:
        while True:
            try:
                answer = yield request
            except BaseException as error:  # noqa: BLE001 - the steps decide what it means
                request = steps.throw(error)
            else:
                request = steps.send(answer)
    except StopIteration as end:
        value: T = end.value
        return value


def _give(operation: Operation) -> Steps[Operation]:
    yield from ()
    return operation


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
