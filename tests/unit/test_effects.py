"""`journal/_core/effects.py`: the protocols of `effect` and `run_effect`, request by request."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any, Final

import msgspec
import pytest

from journal._core.effects import (
    Begun,
    EffectCall,
    Outcome,
    check_binding,
    check_reconcile,
    effect,
    effect_call,
    run_effect,
    settle,
)
from journal._core.keys import key_form
from journal._core.ledger import NOT_STARTED
from journal._core.payloads import fingerprint
from journal._core.requests import Ask, Call, Commit, DeadlineError, Decide, Enter, IsAlive, Pause, Read, RunRaisedError
from journal._core.texts import error_text
from journal.errors import (
    CorruptRecordError,
    EffectConflictError,
    EffectFailedError,
    EffectInFlightError,
    EffectUnresolvedError,
    JournalClosedError,
    JournalFullError,
    NotPerformed,
)
from journal.options import PROOF_BYTES_MAX, VALUE_BYTES_MAX
from journal.records import Guarantee, Phase, Via
from journal.values import Accepted, EffectRecord, Found, Uncertain
from tests.unit.support import (
    OTHER,
    OTHER_PID,
    OWN,
    Boom,
    Hold,
    Memory,
    Play,
    at_most_once,
    idempotent,
    raising,
    unused,
)

ONCE, OFTEN = Guarantee.AT_MOST_ONCE, Guarantee.IDEMPOTENT
INTENT, ACCEPTED, UNCERTAIN, FAILED, RELEASED, CLEARED = (
    Phase.INTENT,
    Phase.ACCEPTED,
    Phase.UNCERTAIN,
    Phase.FAILED,
    Phase.RELEASED,
    Phase.CLEARED,
)
FIRST_INTENT: Final = (Read, Enter, Commit)
"""Of a key of which nothing is on record: the commit tells whether that is still so."""
NEXT_INTENT: Final = (Read, Enter, Read, Commit)
FULL: Final = JournalFullError("/journal", "no room")


def calling(call: EffectCall, memory: Memory | None = None) -> Play[Any]:
    """The protocol that a call goes through, by its guarantee."""
    protocol = effect if call.guarantee is ONCE else run_effect
    return Play(protocol(call, OWN), memory or Memory())


def with_(*phases: Phase, guarantee: Guarantee = ONCE, **facts: Any) -> Memory:
    """A journal in which the key `k` has had these events; the facts are those of the last."""
    memory = Memory()
    for number, phase in enumerate(phases, 1):
        memory.put_effect("k", phase, guarantee=guarantee, **(facts if number == len(phases) else {}))
    return memory


def begun(memory: Memory, call: EffectCall) -> Begun:
    """An intent that is durable already, with its flight."""
    memory.put_effect(call.key, INTENT, guarantee=call.guarantee)
    hold = memory.enter(Enter("effect", call.key, call.form, call.guarantee, call.request))
    state = memory.effect(call.form)
    assert state is not None
    return Begun(call, hold, state)


def the_hold(memory: Memory) -> Hold:
    """The one flight that was entered."""
    (hold,) = memory.holds
    return hold


# The call


def test_effect_without_a_reconcile_is_refused() -> None:
    """It would be an idempotent one, which has a method of its own."""
    with pytest.raises(TypeError, match="use run_effect"):
        check_reconcile(None)
    assert check_reconcile(unused) is unused


def test_call_with_a_reconcile_is_at_most_once() -> None:
    """Its kind decides the guarantee, and with it how much its run may return."""
    once, often = at_most_once("k"), idempotent("k")

    assert (once.guarantee, once.value_bytes_max) == (ONCE, PROOF_BYTES_MAX)
    assert (often.guarantee, often.value_bytes_max) == (OFTEN, VALUE_BYTES_MAX)


def test_request_is_fingerprinted_when_the_call_is_made() -> None:
    """Changing the request afterwards changes nothing that was asked."""
    request = {"amount": 5}

    call = at_most_once(request=request)
    request["amount"] = 6

    assert call.request == fingerprint({"amount": 5})


@pytest.mark.parametrize(
    "arguments, error",
    [
        ({"key": 1}, TypeError),
        ({"key": ""}, ValueError),
        ({"run": None}, TypeError),
        ({"run": "f"}, TypeError),
        ({"reconcile": "f"}, TypeError),
        ({"request": object()}, TypeError),
        ({"returns": 5}, TypeError),
        ({"reconcile_timeout": 0}, ValueError),
        ({"reconcile_timeout": -1.0}, ValueError),
        ({"reconcile_timeout": math.inf}, ValueError),
        ({"reconcile_timeout": math.nan}, ValueError),
        ({"reconcile_timeout": "30"}, ValueError),
        ({"reconcile_timeout": None}, ValueError),
        ({"reconcile_timeout": True}, ValueError),
        ({"retry_failed": None}, TypeError),
        ({"retry_failed": "no"}, TypeError),
    ],
)
def test_argument_of_no_use_is_refused(arguments: dict[str, Any], error: type[Exception]) -> None:
    """Wrong use is told before anything is read, let alone run."""
    given: dict[str, Any] = {"key": "k", "run": unused, "reconcile": unused, "request": None, "returns": None}

    with pytest.raises(error):
        effect_call(**(given | arguments))


@pytest.mark.parametrize("seconds", [1, 0.001, 1e9])
def test_span_of_time_may_be_any_positive_number(seconds: float) -> None:
    """Whole or not."""
    assert at_most_once(reconcile_timeout=seconds).reconcile_timeout == seconds


# Nothing on record


@pytest.mark.parametrize("make", [at_most_once, idempotent])
def test_intent_is_durable_before_the_run(make: Callable[..., EffectCall]) -> None:
    """The order that must not change: intent, run, outcome, and the end of the flight after all of them."""
    call = make("k", request={"a": 1})
    play = calling(call)

    play.run(Read, Enter)
    assert play.expect(Commit).settles is False
    play.does(Commit)
    assert play.memory.phases("k") == ["intent"]
    assert play.expect(Call).function is call.run
    play.does(Call)
    assert play.memory.phases("k") == ["intent"]
    assert play.expect(Commit).settles is True
    assert the_hold(play.memory).ends == []
    play.does(Commit)

    assert play.is_done
    assert play.memory.phases("k") == ["intent", "accepted"]
    assert the_hold(play.memory).ends == [None]


def test_flight_is_entered_for_what_the_call_asks() -> None:
    """Its key space, key, guarantee and request, so that a conflict is told without joining."""
    call = at_most_once(("k", 1), request="r")

    entered = calling(call).run(Read).expect(Enter)

    assert entered == Enter("effect", ("k", 1), key_form(("k", 1)), ONCE, fingerprint("r"), wait=True)


def test_intent_says_who_acts_and_for_what() -> None:
    """The first attempt, its owner, its guarantee, and the request that binds the key."""
    play = calling(at_most_once("k", request="r")).run(*FIRST_INTENT)

    entry = play.memory.last("k")
    assert (entry.attempts, entry.owner, entry.guarantee, entry.request) == (1, OWN, ONCE, fingerprint("r"))


def test_return_is_recorded_as_the_proof() -> None:
    """Accepted, via run, with its JSON."""
    play = calling(at_most_once(run=lambda: {"id": 1}))

    assert play.finish() == Accepted({"id": 1}, "run")
    entry = play.memory.last("k")
    assert (entry.phase, entry.via, entry.proof, entry.attempts) == (ACCEPTED, Via.RUN, b'{"id":1}', 1)


def test_run_effect_gives_the_result() -> None:
    """Not wrapped, and the same from the record."""
    play = calling(idempotent(run=lambda: [1, 2]))

    assert play.finish() == [1, 2]
    assert calling(idempotent(run=unused), play.memory).finish() == [1, 2]


def test_value_is_given_as_its_type_decodes_it() -> None:
    """The first time as on every later call."""

    class Receipt(msgspec.Struct):
        id: str

    play = calling(at_most_once(run=lambda: {"id": "m"}, returns=Receipt))

    assert play.finish() == Accepted(Receipt("m"), "run")
    assert calling(at_most_once(run=unused, returns=Receipt), play.memory).finish() == Accepted(Receipt("m"), "run")


@pytest.mark.parametrize("make", [at_most_once, idempotent])
def test_value_on_record_that_is_of_another_type_is_told(make: Callable[..., EffectCall]) -> None:
    """The record is sound; the type that the call asks for is not what was recorded."""
    memory = calling(make(run=lambda: "text")).finish() and Memory()
    memory.put_effect("k", INTENT, guarantee=make().guarantee)
    memory.put_effect("k", ACCEPTED, guarantee=make().guarantee, proof=b'"text"')

    with pytest.raises(TypeError, match=r"what is on record of 'k' cannot be read as <class 'int'>: Expected `int`"):
        calling(make(run=unused, returns=int), memory).finish()


@pytest.mark.parametrize("phases", [(CLEARED,), (INTENT, ACCEPTED, CLEARED), (INTENT, UNCERTAIN, CLEARED)])
def test_cleared_key_is_new_work(phases: tuple[Phase, ...]) -> None:
    """Any guarantee and request may bind, and attempts start at 1."""
    memory = with_(*(phases if phases != (CLEARED,) else (INTENT, CLEARED)), guarantee=ONCE)

    play = calling(idempotent(request="other"), memory)

    assert play.finish() == "result"
    assert memory.last("k").attempts == 1
    assert memory.last("k").guarantee is OFTEN


def test_record_that_appears_meanwhile_is_not_overwritten() -> None:
    """Another process wrote its intent after this call's last look: the insert is refused inside the transaction."""
    play = calling(at_most_once(run=unused)).run(Read, Enter)
    play.memory.alive[OTHER] = OTHER_PID
    play.memory.put_effect("k", INTENT, owner=OTHER)

    play.run(Commit, Read, IsAlive)

    assert play.memory.phases("k") == ["intent"]
    play.expect(Pause)


@pytest.mark.parametrize("phase", [INTENT, RELEASED, ACCEPTED, UNCERTAIN])
def test_record_that_the_first_look_did_not_find_is_not_overwritten(phase: Phase) -> None:
    """That look vouches for nothing: the transaction finds what is there, and nobody is called on a guess."""
    memory = with_(phase) if phase is INTENT else with_(INTENT, phase)
    play = calling(at_most_once(run=unused), memory).does(Read, None).run(Enter, Commit, Read)

    assert memory.commits == 1
    assert len(memory.log) == (1 if phase is INTENT else 2)
    assert play.is_done is (phase in (ACCEPTED, UNCERTAIN))
    if not play.is_done:
        play.expect(Ask)


def test_damage_that_the_first_look_did_not_see_is_told() -> None:
    """The transaction refuses: nothing is run, and whoever joined looks for itself."""
    play = calling(at_most_once(run=unused)).does(Read, None).run(Enter)

    with pytest.raises(CorruptRecordError):
        play.raises(Commit, CorruptRecordError(None, "damaged"))

    assert the_hold(play.memory).ends == [None]


# Settled


@pytest.mark.parametrize("make", [at_most_once, idempotent])
def test_accepted_effect_is_answered_from_the_record(make: Callable[..., EffectCall]) -> None:
    """One read, no flight, nobody called; the log is told that it was reused."""
    memory = with_(INTENT, ACCEPTED, guarantee=make().guarantee, proof=b'"m"', via=Via.RECONCILE)

    play = calling(make(run=unused, reconcile=unused) if make is at_most_once else make(run=unused), memory).run(Read)

    assert play.returned == (Accepted("m", "reconcile") if make is at_most_once else "m")
    assert [(note.level, note.event, note.facts) for note in memory.notes] == [
        ("debug", "effect_reused", {"key": "k", "position": 2})
    ]


def test_uncertain_effect_is_answered_from_the_record() -> None:
    """It is settled: nobody is asked again."""
    play = calling(at_most_once(run=unused), with_(INTENT, UNCERTAIN)).run(Read)

    assert play.returned == Uncertain()


def test_uncertain_idempotent_effect_has_no_result() -> None:
    """A person resolved it so, and there is nothing to return."""
    memory = with_(INTENT, UNCERTAIN, guarantee=OFTEN)

    with pytest.raises(EffectUnresolvedError) as caught:
        calling(idempotent(run=unused), memory).run(Read)

    assert (caught.value.key, caught.value.reason, caught.value.record.phase) == ("k", "uncertain", "uncertain")


@pytest.mark.parametrize("make", [at_most_once, idempotent])
def test_effect_that_is_settled_while_the_call_enters_is_reused(make: Callable[..., EffectCall]) -> None:
    """Between the first look and the flight another process settled it: looked at again before anything is done."""
    memory = with_(INTENT, guarantee=make().guarantee)
    play = calling(make(run=unused), memory).run(Read, Enter)
    memory.put_effect("k", ACCEPTED, guarantee=make().guarantee, proof=b'"m"')

    play.run(Read)

    assert play.returned in (Accepted("m", "run"), "m")
    assert the_hold(memory).ends == [None]
    assert [note.event for note in memory.notes] == ["effect_reused"]


def test_effect_that_becomes_uncertain_while_a_run_effect_enters_has_no_result() -> None:
    """A person's decision in between is told as it is afterwards; who joined reads for itself."""
    memory = with_(INTENT, guarantee=OFTEN)
    play = calling(idempotent(run=unused), memory).run(Read, Enter)
    memory.put_effect("k", UNCERTAIN, guarantee=OFTEN)

    with pytest.raises(EffectUnresolvedError, match="resolved as uncertain"):
        play.run(Read)

    assert the_hold(memory).ends == [None]


def test_call_that_joined_reads_again() -> None:
    """Its own answer is what is on record when the flight has ended well."""
    memory = Memory()
    play = calling(at_most_once(run=unused), memory).run(Read)
    memory.put_effect("k", INTENT)
    memory.put_effect("k", ACCEPTED, proof=b'"m"')

    play.does(Enter, None).does(Read)

    assert play.returned == Accepted("m", "run")


def test_call_that_joined_has_the_error_of_the_flight() -> None:
    """It is raised in its place, and nothing is run."""
    error = EffectUnresolvedError("k", "run-failed")

    with pytest.raises(EffectUnresolvedError) as caught:
        calling(at_most_once(run=unused)).run(Read).raises(Enter, error)

    assert caught.value is error


# Bound to something else


@pytest.mark.parametrize("phase", [INTENT, RELEASED, FAILED, UNCERTAIN, ACCEPTED])
@pytest.mark.parametrize(
    "guarantee, request_, call, why",
    [
        (ONCE, None, idempotent(), "it was begun as at_most_once, this call is idempotent"),
        (OFTEN, None, at_most_once(), "it was begun as idempotent, this call is at_most_once"),
        (ONCE, "a", at_most_once(request="b"), "it was begun for another request than that of this call"),
        (OFTEN, "a", idempotent(request="b"), "it was begun for another request than that of this call"),
    ],
)
def test_key_of_something_else_is_a_conflict(
    phase: Phase, guarantee: Guarantee, request_: Any, call: EffectCall, why: str
) -> None:
    """In whatever phase: told at the first look, with the record, and nothing runs."""
    memory = with_(INTENT, guarantee=guarantee, request=fingerprint(request_))
    if phase is not INTENT:
        memory.put_effect("k", phase, guarantee=guarantee)

    with pytest.raises(EffectConflictError, match=why) as caught:
        calling(call, memory).run(Read)

    assert caught.value.record.position == memory.head()
    assert memory.holds == []


@pytest.mark.parametrize("bound, asked", [(None, None), (None, "a"), ("a", None), ("a", "a")])
def test_no_request_neither_binds_nor_is_compared(bound: Any, asked: Any) -> None:
    """Only two requests that differ are a conflict."""
    memory = with_(INTENT, request=fingerprint(bound))

    check_binding(at_most_once(request=asked), memory.effect(key_form("k")))


def test_conflict_that_appears_while_the_call_enters_is_told() -> None:
    """The second look decides; those who joined share no run, so they look for themselves."""
    memory = Memory()
    play = calling(at_most_once(run=unused), memory).run(Read, Enter)
    memory.put_effect("k", INTENT, guarantee=OFTEN)

    with pytest.raises(EffectConflictError):
        play.run(Commit, Read)

    assert memory.phases("k") == ["intent"]
    assert the_hold(memory).ends == [None]


def test_conflict_with_what_was_on_record_before_is_told_by_the_second_look() -> None:
    """Cleared and begun anew as something else, between the first look and the flight."""
    memory = with_(INTENT, FAILED)
    play = calling(at_most_once(run=unused), memory).run(Read, Enter)
    memory.put_effect("k", CLEARED)
    memory.put_effect("k", INTENT, guarantee=OFTEN)

    with pytest.raises(EffectConflictError):
        play.run(Read)

    assert the_hold(memory).ends == [None]


# In the hands of another process


@pytest.mark.parametrize("make", [at_most_once, idempotent])
def test_intent_of_a_living_owner_is_waited_for(make: Callable[..., EffectCall]) -> None:
    """As long as it lives and has no outcome; the outcome that it writes is this call's answer."""
    memory = with_(INTENT, guarantee=make().guarantee, owner=OTHER)
    memory.alive[OTHER] = OTHER_PID
    play = calling(make(run=unused), memory).run(Read, Enter, Read, IsAlive)

    first = play.expect(Pause)
    play.does(Pause, None).run(Read, IsAlive)
    assert play.expect(Pause).wait is first.wait
    play.does(Pause, None)
    memory.put_effect("k", ACCEPTED, guarantee=make().guarantee, proof=b'"theirs"')

    assert play.run(Read).returned in (Accepted("theirs", "run"), "theirs")


def test_wait_ends_with_the_owner() -> None:
    """Once it is gone the recipient is asked; the effect is not run."""
    memory = with_(INTENT, owner=OTHER)
    memory.alive[OTHER] = OTHER_PID
    play = calling(at_most_once(run=unused, reconcile=lambda _: "found"), memory)
    play.run(Read, Enter, Read, IsAlive).does(Pause, None)
    memory.alive.clear()

    play.run(Read, IsAlive, Ask, Commit)

    assert play.returned == Accepted("found", "reconcile")


def test_wait_that_takes_too_long_says_who_has_it() -> None:
    """After the handle's `wait_timeout`; those who joined waited as long."""
    memory = with_(INTENT, owner=OTHER)
    memory.alive[OTHER] = OTHER_PID
    play = calling(at_most_once(run=unused), memory).run(Read, Enter, Read, IsAlive)

    with pytest.raises(EffectInFlightError) as caught:
        play.raises(Pause, DeadlineError("30 seconds"))

    error = caught.value
    assert (error.key, error.pid, error.record.phase, error.__cause__) == ("k", OTHER_PID, "intent", None)
    assert the_hold(memory).ends == [error]


def test_released_intent_of_a_living_owner_is_asked_about() -> None:
    """What its own process gave up is in nobody's hands, though the owner lives."""
    memory = with_(INTENT, RELEASED)
    memory.alive[OTHER] = OTHER_PID

    play = calling(at_most_once(run=unused, reconcile=lambda _: None), memory).run(Read, Enter, Read, Ask, Commit)

    assert play.returned == Uncertain()


# What a run raises


def test_run_that_was_not_performed_is_recorded_as_failed() -> None:
    """Known not to have happened: no reconcile is needed, and the next call tries again."""
    error = NotPerformed("refused")
    play = calling(at_most_once(run=raising(error))).run(*FIRST_INTENT, Call)
    assert play.expect(Commit).settles is True

    with pytest.raises(EffectFailedError) as caught:
        play.does(Commit)

    failed = caught.value
    assert (failed.key, failed.reason, failed.__cause__) == ("k", "NotPerformed: refused", error)
    entry = play.memory.last("k")
    assert (entry.phase, entry.via, entry.reason, entry.error) == (
        FAILED,
        Via.RUN,
        "not-performed",
        "NotPerformed: refused",
    )
    assert failed.record.position == play.memory.head()
    assert the_hold(play.memory).ends == [failed]


@pytest.mark.parametrize(
    "error", [Boom("500"), StopIteration(), EffectInFlightError("other", 1), FULL, DeadlineError()]
)
def test_run_that_raises_leaves_the_intent(error: Exception) -> None:
    """Nobody knows: it is released with its reason, so that every process may reconcile."""
    play = calling(at_most_once(run=raising(error))).run(*FIRST_INTENT, Call)
    assert play.expect(Commit).settles is True

    with pytest.raises(EffectUnresolvedError) as caught:
        play.does(Commit)

    assert (caught.value.key, caught.value.reason, caught.value.__cause__) == ("k", "run-failed", error)
    entry = play.memory.last("k")
    assert (entry.phase, entry.reason, entry.error) == (RELEASED, "run-failed", error_text(error))
    assert caught.value.record.phase == "intent"
    assert caught.value.record.reason == "run-failed"
    assert the_hold(play.memory).ends == [caught.value]


@pytest.mark.parametrize("error", [Boom("500"), NotPerformed("refused"), StopIteration(), FULL])
def test_attempt_of_an_idempotent_effect_that_raises_is_failed(error: Exception) -> None:
    """Recorded as `Type: text`, and the very same exception goes on to the caller and to those who joined."""
    play = calling(idempotent(run=raising(error))).run(*FIRST_INTENT, Call)
    assert play.expect(Commit).settles is True

    with pytest.raises(RunRaisedError) as caught:
        play.does(Commit)

    assert caught.value.error is error
    entry = play.memory.last("k")
    assert (entry.phase, entry.reason, entry.error) == (FAILED, "run-failed", error_text(error))
    assert the_hold(play.memory).ends == [caught.value]


@pytest.mark.parametrize("make", [at_most_once, idempotent])
@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_run_that_is_cut_off_leaves_the_intent(make: Callable[..., EffectCall], kind: type[BaseException]) -> None:
    """The interrupt passes through as it is; the intent is released, and those who joined learn that nobody knows."""
    error = kind("now")
    play = calling(make(run=raising(error))).run(*FIRST_INTENT, Call)

    with pytest.raises(kind) as caught:
        play.does(Commit)

    assert caught.value is error
    entry = play.memory.last("k")
    assert (entry.phase, entry.reason, entry.error) == (RELEASED, "run-failed", f"{kind.__name__}: now")
    (told,) = the_hold(play.memory).ends
    assert isinstance(told, EffectUnresolvedError)
    assert (told.key, told.reason) == ("k", "run-failed")


@pytest.mark.parametrize("make", [at_most_once, idempotent])
@pytest.mark.parametrize("value", [float("nan"), (1,), object(), {1: 2}])
def test_value_that_cannot_be_kept_leaves_the_intent(make: Callable[..., EffectCall], value: Any) -> None:
    """It happened, and no `failed` says otherwise; the cause has the path."""
    play = calling(make(run=lambda: value)).run(*FIRST_INTENT, Call)

    with pytest.raises(EffectUnresolvedError) as caught:
        play.does(Commit)

    assert caught.value.reason == "proof-rejected"
    assert "$" in str(caught.value.__cause__)
    assert play.memory.last("k").reason == "proof-rejected"
    assert play.memory.phases("k") == ["intent", "released"]


def test_proof_is_shorter_than_a_result() -> None:
    """A proof names the effect, a result may be large."""
    value = "a" * (PROOF_BYTES_MAX - 1)

    with pytest.raises(EffectUnresolvedError, match="proof-rejected"):
        calling(at_most_once(run=lambda: value)).finish()
    assert calling(idempotent(run=lambda: value)).finish() == value


# An outcome that cannot be written


@pytest.mark.parametrize("make", [at_most_once, idempotent])
@pytest.mark.parametrize("run", [lambda: "m", raising(NotPerformed("no"))])
@pytest.mark.parametrize("error", [FULL, OSError("odd"), CorruptRecordError(2, "damaged")])
def test_outcome_that_cannot_be_written_leaves_the_intent(
    make: Callable[..., EffectCall], run: Any, error: Exception
) -> None:
    """It never leads to a second run: the intent is released with its reason."""
    play = calling(make(run=run)).run(*FIRST_INTENT, Call).raises(Commit, error)
    assert play.expect(Commit).settles is True

    with pytest.raises(EffectUnresolvedError) as caught:
        play.does(Commit)

    assert (caught.value.reason, caught.value.__cause__) == ("outcome-unrecorded", error)
    assert caught.value.record.reason == "outcome-unrecorded"
    assert play.memory.phases("k") == ["intent", "released"]
    assert the_hold(play.memory).ends == [caught.value]


def test_intent_that_cannot_even_be_released_is_noted() -> None:
    """The caller is told the reason that came first, with the record as it was; the log has a warning."""
    play = calling(at_most_once()).run(*FIRST_INTENT, Call).raises(Commit, FULL)

    with pytest.raises(EffectUnresolvedError) as caught:
        play.raises(Commit, OSError("still no room"))

    assert (caught.value.reason, caught.value.__cause__) == ("outcome-unrecorded", FULL)
    assert (caught.value.record.phase, caught.value.record.position) == ("intent", 1)
    assert [(note.level, note.event, note.facts) for note in play.memory.notes] == [
        ("warning", "effect_unresolved", {"key": "k", "reason": "outcome-unrecorded", "error": error_text(FULL)})
    ]


@pytest.mark.parametrize("is_done", [False, True])
def test_interrupt_while_the_outcome_is_written_releases_what_has_none(*, is_done: bool) -> None:
    """Where the outcome landed nothing is released, where it did not the intent is given up; the interrupt goes on."""
    play = calling(at_most_once()).run(*FIRST_INTENT, Call)
    if is_done:
        play.cut_after(Commit, KeyboardInterrupt())
    else:
        play.raises(Commit, KeyboardInterrupt())

    with pytest.raises(KeyboardInterrupt):
        play.does(Commit)

    assert play.memory.phases("k") == ["intent", "accepted" if is_done else "released"]
    (told,) = the_hold(play.memory).ends
    assert isinstance(told, EffectUnresolvedError)


def test_full_journal_refuses_the_intent() -> None:
    """Nothing runs, the error is the store's, and who joined tries for itself."""
    play = calling(at_most_once(run=unused)).run(Read, Enter)

    with pytest.raises(JournalFullError) as caught:
        play.raises(Commit, FULL)

    assert caught.value is FULL
    assert the_hold(play.memory).ends == [None]


@pytest.mark.parametrize("is_done", [False, True])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit()])
def test_intent_that_was_cut_off_is_given_up(error: BaseException, *, is_done: bool) -> None:
    """Where it landed it was never run: it is released, so that every process may ask about it."""
    play = calling(at_most_once(run=unused)).run(Read, Enter)
    if is_done:
        play.cut_after(Commit, error)
    else:
        play.raises(Commit, error)

    with pytest.raises(type(error)):
        play.does(Commit)

    assert play.memory.phases("k") == (["intent", "released"] if is_done else [])
    assert the_hold(play.memory).ends == [None]


# An open intent


@pytest.mark.parametrize("last", [INTENT, RELEASED])
def test_open_intent_is_asked_about_and_never_run(last: Phase) -> None:
    """The ask carries the key, attempt, first time and deadline of the effect."""
    memory = with_(INTENT, *([RELEASED] if last is RELEASED else []))
    call = at_most_once(run=unused, reconcile=lambda _: "found", reconcile_timeout=7.5)
    play = calling(call, memory).run(Read, Enter, Read)

    ask = play.expect(Ask)
    assert (ask.reconcile, ask.key, ask.attempt, ask.seconds) == (call.reconcile, "k", 1, 7.5)
    assert ask.first_at == memory.last("k").first_at
    play.does(Ask)
    assert play.expect(Commit).settles is True
    play.does(Commit)

    assert play.returned == Accepted("found", "reconcile")
    assert (memory.last("k").via, memory.last("k").proof) == (Via.RECONCILE, b'"found"')


def test_intent_of_an_owner_that_is_gone_is_asked_about() -> None:
    """Its liveness is looked up first."""
    memory = with_(INTENT, owner=OTHER)

    play = calling(at_most_once(run=unused, reconcile=lambda _: "found"), memory)

    assert play.run(Read, Enter, Read, IsAlive, Ask, Commit).returned == Accepted("found", "reconcile")


@pytest.mark.parametrize("proof", [None, "m", {"id": 1}])
def test_found_says_found_whatever_the_proof(proof: Any) -> None:
    """`Found(None)` is a proof, where `None` alone is an absence of record."""
    memory = with_(INTENT, RELEASED)

    assert calling(at_most_once(run=unused, reconcile=lambda _: Found(proof)), memory).finish() == Accepted(
        proof, "reconcile"
    )


def test_recipient_without_a_record_makes_it_uncertain() -> None:
    """Nobody will ever know; via reconcile, and never run again."""
    memory = with_(INTENT, RELEASED)

    play = calling(at_most_once(run=unused, reconcile=lambda _: None), memory)

    assert play.finish() == Uncertain()
    assert (memory.last("k").phase, memory.last("k").via) == (UNCERTAIN, Via.RECONCILE)
    assert the_hold(memory).ends == [None]


def test_proved_absence_and_the_next_intent_are_one_commit() -> None:
    """`failed` and `intent` are never apart, so that no other process runs it in between; then it is run."""
    memory = with_(INTENT, RELEASED)
    play = calling(at_most_once(request="r", reconcile=raising(NotPerformed("no such order"))), memory)

    play.run(Read, Enter, Read, Ask)
    assert play.expect(Commit).settles is False
    play.does(Commit)

    assert memory.phases("k") == ["intent", "released", "failed", "intent"]
    failed = memory.effect_entry(3)
    assert (failed.via, failed.reason, failed.error) == (
        Via.RECONCILE,
        "not-performed",
        "NotPerformed: no such order",
    )
    assert (memory.last("k").attempts, memory.last("k").owner, memory.last("k").request) == (2, OWN, fingerprint("r"))
    assert play.run(Call, Commit).returned == Accepted("proof", "run")


@pytest.mark.parametrize(
    "error, reason",
    [(Boom("timeout"), "reconcile-failed"), (DeadlineError(), "reconcile-timeout"), (FULL, "reconcile-failed")],
)
def test_recipient_that_could_not_be_asked_changes_nothing(error: Exception, reason: str) -> None:
    """Could not ask is not "not there": nothing is recorded, the log has a warning, those who joined are told."""
    memory = with_(INTENT, RELEASED)
    play = calling(at_most_once(run=unused), memory).run(Read, Enter, Read)

    with pytest.raises(EffectUnresolvedError) as caught:
        play.raises(Ask, error)

    assert (caught.value.reason, caught.value.__cause__) == (reason, error)
    assert caught.value.record.position == 2
    assert memory.phases("k") == ["intent", "released"]
    assert the_hold(memory).ends == [caught.value]
    assert [(note.level, note.event, note.facts) for note in memory.notes] == [
        ("warning", "effect_unresolved", {"key": "k", "position": 2, "reason": reason, "error": error_text(error)})
    ]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_ask_that_is_cut_off_changes_nothing(kind: type[BaseException]) -> None:
    """The interrupt goes on as it is, and those who joined learn that nobody knows."""
    memory = with_(INTENT, RELEASED)
    play = calling(at_most_once(run=unused), memory).run(Read, Enter, Read)

    with pytest.raises(kind):
        play.raises(Ask, kind())

    assert memory.phases("k") == ["intent", "released"]
    assert isinstance(the_hold(memory).ends[0], EffectUnresolvedError)


@pytest.mark.parametrize("answer", [float("nan"), Found(object()), (1,), "a" * PROOF_BYTES_MAX])
def test_proof_of_the_recipient_that_cannot_be_kept_changes_nothing(answer: Any) -> None:
    """The intent stands as it was; the next call asks again."""
    memory = with_(INTENT, RELEASED)

    with pytest.raises(EffectUnresolvedError) as caught:
        calling(at_most_once(run=unused, reconcile=lambda _: answer), memory).finish()

    assert caught.value.reason == "proof-rejected"
    assert memory.phases("k") == ["intent", "released"]


@pytest.mark.parametrize("answer", [None, "found"])
def test_verdict_that_cannot_be_written_is_unresolved(answer: Any) -> None:
    """An uncertain outcome as an accepted one: the intent stands, and its record is told."""
    memory = with_(INTENT, owner=OTHER)
    play = calling(at_most_once(run=unused, reconcile=lambda _: answer), memory)
    play.run(Read, Enter, Read, IsAlive, Ask).raises(Commit, FULL)

    with pytest.raises(EffectUnresolvedError) as caught:
        play.does(Commit)

    assert (caught.value.reason, caught.value.__cause__) == ("outcome-unrecorded", FULL)
    assert caught.value.record.position == 1
    assert memory.phases("k") == ["intent"]


@pytest.mark.parametrize("answer", [None, "found", Found(None), NotPerformed("no")])
@pytest.mark.parametrize("now", [ACCEPTED, UNCERTAIN])
def test_verdict_about_a_record_that_was_settled_meanwhile_is_dropped(answer: Any, now: Phase) -> None:
    """Who comes too late reads again, and every call returns what is on record."""
    memory = with_(INTENT, RELEASED)
    reconcile = raising(answer) if isinstance(answer, Exception) else lambda _: answer
    play = calling(at_most_once(run=unused, reconcile=reconcile), memory).run(Read, Enter, Read, Ask)
    memory.put_effect("k", now, proof=b'"theirs"' if now is ACCEPTED else None)

    assert play.finish() == (Accepted("theirs", "run") if now is ACCEPTED else Uncertain())
    assert memory.phases("k") == ["intent", "released", now.word]


@pytest.mark.parametrize("answer", [None, "found", Found(None), NotPerformed("no")])
def test_verdict_about_an_attempt_that_is_over_starts_over(answer: Any) -> None:
    """Another process proved the absence and runs the next attempt: this call waits for that one."""
    memory = with_(INTENT, RELEASED)
    memory.alive[OTHER] = OTHER_PID
    reconcile = raising(answer) if isinstance(answer, Exception) else lambda _: answer
    play = calling(at_most_once(run=unused, reconcile=reconcile), memory).run(Read, Enter, Read, Ask)
    memory.put_effect("k", FAILED)
    memory.put_effect("k", INTENT, owner=OTHER)

    play.run(Commit, Read, IsAlive)

    play.expect(Pause)
    assert memory.phases("k") == ["intent", "released", "failed", "intent"]


@pytest.mark.parametrize("answer", [None, "found", NotPerformed("no")])
def test_verdict_about_an_effect_that_failed_meanwhile_starts_over(answer: Any) -> None:
    """A person decided that nothing happened: the call commits the next intent, then runs."""
    memory = with_(INTENT, RELEASED)
    reconcile = raising(answer) if isinstance(answer, Exception) else lambda _: answer
    play = calling(at_most_once(reconcile=reconcile), memory).run(Read, Enter, Read, Ask)
    memory.put_effect("k", FAILED)

    play.run(Commit, Read, Commit, Call, Commit)

    assert play.returned == Accepted("proof", "run")
    assert memory.last("k").attempts == 2


def test_intent_of_an_idempotent_effect_is_run_again() -> None:
    """The recipient deduplicates by the key: another attempt, its intent first, nobody asked."""
    memory = with_(INTENT, guarantee=OFTEN, owner=OTHER)

    play = calling(idempotent(), memory).run(Read, Enter, Read, IsAlive, Commit)
    assert memory.phases("k") == ["intent", "intent"]

    assert play.run(Call, Commit).returned == "result"
    assert memory.last("k").attempts == 2
    assert memory.last("k").owner == OWN


# A failed effect


@pytest.mark.parametrize("make", [at_most_once, idempotent])
def test_failed_effect_is_tried_again(make: Callable[..., EffectCall]) -> None:
    """The next intent first, then the run."""
    memory = with_(INTENT, FAILED, guarantee=make().guarantee)

    play = calling(make(), memory).run(*NEXT_INTENT, Call, Commit)

    assert play.is_done
    assert memory.phases("k") == ["intent", "failed", "intent", "accepted"]
    assert memory.last("k").attempts == 2


@pytest.mark.parametrize("retry", [False, lambda record: False, lambda record: 0])
def test_failed_effect_is_not_tried_again_where_the_caller_says_so(retry: Any) -> None:
    """It is told as failed with what the last attempt raised."""
    memory = with_(INTENT, FAILED, guarantee=OFTEN, error="Boom: 500", reason="run-failed")

    with pytest.raises(EffectFailedError) as caught:
        calling(idempotent(run=unused, retry_failed=retry), memory).finish()

    assert (caught.value.reason, caught.value.record.phase) == ("Boom: 500", "failed")
    assert memory.phases("k") == ["intent", "failed"]
    assert the_hold(memory).ends == [None]


def test_predicate_decides_over_the_record() -> None:
    """It is called as a function that decides, with the record of the failed attempt."""
    seen: list[EffectRecord] = []
    memory = with_(INTENT, FAILED, guarantee=OFTEN, error="Boom: 500")

    def predicate(record: EffectRecord) -> bool:
        seen.append(record)
        return True

    call = idempotent(retry_failed=predicate)

    play = calling(call, memory).run(Read, Enter, Read)
    assert play.expect(Decide).function is call.retry_failed
    assert play.finish() == "result"

    assert [(record.phase, record.error, record.attempts) for record in seen] == [("failed", "Boom: 500", 1)]


def test_predicate_that_raises_runs_nothing() -> None:
    """Its exception is the caller's; who joined decides for itself."""
    memory = with_(INTENT, FAILED, guarantee=OFTEN)

    with pytest.raises(Boom):
        calling(idempotent(run=unused, retry_failed=raising(Boom())), memory).finish()

    assert memory.phases("k") == ["intent", "failed"]
    assert the_hold(memory).ends == [None]


@pytest.mark.parametrize("error, reason, text", [(None, "run-failed", "run-failed"), (None, None, "failed")])
def test_failed_effect_without_a_text_is_told_by_its_reason(error: Any, reason: Any, text: str) -> None:
    """What is on record is what can be told."""
    memory = with_(INTENT, FAILED, guarantee=OFTEN, error=error, reason=reason)

    with pytest.raises(EffectFailedError) as caught:
        calling(idempotent(run=unused, retry_failed=False), memory).finish()

    assert caught.value.reason == text


def test_effect_that_a_walk_passed_is_a_first_attempt() -> None:
    """It is on record as failed and was never tried: no `retry_failed` forbids that."""
    memory = with_(FAILED, guarantee=OFTEN, reason="passed")

    play = calling(idempotent(retry_failed=unused), memory)

    assert play.finish() == "result"
    assert memory.last("k").attempts == 1


# Somebody else decided while it ran


@pytest.mark.parametrize("run", [lambda: "m", raising(NotPerformed("no"))])
def test_decision_of_a_person_during_the_run_is_the_answer(run: Any) -> None:
    """The first outcome recorded wins; a late one overwrites nothing."""
    for phase, answer in ((ACCEPTED, Accepted("theirs", "resolve")), (UNCERTAIN, Uncertain())):
        play = calling(at_most_once(run=run)).run(*FIRST_INTENT, Call)
        play.memory.put_effect("k", phase, via=Via.RESOLVE, proof=b'"theirs"')

        assert play.run(Commit, Read).returned == answer
        assert play.memory.phases("k") == ["intent", phase.word]
        assert the_hold(play.memory).ends == [None]


@pytest.mark.parametrize("run", [lambda: "m", raising(Boom("500"))])
def test_decision_of_a_person_during_a_run_effect_is_the_answer(run: Any) -> None:
    """An accepted one has a result, an uncertain one none."""
    play = calling(idempotent(run=run)).run(*FIRST_INTENT, Call)
    play.memory.put_effect("k", ACCEPTED, guarantee=OFTEN, via=Via.RESOLVE, proof=b'"theirs"')
    assert play.run(Commit, Read).returned == "theirs"

    play = calling(idempotent(run=run)).run(*FIRST_INTENT, Call)
    play.memory.put_effect("k", UNCERTAIN, guarantee=OFTEN, via=Via.RESOLVE)
    with pytest.raises(EffectUnresolvedError, match="resolved as uncertain"):
        play.run(Commit, Read)


@pytest.mark.parametrize("error, text", [("NotPerformed: by hand", "NotPerformed: by hand"), (None, "failed")])
def test_person_who_decides_not_performed_fails_the_run(error: Any, text: str) -> None:
    """What the run returned is dropped: the person's decision is what is on record."""
    play = calling(at_most_once()).run(*FIRST_INTENT, Call)
    play.memory.put_effect("k", FAILED, via=Via.RESOLVE, error=error)

    with pytest.raises(EffectFailedError) as caught:
        play.run(Commit, Read)

    assert (caught.value.reason, caught.value.record.via) == (text, "resolve")


@pytest.mark.parametrize("phase", [CLEARED, RELEASED])
def test_run_whose_intent_is_gone_is_unresolved(phase: Phase) -> None:
    """Somebody took this process for dead: what the run did could not be recorded, and that is said."""
    play = calling(at_most_once()).run(*FIRST_INTENT, Call)
    play.memory.put_effect("k", phase)

    with pytest.raises(EffectUnresolvedError) as caught:
        play.run(Commit, Read)

    assert caught.value.reason == "outcome-unrecorded"
    assert (caught.value.record is None) is (phase is CLEARED)


def test_release_of_an_intent_that_was_settled_meanwhile_changes_nothing() -> None:
    """A run that raised after a person's decision: the decision stands."""
    play = calling(at_most_once(run=raising(Boom()))).run(*FIRST_INTENT, Call)
    play.memory.put_effect("k", ACCEPTED, via=Via.RESOLVE)

    with pytest.raises(EffectUnresolvedError, match="run-failed"):
        play.finish()

    assert play.memory.phases("k") == ["intent", "accepted"]


# The effect that follows, in a walk


def settling(memory: Memory, first: EffectCall, following: EffectCall | None = None, **options: Any) -> Play[Outcome]:
    """`settle` as a walk calls it."""
    return Play(settle(first, OWN, following=following, **options), memory)


@pytest.mark.parametrize("before", [None, CLEARED, FAILED])
@pytest.mark.parametrize("make", [at_most_once, idempotent])
def test_outcome_and_next_intent_share_a_commit(before: Phase | None, make: Callable[..., EffectCall]) -> None:
    """The flight of the next is entered without waiting, and handed on with its durable intent."""
    memory = Memory()
    following = make("next", request="r")
    if before is not None:
        memory.put_effect("next", INTENT, guarantee=following.guarantee)
        memory.put_effect("next", before, guarantee=following.guarantee)
    play = settling(memory, at_most_once("k"), following).run(*FIRST_INTENT, Call)

    entered = play.expect(Enter)
    assert entered == Enter("effect", "next", following.form, following.guarantee, following.request, wait=False)
    play.does(Enter)
    assert play.expect(Commit).settles is False
    commits = memory.commits
    play.does(Commit)

    outcome = play.returned
    assert memory.commits == commits + 1
    assert (memory.phases("k")[-1], memory.phases("next")[-1]) == ("accepted", "intent")
    assert (memory.last("next").owner, memory.last("next").request) == (OWN, following.request)
    assert (outcome.how, outcome.state.entry.phase) == ("ran", ACCEPTED)
    assert (outcome.begun.call, outcome.begun.flight) == (following, memory.holds[1])
    assert outcome.begun.state == memory.effect(following.form)
    assert [hold.ends for hold in memory.holds] == [[None], []]


@pytest.mark.parametrize(
    "phase, guarantee, request_",
    [
        (INTENT, ONCE, None),
        (RELEASED, ONCE, None),
        (ACCEPTED, ONCE, None),
        (UNCERTAIN, ONCE, None),
        (FAILED, OFTEN, None),
        (FAILED, ONCE, "another"),
    ],
)
def test_effect_that_moved_on_is_not_begun_with_the_one_before(
    phase: Phase, guarantee: Guarantee, request_: Any
) -> None:
    """What the walk saw is looked at again inside the transaction; the outcome is committed all the same."""
    memory = Memory()
    play = settling(memory, at_most_once("k"), at_most_once("next", request="r")).run(*FIRST_INTENT, Call, Enter)
    memory.put_effect("next", INTENT, guarantee=guarantee, request=fingerprint(request_))
    if phase is not INTENT:
        memory.put_effect("next", phase, guarantee=guarantee)

    outcome = play.run(Commit).returned

    assert (outcome.how, outcome.begun) == ("ran", None)
    assert memory.phases("k") == ["intent", "accepted"]
    assert memory.phases("next")[-1] == phase.word
    assert [hold.ends for hold in memory.holds] == [[None], [None]]


@pytest.mark.parametrize("error", [EffectInFlightError("next", 1), EffectConflictError("next", "why"), None])
def test_effect_that_somebody_else_has_is_not_begun(error: Exception | None) -> None:
    """Its turn comes later; the outcome is committed alone."""
    memory = Memory()
    play = settling(memory, at_most_once("k"), at_most_once("next")).run(*FIRST_INTENT, Call)
    if error is None:
        play.does(Enter, None)
    else:
        play.raises(Enter, error)

    outcome = play.run(Commit).returned

    assert (outcome.how, outcome.begun) == ("ran", None)
    assert memory.phases("next") == []


def test_nothing_is_begun_with_an_outcome_that_came_too_late() -> None:
    """A person decided about this one: the next keeps its turn."""
    memory = Memory()
    play = settling(memory, at_most_once("k"), at_most_once("next")).run(*FIRST_INTENT, Call, Enter)
    memory.put_effect("k", ACCEPTED, via=Via.RESOLVE, proof=b'"theirs"')

    outcome = play.run(Commit, Read).returned

    assert (outcome.how, outcome.begun, outcome.state.entry.proof) == ("reused", None, b'"theirs"')
    assert memory.phases("next") == []
    assert [hold.ends for hold in memory.holds] == [[None], [None]]


def test_next_effect_is_begun_with_a_reconciled_one() -> None:
    """A proof that the recipient gave is an outcome as any other."""
    memory = with_(INTENT, RELEASED)

    play = settling(memory, at_most_once("k", reconcile=lambda _: "found"), at_most_once("next"))
    outcome = play.run(Read, Enter, Read, Ask, Enter, Commit).returned

    assert (outcome.how, outcome.begun.state.entry.phase) == ("reconciled", INTENT)


@pytest.mark.parametrize("reconcile", [lambda _: None, raising(Boom())])
def test_nothing_is_begun_with_another_verdict(reconcile: Any) -> None:
    """After an uncertain effect the walk asks its policy first, after an unresolved one it stops."""
    memory = with_(INTENT, RELEASED)
    play = settling(memory, at_most_once("k", reconcile=reconcile), at_most_once("next"))

    try:
        play.finish()
    except EffectUnresolvedError:
        pass
    else:
        assert play.returned.how == "uncertain"

    assert memory.phases("next") == []


def test_full_journal_takes_the_outcome_alone() -> None:
    """The reserve is for outcomes: the next one's intent has to wait for room."""
    memory = Memory()
    play = settling(memory, at_most_once("k"), at_most_once("next")).run(*FIRST_INTENT, Call, Enter)

    play.raises(Commit, FULL)
    assert play.expect(Commit).settles is True
    outcome = play.does(Commit).returned

    assert (outcome.how, outcome.begun) == ("ran", None)
    assert (memory.phases("k"), memory.phases("next")) == (["intent", "accepted"], [])
    assert [hold.ends for hold in memory.holds] == [[None], [None]]


def test_outcome_that_a_full_journal_took_alone_may_come_too_late() -> None:
    """A person decided about this one meanwhile."""
    memory = Memory()
    play = settling(memory, at_most_once("k"), at_most_once("next")).run(*FIRST_INTENT, Call, Enter)
    play.raises(Commit, FULL)
    memory.put_effect("k", ACCEPTED, via=Via.RESOLVE, proof=b'"theirs"')

    outcome = play.run(Commit, Read).returned

    assert (outcome.how, outcome.state.entry.proof) == ("reused", b'"theirs"')


@pytest.mark.parametrize("error", [OSError("odd"), CorruptRecordError(2, "damaged")])
def test_commit_that_fails_for_both_tells_each_its_own(error: Exception) -> None:
    """Who joined the next effect shared nothing with this one: it reads again."""
    memory = Memory()
    play = settling(memory, at_most_once("k"), at_most_once("next")).run(*FIRST_INTENT, Call, Enter)
    play.raises(Commit, error)

    with pytest.raises(EffectUnresolvedError, match="outcome-unrecorded"):
        play.does(Commit)

    first, second = memory.holds
    assert isinstance(first.ends[0], EffectUnresolvedError)
    assert second.ends == [None]
    assert (memory.phases("k"), memory.phases("next")) == (["intent", "released"], [])


@pytest.mark.parametrize("is_done", [False, True])
def test_interrupt_while_both_are_committed_takes_the_next_one_back(*, is_done: bool) -> None:
    """Where it landed, the next one is known never to have run; this one's outcome stands, or its intent is released."""
    memory = Memory()
    play = settling(memory, at_most_once("k"), at_most_once("next")).run(*FIRST_INTENT, Call, Enter)
    if is_done:
        play.cut_after(Commit, KeyboardInterrupt())
    else:
        play.raises(Commit, KeyboardInterrupt())

    with pytest.raises(KeyboardInterrupt):
        play.finish()

    assert memory.phases("k") == ["intent", "accepted" if is_done else "released"]
    assert memory.phases("next") == (["intent", "failed"] if is_done else [])
    if is_done:
        assert (memory.last("next").reason, memory.last("next").via) == (NOT_STARTED, None)
    assert isinstance(memory.holds[0].ends[0], EffectUnresolvedError)


def test_interrupt_takes_back_no_intent_that_was_not_begun_with_this_one() -> None:
    """An intent of this process that may have run, and could not be given up, stays what it is: nobody knows."""
    memory = Memory()
    play = settling(memory, at_most_once("k"), at_most_once("next")).run(*FIRST_INTENT, Call, Enter)
    memory.put_effect("next", INTENT)

    with pytest.raises(KeyboardInterrupt):
        play.raises(Commit, KeyboardInterrupt()).finish()

    assert memory.phases("next") == ["intent"]


@pytest.mark.parametrize("make", [at_most_once, idempotent])
def test_effect_that_was_begun_is_run_at_once(make: Callable[..., EffectCall]) -> None:
    """Its intent is durable: nothing is looked at or committed before its run."""
    memory = Memory()
    call = make("k")

    play = settling(memory, call, begun=begun(memory, call))

    outcome = play.run(Call, Commit).returned
    assert (outcome.how, outcome.state.entry.phase) == ("ran", ACCEPTED)
    assert the_hold(memory).ends == [None]


def test_effect_that_was_begun_fails_as_any_other() -> None:
    """What its run raises is recorded, and its flight ends with it."""
    memory = Memory()
    call = at_most_once("k", run=raising(NotPerformed("no")))

    with pytest.raises(EffectFailedError) as caught:
        settling(memory, call, begun=begun(memory, call)).run(Call, Commit)

    assert the_hold(memory).ends == [caught.value]


# Cut off anywhere


class World:
    """A recipient that does what it is asked and keeps count; asked about an effect, it tells the truth."""

    def __init__(self) -> None:
        self.delivered = 0

    def run(self) -> str:
        self.delivered += 1
        return f"delivery {self.delivered}"

    def reconcile(self, _: object) -> str:
        if not self.delivered:
            raise NotPerformed("no record")
        return "delivery 1"

    def call(self, key: str, *, is_once: bool) -> EffectCall:
        return at_most_once(key, self.run, self.reconcile) if is_once else idempotent(key, self.run)


def fresh(memory: Memory) -> None:
    """Nothing on record."""


def failed(memory: Memory) -> None:
    """An attempt is known not to have been performed."""
    memory.put_effect("k", INTENT)
    memory.put_effect("k", FAILED)


def left_open(memory: Memory) -> None:
    """An attempt was given up, and nothing happened at the recipient."""
    memory.put_effect("k", INTENT)
    memory.put_effect("k", RELEASED)


def left_by_another(memory: Memory) -> None:
    """An attempt of a process that is gone."""
    memory.put_effect("k", INTENT, owner=OTHER)


BEGINNINGS: Final = (fresh, failed, left_open, left_by_another)
CUTS: Final[dict[str, Callable[[], BaseException]]] = {
    "interrupt": KeyboardInterrupt,
    "exit": SystemExit,
    "full": lambda: JournalFullError("/journal", "no room"),
    "damaged": lambda: CorruptRecordError(1, "damaged"),
    "closed": lambda: JournalClosedError("/journal"),
    "bug": lambda: RuntimeError("a bug of the driver"),
}


def steps_of(beginning: Callable[[Memory], None], *, follows: bool) -> int:
    """How many requests the whole call makes."""
    memory, world = Memory(), World()
    beginning(memory)
    following = world.call("next", is_once=True) if follows else None
    play = Play(settle(world.call("k", is_once=True), OWN, following=following), memory)
    play.finish()
    return len(play.asked)


PLACES: Final = [
    pytest.param(beginning, step, follows, id=f"{beginning.__name__}-{step}{'-follows' if follows else ''}")
    for beginning in BEGINNINGS
    for follows in (False, True)
    for step in range(steps_of(beginning, follows=follows))
]


def cut_call(
    beginning: Callable[[Memory], None], step: int, *, follows: bool, is_done: bool, error: BaseException | None
) -> tuple[Memory, World, Hold | None]:
    """A call that is cut at one of its requests, before that is done or after; `None` closes it instead.

    The last part is the flight that it entered without being told.
    """
    memory, world = Memory(), World()
    beginning(memory)
    other = World()
    following = other.call("next", is_once=True) if follows else None
    play = Play(settle(world.call("k", is_once=True), OWN, following=following), memory)
    for _ in range(step):
        play.does(type(play.request))
    kind = type(play.request)
    held = len(memory.holds)

    def unseen() -> Hold | None:
        return memory.holds[held] if kind is Enter and is_done else None

    if error is None:
        if is_done:
            play.do_unseen(kind)
        play.close()
        return memory, world, unseen()
    try:
        if is_done:
            play.cut_after(kind, error)
        else:
            play.raises(kind, error)
        play.finish()
    except BaseException:
        pass
    if play.is_done and play.returned.begun is not None:
        play.returned.begun.flight.end()
    return memory, world, unseen()


@pytest.mark.parametrize("beginning, step, follows", PLACES)
@pytest.mark.parametrize("is_done", [False, True])
@pytest.mark.parametrize("cut", [*CUTS, None])
def test_call_that_is_cut_anywhere_lets_go_and_is_never_run_twice(
    beginning: Callable[[Memory], None], step: int, cut: str | None, *, follows: bool, is_done: bool
) -> None:
    """Every flight ends once, and the next call finds one delivery, made by whichever of them came to run."""
    memory, world, unseen = cut_call(
        beginning, step, follows=follows, is_done=is_done, error=None if cut is None else CUTS[cut]()
    )
    for hold in memory.holds:
        if hold is unseen or (hold is not memory.holds[0] and not hold.ends):
            # Entered without the protocol being told, or for what follows: the driver's to end.
            hold.end()

    assert [len(hold.ends) for hold in memory.holds] == [1] * len(memory.holds)
    assert world.delivered <= 1
    answer = Play(effect(world.call("k", is_once=True), OWN), memory).finish()
    assert isinstance(answer, Accepted)
    assert (answer.proof, world.delivered) == ("delivery 1", 1)
    assert memory.in_flight == {}


@pytest.mark.parametrize("beginning, step, follows", PLACES)
def test_closed_call_asks_nothing_more(beginning: Callable[[Memory], None], step: int, *, follows: bool) -> None:
    """A driver that gives up is not asked for another thing, at whatever request."""
    memory, world = Memory(), World()
    beginning(memory)
    following = World().call("next", is_once=True) if follows else None
    protocol = settle(world.call("k", is_once=True), OWN, following=following)
    play = Play(protocol, memory)
    for _ in range(step):
        play.does(type(play.request))

    play.close()

    assert inspect.getgeneratorstate(protocol) == inspect.GEN_CLOSED
    assert [len(hold.ends) for hold in memory.holds[:1]] == [1] * len(memory.holds[:1])
