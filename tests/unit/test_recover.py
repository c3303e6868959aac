"""`journal/_core/recovery.py`: the protocol of a walk, request by request."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec
import pytest

from journal._core.keys import key_form
from journal._core.ledger import NOT_STARTED, PASSED
from journal._core.recovery import recover
from journal._core.requests import (
    Ask,
    Call,
    Commit,
    CutOffError,
    DeadlineError,
    Decide,
    Enter,
    IsAlive,
    Pause,
    Progress,
    Read,
    RunRaisedError,
)
from journal._core.schemas import Schema
from journal.errors import (
    CorruptRecordError,
    EffectConflictError,
    EffectFailedError,
    EffectInFlightError,
    EffectPrunedError,
    EffectUnresolvedError,
    InvalidCursorError,
    InvalidOperationError,
    JournalFullError,
    JournalReadonlyError,
    NotPerformed,
)
from journal.records import Guarantee, OperationRecord, Phase
from journal.values import Committed
from recovery import Intent, Settled, Stop
from tests.unit.support import OTHER, OTHER_PID, OWN, Boom, Memory, Play, raising, unused

ONCE, OFTEN = Guarantee.AT_MOST_ONCE, Guarantee.IDEMPOTENT
INTENT, ACCEPTED, UNCERTAIN, FAILED, RELEASED, CLEARED = (
    Phase.INTENT,
    Phase.ACCEPTED,
    Phase.UNCERTAIN,
    Phase.FAILED,
    Phase.RELEASED,
    Phase.CLEARED,
)
FULL: Final = JournalFullError("/journal", "no room")


def once(key: Any, run: Any = None, reconcile: Any = unused, **options: Any) -> Intent:
    """An intent that runs at most once."""
    return Intent(key, run or (lambda: f"{key}!"), reconcile, **options)


def often(key: Any, run: Any = None, **options: Any) -> Intent:
    """An intent whose recipient deduplicates."""
    return Intent(key, run or (lambda: f"{key}!"), **options)


def walking(memory: Memory, *implied: list[Intent], after: int = 0, **options: Any) -> Play[Settled]:
    """A walk over operations that imply these intents: one operation each, appended where the journal has fewer."""
    positions = [position for position, (record, _) in enumerate(memory.log, 1) if isinstance(record, OperationRecord)]
    positions += [memory.put_operation(f"op-{number}", number) for number in range(len(positions), len(implied))]
    by_position = dict(zip(positions, implied, strict=True))
    given: dict[str, Any] = {
        "intents": lambda committed: by_position[committed.position],
        "stream": None,
        "on_unresolved": "retry",
        "on_uncertain": "accept",
        "concurrency": 1,
        "limit": None,
        "progress": None,
        "schema": Schema(),
        "owner": OWN,
        "check": lambda intent: None,
    }
    return Play(recover(after, **(given | options)), memory)


def counts(settled: Settled) -> dict[str, int]:
    """The counts that are not zero."""
    names = ("ran", "reused", "reconciled", "uncertain", "passed")
    return {name: getattr(settled, name) for name in names if getattr(settled, name)}


def acting(play: Play[Any]) -> list[str]:
    """What a walk did, without its looks."""
    return [name for name in play.asked if name not in ("Read", "Decide")]


# The order


def test_effects_of_the_walk_share_their_commits() -> None:
    """n never-started effects cost n + 1 commits; each intent is durable before its run, none is run twice."""
    memory = Memory()
    seen: list[tuple[list[str], list[str], list[str]]] = []

    def look() -> str:
        seen.append((memory.phases("a"), memory.phases("b"), memory.phases("c")))
        return "proof"

    play = walking(memory, [once("a", look), often("b", look)], [once("c", look)])
    settled = play.finish()

    assert (int(settled), settled.stopped, counts(settled)) == (2, None, {"ran": 3})
    assert seen == [
        (["intent"], [], []),
        (["intent", "accepted"], ["intent"], []),
        (["intent", "accepted"], ["intent", "accepted"], ["intent"]),
    ]
    assert acting(play) == ["Enter", "Commit", "Call", "Enter", "Commit", "Call", "Enter", "Commit", "Call", "Commit"]
    assert memory.commits == 4
    assert [hold.ends for hold in memory.holds] == [[None], [None], [None]]


def test_no_users_code_runs_between_a_run_and_its_commit() -> None:
    """What `intents` and the policies say about the next effect is asked before this one runs."""
    play = walking(Memory(), [once("a")], [once("b")], on_unresolved=lambda intent, record: "retry")

    while type(play.request) is not Call:
        play.does(type(play.request))
    play.does(Call)

    play.run(Enter).expect(Commit)
    assert play.asked[: play.asked.index("Call")].count("Decide") == 4


@pytest.mark.parametrize("after, cursor", [(0, 3), (1, 3), (2, 3), (3, 3)])
def test_walk_begins_past_its_cursor(after: int, cursor: int) -> None:
    """The cursor is exclusive; at the head there is nothing to do."""
    memory = Memory()

    settled = walking(memory, [once("a")], [once("b")], [once("c")], after=after).finish()

    assert settled == cursor
    assert counts(settled) == ({"ran": 3 - after} if after < 3 else {})


@pytest.mark.parametrize(
    "wrong, error",
    [
        ({"intents": None}, TypeError),
        ({"stream": ""}, ValueError),
        ({"on_unresolved": "never"}, ValueError),
        ({"on_uncertain": None}, TypeError),
        ({"concurrency": 0}, ValueError),
        ({"concurrency": None}, TypeError),
        ({"progress": 5}, TypeError),
        ({"limit": 0}, ValueError),
        ({"after": "1"}, TypeError),
    ],
)
def test_argument_of_no_use_is_refused(wrong: dict[str, Any], error: type[Exception]) -> None:
    """Before anything is read."""
    memory = Memory()

    with pytest.raises(error):
        walking(memory, [], **wrong)

    assert memory.commits == 0


def test_walk_of_one_stream_takes_its_name() -> None:
    """Checked as everywhere."""
    assert walking(Memory(), [once("a", unused)], stream="other").finish() == 0


@pytest.mark.parametrize("cursor", [-1, 2])
def test_cursor_outside_the_log_is_refused(cursor: int) -> None:
    """Held against the head before anything else."""
    memory = Memory()
    memory.put_operation("1")

    with pytest.raises(InvalidCursorError) as caught:
        Play(
            recover(
                cursor,
                intents=unused,
                stream=None,
                on_unresolved="retry",
                on_uncertain="accept",
                concurrency=1,
                limit=None,
                progress=None,
                schema=Schema(),
                owner=OWN,
                check=unused,
            ),
            memory,
        ).run(Read)

    assert (caught.value.cursor, caught.value.head) == (cursor, 1)


def test_operations_are_read_in_pages() -> None:
    """Memory does not grow with the tail: the next page is read when the one before is used up."""
    memory = Memory()
    memory.page_records = 2

    play = walking(memory, *([] for _ in range(5)))

    assert play.finish() == 5
    assert play.asked == ["Read", "Read", "Decide", "Decide", "Read", "Decide", "Decide", "Read", "Decide"]


def test_walk_of_a_stream_sees_its_operations_alone() -> None:
    """The others are left to their own readers."""
    memory = Memory()
    for number, stream in enumerate(["s", "t", "s"]):
        memory.put_operation(f"{number}", stream=stream)
    seen: list[int] = []

    def intents(committed: Committed) -> list[Intent]:
        seen.append(committed.position)
        return []

    settled = walking(memory, [], [], [], stream="s", intents=intents).finish()

    assert (int(settled), seen) == (3, [1, 3])


def test_intents_are_given_the_operation_as_decoded() -> None:
    """With its position, stream and identity, and the declared type."""

    class Order(msgspec.Struct):
        number: int

    memory = Memory()
    memory.put_operation("1", {"number": 7})
    seen: list[Committed] = []

    def intents(committed: Committed) -> list[Intent]:
        seen.append(committed)
        return []

    walking(memory, [], schema=Schema(Order), intents=intents).finish()

    assert seen == [Committed("s", 1, 1, "1", "", memory.at, Order(7))]


def test_limit_ends_the_walk() -> None:
    """After so many operations."""
    settled = walking(Memory(), [once("a")], [once("b")], limit=1).finish()

    assert (int(settled), counts(settled)) == (1, {"ran": 1})


# What is on record


@pytest.mark.parametrize("make, guarantee", [(once, ONCE), (often, OFTEN)])
def test_accepted_effect_is_reused(make: Callable[..., Intent], guarantee: Guarantee) -> None:
    """Nobody is asked, and the function that it would not call is not looked at."""
    memory = Memory()
    memory.put_effect("a", INTENT, guarantee=guarantee)
    memory.put_effect("a", ACCEPTED, guarantee=guarantee)

    play = walking(memory, [make("a", unused)], on_unresolved=unused, on_uncertain=unused, check=unused)
    settled = play.finish()

    assert (int(settled), counts(settled)) == (3, {"reused": 1})
    assert acting(play) == []


def test_open_intent_is_reconciled() -> None:
    """As the direct call would, and counted as such."""
    memory = Memory()
    memory.put_effect("a", INTENT)
    memory.put_effect("a", RELEASED)

    settled = walking(memory, [once("a", unused, lambda _: "found")]).finish()

    assert counts(settled) == {"reconciled": 1}
    assert memory.phases("a") == ["intent", "released", "accepted"]


def test_effect_that_was_proved_absent_is_run() -> None:
    """It counts as run."""
    memory = Memory()
    memory.put_effect("a", INTENT)
    memory.put_effect("a", RELEASED)

    settled = walking(memory, [once("a", None, raising(NotPerformed("no")))]).finish()

    assert counts(settled) == {"ran": 1}
    assert memory.phases("a") == ["intent", "released", "failed", "intent", "accepted"]


@pytest.mark.parametrize("answer, cursor", [("accept", 3), ("stop", 0)])
def test_effect_that_becomes_uncertain_is_decided_about(answer: str, cursor: int) -> None:
    """The policy is given the record of the walk's own verdict."""
    memory = Memory()
    memory.put_effect("a", INTENT)
    memory.put_effect("a", RELEASED)
    seen: list[tuple[Any, str]] = []

    def on_uncertain(intent: Intent, record: Any) -> str:
        seen.append((intent.key, record.phase))
        return answer

    settled = walking(memory, [once("a", unused, lambda _: None)], on_uncertain=on_uncertain).finish()

    assert (int(settled), counts(settled), seen) == (cursor, {"uncertain": 1}, [("a", "uncertain")])
    assert settled.stopped == (None if cursor else Stop(3, "s", "op-0", "a", "uncertain"))


def test_uncertain_effect_of_before_is_decided_about() -> None:
    """Nobody else is asked."""
    memory = Memory()
    memory.put_effect("a", INTENT)
    memory.put_effect("a", UNCERTAIN)

    settled = walking(memory, [once("a", unused)], on_uncertain="stop").finish()

    assert settled.stopped == Stop(3, "s", "op-0", "a", "uncertain")


def test_uncertain_run_effect_of_before_is_decided_about() -> None:
    """Accepted as uncertain it needs no result: the walk goes on."""
    memory = Memory()
    memory.put_effect("a", INTENT, guarantee=OFTEN)
    memory.put_effect("a", UNCERTAIN, guarantee=OFTEN)

    settled = walking(memory, [often("a", unused)]).finish()

    assert (int(settled), counts(settled)) == (3, {"uncertain": 1})


@pytest.mark.parametrize("policy", ["skip", lambda intent, record: "skip"])
def test_skipped_effect_stops_the_walk(policy: Any) -> None:
    """Before its operation, and nothing is written."""
    memory = Memory()

    settled = walking(memory, [once("a", unused)], [once("b", unused)], on_unresolved=policy).finish()

    assert (int(settled), settled.stopped) == (0, Stop(1, "s", "op-0", "a", "skipped"))
    assert memory.commits == 0


# Passed over


@pytest.mark.parametrize("make, guarantee", [(once, ONCE), (often, OFTEN)])
@pytest.mark.parametrize("is_cleared", [False, True])
def test_passed_effect_that_was_never_started_is_put_on_record(
    make: Callable[..., Intent], guarantee: Guarantee, *, is_cleared: bool
) -> None:
    """As failed with reason `passed`, 0 attempts, bound as by an intent: so that `unfinished` lists it."""
    memory = Memory()
    if is_cleared:
        memory.put_effect("a", INTENT)
        memory.put_effect("a", CLEARED)

    settled = walking(memory, [make("a", unused, request="r")], on_unresolved="pass").finish()

    assert (int(settled), counts(settled)) == (3 if is_cleared else 1, {"passed": 1})
    entry = memory.last("a")
    assert (entry.phase, entry.reason, entry.attempts, entry.guarantee) == (FAILED, PASSED, 0, guarantee)
    assert entry.request is not None


@pytest.mark.parametrize("phases", [(INTENT,), (INTENT, RELEASED), (INTENT, FAILED), (FAILED,)])
def test_passed_effect_that_is_on_record_is_left_as_it_is(phases: tuple[Phase, ...]) -> None:
    """It can be found already."""
    memory = Memory()
    for phase in phases:
        memory.put_effect("a", phase)

    settled = walking(memory, [once("a", unused)], on_unresolved="pass").finish()

    assert counts(settled) == {"passed": 1}
    assert memory.phases("a") == [phase.word for phase in phases]
    assert memory.commits == 0


def test_passed_effect_whose_record_is_damaged_is_left_as_it_is() -> None:
    """It is no evidence of absence: nothing is written over it."""
    memory = Memory()
    memory.damaged.add(memory.put_effect("a", INTENT))

    settled = walking(memory, [once("a", unused)], [once("b")], on_unresolved=pass_broken).finish()

    assert (int(settled), counts(settled)) == (3, {"ran": 1, "passed": 1})


def pass_broken(intent: Intent, record: Any) -> str:
    """A policy that passes `a` alone, of which nothing can be told."""
    assert record is None
    return "pass" if intent.key == "a" else "retry"


def test_passed_effect_that_was_begun_meanwhile_is_left_as_it_is() -> None:
    """Another process was there first: its intent stands."""
    memory = Memory()
    play = walking(memory, [once("a", unused)], on_unresolved="pass").run(Read, Read, Decide, Read, Read)
    memory.put_effect("a", INTENT, owner=OTHER)

    settled = play.finish()

    assert (int(settled), counts(settled)) == (1, {"passed": 1})
    assert memory.phases("a") == ["intent"]


# Stops


def stopped_by(memory: Memory, intent: Intent) -> tuple[str, BaseException | None]:
    """The reason and error of the stop at this intent; what came before stays settled."""
    settled = walking(memory, [often("before")], [intent], [once("after", unused)]).finish()

    stop = settled.stopped
    assert stop is not None
    assert (stop.stream, stop.op_id, stop.key) == ("s", "op-1", "a")
    assert (int(settled), counts(settled)) == (stop.position - 1, {"ran": 1})
    assert memory.in_flight == {}
    return stop.reason, stop.error


def test_effect_that_was_not_performed_stops_as_failed() -> None:
    """With the error that the direct call would have raised."""
    reason, error = stopped_by(Memory(), once("a", raising(NotPerformed("no"))))

    assert reason == "failed"
    assert type(error) is EffectFailedError


@pytest.mark.parametrize("raised", [Boom("500"), NotPerformed("no"), StopIteration(), EffectConflictError("b", "why")])
def test_run_effect_that_raises_stops_as_failed(raised: Exception) -> None:
    """With the very exception, whatever it is."""
    reason, error = stopped_by(Memory(), often("a", raising(raised)))

    assert reason == "failed"
    assert error is raised


def test_effect_that_raises_stops_as_unresolved() -> None:
    """Its intent stands."""
    memory = Memory()

    reason, error = stopped_by(memory, once("a", raising(Boom("500"))))

    assert reason == "unresolved"
    assert isinstance(error, EffectUnresolvedError)
    assert error.reason == "run-failed"
    assert memory.phases("a") == ["intent", "released"]


def test_recipient_that_cannot_be_asked_stops_as_unresolved() -> None:
    """Nothing is recorded."""
    memory = Memory()
    memory.put_effect("a", INTENT)
    memory.put_effect("a", RELEASED)

    reason, error = stopped_by(memory, once("a", unused, raising(Boom("500"))))

    assert (reason, type(error)) == ("unresolved", EffectUnresolvedError)


def test_effect_of_another_process_stops_as_in_flight() -> None:
    """When its owner lives longer than the wait."""
    memory = Memory()
    memory.put_effect("a", INTENT, owner=OTHER)
    memory.alive[OTHER] = OTHER_PID
    play = walking(memory, [once("a", unused)])
    play.run(Read, Read, Decide, Read, Read, Enter, Read, IsAlive)

    settled = play.raises(Pause, DeadlineError()).finish()

    assert settled.stopped is not None
    assert (settled.stopped.reason, type(settled.stopped.error)) == ("in_flight", EffectInFlightError)


@pytest.mark.parametrize("guarantee, request_", [(OFTEN, None), (ONCE, b"another request!")])
def test_effect_of_something_else_stops_as_conflict(guarantee: Guarantee, request_: bytes | None) -> None:
    """A changed guarantee or request, with its record."""
    memory = Memory()
    memory.put_effect("a", INTENT, guarantee=guarantee, request=request_)
    memory.put_effect("a", ACCEPTED, guarantee=guarantee)

    reason, error = stopped_by(memory, once("a", unused, request="r"))

    assert reason == "conflict"
    assert isinstance(error, EffectConflictError)
    assert error.record.phase == "accepted"


def test_policy_is_asked_about_an_effect_of_something_else() -> None:
    """With the record that the key is bound by."""
    memory = Memory()
    memory.put_effect("a", INTENT, guarantee=OFTEN)
    seen: list[Any] = []

    def policy(intent: Intent, record: Any) -> str:
        seen.append((intent.key, record.guarantee))
        return "pass"

    settled = walking(memory, [once("a", unused)], on_unresolved=policy).finish()

    assert (counts(settled), seen) == ({"passed": 1}, [("a", "idempotent")])
    assert memory.phases("a") == ["intent"]


def test_damaged_record_stops_as_corrupt() -> None:
    """With the record's position; it is never taken for an effect that did not run."""
    memory = Memory()
    memory.damaged.add(memory.put_effect("a", INTENT))

    reason, error = stopped_by(memory, once("a", unused))

    assert reason == "corrupt"
    assert isinstance(error, CorruptRecordError)
    assert error.position == 1


@pytest.mark.parametrize("answer, cursor", [("accept", 2), ("stop", 0)])
@pytest.mark.parametrize("is_before", [False, True])
def test_run_effect_that_a_person_resolved_as_uncertain_is_decided_about(
    answer: str, cursor: int, *, is_before: bool
) -> None:
    """Before the walk came to it or meanwhile: where the policy stops, with what the direct call would have raised."""
    memory = Memory()
    memory.put_effect("a", INTENT, guarantee=OFTEN)
    seen: list[str] = []

    def on_uncertain(intent: Intent, record: Any) -> str:
        seen.append(record.phase)
        return answer

    play = walking(memory, [often("a", unused)], on_uncertain=on_uncertain).run(Read, Read, Decide)
    if not is_before:
        play.does(Read)
    memory.put_effect("a", UNCERTAIN, guarantee=OFTEN)

    settled = play.finish()

    assert (int(settled), counts(settled), seen) == (cursor, {"uncertain": 1}, ["uncertain"])
    if answer == "stop":
        assert settled.stopped is not None
        assert (settled.stopped.reason, type(settled.stopped.error)) == ("uncertain", EffectUnresolvedError)


def test_exception_of_a_flight_that_was_joined_stops_as_its_own() -> None:
    """A direct call in another thread had it: what that one's run raised is what this walk is told."""
    error = Boom("500")
    play = walking(Memory(), [often("a", unused)]).run(Read, Read, Decide, Read, Read)

    settled = play.raises(Enter, RunRaisedError(error)).finish()

    assert settled.stopped == Stop(1, "s", "op-0", "a", "failed", error)


@pytest.mark.parametrize("error", [FULL, JournalReadonlyError("/journal"), OSError("odd")])
def test_error_of_the_store_is_raised(error: Exception) -> None:
    """It is no failure of the effect."""
    play = walking(Memory(), [once("a", unused)]).run(Read, Read, Decide, Read, Read)

    with pytest.raises(type(error)):
        play.raises(Enter, error).finish()


def test_function_that_is_refused_is_raised() -> None:
    """A coroutine function in an intent is wrong use, told before anything of it is written."""
    memory = Memory()

    with pytest.raises(TypeError, match="coroutine"):
        walking(memory, [often("a")], [once("b")], check=refuse_b).finish()

    assert (memory.phases("a"), memory.phases("b")) == (["intent", "accepted"], [])


def refuse_b(intent: Intent) -> None:
    """A check that refuses the functions of `b`."""
    if intent.key == "b":
        raise TypeError("run is a coroutine function")


def test_intent_of_no_use_is_raised() -> None:
    """A key that is none, a timeout below zero: told when the walk gets there."""
    memory = Memory()

    with pytest.raises(ValueError, match="reconcile_timeout"):
        walking(memory, [often("a")], [once("b", reconcile_timeout=-1.0)]).finish()

    assert memory.phases("a") == ["intent", "accepted"]


def test_operation_that_todays_type_does_not_decode_is_raised() -> None:
    """With its position; what came before is settled."""
    memory = Memory()
    memory.put_operation("1", 5)
    memory.put_operation("2", "text")

    with pytest.raises(InvalidOperationError) as caught:
        walking(memory, [often("a")], [], schema=Schema(int)).finish()

    assert caught.value.position == 2
    assert memory.phases("a") == ["intent", "accepted"]


def test_damaged_page_is_raised() -> None:
    """What came before is settled."""
    memory = Memory()
    memory.page_records = 1
    error = CorruptRecordError(2, "damaged")
    play = walking(memory, [once("a")], [once("b", unused)]).run(Read, Read, Decide, Read)

    play.raises(Read, error)
    with pytest.raises(CorruptRecordError) as caught:
        play.finish()

    assert caught.value is error
    assert memory.phases("a") == ["intent", "accepted"]


# Progress and the log


def test_progress_is_told_of_each_operation_and_of_the_end() -> None:
    """With the cursor, and marked as the last; how often it is called is the driver's to bound."""
    seen: list[tuple[int, int]] = []
    memory = Memory()

    play = walking(memory, [], [once("a")], progress=lambda cursor, head: seen.append((cursor, head)))
    requests: list[tuple[int, bool]] = []
    while not play.is_done:
        if isinstance(play.request, Progress):
            requests.append((play.request.cursor, play.request.is_last))
        play.does(type(play.request))

    assert requests == [(1, False), (2, False), (2, True)]
    assert seen == [(1, 2), (2, 4), (2, 4)]


@pytest.mark.parametrize("intents", [[], [once("a", unused)]])
def test_end_of_the_walk_is_noted(intents: list[Intent]) -> None:
    """Settled as information, stopped as a warning, with the counts and the place."""
    memory = Memory()

    walking(memory, intents, on_unresolved="skip").finish()

    (note,) = memory.notes
    zero = dict.fromkeys(("ran", "reused", "reconciled", "uncertain", "passed"), 0)
    if not intents:
        assert (note.level, note.event, note.facts) == ("info", "recovery_settled", {"cursor": 1, **zero})
    else:
        place = {"position": 1, "stream": "s", "op_id": "op-0", "key": "a", "reason": "skipped"}
        assert (note.level, note.event, note.facts) == ("warning", "recovery_stopped", {"cursor": 0, **zero, **place})


# Cut off with an effect begun ahead


def begun_ahead(memory: Memory, **options: Any) -> Play[Settled]:
    """A walk at the report between `a`, which is settled, and `b`, whose intent is durable already."""
    play = walking(memory, [once("a")], [once("b")], progress=lambda *_: None, **options)
    while type(play.request) is not Progress:
        play.does(type(play.request))
    assert memory.phases("b") == ["intent"]
    return play


@pytest.mark.parametrize("error", [Boom("progress"), KeyboardInterrupt(), CutOffError(GeneratorExit())])
def test_effect_that_was_begun_ahead_and_not_run_is_withdrawn(error: BaseException) -> None:
    """It is known not to have been performed: failed, in one commit, and its flight ends."""
    memory = Memory()
    play = begun_ahead(memory).raises(Progress, error)

    assert play.expect(Commit).settles is True
    with pytest.raises(type(error)) as caught:
        play.does(Commit)

    assert caught.value is error
    assert memory.phases("b") == ["intent", "failed"]
    assert (memory.last("b").reason, memory.last("b").via) == (NOT_STARTED, None)
    assert [hold.ends for hold in memory.holds] == [[None], [None]]


def test_withdrawn_effect_is_run_by_the_next_walk() -> None:
    """As if it had never been begun."""
    memory = Memory()
    with pytest.raises(Boom):
        begun_ahead(memory).raises(Progress, Boom()).does(Commit)

    settled = walking(memory, [once("a", unused)], [once("b")]).finish()

    assert (int(settled), counts(settled)) == (2, {"ran": 1, "reused": 1})
    assert memory.phases("b") == ["intent", "failed", "intent", "accepted"]


def test_effect_that_was_begun_ahead_and_moved_on_is_left_as_it_is() -> None:
    """A person decided about it meanwhile."""
    memory = Memory()
    play = begun_ahead(memory)
    memory.put_effect("b", ACCEPTED)

    with pytest.raises(Boom):
        play.raises(Progress, Boom()).does(Commit)

    assert memory.phases("b") == ["intent", "accepted"]
    assert memory.in_flight == {}


def test_flight_of_an_effect_that_cannot_be_withdrawn_ends() -> None:
    """Where even that cannot be written, the intent stands as after a crash."""
    memory = Memory()

    with pytest.raises(JournalFullError):
        begun_ahead(memory).raises(Progress, Boom()).raises(Commit, FULL)

    assert memory.phases("b") == ["intent"]
    assert memory.in_flight == {}


def going_on(memory: Memory, later: Intent) -> Callable[[Committed], Iterable[Intent]]:
    """`intents` of two operations: the first gives `later` once `a` is done, the second `b`."""

    def first() -> Iterable[Intent]:
        yield once("a")
        if memory.phases("a")[-1:] == ["accepted"]:
            yield later

    return lambda committed: first() if committed.sequence == 1 else [once("b")]


def test_effect_that_an_iterator_gives_only_later_is_settled_in_its_turn() -> None:
    """Before anything of the next operation."""
    memory = Memory()

    settled = walking(memory, [], [], intents=going_on(memory, once("x"))).finish()

    assert (int(settled), counts(settled)) == (2, {"ran": 3})
    assert memory.phases("x") == ["intent", "accepted"]
    assert memory.phases("b") == ["intent", "accepted"]
    assert memory.in_flight == {}


@pytest.mark.parametrize("later, policy", [(once("x", unused), "skip"), (once("x", raising(Boom())), "retry")])
def test_nothing_is_begun_behind_an_iterator_whose_effect_stops_the_walk(later: Intent, policy: str) -> None:
    """However the walk stops: nothing later is started."""
    memory = Memory()

    settled = walking(
        memory,
        [],
        [],
        intents=going_on(memory, later),
        on_unresolved=lambda intent, record: policy if intent.key == "x" else "retry",
    ).finish()

    assert settled == 0
    assert settled.stopped is not None
    assert settled.stopped.key == "x"
    assert memory.phases("b") == []
    assert memory.in_flight == {}


def requests_of_a_walk() -> int:
    """How many requests the walk of the next test makes."""
    play = both_kinds(Memory())
    play.finish()
    return len(play.asked)


def both_kinds(memory: Memory) -> Play[Settled]:
    """A walk over effects of every kind and beginning."""
    memory.put_effect("open", INTENT)
    memory.put_effect("open", RELEASED)
    memory.put_effect("done", INTENT)
    memory.put_effect("done", ACCEPTED)
    return walking(
        memory,
        [once("a"), often("b"), once("open", unused, lambda _: "found")],
        [],
        [once("done", unused), once("c")],
        progress=lambda *_: None,
    )


@pytest.mark.parametrize("step", range(requests_of_a_walk()))
@pytest.mark.parametrize("cut", [KeyboardInterrupt, lambda: JournalFullError("/journal", "no room"), Boom, None])
@pytest.mark.parametrize("is_done", [False, True])
def test_walk_that_is_cut_anywhere_can_be_walked_again(
    step: int, cut: Callable[[], BaseException] | None, *, is_done: bool
) -> None:
    """Every flight ends, and the next walk settles everything; what was settled before is reused."""
    memory = Memory()
    play = both_kinds(memory)
    for _ in range(step):
        play.does(type(play.request))
    kind = type(play.request)
    held = len(memory.holds)
    try:
        if cut is None:
            if is_done:
                play.do_unseen(kind)
            play.close()
        else:
            if is_done:
                play.cut_after(kind, cut())
            else:
                play.raises(kind, cut())
            play.finish()
    except BaseException:
        pass
    for hold in memory.holds:
        # What was entered without the protocol being told, or begun ahead by one that is closed, is the driver's.
        if not hold.ends:
            assert hold in memory.holds[held:] or hold is memory.holds[-1]
            hold.end()
    settled_before = {key for key in ("a", "b", "open", "c") if memory.phases(key)[-1:] == ["accepted"]}

    assert memory.in_flight == {}
    again = walking(
        memory,
        [once("a", None, lambda _: "found"), often("b"), once("open", unused, lambda _: "found")],
        [],
        [once("done", unused), once("c", None, lambda _: "found")],
    ).finish()
    assert again.stopped is None
    assert again.reused == len(settled_before) + 1
    assert again.ran + again.reconciled == 4 - len(settled_before)


@pytest.mark.parametrize("step", range(requests_of_a_walk()))
def test_closed_walk_asks_nothing_more(step: int) -> None:
    """A driver that gives up is not asked for another thing, at whatever request."""
    memory = Memory()
    play = both_kinds(memory)
    for _ in range(step):
        play.does(type(play.request))

    play.close()

    assert inspect.getgeneratorstate(play.protocol) == inspect.GEN_CLOSED


def test_walk_asks_for_what_its_effects_ask_for() -> None:
    """The requests of the walk above, as a whole."""
    memory = Memory()

    play = both_kinds(memory)
    play.finish()

    assert acting(play) == [
        *("Enter", "Commit", "Call"),  # a: its own intent
        *("Enter", "Commit", "Call", "Commit"),  # with the intent of b
        *("Enter", "Ask", "Commit"),  # open
        *("Progress", "Progress"),
        *("Enter", "Commit", "Call", "Commit"),  # c
        *("Progress", "Progress"),
    ]
    assert memory.phases("open") == ["intent", "released", "accepted"]
    assert key_form("a") == memory.last("a").key
    assert Ask.__name__ in play.asked


# Pruned effects


def pruned(*keys: str) -> Memory:
    """A journal in which these were accepted, and pruned since."""
    memory = Memory()
    for key in keys:
        memory.put_effect(key, Phase.INTENT)
        memory.put_effect(key, Phase.ACCEPTED)
        memory.prune_key(key)
    return memory


@pytest.mark.parametrize("concurrency", [1, 2])
def test_pruned_effect_is_reused_and_nobody_is_asked(concurrency: int) -> None:
    """It was accepted: the walk goes on over it."""
    memory = pruned("a", "b")

    walk = walking(memory, [once("a", unused)], [once("b", unused)], on_unresolved=unused, concurrency=concurrency)
    settled = walk.finish()

    assert (int(settled), settled.stopped, counts(settled)) == (6, None, {"reused": 2})
    assert memory.head() == 6


def test_pruned_effect_of_another_guarantee_is_a_conflict() -> None:
    """As one on record: the walk stops there with the error of the direct call, unless it is passed."""
    memory = pruned("a")

    settled = walking(memory, [often("a", unused)], [once("b", unused)]).finish()

    stop = settled.stopped
    assert stop is not None
    assert (stop.key, stop.reason) == ("a", "conflict")
    assert isinstance(stop.error, EffectPrunedError)
    passed = walking(memory, [often("a", unused)], [once("b")], on_unresolved=answering("pass", "retry")).finish()
    assert (passed.stopped, counts(passed)) == (None, {"ran": 1, "passed": 1})
    assert memory.phases("a") == []


def test_effect_pruned_between_the_look_and_the_call_is_reused() -> None:
    """Another process accepted it, and it was pruned at once."""
    memory = Memory()
    play = walking(memory, [once("a", unused)]).run(Read, Read, Decide, Read)
    memory.put_effect("a", Phase.INTENT)
    memory.put_effect("a", Phase.ACCEPTED)
    memory.prune_key("a")

    settled = play.finish()

    assert (settled.stopped, counts(settled)) == (None, {"reused": 1})


def answering(*answers: str) -> Any:
    """A policy that gives these answers in order."""
    left = iter(answers)
    return lambda intent, record: next(left)
