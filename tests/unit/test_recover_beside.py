"""`journal/_core/recovery.py` with several operations in flight: the protocols beside each other, in chosen orders."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import pytest

from journal._core import requests
from journal._core.ledger import NOT_STARTED
from journal._core.recovery import recover
from journal._core.requests import Await, Call, Decide, Enter, Pause, Progress, Read, Spawn
from journal._core.schemas import Schema
from journal.errors import EffectFailedError, InvalidOperationError, JournalFullError, NotPerformed
from journal.records import Guarantee, Phase
from journal.values import Committed
from recovery import Intent, Settled
from recovery.lanes import WINDOW_PER_LANE
from tests.unit.crew import LEAD, Crew, Hand, first_free, last_free
from tests.unit.support import OTHER, OTHER_PID, OWN, Boom, Memory, raising, unused

COUNTS: Final = ("ran", "reused", "reconciled", "uncertain", "passed")

Choose = Callable[[list[Hand]], Hand]


def once(key: Any, run: Any = None, reconcile: Any = unused, **options: Any) -> Intent:
    """An intent that runs at most once."""
    return Intent(key, run or (lambda: f"{key}!"), reconcile, **options)


def often(key: Any, run: Any = None, **options: Any) -> Intent:
    """An intent whose recipient deduplicates."""
    return Intent(key, run or (lambda: f"{key}!"), **options)


def beside(
    memory: Memory, *implied: Iterable[Intent], choose: Choose = first_free, concurrency: int = 2, **options: Any
) -> Crew[Settled]:
    """A walk over operations that imply these intents, at positions 1, 2 and so on."""
    for number in range(len(implied)):
        memory.put_operation(f"op-{number + 1}", number)
    given: dict[str, Any] = {
        "intents": lambda committed: implied[committed.operation],
        "stream": None,
        "on_unresolved": "retry",
        "on_uncertain": "accept",
        "limit": None,
        "progress": None,
        "schema": Schema(),
        "owner": OWN,
        "check": lambda intent: None,
    }
    return Crew(recover(0, concurrency=concurrency, **(given | options)), memory, choose)


def counts(settled: Settled) -> dict[str, int]:
    """The counts that are not zero."""
    return {name: getattr(settled, name) for name in COUNTS if getattr(settled, name)}


def stop_of(settled: Settled) -> tuple[int, int, str, str] | None:
    """The cursor, and where and why the walk stopped."""
    stop = settled.stopped
    return None if stop is None else (int(settled), stop.position, str(stop.key), stop.reason)


def until_asks(hand: Hand, kind: type[Any], *, after: int = 0) -> None:
    """Let one protocol alone go on until it asks for this, for the so manieth time."""
    while not isinstance(hand.request, kind) or after:
        after -= isinstance(hand.request, kind)
        assert hand.can_go_on
        hand.step()


def until_spawned(crew: Crew[Settled], count: int) -> None:
    """Let the lead alone go on until so many have been spawned."""
    while len(crew.hands) <= count:
        assert crew.lead.can_go_on
        crew.lead.step()


def until_asked_about(hand: Hand, key: str) -> None:
    """Let one protocol alone go on until it asks a policy about this effect."""
    while not isinstance(hand.request, Decide) or getattr(hand.request.arguments[0], "key", None) != key:
        assert hand.can_go_on
        hand.step()


def to_its_end(hand: Hand) -> None:
    """Let one protocol alone go on to its end."""
    while hand.ended is None:
        assert hand.can_go_on
        hand.step()


# In flight beside each other


@pytest.mark.parametrize("concurrency", [2, 3, 8])
def test_so_many_operations_are_in_flight_at_most(concurrency: int) -> None:
    """And as many, where there are so many; each effect runs once and everything settles."""
    memory = Memory()
    crew = beside(memory, *([once(f"{n}a"), often(f"{n}b")] for n in range(6)), concurrency=concurrency)

    settled = crew.finish()

    assert (int(settled), settled.stopped, counts(settled)) == (6, None, {"ran": 12})
    assert crew.together_max == min(concurrency, 6)
    assert sum(type(request) is Call for _, request, _ in crew.trail) == 12


@pytest.mark.parametrize("seed", range(20))
def test_effects_of_one_operation_keep_their_order(seed: int) -> None:
    """Whatever the others do meanwhile; the outcome of one and the intent of the next share a commit."""
    done: list[str] = []
    memory = Memory()

    def run(key: str) -> Callable[[], None]:
        return lambda: done.append(key)

    crew = beside(
        memory,
        *([once(f"{n}{name}", run(f"{n}{name}")) for name in "abc"] for n in range(4)),
        concurrency=3,
        choose=random.Random(seed).choice,
    )
    crew.finish()

    for n in range(4):
        assert [key for key in done if key[0] == str(n)] == [f"{n}a", f"{n}b", f"{n}c"]
    assert memory.commits == 4 * (3 + 1)


def test_intents_are_asked_for_by_the_lead_and_iterators_resumed_beside() -> None:
    """`intents` is called for one operation after the other, in order; what it gave is gone through by its own walk."""
    asked: list[int] = []
    memory = Memory()

    def intents(committed: Committed) -> Iterable[Intent]:
        asked.append(committed.position)
        return (once(f"{committed.position}{name}") for name in "ab")

    crew = beside(memory, [], [], [], intents=intents)
    crew.finish()

    assert asked == [1, 2, 3]
    assert sum(tag == LEAD for tag, request, _ in crew.trail if type(request) is Decide) == 3
    resumed = [tag for tag, request, _ in crew.trail if type(request) is Decide and request.function is next]
    assert sorted(resumed) == sorted([1, 2, 3] * 3)


def test_nothing_beside_is_spawned_one_after_the_other() -> None:
    """A concurrency of 1 is one walk, which looks ahead from one operation into the next."""
    memory = Memory()
    crew = beside(memory, [once("a")], [once("b")], concurrency=1)

    assert crew.finish() == 2
    assert len(crew.hands) == 1
    assert memory.commits == 3


def test_slow_operation_does_not_let_the_others_pile_up() -> None:
    """What begins past the oldest unsettled one is bounded."""
    memory = Memory()
    asked: list[int] = []

    def intents(committed: Committed) -> list[Intent]:
        asked.append(committed.position)
        return [once("slow")] if committed.position == 1 else []

    crew = beside(memory, *([] for _ in range(3 * WINDOW_PER_LANE)), intents=intents)
    while crew.lead.can_go_on:
        crew.lead.step()

    assert len(asked) == 2 * WINDOW_PER_LANE
    assert crew.finish() == 3 * WINDOW_PER_LANE


@pytest.mark.parametrize("limit, walked", [(1, 1), (2, 2), (3, 3), (9, 4)])
def test_limit_counts_operations(limit: int, walked: int) -> None:
    """None beyond it is looked at."""
    memory = Memory()
    crew = beside(memory, *([once(f"{n}")] for n in range(4)), limit=limit, concurrency=3)

    settled = crew.finish()

    assert (int(settled), counts(settled)) == (walked, {"ran": walked})
    assert len(crew.hands) - 1 == walked


# The settled prefix


def test_cursor_follows_the_settled_prefix() -> None:
    """However far others have come, it stays before the first that has not settled."""
    memory = Memory()
    told: list[int] = []
    crew = beside(
        memory,
        *([once(f"{n}")] for n in range(1, 4)),
        concurrency=3,
        progress=lambda cursor, head: told.append(int(cursor)),
    )
    until_spawned(crew, 3)
    for position in (3, 2):
        to_its_end(crew.hand(position))
    until_asks(crew.lead, Await, after=2)

    assert told == []
    assert crew.finish() == 3
    assert told == [3, 3]


def test_progress_is_told_by_the_lead() -> None:
    """As the prefix grows, and once more at the end."""
    memory = Memory()
    crew = beside(memory, [], [once("a")], [], progress=lambda *_: None, choose=last_free)
    crew.finish()

    told = [(tag, request.cursor, request.is_last) for tag, request, _ in crew.trail if type(request) is Progress]
    assert {tag for tag, *_ in told} == {LEAD}
    assert [cursor for _, cursor, _ in told] == sorted(cursor for _, cursor, _ in told)
    assert [is_last for *_, is_last in told].count(True) == 1
    assert told[-1] == (LEAD, 3, True)


@pytest.mark.parametrize("intents", [[], [once("a", unused)]])
def test_end_of_the_walk_is_noted_once(intents: list[Intent]) -> None:
    """By the lead."""
    memory = Memory()
    beside(memory, intents, on_unresolved="skip").finish()

    assert [note.event for note in memory.notes] == ["recovery_stopped" if intents else "recovery_settled"]


# Stops


@pytest.mark.parametrize("choose", [first_free, last_free])
def test_first_stop_by_position_is_what_the_walk_came_to(choose: Choose) -> None:
    """Whichever comes first in time."""
    memory = Memory()
    crew = beside(
        memory,
        [once("a")],
        [once("b"), once("bad", raising(NotPerformed("no")))],
        [often("worse", raising(Boom("no")))],
        concurrency=3,
    )
    until_spawned(crew, 3)
    crew._choose = choose

    settled = crew.finish()

    assert stop_of(settled) == (1, 2, "bad", "failed")
    assert settled.stopped is not None
    assert type(settled.stopped.error) is EffectFailedError


def test_operations_before_a_stop_go_on_to_their_end() -> None:
    """Their own result decides where the first stop is; those that have not begun do not begin."""
    memory = Memory()
    crew = beside(memory, [once("a"), once("b")], [once("bad", raising(Boom("no")))], [once("never", unused)])
    until_spawned(crew, 2)
    to_its_end(crew.hand(2))

    settled = crew.finish()

    assert stop_of(settled) == (1, 2, "bad", "unresolved")
    assert counts(settled) == {"ran": 2}
    assert memory.phases("never") == []


def test_operations_after_a_stop_record_what_runs_and_start_nothing_more() -> None:
    """The intent that came with the outcome of what ran is withdrawn: known not to have been performed."""
    memory = Memory()
    crew = beside(memory, [once("bad", raising(Boom("no")))], [once("b"), once("c", unused), once("d", unused)])
    until_spawned(crew, 2)
    until_asks(crew.hand(2), Call)
    to_its_end(crew.hand(1))

    settled = crew.finish()

    assert stop_of(settled) == (0, 1, "bad", "unresolved")
    assert counts(settled) == {"ran": 1}
    assert memory.phases("b") == ["intent", "accepted"]
    assert memory.phases("c") == ["intent", "failed"]
    assert memory.last("c").reason == NOT_STARTED
    assert memory.phases("d") == []
    assert memory.in_flight == {}


def test_stop_is_known_before_its_own_walk_has_told_the_lead() -> None:
    """Nothing after it starts from the moment on in which it is found."""
    memory = Memory()
    crew = beside(memory, [once("bad", raising(Boom("no")))], [once("b", unused)])
    until_spawned(crew, 2)
    until_asks(crew.hand(2), Enter)
    to_its_end(crew.hand(1))

    to_its_end(crew.hand(2))

    assert memory.phases("b") == []
    assert stop_of(crew.finish()) == (0, 1, "bad", "unresolved")


def test_stop_that_comes_while_intents_is_asked_lets_nothing_begin() -> None:
    """What the operation implies is known then, and is left."""
    memory = Memory()
    crew = beside(memory, [once("bad", raising(Boom("no")))], [once("b", unused)])
    until_spawned(crew, 1)
    until_asks(crew.lead, Decide)
    to_its_end(crew.hand(1))

    assert stop_of(crew.finish()) == (0, 1, "bad", "unresolved")
    assert len(crew.hands) == 2


def test_operation_that_waits_for_another_process_is_halted() -> None:
    """It has begun nothing yet, and what it waits for is no business of a walk that has stopped."""
    memory = Memory()
    memory.alive[OTHER] = OTHER_PID
    crew = beside(memory, [once("bad", raising(Boom("no")))], [once("theirs", unused)])
    memory.put_effect("theirs", Phase.INTENT, owner=OTHER)
    until_spawned(crew, 2)
    until_asks(crew.hand(2), Pause)
    to_its_end(crew.hand(1))

    assert stop_of(crew.finish()) == (0, 1, "bad", "unresolved")
    assert memory.phases("theirs") == ["intent"]
    assert memory.in_flight == {}


def test_operation_that_waits_for_another_one_is_halted() -> None:
    """What it joined was withdrawn before it ran: it does not begin it itself."""
    memory = Memory()
    crew = beside(
        memory,
        [once("bad", raising(Boom("no")))],
        [once("b"), once("shared", unused), once("c", unused)],
        [once("shared", unused)],
        concurrency=3,
        on_unresolved=lambda intent, record: "retry",
    )
    until_spawned(crew, 3)
    until_asked_about(crew.hand(2), "c")
    assert memory.phases("shared") == ["intent"]
    until_asks(crew.hand(3), Enter)
    assert not crew.hand(3).can_go_on
    to_its_end(crew.hand(1))

    assert stop_of(crew.finish()) == (0, 1, "bad", "unresolved")
    assert memory.phases("shared") == ["intent", "failed"]
    assert memory.last("shared").reason == NOT_STARTED


def test_key_of_two_operations_runs_once() -> None:
    """The second joins the first, and reuses what it came to."""
    memory = Memory()
    crew = beside(memory, [once("a"), once("shared")], [once("shared", unused)])
    until_spawned(crew, 2)
    until_asks(crew.hand(1), Call, after=1)
    until_asks(crew.hand(2), Enter)
    assert not crew.hand(2).can_go_on

    settled = crew.finish()

    assert (int(settled), settled.stopped, counts(settled)) == (2, None, {"ran": 2, "reused": 1})


def test_failure_of_a_key_of_two_operations_stops_before_the_first() -> None:
    """Whichever of them ran it."""
    memory = Memory()
    bad = often("shared", raising(Boom("no")))
    crew = beside(memory, [often("a"), bad], [bad])
    until_spawned(crew, 2)
    until_asks(crew.hand(2), Call)
    until_asks(crew.hand(1), Enter, after=1)

    settled = crew.finish()

    assert stop_of(settled) == (0, 1, "shared", "failed")
    assert memory.phases("shared") == ["intent", "failed"]


@pytest.mark.parametrize("answer", ["accept", "stop"])
def test_policies_are_asked_beside(answer: str) -> None:
    """Each by the walk over the operation that it is about."""
    memory = Memory()
    crew = beside(
        memory,
        [once("a", unused, lambda _: None)],
        [once("b")],
        on_uncertain=lambda intent, record: answer,
        on_unresolved=lambda intent, record: "retry",
    )
    memory.put_effect("a", Phase.INTENT)

    settled = crew.finish()

    assert stop_of(settled) == (None if answer == "accept" else (0, 1, "a", "uncertain"))
    asked = [tag for tag, request, _ in crew.trail if type(request) is Decide and len(request.arguments) == 2]
    assert set(asked) == {1, 2}


# Errors


@pytest.mark.parametrize("error", [Boom("intents"), StopIteration(), KeyError("x")])
def test_exception_of_intents_is_raised_when_those_before_have_ended(error: Exception) -> None:
    """None after it begins."""
    memory = Memory()

    def intents(committed: Committed) -> list[Intent]:
        if committed.position == 2:
            raise error
        return [once(f"{committed.position}a"), once(f"{committed.position}b")]

    crew = beside(memory, [], [], [], intents=intents, concurrency=3)

    with pytest.raises(RuntimeError if isinstance(error, StopIteration) else type(error)):
        crew.finish()

    assert memory.phases("1b") == ["intent", "accepted"]
    assert len(crew.hands) == 2


@pytest.mark.parametrize("implied", [None, 5, [None], [once("b", reconcile_timeout=-1.0)]])
def test_wrong_use_is_raised_when_those_before_have_ended(implied: Any) -> None:
    """What is no iterable, no intent, or of no use."""
    memory = Memory()
    crew = beside(memory, [once("a"), once("b")], implied, [once("c")], choose=last_free)

    with pytest.raises((TypeError, ValueError)):
        crew.finish()

    assert memory.phases("b") == ["intent", "accepted"]
    assert memory.in_flight == {}


@pytest.mark.parametrize("who", ["intents", "policy", "next"])
def test_stop_wins_over_an_error_after_it(who: str) -> None:
    """The walk would never have come so far."""
    memory = Memory()

    def intents(committed: Committed) -> Iterable[Intent]:
        if committed.position == 1:
            return [once("bad", raising(Boom("no")))]
        if who == "intents":
            raise Boom("intents")
        return iter(raise_in_the_middle()) if who == "next" else [once("b")]

    def raise_in_the_middle() -> Iterator[Intent]:
        yield once("b")
        raise Boom("next")

    crew = beside(
        memory,
        [],
        [],
        intents=intents,
        on_unresolved=lambda intent, record: raising(Boom())() if (who, intent.key) == ("policy", "b") else "retry",
    )
    until_spawned(crew, 1)
    if who == "intents":
        until_asks(crew.lead, Await)
    else:
        until_spawned(crew, 2)
        to_its_end(crew.hand(2))

    assert stop_of(crew.finish()) == (0, 1, "bad", "unresolved")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), GeneratorExit()])
def test_operation_that_is_cut_off_withdraws_what_it_had_begun(error: BaseException) -> None:
    """The policy is asked about `c` between the commit that begins `b` and its run."""
    memory = Memory()
    crew = beside(
        memory,
        [once("a"), once("b", unused), once("c", unused)],
        on_unresolved=lambda intent, record: raising(error)() if intent.key == "c" else "retry",
    )

    with pytest.raises(type(error)) as caught:
        crew.finish()

    assert caught.value is error
    assert memory.phases("a") == ["intent", "accepted"]
    assert memory.phases("b") == ["intent", "failed"]
    assert memory.last("b").reason == NOT_STARTED
    assert memory.in_flight == {}


def test_operation_that_todays_type_does_not_decode_is_raised() -> None:
    """With its position, when those before have ended."""
    memory = Memory()
    memory.put_operation("1", 5)
    memory.put_operation("2", "text")
    crew = beside(memory, schema=Schema(int), intents=lambda _: [once("a")])

    with pytest.raises(InvalidOperationError) as caught:
        crew.finish()

    assert caught.value.position == 2
    assert memory.phases("a") == ["intent", "accepted"]


def test_protocol_that_cannot_be_spawned_is_raised() -> None:
    """When those before have ended."""
    memory = Memory()
    crew = beside(memory, [once("a")], [once("b", unused)])
    until_spawned(crew, 1)
    until_asks(crew.lead, Spawn)
    crew.lead.throw(RuntimeError("can't start new thread"))

    with pytest.raises(RuntimeError, match="new thread"):
        crew.finish()

    assert memory.phases("a") == ["intent", "accepted"]


@pytest.mark.parametrize("is_last", [False, True])
def test_exception_of_progress_is_raised(*, is_last: bool) -> None:
    """Before all that is in flight, which starts nothing more."""
    memory = Memory()
    crew = beside(memory, [once("first")], [once("a"), once("b")], progress=lambda *_: None)
    until_spawned(crew, 2)
    until_asks(crew.hand(2), Call)
    to_its_end(crew.hand(1))
    if is_last:
        to_its_end(crew.hand(2))
    until_asks(crew.lead, Progress, after=2 if is_last else 0)
    assert crew.lead.request.is_last is is_last
    crew.lead.throw(Boom("progress"))

    with pytest.raises(Boom):
        crew.finish()

    assert memory.phases("a") == ["intent", "accepted"]
    assert memory.phases("b") == (["intent", "accepted"] if is_last else ["intent", "failed"])
    assert memory.in_flight == {}


def test_exception_of_progress_about_what_was_settled_already_is_raised() -> None:
    """Nothing after it begins."""
    memory = Memory()
    crew = beside(memory, [], [once("a", unused)], progress=raising(Boom("progress")))

    with pytest.raises(Boom):
        crew.finish()

    assert memory.phases("a") == []


# What needs no thread


@pytest.mark.parametrize("kind", [list, tuple])
def test_operations_that_are_settled_already_are_walked_by_the_lead(kind: Callable[[Any], Any]) -> None:
    """They ask for nothing but looks; so many of them cost no more than one after the other."""
    memory = Memory()
    for key in ("a", "b"):
        memory.put_effect(key, Phase.INTENT)
        memory.put_effect(key, Phase.ACCEPTED)
    crew = beside(memory, kind([once("a"), once("b")]), kind([]), kind([once("b")]), on_unresolved=unused)

    settled = crew.finish()

    assert counts(settled) == {"reused": 3}
    assert len(crew.hands) == 1


def test_skipped_operation_is_walked_by_the_lead() -> None:
    """As is what is uncertain and accepted as such: a constant asks nobody."""
    memory = Memory()
    memory.put_effect("u", Phase.INTENT)
    memory.put_effect("u", Phase.UNCERTAIN)
    crew = beside(memory, [once("u")], [once("a", unused)], on_unresolved="skip")

    settled = crew.finish()

    assert (counts(settled), stop_of(settled)) == ({"uncertain": 1}, (3, 4, "a", "skipped"))
    assert len(crew.hands) == 1


def test_damaged_record_is_met_by_the_lead() -> None:
    """The walk over its operation decides what it means."""
    memory = Memory()
    memory.damaged.add(memory.put_effect("a", Phase.INTENT))
    crew = beside(memory, [once("a", unused)], [once("b")], on_unresolved="retry")

    assert stop_of(crew.finish()) == (0, 2, "a", "corrupt")


def test_error_of_the_store_is_raised() -> None:
    """It is no failure of an effect: those before end first."""
    memory = Memory()
    crew = beside(memory, [once("a")], [once("b", unused)])
    until_spawned(crew, 2)
    until_asks(crew.hand(2), Enter)
    crew.hand(2).throw(JournalFullError("/journal", "no room"))

    with pytest.raises(JournalFullError):
        crew.finish()

    assert memory.phases("a") == ["intent", "accepted"]


# Cut off


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3), GeneratorExit()])
def test_what_is_no_exception_goes_out_before_everything_else(error: BaseException) -> None:
    """A run that raises it leaves its intent; what runs beside it is recorded, and nothing more starts."""
    memory = Memory()
    crew = beside(
        memory, [once("a"), once("never", unused)], [once("bad", raising(error))], [once("c", unused)], concurrency=3
    )
    until_spawned(crew, 2)
    until_asks(crew.hand(1), Call)
    to_its_end(crew.hand(2))

    with pytest.raises(type(error)) as caught:
        crew.finish()

    assert caught.value is error
    assert memory.phases("a") == ["intent", "accepted"]
    assert memory.phases("never") == ["intent", "failed"]
    assert memory.phases("bad") == ["intent", "released"]
    assert memory.phases("c") == []


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)])
@pytest.mark.parametrize("at", [Await, Decide, Spawn, Read])
def test_interrupt_of_the_lead_goes_out_at_once(at: type[Any], error: BaseException) -> None:
    """What is in flight is recorded later, by itself, and starts nothing more."""
    memory = Memory()
    crew = beside(memory, [once("a"), once("b", unused)], [once("c", unused)])
    if at is Read:
        memory.page_records = 1
    until_spawned(crew, 1)
    until_asks(crew.hand(1), Call)
    if at is Await:
        until_spawned(crew, 2)
    until_asks(crew.lead, at)

    crew.lead.throw(error)

    with pytest.raises(type(error)):
        crew.result()
    while crew.step():
        pass
    assert memory.phases("a") == ["intent", "accepted"]
    assert memory.phases("b") == ["intent", "failed"]
    assert memory.phases("c") == []
    assert memory.in_flight == {}


def test_lead_that_is_closed_halts_the_others() -> None:
    """It asks for nothing more."""
    memory = Memory()
    crew = beside(memory, [once("a"), once("b", unused)])
    until_spawned(crew, 1)
    until_asks(crew.hand(1), Call)
    until_asks(crew.lead, Await)

    crew.lead.close()

    to_its_end(crew.hand(1))
    assert memory.phases("b") == ["intent", "failed"]


def three_operations(choose: Choose) -> Crew[Settled]:
    """A walk over effects of every kind, some of them shared."""
    memory = Memory()
    crew = beside(
        memory,
        [once("a", None, lambda _: "found"), often("b"), once("open", unused, lambda _: "found")],
        [once("done", unused), often("b")],
        [once("c", None, lambda _: "found"), once("d", None, lambda _: "found")],
        choose=choose,
        progress=lambda *_: None,
    )
    for key, second in (("open", Phase.RELEASED), ("done", Phase.ACCEPTED)):
        memory.put_effect(key, Phase.INTENT)
        memory.put_effect(key, second)
    return crew


def steps_of(choose: Choose) -> int:
    """How many requests the walk over them makes."""
    crew = three_operations(choose)
    crew.finish()
    return len(crew.trail)


@pytest.mark.parametrize("choose", [first_free, last_free])
@pytest.mark.parametrize("tag", [LEAD, 1, 2, 3])
@pytest.mark.parametrize("cut", [KeyboardInterrupt, Boom, None])
def test_walk_that_is_cut_anywhere_can_be_walked_again(
    choose: Choose, tag: Any, cut: Callable[[], BaseException] | None
) -> None:
    """At any request of any of them: every flight ends, and the next walk settles everything, nothing run twice."""
    for step in range(steps_of(choose)):
        crew = three_operations(choose)
        memory = crew.memory
        for _ in range(step):
            crew.step()
        found = [hand for hand in crew.hands if hand.tag == tag and hand.ended is None]
        if not found:
            continue
        (hand,) = found
        if cut is None:
            hand.close()
        else:
            hand.throw(cut())
        while crew.step():
            pass
        assert memory.in_flight == {}
        settled_before = {key for key in ("a", "b", "c", "d", "open") if memory.phases(key)[-1:] == ["accepted"]}

        again = beside(
            memory,
            intents=lambda committed: [
                [once("a", None, lambda _: "found"), often("b"), once("open", unused, lambda _: "found")],
                [once("done", unused), often("b")],
                [once("c", None, lambda _: "found"), once("d", None, lambda _: "found")],
            ][committed.operation],
        ).finish()

        assert again.stopped is None
        assert again.reused == len(settled_before) + 1 + 1
        assert again.ran + again.reconciled == 5 - len(settled_before)


# Against the walk that goes one after the other

KINDS: Final = ("fresh", "fresh", "often", "accepted", "open", "absent", "uncertain", "failed")
TROUBLES: Final = ("refuses", "raises", "raises often", "cannot be asked")


def random_world(draw: random.Random, *, troubles: int) -> tuple[Memory, list[list[Intent]], list[str]]:
    """A journal and what its operations imply, keys shared here and there; `ran` tells the runs that succeeded."""
    kinds = {f"k{n}": draw.choice(KINDS) for n in range(draw.randrange(1, 9))}
    for _ in range(troubles):
        kinds[draw.choice(sorted(kinds))] = draw.choice(TROUBLES)
    memory = Memory()
    ran: list[str] = []
    effects = {key: _intent_of(key, kind, memory, ran) for key, kind in kinds.items()}
    operations = [
        [effects[key] for key in draw.choices(sorted(effects), k=draw.randrange(4))] for _ in range(draw.randrange(7))
    ]
    return memory, operations, ran


def _intent_of(key: str, kind: str, memory: Memory, ran: list[str]) -> Intent:
    def run() -> str:
        if kind in ("refuses", "raises", "raises often"):
            raise NotPerformed("no") if kind == "refuses" else Boom("no")
        ran.append(key)
        return f"{key}!"

    def reconcile(_: Any) -> str | None:
        if kind == "absent":
            raise NotPerformed("no")
        if kind in ("raises", "cannot be asked"):
            raise Boom("500")
        return None if kind == "uncertain" else "found"

    guarantee = Guarantee.IDEMPOTENT if kind in ("often", "raises often") else Guarantee.AT_MOST_ONCE
    if kind in ("accepted", "open", "absent", "uncertain", "cannot be asked", "failed"):
        memory.put_effect(key, Phase.INTENT, guarantee=guarantee)
        last = {"accepted": Phase.ACCEPTED, "failed": Phase.FAILED}.get(kind, Phase.RELEASED)
        memory.put_effect(key, last, guarantee=guarantee)
    return Intent(key, run, None if guarantee is Guarantee.IDEMPOTENT else reconcile)


@pytest.mark.parametrize("troubles", [0, 1, 2])
@pytest.mark.parametrize("block", range(4))
def test_walk_comes_to_what_one_after_the_other_comes_to(block: int, troubles: int) -> None:
    """Over random scripts and orders: the same cursor and stop; without a stop the same counts and records, too."""
    for seed in range(100 * block, 100 * block + 100):
        results = []
        for concurrency in (1, 2, 3, 5):
            draw = random.Random(seed)
            memory, operations, ran = random_world(draw, troubles=troubles)
            policies = {
                "on_unresolved": draw.choice(["retry"] * 4 + ["pass", "skip"]),
                "on_uncertain": draw.choice(["accept", "accept", "stop"]),
            }
            # What is on record came first: positions of operations are those after it.
            crew = beside(memory, *operations, concurrency=concurrency, choose=draw.choice, **policies)
            settled = crew.finish()
            assert len(ran) == len(set(ran)), "an effect ran twice"
            assert memory.in_flight == {}
            check_starts(crew)
            results.append((settled, memory, ran))
        alone, memory_alone, ran_alone = results[0]
        for settled, memory, ran in results[1:]:
            assert stop_of(settled) == stop_of(alone)
            if alone.stopped is None:
                assert (int(settled), counts(settled)) == (int(alone), counts(alone))
                assert sorted(ran) == sorted(ran_alone)
                for n in range(9):
                    assert memory.phases(f"k{n}") == memory_alone.phases(f"k{n}"), seed
            else:
                assert set(ran) >= set(ran_alone), "what comes before the stop ran"


def check_starts(crew: Crew[Settled]) -> None:
    """Hold every start of an effect against the stops that were known when it was asked for."""
    last = {answered.tag: index for index, answered in enumerate(crew.trail)}
    stopped = [
        (hand.tag, last[hand.tag] + 1)
        for hand in crew.hands
        if hand is not crew.lead and hand.ended is not None and hand.ended.value.stopped is not None
    ]
    for tag in {hand.tag for hand in crew.hands if hand is not crew.lead}:
        own = [answered for answered in crew.trail if answered.tag == tag]
        for index, answered in enumerate(own):
            started_at = answered.asked_at
            if isinstance(answered.request, Call):
                before, commit = own[max(0, index - 2)], own[index - 1]
                if isinstance(before.request, requests.Ask):
                    # The recipient proved that it did not happen: it is the same effect that goes on.
                    started_at = before.asked_at
                elif not isinstance(before.request, Enter) or before.request.wait:
                    # Its intent was asked for by itself, and not together with the outcome before.
                    started_at = commit.asked_at
            elif not isinstance(answered.request, requests.Ask):
                continue
            known = [position for position, known_at in stopped if known_at < started_at]
            assert tag <= min(known, default=tag), "started after a stop was known"
