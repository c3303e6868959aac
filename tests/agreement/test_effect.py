"""`effect`: every row of its table, and every sentence under it."""

from collections.abc import Callable
from typing import Any

import pytest

from journal import (
    Accepted,
    EffectFailedError,
    EffectUnresolvedError,
    Found,
    Journal,
    NotPerformed,
    Uncertain,
)

from .support import (
    START,
    Boom,
    Clock,
    Peer,
    Stub,
    accept,
    leave_failed,
    leave_open,
    leave_uncertain,
    phases,
    unused,
)

# Nothing on record


def test_new_effect_runs_once_and_is_accepted(j: Journal) -> None:
    """Nothing on record: the run's return is the proof, via `run`; `run` takes nothing."""
    run = Stub({"id": "m-1"})

    outcome = j.effect("k", run=run, reconcile=unused())

    assert outcome == Accepted({"id": "m-1"}, "run")
    assert run.calls == [()]
    assert phases(j, "k") == ["intent", "accepted"]


def test_intent_is_on_record_before_the_run(j: Journal) -> None:
    """When `run` is called the intent is committed, as attempt 1, with nothing known yet."""
    seen: list[Any] = []

    j.effect("k", run=lambda: seen.extend([j.record("k"), j.history("k")]), reconcile=unused())

    record, events = seen
    assert (record.key, record.phase, record.attempts, record.guarantee) == ("k", "intent", 1, "at_most_once")
    assert (record.first_at, record.last_at, record.position) == (START, START, 1)
    assert record.proof is None
    assert [(event.phase, event.attempt) for event in events] == [("intent", 1)]


def test_intent_is_durable_before_the_run(j: Journal, start_peer: Callable[..., Peer]) -> None:
    """Another process sees the intent while the run is under way."""
    seen: list[Any] = []

    def run() -> None:
        peer = start_peer("look")
        seen.append(peer.hear("looked"))

    j.effect("k", run=run, reconcile=unused())

    assert seen[0]["records"] == [["k", "intent", 1, None]]


def test_record_of_an_accepted_effect(j: Journal, clock: Clock) -> None:
    """The record says when it began and ended, what the recipient named it, and how that became known."""

    def run() -> str:
        clock.advance(5)
        return "m-1"

    j.effect("k", run=run, reconcile=unused())

    record = j.record("k")
    assert record is not None
    assert (record.key, record.guarantee, record.phase, record.attempts) == ("k", "at_most_once", "accepted", 1)
    assert (record.first_at, record.last_at) == (START, START + 5)
    assert (record.proof, record.via, record.position) == ("m-1", "run", 2)
    assert record.owner


def test_run_may_return_nothing(j: Journal) -> None:
    """None is a proof like any other: the effect is accepted."""
    assert j.effect("k", run=lambda: None, reconcile=unused()) == Accepted(None, "run")
    assert j.effect("k", run=unused(), reconcile=unused()) == Accepted(None, "run")


def test_outcomes_work_in_match(j: Journal) -> None:
    """`Accepted` and `Uncertain` compare by value and are told apart by `match`."""
    accept(j, "a", "m-1")
    leave_uncertain(j, "u")
    told = []

    for key in ("a", "u"):
        match j.effect(key, run=unused(), reconcile=unused()):
            case Accepted("m-1", "run"):
                told.append("accepted")
            case Uncertain():
                told.append("uncertain")

    assert told == ["accepted", "uncertain"]
    assert Uncertain() == Uncertain()
    assert Accepted(1, "run") != Accepted(1, "reconcile")
    assert Accepted(1, "run") != Accepted(2, "run")


# Accepted or uncertain


@pytest.mark.parametrize("via", ["run", "reconcile"])
def test_accepted_effect_is_returned_as_it_is(j: Journal, via: str) -> None:
    """An accepted effect is answered from the record: nothing is called and nothing is written."""
    if via == "reconcile":
        leave_open(j, "k")
    j.effect("k", run=lambda: "m-1", reconcile=lambda _: "m-1")
    head = j.head()
    run, reconcile = unused(), unused()

    outcome = j.effect("k", run=run, reconcile=reconcile)

    assert outcome == Accepted("m-1", via)
    assert (run.count, reconcile.count, j.head()) == (0, 0, head)


def test_uncertain_effect_is_returned_as_it_is(j: Journal) -> None:
    """An uncertain effect is final: nothing is called and nothing is written."""
    leave_uncertain(j, "k")
    head = j.head()
    run, reconcile = unused(), unused()

    outcome = j.effect("k", run=run, reconcile=reconcile)

    assert outcome == Uncertain()
    assert (run.count, reconcile.count, j.head()) == (0, 0, head)


# Failed: known not performed


def test_not_performed_is_recorded_as_failed(j: Journal) -> None:
    """`run` raising `NotPerformed`: `failed` is committed, and `EffectFailedError` says so with the key."""
    with pytest.raises(EffectFailedError) as caught:
        j.effect("k", run=Stub(NotPerformed("connection refused")), reconcile=unused())

    assert caught.value.key == "k"
    record = j.record("k")
    assert record is not None
    assert (record.phase, record.attempts) == ("failed", 1)
    assert "connection refused" in f"{record.reason} {record.error}"
    assert phases(j, "k") == ["intent", "failed"]


def test_failed_effect_runs_again(j: Journal, clock: Clock) -> None:
    """Failed: the next call commits the next intent, then runs; nobody is asked."""
    leave_failed(j, "k")
    clock.advance(7)
    run, reconcile = Stub("m-1"), unused()

    outcome = j.effect("k", run=run, reconcile=reconcile)

    assert outcome == Accepted("m-1", "run")
    assert (run.count, reconcile.count) == (1, 0)
    assert phases(j, "k") == ["intent", "failed", "intent", "accepted"]
    assert [event.attempt for event in j.history("k")] == [1, 1, 2, 2]
    record = j.record("k")
    assert record is not None
    assert (record.attempts, record.first_at, record.last_at) == (2, START, START + 7)


def test_effect_may_fail_many_times(j: Journal) -> None:
    """Each proved failure is an attempt of its own."""
    for attempt in range(1, 4):
        leave_failed(j, "k")
        record = j.record("k")
        assert record is not None
        assert (record.phase, record.attempts) == ("failed", attempt)

    assert accept(j, "k") == Accepted("proof", "run")


# Intent without outcome, no longer in flight


def test_run_that_raises_leaves_the_intent(j: Journal) -> None:
    """Anything but `NotPerformed` says that nobody knows: the intent stands, and the cause is kept."""
    boom = Boom("socket died")

    with pytest.raises(EffectUnresolvedError) as caught:
        j.effect("k", run=Stub(boom), reconcile=unused())

    assert (caught.value.key, caught.value.reason) == ("k", "run-failed")
    assert caught.value.__cause__ is boom
    record = j.record("k")
    assert record is not None
    assert (record.phase, record.attempts, record.proof) == ("intent", 1, None)


def test_giving_up_a_run_is_an_event_of_its_own(j: Journal) -> None:
    """`released` carries the reason and the error's text; the phase stays `intent`, with both filled in."""
    leave_open(j, "k", Boom("socket died"))

    record = j.record("k")
    assert record is not None
    assert (record.phase, record.reason) == ("intent", "run-failed")
    assert "socket died" in str(record.error)
    intent, released = j.history("k")
    assert (intent.phase, released.phase) == ("intent", "released")
    assert (released.position, released.reason, released.owner) == (2, "run-failed", intent.owner)
    assert "socket died" in str(released.error)


def test_open_intent_is_reconciled_and_never_run(j: Journal) -> None:
    """A proof from the recipient settles the effect, via `reconcile`."""
    leave_open(j, "k")
    run, reconcile = unused(), Stub({"id": "m-1"})

    outcome = j.effect("k", run=run, reconcile=reconcile)

    assert outcome == Accepted({"id": "m-1"}, "reconcile")
    assert (run.count, reconcile.count) == (0, 1)
    assert phases(j, "k") == ["intent", "released", "accepted"]
    record = j.record("k")
    assert record is not None
    assert (record.phase, record.attempts, record.proof, record.via) == ("accepted", 1, {"id": "m-1"}, "reconcile")


def test_no_record_at_the_recipient_is_uncertain(j: Journal) -> None:
    """`None` is not a proof of absence: the effect becomes uncertain, via `reconcile`, and is never run."""
    leave_open(j, "k")
    run = unused()

    outcome = j.effect("k", run=run, reconcile=Stub(None))

    assert outcome == Uncertain()
    assert run.count == 0
    event = j.history("k")[-1]
    assert (event.phase, event.via) == ("uncertain", "reconcile")
    record = j.record("k")
    assert record is not None
    assert record.phase == "uncertain"


@pytest.mark.parametrize("proof", [None, "m-1", {"id": 1}], ids=repr)
def test_found_says_found_whatever_the_proof(j: Journal, proof: Any) -> None:
    """`Found(proof)` accepts the effect, also where the proof itself is None."""
    leave_open(j, "k")

    outcome = j.effect("k", run=unused(), reconcile=Stub(Found(proof)))

    assert outcome == Accepted(proof, "reconcile")


@pytest.mark.parametrize("proof", [False, 0, "", [], {}], ids=repr)
def test_empty_proof_is_a_proof(j: Journal, proof: Any) -> None:
    """Only None says that the recipient has no record."""
    leave_open(j, "k")

    assert j.effect("k", run=unused(), reconcile=Stub(proof)) == Accepted(proof, "reconcile")


def test_proved_absence_runs_again(j: Journal) -> None:
    """`NotPerformed` from `reconcile`: `failed` and the next intent, then the run, in this order."""
    leave_open(j, "k")
    seen: list[Any] = []

    def run() -> str:
        seen.extend([j.record("k"), phases(j, "k")])
        return "m-1"

    outcome = j.effect("k", run=run, reconcile=Stub(NotPerformed("no such id")))

    record, at_run = seen
    assert outcome == Accepted("m-1", "run")
    assert at_run == ["intent", "released", "failed", "intent"]
    assert (record.phase, record.attempts) == ("intent", 2)
    assert phases(j, "k") == ["intent", "released", "failed", "intent", "accepted"]
    assert [event.attempt for event in j.history("k")][-3:] == [1, 2, 2]
    assert [event.position for event in j.history("k")] == [1, 2, 3, 4, 5]


def test_proved_absence_then_a_run_that_raises_is_asked_about_again(j: Journal) -> None:
    """The second intent stands like the first: the next call reconciles it."""
    leave_open(j, "k")
    with pytest.raises(EffectUnresolvedError):
        j.effect("k", run=Stub(Boom("again")), reconcile=Stub(NotPerformed("absent")))
    run = unused()

    outcome = j.effect("k", run=run, reconcile=Stub("m-2"))

    assert outcome == Accepted("m-2", "reconcile")
    assert run.count == 0


def test_proved_absence_then_a_run_that_was_not_performed_fails(j: Journal) -> None:
    """Both proofs of absence are recorded, and the call says that the effect failed."""
    leave_open(j, "k")

    with pytest.raises(EffectFailedError):
        j.effect("k", run=Stub(NotPerformed("refused")), reconcile=Stub(NotPerformed("absent")))

    assert phases(j, "k") == ["intent", "released", "failed", "intent", "failed"]


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt(), SystemExit(3), GeneratorExit()], ids=repr)
def test_what_is_no_exception_passes_through_and_the_intent_stands(j: Journal, interrupt: BaseException) -> None:
    """A `BaseException` from `run` goes on as it is; the next call reconciles and does not run."""
    with pytest.raises(type(interrupt)) as caught:
        j.effect("k", run=Stub(interrupt), reconcile=unused())
    record = j.record("k")
    run = unused()
    outcome = j.effect("k", run=run, reconcile=Stub("m-1"))

    assert caught.value is interrupt
    assert record is not None
    assert record.phase == "intent"
    assert outcome == Accepted("m-1", "reconcile")
    assert run.count == 0


# What cannot be kept, and who cannot be asked

UNKEPT = {
    "nan": float("nan"),
    "tuple": ("m", 1),
    "set": {1},
    "int key": {1: "m"},
    "object": object(),
    "inside": {"proof": [(1, 2)]},
    "too large": "x" * 70_000,
    "surrogate": "\udcff",
}


@pytest.mark.parametrize("name", UNKEPT)
def test_proof_from_run_that_cannot_be_kept_leaves_the_intent(j: Journal, name: str) -> None:
    """The effect happened, and its proof is unusable: `proof-rejected`, and the next call reconciles."""
    with pytest.raises(EffectUnresolvedError) as caught:
        j.effect("k", run=lambda: UNKEPT[name], reconcile=unused())
    record = j.record("k")
    run = unused()
    outcome = j.effect("k", run=run, reconcile=Stub("m-1"))

    assert (caught.value.key, caught.value.reason) == ("k", "proof-rejected")
    assert record is not None
    assert (record.phase, record.reason) == ("intent", "proof-rejected")
    assert outcome == Accepted("m-1", "reconcile")
    assert run.count == 0


@pytest.mark.parametrize("wrap", [lambda proof: proof, Found], ids=["plain", "found"])
@pytest.mark.parametrize("name", UNKEPT)
def test_proof_from_reconcile_that_cannot_be_kept_leaves_the_intent(
    j: Journal, name: str, wrap: Callable[[Any], Any]
) -> None:
    """`proof-rejected`, nothing is recorded, and the next call asks again."""
    leave_open(j, "k")
    head = j.head()

    with pytest.raises(EffectUnresolvedError) as caught:
        j.effect("k", run=unused(), reconcile=lambda _: wrap(UNKEPT[name]))

    assert (caught.value.key, caught.value.reason, j.head()) == ("k", "proof-rejected", head)
    assert j.effect("k", run=unused(), reconcile=Stub("m-1")) == Accepted("m-1", "reconcile")


def test_reconcile_that_raises_leaves_everything_as_it_was(j: Journal) -> None:
    """Could not ask is not "not there": `reconcile-failed` from the cause, and nothing is recorded."""
    leave_open(j, "k")
    before = j.record("k")
    boom, run = Boom("recipient is down"), unused()

    with pytest.raises(EffectUnresolvedError) as caught:
        j.effect("k", run=run, reconcile=Stub(boom))

    assert (caught.value.key, caught.value.reason) == ("k", "reconcile-failed")
    assert caught.value.__cause__ is boom
    assert j.record("k") == before
    assert phases(j, "k") == ["intent", "released"]
    assert run.count == 0


def test_reconcile_is_asked_until_it_answers(j: Journal) -> None:
    """An effect stays open however often nobody can be asked, and settles when somebody can."""
    leave_open(j, "k")
    reconcile = Stub(Boom("1"), Boom("2"), "m-1")

    for _ in range(2):
        with pytest.raises(EffectUnresolvedError):
            j.effect("k", run=unused(), reconcile=reconcile)

    assert j.effect("k", run=unused(), reconcile=reconcile) == Accepted("m-1", "reconcile")
    assert reconcile.count == 3


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt(), SystemExit(3)], ids=repr)
def test_what_is_no_exception_passes_through_reconcile(j: Journal, interrupt: BaseException) -> None:
    """A `BaseException` from `reconcile` goes on as it is, and nothing is recorded."""
    leave_open(j, "k")
    head = j.head()

    with pytest.raises(type(interrupt)) as caught:
        j.effect("k", run=unused(), reconcile=Stub(interrupt))

    assert caught.value is interrupt
    assert j.head() == head
    assert j.effect("k", run=unused(), reconcile=Stub("m-1")) == Accepted("m-1", "reconcile")


@pytest.mark.parametrize("timeout", [0, -1, 0.0, float("nan"), float("inf"), float("-inf")], ids=repr)
@pytest.mark.parametrize("settled", [True, False], ids=["settled", "new"])
def test_reconcile_timeout_is_positive_and_finite(j: Journal, timeout: float, settled: bool) -> None:
    """Anything else is a `ValueError` before anything is read, so also where the answer is on record."""
    if settled:
        accept(j, "k")
    head, run = j.head(), unused()

    with pytest.raises(ValueError):
        j.effect("k", run=run, reconcile=unused(), reconcile_timeout=timeout)

    assert (j.head(), run.count) == (head, 0)


def test_errors_text_may_be_anything(j: Journal) -> None:
    """An error whose text is huge, is no UTF-8 or cannot be made at all is recorded like any other."""

    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

        __repr__ = __str__

    for index, error in enumerate([Boom("x" * 20_000_000), Boom("\udcff"), Mute()]):
        with pytest.raises(EffectUnresolvedError) as caught:
            j.effect(f"k{index}", run=Stub(error), reconcile=unused())

        assert caught.value.__cause__ is error
        assert phases(j, f"k{index}") == ["intent", "released"]


@pytest.mark.parametrize("why", ["", "x" * 20_000_000, "\udcff"], ids=["empty", "huge", "surrogate"])
def test_reason_of_not_performed_may_be_anything(j: Journal, why: str) -> None:
    """Whatever text `NotPerformed` has, the failure is recorded."""
    leave_failed(j, "k", why)

    assert phases(j, "k") == ["intent", "failed"]


def test_not_performed_may_have_no_reason(j: Journal) -> None:
    """A recipient that says nothing but no is recorded too."""
    with pytest.raises(EffectFailedError):
        j.effect("k", run=Stub(NotPerformed()), reconcile=unused())

    assert phases(j, "k") == ["intent", "failed"]


# Independent of each other


def test_effects_of_different_keys_are_independent(j: Journal) -> None:
    """One key's state says nothing about another's, also when one runs inside the other."""

    def outer() -> str:
        leave_open(j, "inner-open")
        leave_failed(j, "inner-failed")
        return "outer"

    leave_open(j, "before")

    assert j.effect("outer", run=outer, reconcile=unused()) == Accepted("outer", "run")
    assert [r.key for r in j.unfinished()] == ["before", "inner-failed", "inner-open"]


def test_operations_may_be_appended_inside_a_run(j: Journal) -> None:
    """No transaction is open while `run` or `reconcile` is called."""

    def append(*_: Any) -> int:
        return j.append("s", "from inside", op_id=str(j.head())).position

    assert j.effect("k", run=append, reconcile=unused()) == Accepted(2, "run")
    leave_open(j, "open")
    assert j.effect("open", run=unused(), reconcile=append) == Accepted(6, "reconcile")


def test_outcome_is_final_over_reopening(open_journal: Callable[..., Journal]) -> None:
    """What was settled is settled for every later handle, uncertain as well as accepted."""
    j = open_journal()
    accept(j, "a", "m-1")
    leave_uncertain(j, "u")
    leave_failed(j, "f")
    j.close()
    again = open_journal()

    assert again.effect("a", run=unused(), reconcile=unused()) == Accepted("m-1", "run")
    assert again.effect("u", run=unused(), reconcile=unused()) == Uncertain()
    assert again.effect("f", run=lambda: "m-2", reconcile=unused()) == Accepted("m-2", "run")
