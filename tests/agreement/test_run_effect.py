"""`run_effect`: effects whose recipient deduplicates by the key."""

from typing import Any

import pytest

from journal import (
    Accepted,
    EffectConflictError,
    EffectFailedError,
    EffectUnresolvedError,
    Journal,
    NotPerformed,
    Uncertain,
)

from .support import START, Boom, Clock, Stub, accept, phases, unused


def leave_open(j: Journal, key: Any, error: BaseException | None = None) -> None:
    """Leaves an intent without outcome: the run was cut off."""
    with pytest.raises(KeyboardInterrupt):
        j.run_effect(key, Stub(error or KeyboardInterrupt()))


def leave_failed(j: Journal, key: Any, error: Exception | None = None) -> None:
    """Leaves an attempt that raised."""
    with pytest.raises(type(error or Boom())):
        j.run_effect(key, Stub(error or Boom("boom")))


def test_result_is_returned_and_recorded(j: Journal) -> None:
    """The first call runs, with an intent before; the second is answered from the record."""
    seen: list[Any] = []

    def run() -> dict[str, int]:
        seen.append(j.record("k"))
        return {"id": 1}

    first = j.run_effect("k", run)
    again = j.run_effect("k", unused())

    assert first == again == {"id": 1}
    assert (seen[0].phase, seen[0].attempts, seen[0].guarantee) == ("intent", 1, "idempotent")
    record = j.record("k")
    assert record is not None
    assert (record.guarantee, record.phase, record.attempts, record.proof, record.via) == (
        "idempotent",
        "accepted",
        1,
        {"id": 1},
        "run",
    )
    assert phases(j, "k") == ["intent", "accepted"]


@pytest.mark.parametrize("error", [Boom("boom"), NotPerformed("refused"), ValueError("bad")], ids=repr)
def test_run_that_raises_is_failed_and_the_exception_goes_on(j: Journal, error: Exception) -> None:
    """`failed` is committed with the error as `Type: text`, for `NotPerformed` too; the same exception goes on."""
    with pytest.raises(type(error)) as caught:
        j.run_effect("k", Stub(error))

    assert caught.value is error
    record = j.record("k")
    assert record is not None
    assert (record.phase, record.attempts) == ("failed", 1)
    assert record.error == f"{type(error).__name__}: {error}"
    event = j.history("k")[-1]
    assert (event.phase, event.error) == ("failed", record.error)


def test_failed_attempt_is_run_again(j: Journal, clock: Clock) -> None:
    """A failed record: attempt + 1, intent first, under the same key."""
    leave_failed(j, "k")
    clock.advance(3)
    seen: list[Any] = []

    def run() -> str:
        seen.append(j.record("k"))
        return "done"

    assert j.run_effect("k", run) == "done"
    assert (seen[0].phase, seen[0].attempts) == ("intent", 2)
    assert phases(j, "k") == ["intent", "failed", "intent", "accepted"]
    record = j.record("k")
    assert record is not None
    assert (record.attempts, record.first_at, record.last_at) == (2, START, START + 3)


def test_open_intent_is_run_again(j: Journal) -> None:
    """An intent without outcome that is no longer in flight: attempt + 1, and nobody is asked."""
    leave_open(j, "k")
    record = j.record("k")
    assert record is not None
    assert record.phase == "intent"

    assert j.run_effect("k", lambda: "done") == "done"
    assert [(e.phase, e.attempt) for e in j.history("k") if e.phase != "released"] == [
        ("intent", 1),
        ("intent", 2),
        ("accepted", 2),
    ]


def test_failed_record_is_left_alone_when_told(j: Journal) -> None:
    """`retry_failed=False`: `EffectFailedError` with key and record, nothing runs, nothing is written."""
    leave_failed(j, "k")
    head, run = j.head(), unused()

    with pytest.raises(EffectFailedError) as caught:
        j.run_effect("k", run, retry_failed=False)

    assert (caught.value.key, run.count, j.head()) == ("k", 0, head)
    assert caught.value.record is not None
    assert caught.value.record.phase == "failed"


@pytest.mark.parametrize("answer", [True, False])
def test_predicate_decides_by_the_record(j: Journal, answer: bool) -> None:
    """`retry_failed` may be a predicate over the record."""
    leave_failed(j, "k", Boom("boom"))
    predicate, run = Stub(answer), Stub("done")

    if answer:
        assert j.run_effect("k", run, retry_failed=predicate) == "done"
    else:
        with pytest.raises(EffectFailedError):
            j.run_effect("k", run, retry_failed=predicate)

    ((record,),) = predicate.calls
    assert (record.key, record.phase, record.attempts, record.error) == ("k", "failed", 1, "Boom: boom")
    assert run.count == answer


def test_predicate_that_raises_leaves_the_key_free(j: Journal) -> None:
    """Its exception goes on as it is, nothing is written, and the next call is answered."""
    leave_failed(j, "k")
    head, boom = j.head(), Boom("predicate")

    with pytest.raises(Boom) as caught:
        j.run_effect("k", unused(), retry_failed=Stub(boom))

    assert caught.value is boom
    assert j.head() == head
    assert j.run_effect("k", lambda: "done") == "done"


def test_retry_failed_is_about_failed_records_only(j: Journal) -> None:
    """A new effect and an open intent run whatever it says."""
    predicate = Stub(False)
    leave_open(j, "open")

    assert j.run_effect("new", lambda: 1, retry_failed=predicate) == 1
    assert j.run_effect("open", lambda: 2, retry_failed=predicate) == 2
    assert j.run_effect("open", unused(), retry_failed=predicate) == 2
    assert j.run_effect("other", lambda: 3, retry_failed=False) == 3
    assert predicate.count == 0


@pytest.mark.parametrize("result", [float("nan"), (1, 2), {"a": {1}}, object()], ids=["nan", "tuple", "set", "object"])
def test_success_whose_result_cannot_be_kept_is_never_recorded_as_failed(j: Journal, result: Any) -> None:
    """The intent stands, `EffectUnresolvedError` says why, and the next call runs again."""
    with pytest.raises(EffectUnresolvedError) as caught:
        j.run_effect("k", lambda: result)

    assert (caught.value.key, caught.value.reason) == ("k", "proof-rejected")
    record = j.record("k")
    assert record is not None
    assert record.phase == "intent"
    assert "failed" not in phases(j, "k")
    assert j.run_effect("k", lambda: "done", retry_failed=False) == "done"


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt(), SystemExit(1)], ids=repr)
def test_what_is_no_exception_passes_through_and_the_intent_stands(j: Journal, interrupt: BaseException) -> None:
    """A `BaseException` is no failed attempt."""
    with pytest.raises(type(interrupt)) as caught:
        j.run_effect("k", Stub(interrupt))

    assert caught.value is interrupt
    record = j.record("k")
    assert record is not None
    assert record.phase == "intent"
    assert "failed" not in phases(j, "k")


def test_effect_that_a_person_called_uncertain_is_not_run(j: Journal) -> None:
    """On a record resolved as uncertain: `EffectUnresolvedError` with reason `uncertain`."""
    leave_open(j, "k")
    record = j.record("k")
    assert record is not None
    j.resolve("k", Uncertain(), expected_position=record.position, reason="gave up")
    run = unused()

    with pytest.raises(EffectUnresolvedError) as caught:
        j.run_effect("k", run)

    assert (caught.value.key, caught.value.reason, run.count) == ("k", "uncertain", 0)


def test_effect_that_a_person_accepted_gives_the_persons_proof(j: Journal) -> None:
    """On a record resolved as accepted the proof is the result."""
    leave_failed(j, "k")
    record = j.record("k")
    assert record is not None
    j.resolve("k", Accepted("by hand", "resolve"), expected_position=record.position, reason="called them")

    assert j.run_effect("k", unused()) == "by hand"


def test_effect_that_a_person_called_not_performed_is_a_failed_one(j: Journal) -> None:
    """A resolved failure runs again, or is refused with `retry_failed=False`."""
    leave_open(j, "k")
    record = j.record("k")
    assert record is not None
    j.resolve("k", NotPerformed("asked them"), expected_position=record.position, reason="asked them")

    with pytest.raises(EffectFailedError):
        j.run_effect("k", unused(), retry_failed=False)
    assert j.run_effect("k", lambda: "done") == "done"


def test_guarantee_is_fixed_by_the_first_intent(j: Journal) -> None:
    """A call with the other guarantee is a conflict in every phase, and nothing runs."""
    accept(j, "settled")
    leave_failed(j, "failed")
    leave_open(j, "open")
    head, run = j.head(), unused()

    with pytest.raises(EffectConflictError) as caught:
        j.run_effect("settled", run)
    for key in ("failed", "open"):
        with pytest.raises(EffectConflictError):
            j.effect(key, run=run, reconcile=run)

    assert caught.value.key == "settled"
    assert (run.count, j.head()) == (0, head)


def test_errors_text_may_be_anything(j: Journal) -> None:
    """An error whose text is huge, is no UTF-8 or cannot be made at all is recorded, and goes on as it is."""

    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

        __repr__ = __str__

    for index, error in enumerate([Boom("x" * 20_000_000), Boom("\udcff"), Boom(""), Mute()]):
        with pytest.raises(type(error)) as caught:
            j.run_effect(f"k{index}", Stub(error))

        assert caught.value is error
        assert phases(j, f"k{index}") == ["intent", "failed"]


def test_large_result_is_kept(j: Journal) -> None:
    """The 65,536 bytes bind the proofs of `effect`; a result may have 16 MiB."""
    large = "x" * (16 * 1024 * 1024 - 1024)

    assert j.run_effect("k", lambda: large) == large
    assert j.run_effect("k", unused()) == large


def test_larger_result_is_refused(j: Journal) -> None:
    """More than 16 MiB cannot be kept: the intent stands."""
    with pytest.raises(EffectUnresolvedError):
        j.run_effect("k", lambda: "x" * (16 * 1024 * 1024 + 1))

    assert "accepted" not in phases(j, "k")
