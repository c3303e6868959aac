"""`resolve` and `clear_effect`: what a person decides."""

from collections.abc import Callable
from typing import Any

import pytest

from journal import (
    Accepted,
    EffectConflictError,
    EffectInFlightError,
    EffectUnresolvedError,
    Journal,
    NotPerformed,
    Uncertain,
)

from .support import (
    START,
    Call,
    Clock,
    Gate,
    Peer,
    Stub,
    accept,
    leave_failed,
    leave_open,
    leave_uncertain,
    phases,
    unused,
    wait_until,
)

LEAVE: dict[str, Callable[[Journal, str], None]] = {
    "intent": leave_open,
    "failed": leave_failed,
    "uncertain": leave_uncertain,
}
OUTCOMES: dict[str, Any] = {
    "accepted": Accepted("by hand", "resolve"),
    "uncertain": Uncertain(),
    "failed": NotPerformed("they say no"),
}


def position(j: Journal, key: Any) -> int:
    """Gives where the record stands."""
    record = j.record(key)
    assert record is not None
    return record.position


@pytest.mark.parametrize("outcome", OUTCOMES)
@pytest.mark.parametrize("phase", LEAVE)
def test_person_settles_what_is_not_accepted(j: Journal, clock: Clock, phase: str, outcome: str) -> None:
    """An intent, a failed and an uncertain effect become what the person says, with the person's reason."""
    LEAVE[phase](j, "k")
    head = j.head()
    clock.advance(9)

    j.resolve("k", OUTCOMES[outcome], expected_position=position(j, "k"), reason="looked at their console")

    record, event = j.record("k"), j.history("k")[-1]
    assert record is not None
    assert (record.phase, record.position, record.last_at) == (outcome, head + 1, START + 9)
    assert (event.phase, event.via, event.reason) == (outcome, "resolve", "looked at their console")
    assert (event.position, event.at) == (head + 1, START + 9)
    assert j.head() == head + 1


@pytest.mark.parametrize("phase", LEAVE)
def test_resolved_as_accepted_is_returned(j: Journal, phase: str) -> None:
    """The next call gives the person's proof, via `resolve`, and calls nothing."""
    LEAVE[phase](j, "k")
    j.resolve("k", Accepted({"id": 5}, "run"), expected_position=position(j, "k"), reason="r")

    assert j.effect("k", run=unused(), reconcile=unused()) == Accepted({"id": 5}, "resolve")
    record = j.record("k")
    assert record is not None
    assert (record.proof, record.via) == ({"id": 5}, "resolve")


@pytest.mark.parametrize("phase", LEAVE)
def test_resolved_as_uncertain_is_returned(j: Journal, phase: str) -> None:
    """The next call gives `Uncertain()` and calls nothing."""
    LEAVE[phase](j, "k")
    j.resolve("k", Uncertain(), expected_position=position(j, "k"), reason="r")

    assert j.effect("k", run=unused(), reconcile=unused()) == Uncertain()


@pytest.mark.parametrize("phase", LEAVE)
def test_resolved_as_not_performed_runs_again(j: Journal, phase: str) -> None:
    """The next call commits the next intent and runs; nobody is asked."""
    LEAVE[phase](j, "k")
    before = j.record("k")
    assert before is not None
    j.resolve("k", NotPerformed("no trace"), expected_position=before.position, reason="r")

    assert j.effect("k", run=lambda: "m-1", reconcile=unused()) == Accepted("m-1", "run")
    after = j.record("k")
    assert after is not None
    assert after.attempts == before.attempts + 1


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_accepted_effect_is_not_resolved(j: Journal, outcome: str) -> None:
    """On an accepted effect `EffectConflictError` is raised and nothing changes."""
    accept(j, "k", "m-1")

    with pytest.raises(EffectConflictError) as caught:
        j.resolve("k", OUTCOMES[outcome], expected_position=position(j, "k"), reason="r")

    assert caught.value.key == "k"
    assert j.head() == 2
    assert j.effect("k", run=unused(), reconcile=unused()) == Accepted("m-1", "run")


@pytest.mark.parametrize("outcome", OUTCOMES)
@pytest.mark.parametrize("phase", LEAVE)
def test_decision_about_another_state_is_refused(j: Journal, phase: str, outcome: str) -> None:
    """Where the record does not stand at `expected_position`, `EffectConflictError` and nothing changes."""
    LEAVE[phase](j, "k")
    before, head, actual = j.record("k"), j.head(), position(j, "k")

    for stale in (0, actual - 1, actual + 1, head + 100):
        with pytest.raises(EffectConflictError):
            j.resolve("k", OUTCOMES[outcome], expected_position=stale, reason="r")

    assert (j.record("k"), j.head()) == (before, head)


def test_second_decision_from_one_look_is_refused(j: Journal) -> None:
    """Two people who saw the same state: the first decides, the second is told."""
    leave_open(j, "k")
    seen = position(j, "k")
    j.resolve("k", Uncertain(), expected_position=seen, reason="first")

    with pytest.raises(EffectConflictError):
        j.resolve("k", Accepted("m", "resolve"), expected_position=seen, reason="second")

    assert j.history("k")[-1].reason == "first"


def test_unknown_key_is_not_resolved(j: Journal) -> None:
    """There is nothing to settle, and nothing is written."""
    with pytest.raises(Exception):  # noqa: B017 - the contract does not name the type
        j.resolve("k", Uncertain(), expected_position=0, reason="r")

    assert (j.record("k"), j.head()) == (None, 0)


@pytest.mark.parametrize("proof", [float("nan"), (1, 2), object(), "x" * 70_000], ids=["nan", "tuple", "object", "big"])
def test_persons_proof_must_be_kept_like_any_other(j: Journal, proof: Any) -> None:
    """What could not be a proof is refused, and nothing changes."""
    leave_open(j, "k")
    before, head = j.record("k"), j.head()

    with pytest.raises(Exception):  # noqa: B017 - the contract does not name the type
        j.resolve("k", Accepted(proof, "resolve"), expected_position=position(j, "k"), reason="r")

    assert (j.record("k"), j.head()) == (before, head)


@pytest.mark.parametrize("outcome", [None, "accepted", 1, Accepted, ValueError("no")], ids=repr)
def test_other_outcomes_are_wrong_use(j: Journal, outcome: Any) -> None:
    """`resolve` takes `Accepted`, `Uncertain` and `NotPerformed`, and nothing else."""
    leave_open(j, "k")
    head = j.head()

    with pytest.raises((TypeError, ValueError)):
        j.resolve("k", outcome, expected_position=position(j, "k"), reason="r")

    assert j.head() == head


@pytest.mark.parametrize("outcome", [Accepted("by hand", "resolve"), Uncertain()], ids=["accepted", "uncertain"])
def test_owners_call_returns_what_a_person_decided_meanwhile(j: Journal, outcome: Any) -> None:
    """Resolving is allowed in flight; the late outcome of the run does not overwrite it."""
    gate = Gate("late")
    owner = Call(lambda: j.effect("k", run=gate, reconcile=unused()))
    gate.wait_until_entered()
    j.resolve("k", outcome, expected_position=position(j, "k"), reason="r")
    gate.open()

    assert owner.result() == outcome
    assert j.effect("k", run=unused(), reconcile=unused()) == outcome
    assert phases(j, "k") == ["intent", "accepted" if isinstance(outcome, Accepted) else "uncertain"]


def test_persons_decision_stands_when_the_run_then_raises(j: Journal) -> None:
    """A run that raises after it was resolved changes nothing on record."""
    gate = Gate(ValueError("late"))
    owner = Call(lambda: j.effect("k", run=gate, reconcile=unused()))
    gate.wait_until_entered()
    j.resolve("k", Accepted("by hand", "resolve"), expected_position=position(j, "k"), reason="r")
    gate.open()
    wait_until(lambda: owner.is_done)

    assert j.effect("k", run=unused(), reconcile=unused()) == Accepted("by hand", "resolve")


def test_joiners_get_what_a_person_decided_meanwhile(j: Journal) -> None:
    """Every call returns what is on record."""
    gate = Gate("late")
    owner = Call(lambda: j.effect("k", run=gate, reconcile=unused()))
    gate.wait_until_entered()
    joiner = Call(lambda: j.effect("k", run=unused(), reconcile=unused()))
    joiner.wait_until_it_waits()
    j.resolve("k", Uncertain(), expected_position=position(j, "k"), reason="r")
    gate.open()

    assert owner.result() == joiner.result() == Uncertain()


def test_idempotent_owner_gets_what_a_person_decided_meanwhile(j: Journal) -> None:
    """`run_effect` returns the person's proof, and raises where the person said uncertain."""
    gates = {"a": Gate("late"), "u": Gate("late")}
    owners = {key: Call(lambda key=key: j.run_effect(key, gates[key])) for key in gates}  # type: ignore[misc]  # mypy cannot infer a lambda with a default
    for key, outcome in (("a", Accepted("by hand", "resolve")), ("u", Uncertain())):
        gates[key].wait_until_entered()
        j.resolve(key, outcome, expected_position=position(j, key), reason="r")
        gates[key].open()

    assert owners["a"].result() == "by hand"
    error = owners["u"].error()
    assert isinstance(error, EffectUnresolvedError)
    assert error.reason == "uncertain"


def test_person_in_another_process_decides_over_the_owner(j: Journal, start_peer: Callable[..., Peer]) -> None:
    """The first outcome recorded wins, whoever records it: the owner's call returns it."""
    peer = start_peer("call", key="k", run=["running", "listen"])
    peer.hear("opened")
    peer.hear("running")
    j.resolve("k", Accepted("by hand", "resolve"), expected_position=position(j, "k"), reason="r")
    peer.tell("return")
    said = peer.hear("accepted")

    assert (said["proof"], said["via"]) == ("by hand", "resolve")
    peer.finish()


# clear_effect

ALL = {**LEAVE, "accepted": accept}


@pytest.mark.parametrize("phase", ALL)
def test_cleared_effect_is_new_work(j: Journal, clock: Clock, phase: str) -> None:
    """After `clear_effect` there is no record, and the next call begins with attempt 1."""
    ALL[phase](j, "k")
    head = j.head()
    clock.advance(4)

    j.clear_effect("k", reason="sent by mail instead")

    assert j.record("k") is None
    assert list(j.effects()) == []
    assert j.unfinished() == []
    event = j.history("k")[-1]
    assert (event.phase, event.reason, event.position, event.at) == (
        "cleared",
        "sent by mail instead",
        head + 1,
        START + 4,
    )
    assert accept(j, "k", "new") == Accepted("new", "run")
    record = j.record("k")
    assert record is not None
    assert (record.attempts, record.first_at) == (1, START + 4)


def test_history_goes_over_a_clearing(j: Journal) -> None:
    """Clearing is an event: what was before stays in the history."""
    accept(j, "k", "first")
    j.clear_effect("k", reason="r")
    accept(j, "k", "second")

    assert phases(j, "k") == ["intent", "accepted", "cleared", "intent", "accepted"]
    assert [e.proof for e in j.history("k") if e.phase == "accepted"] == ["first", "second"]


def test_clearing_an_unknown_key_does_nothing(j: Journal) -> None:
    """Nothing is written, and nothing is raised; a key cleared before is unknown."""
    j.clear_effect("k", reason="r")
    assert j.head() == 0
    accept(j, "k")
    j.clear_effect("k", reason="r")
    j.clear_effect("k", reason="r")

    assert j.head() == 3


def test_cleared_key_binds_any_request_and_guarantee(j: Journal) -> None:
    """Neither the request nor the guarantee of before is compared."""
    accept(j, "k", request={"amount": 1})
    j.clear_effect("k", reason="r")

    assert j.run_effect("k", lambda: "idempotent", request={"amount": 2}) == "idempotent"
    with pytest.raises(EffectConflictError):
        accept(j, "k")


def test_effect_in_flight_is_not_cleared(j: Journal) -> None:
    """`EffectInFlightError` names key and process, and the run goes on to its outcome."""
    gate = Gate("m-1")
    owner = Call(lambda: j.effect("k", run=gate, reconcile=unused()))
    gate.wait_until_entered()

    with pytest.raises(EffectInFlightError) as caught:
        j.clear_effect("k", reason="r")

    gate.open()
    assert caught.value.key == "k"
    assert owner.result() == Accepted("m-1", "run")
    assert phases(j, "k") == ["intent", "accepted"]


def test_effect_in_flight_elsewhere_is_not_cleared(
    open_journal: Callable[..., Journal], start_peer: Callable[..., Peer]
) -> None:
    """Another process that runs the effect is named by its pid; once it is gone the effect can be cleared."""
    j = open_journal(wait_timeout=0.2)
    peer = start_peer("call", key="k", run=["running", "listen"])
    peer.hear("opened")
    peer.hear("running")

    with pytest.raises(EffectInFlightError) as caught:
        j.clear_effect("k", reason="r")

    assert (caught.value.key, caught.value.pid) == ("k", peer.pid)
    peer.kill()
    j.clear_effect("k", reason="r")
    assert j.record("k") is None


def test_clearing_leaves_other_keys_alone(j: Journal) -> None:
    """Only the named key is cleared, also among keys that begin alike."""
    keys = ["k", "k1", ("k",), ("k", 1), "x" * 600 + "1", "x" * 600 + "2"]
    for key in keys:
        accept(j, key)  # type: ignore[arg-type]  # the wrong type is what is tested

    j.clear_effect(("k",), reason="r")
    j.clear_effect("x" * 600 + "1", reason="r")

    assert [r.key for r in j.effects()] == ["k", "k1", "x" * 600 + "2", ("k", 1)]


def test_cleared_effect_stays_cleared_over_reopening(open_journal: Callable[..., Journal]) -> None:
    """Clearing is durable."""
    j = open_journal()
    leave_open(j, "k")
    j.clear_effect("k", reason="r")
    j.close()
    again = open_journal()

    assert again.record("k") is None
    assert again.unfinished() == []
    assert again.effect("k", run=Stub("new"), reconcile=unused()) == Accepted("new", "run")
