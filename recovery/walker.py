"""The walk over operations: a generator that asks for facts, orders what is to be done, and keeps the settled prefix.

It yields a `Question` and is sent the answer, or has an exception thrown in. It looks one effect ahead where `intents`
gave a list or tuple, so that whoever drives it can commit the outcome of one effect together with the intent of the
next. An iterator is never resumed before the effects ahead of it are settled: its functions may close over what its next
step changes. An exception of the user's own functions that comes up ahead of its time is kept, or the function asked
again, until the effects before are settled.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any, Final, TypeVar

import msgspec

from recovery.decisions import (
    UNCERTAIN_ANSWERS,
    UNRESOLVED_ANSWERS,
    Answer,
    WalkVerdict,
    asked_policy,
    decide_walk,
)
from recovery.intents import Intent, Settled, Stop

T = TypeVar("T")

Policy = str | Callable[..., str]

LOOK_AHEAD_MAX: Final = 64
"""Operations without effects that a look ahead passes before it gives up; they are kept in memory meanwhile."""

_NOTHING: Final = object()


class Operation(msgspec.Struct, frozen=True):
    """What the walk needs to know of an operation; `committed` is for the user's `intents`."""

    position: int
    stream: str
    op_id: str
    committed: Any


class Fact(msgspec.Struct, frozen=True):
    """What is on record of an effect: its phase (none and broken among them) and its record, where it can be read.

    `call` is whatever the one who looked wants to have back when the effect is settled or passed; `error` what the
    direct call would raise for an effect that is uncertain.
    """

    phase: str
    record: Any = None
    call: Any = None
    error: BaseException | None = None


class Ending(msgspec.Struct, frozen=True):
    """What became of an effect: ran, reconciled, reused, uncertain, or the reason of a stop with its error."""

    how: str
    error: BaseException | None = None
    record: Any = None


class Fetch(msgspec.Struct, frozen=True):
    """Give the next `Operation` in order, or `None` at the end."""


class Consult(msgspec.Struct, frozen=True):
    """Call a function of the user's that decides, and give what it returns."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]


class Look(msgspec.Struct, frozen=True):
    """Give the `Fact` about this intent's effect."""

    intent: Intent


class Settle(msgspec.Struct, frozen=True):
    """Bring the effect to its outcome and give its `Ending`.

    `following` is the effect whose first attempt comes next if this one is accepted: it may share the commit.
    """

    fact: Fact
    following: Fact | None


class Pass(msgspec.Struct, frozen=True):
    """Leave the effect unfinished, and see to it that it can be found."""

    fact: Fact


class Report(msgspec.Struct, frozen=True):
    """Everything through this cursor is settled."""

    cursor: int
    is_last: bool


class HaltedError(Exception):
    """Thrown in at any question but a `Report`, it ends the walk there; what was done comes back without a stop."""


Question = Fetch | Consult | Look | Settle | Pass | Report
Steps = Generator[Question, Any, T]


class _Planned(msgspec.Struct, frozen=True):
    """An effect that was decided."""

    operation: Operation
    intent: Intent
    verdict: WalkVerdict
    fact: Fact


class _Done(msgspec.Struct, frozen=True):
    """The end of an operation's effects."""

    operation: Operation


class _Raised(msgspec.Struct, frozen=True):
    """A function of the user's raised."""

    error: Exception


class _End(msgspec.Struct, frozen=True):
    """No operation is left."""


_Item = _Planned | _Done | _Raised | _End


def walk(
    from_cursor: int,
    *,
    intents: Callable[[Any], Iterable[Intent]],
    on_unresolved: Policy,
    on_uncertain: Policy,
    limit: int | None,
) -> Steps[Settled]:
    """Settle the effects of operations in order, up to the first that fails or is skipped.

    Raises:
        TypeError, ValueError: an intent is none, or a policy gave another answer; what came before is settled.
    """
    plan = _Plan(intents, on_unresolved, on_uncertain, limit)
    cursor = from_cursor
    counts = dict.fromkeys(("ran", "reused", "reconciled", "uncertain", "passed"), 0)
    stopped: Stop | None = None
    try:
        while stopped is None:
            item = yield from plan.next_item()
            if isinstance(item, _Raised):
                raise item.error
            if isinstance(item, _End):
                break
            if isinstance(item, _Done):
                cursor = item.operation.position
                yield Report(cursor, is_last=False)
                continue
            ending = yield from _carry_out(item, plan)
            if ending.how in counts:
                counts[ending.how] += 1
            is_settled = ending.how in counts
            if item.verdict is WalkVerdict.STOP_UNCERTAIN:
                is_settled = False
            elif ending.how == "uncertain" and item.verdict is WalkVerdict.SETTLE:
                answer = yield from _ask(on_uncertain, UNCERTAIN_ANSWERS, item.intent, ending.record)
                is_settled = answer is Answer.ACCEPT
            if not is_settled:
                at = item.operation
                stopped = Stop(at.position, at.stream, at.op_id, item.intent.key, ending.how, ending.error)
    except HaltedError:
        pass
    settled = Settled(cursor, stopped, **counts)
    yield Report(cursor, is_last=True)
    return settled


def _carry_out(item: _Planned, plan: _Plan) -> Steps[Ending]:
    if item.verdict is WalkVerdict.SETTLE:
        ahead = yield from plan.look_ahead()
        is_other = ahead is not None and ahead.intent.key != item.intent.key
        ending: Ending = yield Settle(item.fact, ahead.fact if ahead is not None and is_other else None)
        return ending
    if item.verdict is WalkVerdict.PASS:
        yield Pass(item.fact)
        return Ending("passed")
    if item.verdict is WalkVerdict.REUSE:
        return Ending("reused")
    if item.verdict is WalkVerdict.STOP_SKIPPED:
        return Ending("skipped")
    return Ending("uncertain", item.fact.error, item.fact.record)


class _Plan:
    """The operations and effects to come, each decided once, at most one effect ahead."""

    def __init__(
        self,
        intents: Callable[[Any], Iterable[Intent]],
        on_unresolved: Policy,
        on_uncertain: Policy,
        limit: int | None,
    ) -> None:
        self._intents = intents
        self._on_unresolved = on_unresolved
        self._on_uncertain = on_uncertain
        self._left = limit
        self._items: deque[_Item] = deque()
        self._fetched: Operation | None = None
        self._operation: Operation | None = None
        self._pending: Iterator[Intent] = iter(())
        self._is_listed = True
        self._keys: set[Any] = set()

    def next_item(self) -> Steps[_Item]:
        """The next item, decided now or before."""
        if self._items:
            return self._items.popleft()
        item = None if self._operation is not None else (yield from self._open_next(is_ahead=False))
        return (yield from self._decide_next()) if item is None else item

    def look_ahead(self) -> Steps[_Planned | None]:
        """The next effect, where it is to be settled from its start."""
        while len(self._items) < LOOK_AHEAD_MAX:
            if self._items and not isinstance(self._items[-1], _Done):
                break
            if self._operation is None:
                ending = yield from self._open_next(is_ahead=True)
                if ending is not None:
                    self._items.append(ending)
                    break
            if self._operation is None or not self._is_listed:
                return None
            self._items.append((yield from self._decide_next()))
        item = self._items[-1]
        if isinstance(item, _Planned) and item.verdict is WalkVerdict.SETTLE and item.fact.phase in ("none", "failed"):
            return item
        return None

    def _open_next(self, *, is_ahead: bool) -> Steps[_End | _Raised | None]:
        """Make the next operation the one whose effects are decided; what there is instead of one."""
        operation, self._fetched = self._fetched, None
        try:
            if operation is None:
                operation = None if self._left == 0 else (yield Fetch())
                if operation is None:
                    return _End()
                if self._left is not None:
                    self._left -= 1
            implied: Iterable[Intent] = yield Consult(self._intents, (operation.committed,))
            if not isinstance(implied, Iterable):
                raise TypeError(f"intents must give an iterable of Intent, not {type(implied).__name__}: {implied!r}")
            pending = iter(implied)
        except Exception as error:  # noqa: BLE001 - the user's own; raised when the walk gets there
            if not is_ahead or operation is None:
                return _Raised(error)
            # Ahead of the effects before, which it may need: it is asked again after them.
            self._fetched = operation
            return None
        self._operation = operation
        self._is_listed = isinstance(implied, Sequence)
        self._pending = pending
        self._keys = set()
        return None

    def _decide_next(self) -> Steps[_Item]:
        """The next effect of the open operation, decided, or its end."""
        operation = self._operation
        assert operation is not None  # noqa: S101 - opened by the caller
        try:
            intent = yield from self._next_intent()
            if intent is None:
                self._operation = None
                return _Done(operation)
            return (yield from self._decide(operation, intent))
        except Exception as error:  # noqa: BLE001 - the user's own; raised when the walk gets there
            return _Raised(error)

    def _next_intent(self) -> Steps[Intent | None]:
        while True:
            if self._is_listed:
                intent: Any = next(self._pending, _NOTHING)
            else:
                # A generator's next step is the user's code, and may depend on the effects before it.
                intent = yield Consult(next, (self._pending, _NOTHING))
            if intent is _NOTHING:
                return None
            if not isinstance(intent, Intent):
                raise TypeError(f"intents must give Intent values, not {type(intent).__name__}: {intent!r}")
            if intent.key not in self._keys:
                self._keys.add(intent.key)
                return intent

    def _decide(self, operation: Operation, intent: Intent) -> Steps[_Item]:
        fact: Fact = yield Look(intent)
        answers = asked_policy(fact.phase)
        answer: Answer | None = None
        if answers:
            policy = self._on_uncertain if answers is UNCERTAIN_ANSWERS else self._on_unresolved
            answer = yield from _ask(policy, answers, intent, fact.record)
        return _Planned(operation, intent, decide_walk(fact.phase, answer), fact)


def check_policy(name: str, policy: Any, answers: tuple[Answer, ...]) -> None:
    """Refuse a constant that is no answer.

    Raises:
        ValueError: it is none.
        TypeError: it is neither a string nor callable.
    """
    if isinstance(policy, str):
        if policy not in answers:
            raise ValueError(f"{name} must be one of {', '.join(answers)} or a callable, not {policy!r}")
    elif not callable(policy):
        raise TypeError(f"{name} must be a str or a callable, not {type(policy).__name__}: {policy!r}")


def check_policies(on_unresolved: Any, on_uncertain: Any) -> None:
    """Refuse policies that could never answer, before anything is started.

    Raises:
        TypeError, ValueError: one of them is none.
    """
    check_policy("on_unresolved", on_unresolved, UNRESOLVED_ANSWERS)
    check_policy("on_uncertain", on_uncertain, UNCERTAIN_ANSWERS)


def _ask(policy: Policy, answers: tuple[Answer, ...], intent: Intent, record: Any) -> Steps[Answer]:
    said: Any = policy
    if not isinstance(policy, str):
        said = yield Consult(policy, (intent, record))
    if not isinstance(said, str) or said not in answers:
        raise ValueError(f"the policy for {intent.key!r} must answer {', '.join(answers)}, not {said!r}")
    return Answer(said)
