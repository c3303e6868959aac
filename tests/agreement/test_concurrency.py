"""Threads: concurrent calls for one key share one run, and a call inside its own run is refused."""

import contextvars
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

from journal import (
    Accepted,
    EffectConflictError,
    EffectFailedError,
    EffectInFlightError,
    EffectUnresolvedError,
    Journal,
    NotPerformed,
    Uncertain,
)

from .support import (
    Boom,
    Call,
    Gate,
    Peer,
    Stub,
    accept,
    at_once,
    leave_open,
    phases,
    unused,
    wait_for,
)


def owner_and_joiners(j: Journal, gate: Gate, count: int = 3) -> tuple[Call[Any], list[Call[Any]]]:
    """Starts an effect whose run is under way, and calls that wait for it."""
    owner = Call(lambda: j.effect("k", run=gate, reconcile=unused()))
    gate.wait_until_entered()
    joiners = [Call(lambda: j.effect("k", run=unused(), reconcile=unused())) for _ in range(count)]
    for joiner in joiners:
        joiner.wait_until_it_waits()
    return owner, joiners


# One run


def test_eight_threads_share_one_run(j: Journal) -> None:
    """Eight threads at a barrier on one key: one run, eight equal answers."""
    run = Stub({"id": [1]})
    calls = at_once(8, lambda: j.effect("k", run=run, reconcile=unused()))
    results = [call.result() for call in calls]

    assert run.count == 1
    assert results == [Accepted({"id": [1]}, "run")] * 8
    assert phases(j, "k") == ["intent", "accepted"]


def test_results_are_detached(j: Journal) -> None:
    """Each caller gets its own copy of the proof, joiners as the owner."""
    gate = Gate({"id": [1]})
    owner, joiners = owner_and_joiners(j, gate)
    gate.open()
    results = [call.result() for call in (owner, *joiners)]
    for result in results:
        result.proof["id"].append(2)

    assert [result.proof for result in results] == [{"id": [1, 2]}] * 4
    assert j.effect("k", run=unused(), reconcile=unused()) == Accepted({"id": [1]}, "run")


def test_eight_threads_share_one_idempotent_run(j: Journal) -> None:
    """`run_effect` shares its run as `effect` does."""
    run = Gate(lambda: {"id": [1]})
    calls = at_once(8, lambda: j.run_effect("k", run))
    run.wait_until_entered()
    run.open()
    results = [call.result() for call in calls]

    assert run.count == 1
    assert results == [{"id": [1]}] * 8
    results[0]["id"].append(2)
    assert results[1:] == [{"id": [1]}] * 7


def test_joiners_wait_for_the_outcome(j: Journal) -> None:
    """A call for a key in flight returns when the run has ended, not before."""
    gate = Gate()
    owner, joiners = owner_and_joiners(j, gate)
    waiting = [not call.is_done for call in (owner, *joiners)]
    gate.open()

    assert waiting == [True] * 4
    assert [call.result() for call in (owner, *joiners)] == [Accepted("proof", "run")] * 4
    assert gate.count == 1


def test_different_keys_run_beside_each_other(j: Journal) -> None:
    """A run in flight holds up its own key only."""
    gate = Gate()
    owner = Call(lambda: j.effect("k", run=gate, reconcile=unused()))
    gate.wait_until_entered()

    assert accept(j, "other") == Accepted("proof", "run")
    assert j.step("k", lambda: 1) == 1
    assert j.append("s", 1, op_id="1").position == 5
    assert [r.key for r in j.unfinished()] == ["k"]

    gate.open()
    assert owner.result() == Accepted("proof", "run")


def test_runs_that_wait_for_each_other_end(j: Journal) -> None:
    """Eight runs that all must be under way at once are: nothing makes one wait for another."""
    barrier = threading.Barrier(8)
    calls = [
        Call(lambda key=key: j.effect(("k", key), run=lambda: barrier.wait(60) * 0, reconcile=unused()))  # type: ignore[misc]  # mypy cannot infer a lambda with a default
        for key in range(8)
    ]

    assert [call.result() for call in calls] == [Accepted(0, "run")] * 8


# What joiners are told


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(2), Boom("boom")], ids=repr)
def test_joiners_are_told_that_the_run_failed(j: Journal, error: BaseException) -> None:
    """Joiners get `EffectUnresolvedError(key, "run-failed")`, never what `run` raised, and never a second run."""
    gate = Gate(error)
    owner, joiners = owner_and_joiners(j, gate)
    gate.open()

    raised = owner.error()
    if isinstance(error, Exception):
        assert isinstance(raised, EffectUnresolvedError)
        assert raised.__cause__ is error
    else:
        assert raised is error
    for joiner in joiners:
        told = joiner.error()
        assert isinstance(told, EffectUnresolvedError)
        assert (told.key, told.reason) == ("k", "run-failed")
    assert gate.count == 1
    assert phases(j, "k") == ["intent", "released"]


def test_joiners_of_an_interrupted_idempotent_run_are_told(j: Journal) -> None:
    """A `BaseException` of a shared `run_effect` is the owner's; the joiners are told that the run failed."""
    gate = Gate(KeyboardInterrupt())
    owner = Call(lambda: j.run_effect("k", gate))
    gate.wait_until_entered()
    joiner = Call(lambda: j.run_effect("k", unused()))
    joiner.wait_until_it_waits()
    gate.open()

    assert isinstance(owner.error(), KeyboardInterrupt)
    told = joiner.error()
    assert isinstance(told, EffectUnresolvedError)
    assert (told.key, told.reason) == ("k", "run-failed")


def test_joiners_of_a_failed_effect_are_told(j: Journal) -> None:
    """A run that was not performed has failed for everybody who shared it."""
    gate = Gate(NotPerformed("refused"))
    owner, joiners = owner_and_joiners(j, gate)
    gate.open()

    for call in (owner, *joiners):
        assert isinstance(call.error(), EffectFailedError)
    assert phases(j, "k") == ["intent", "failed"]


def test_joiners_of_a_rejected_proof_are_told(j: Journal) -> None:
    """The one run's proof cannot be kept, so nobody who shared it knows."""
    gate = Gate(float("nan"))
    owner, joiners = owner_and_joiners(j, gate)
    gate.open()

    for call in (owner, *joiners):
        assert isinstance(call.error(), EffectUnresolvedError)
    assert phases(j, "k") == ["intent", "released"]
    assert gate.count == 1


# Conflicts


@pytest.mark.parametrize("kind", ["request", "guarantee"])
def test_conflict_is_told_at_once(j: Journal, kind: str) -> None:
    """A conflict does not wait for the run in flight."""
    gate = Gate()
    owner = Call(lambda: j.effect("k", run=gate, reconcile=unused(), request=1))
    gate.wait_until_entered()
    called = unused()

    with pytest.raises(EffectConflictError):  # the run is still shut in: waiting for it would never end
        if kind == "request":
            j.effect("k", run=called, reconcile=called, request=2)
        else:
            j.run_effect("k", called)

    assert called.count == 0
    assert not owner.is_done
    gate.open()
    assert owner.result() == Accepted("proof", "run")


def test_joining_needs_no_request(j: Journal) -> None:
    """A call without a request shares the run of one with a request."""
    gate = Gate()
    owner = Call(lambda: j.effect("k", run=gate, reconcile=unused(), request=1))
    gate.wait_until_entered()
    joiner = Call(lambda: j.effect("k", run=unused(), reconcile=unused()))
    joiner.wait_until_it_waits()
    gate.open()

    assert owner.result() == joiner.result() == Accepted("proof", "run")


# Re-entry

INNER: dict[str, Callable[[Journal], Any]] = {
    "effect": lambda j: j.effect("k", run=unused(), reconcile=unused()),
    "step": lambda j: j.step("k", unused()),
    "run_effect": lambda j: j.run_effect("k", unused()),
}
OUTER: dict[str, Callable[[Journal, Callable[..., Any]], Any]] = {
    "effect": lambda j, work: j.effect("k", run=work, reconcile=unused()),
    "step": lambda j, work: j.step("k", work),
    "run_effect": lambda j, work: j.run_effect("k", work),
}


@pytest.mark.parametrize("method", OUTER)
@pytest.mark.parametrize("depth", ["directly", "in another run", "in the same context"])
def test_call_inside_its_own_run_is_refused(j: Journal, method: str, depth: str) -> None:
    """A call for a key from inside its own run raises `EffectInFlightError` with the own pid."""
    errors: list[BaseException] = []

    def inner() -> None:
        try:
            INNER[method](j)
        except BaseException as error:
            errors.append(error)

    def in_the_same_context() -> None:
        context = contextvars.copy_context()
        thread = threading.Thread(target=context.run, args=(inner,))
        thread.start()
        thread.join(60)

    def work() -> str:
        if depth == "directly":
            inner()
        elif depth == "in another run":
            j.effect("between", run=inner, reconcile=unused())
        else:
            in_the_same_context()
        return "done"

    OUTER[method](j, work)

    (error,) = errors
    assert isinstance(error, EffectInFlightError)
    assert (error.key, error.pid) == ("k", os.getpid())


def test_call_inside_its_own_reconcile_is_refused(j: Journal) -> None:
    """`reconcile` is inside the call like `run`, and its answer still counts."""
    leave_open(j, "k")
    errors: list[BaseException] = []

    def reconcile(_: Any) -> str:
        try:
            j.effect("k", run=unused(), reconcile=unused())
        except EffectInFlightError as error:
            errors.append(error)
        return "m-1"

    assert j.effect("k", run=unused(), reconcile=reconcile) == Accepted("m-1", "reconcile")
    (error,) = errors
    assert isinstance(error, EffectInFlightError)
    assert (error.key, error.pid) == ("k", os.getpid())


def test_other_keys_may_be_called_inside_a_run(j: Journal) -> None:
    """Only the own key is refused; it can be looked at like any other."""
    seen: list[Any] = []

    def run() -> Any:
        seen.append(j.record("k"))
        return accept(j, "inner", "inner").proof

    assert j.effect("k", run=run, reconcile=unused()) == Accepted("inner", "run")
    assert seen[0].phase == "intent"


def test_key_may_be_called_again_after_its_run(j: Journal) -> None:
    """Re-entry is refused inside the run only, whatever became of the run."""
    leave_open(j, "k")
    assert j.effect("k", run=unused(), reconcile=Stub("m-1")) == Accepted("m-1", "reconcile")
    with pytest.raises(Boom):
        j.run_effect("r", Stub(Boom("boom")))

    assert j.run_effect("r", lambda: 1) == 1


def test_unrelated_thread_started_earlier_joins(j: Journal) -> None:
    """Who is outside of the run's context shares the run, and is not refused."""
    go = threading.Event()

    def late() -> Any:
        wait_for(go)
        return j.effect("k", run=unused(), reconcile=unused())

    joiner = Call(late)
    gate = Gate()
    owner = Call(lambda: j.effect("k", run=gate, reconcile=unused()))
    gate.wait_until_entered()
    go.set()
    joiner.wait_until_it_waits()
    gate.open()

    assert owner.result() == joiner.result() == Accepted("proof", "run")


# Reconciling together


def test_eight_threads_on_an_open_intent_agree(j: Journal) -> None:
    """However many ask, every call returns what is on record, and nothing runs."""
    leave_open(j, "k")
    run = unused()
    calls = at_once(8, lambda: j.effect("k", run=run, reconcile=lambda _: "m-1"))

    assert [call.result() for call in calls] == [Accepted("m-1", "reconcile")] * 8
    assert run.count == 0
    assert phases(j, "k") == ["intent", "released", "accepted"]


def test_eight_threads_with_different_answers_agree(j: Journal) -> None:
    """The first verdict recorded wins; who comes too late returns it."""
    leave_open(j, "k")
    lock = threading.Lock()
    answers = iter([None, "m-1", None, "m-2", None, "m-3", None, "m-4"])

    def reconcile(_: Any) -> Any:
        with lock:
            return next(answers)

    calls = at_once(8, lambda: j.effect("k", run=unused(), reconcile=reconcile))
    results = [call.result() for call in calls]

    assert results == [results[0]] * 8
    assert len(phases(j, "k")) == 3
    assert j.effect("k", run=unused(), reconcile=unused()) == results[0]


def test_eight_threads_after_a_proved_absence_run_once(j: Journal) -> None:
    """Many may ask at once, one runs."""
    leave_open(j, "k")
    run = Stub("m-1")
    calls = at_once(8, lambda: j.effect("k", run=run, reconcile=Stub(NotPerformed("absent"))))

    assert [call.result() for call in calls] == [Accepted("m-1", "run")] * 8
    assert run.count == 1
    assert phases(j, "k") == ["intent", "released", "failed", "intent", "accepted"]


def test_eight_threads_on_a_failed_record_run_once(j: Journal) -> None:
    """The next intent is inserted once, and only its inserter runs."""
    with pytest.raises(EffectFailedError):
        j.effect("k", run=Stub(NotPerformed("no")), reconcile=unused())
    run = Stub("m-1")
    calls = at_once(8, lambda: j.effect("k", run=run, reconcile=unused()))

    assert [call.result() for call in calls] == [Accepted("m-1", "run")] * 8
    assert run.count == 1


def test_many_keys_and_threads_run_each_once(j: Journal) -> None:
    """Sixteen threads over the same forty keys: each runs once, and the log has no gap."""
    runs = {("k", index): Stub(index) for index in range(40)}

    def work() -> list[Any]:
        return [j.effect(key, run=run, reconcile=unused()) for key, run in runs.items()]

    results = [call.result() for call in at_once(16, work)]

    assert results == [[Accepted(index, "run") for index in range(40)]] * 16
    assert [run.count for run in runs.values()] == [1] * 40
    positions = sorted(e.position for key in runs for e in j.history(key))
    assert positions == list(range(1, 81))


def test_concurrent_appends_have_no_gap(j: Journal) -> None:
    """Sixteen threads appending: every acknowledged operation is there once, sequences and positions are dense."""

    def work() -> list[int]:
        name = str(threading.get_ident())
        return [j.append("s", n, op_id=f"{name}-{n}").sequence for n in range(25)]

    told = [call.result() for call in at_once(16, work)]

    operations = list(j.read("s"))
    assert sorted(sequence for own in told for sequence in own) == list(range(1, 401))
    assert all(own == sorted(own) for own in told)
    assert [c.sequence for c in operations] == [c.position for c in operations] == list(range(1, 401))


@pytest.mark.parametrize("method", ["append", "effect"])
def test_stampede_of_threads_ends(j: Journal, start_peer: Callable[..., Peer], method: str) -> None:
    """However threads are switched, each call ends, and the log is dense; in a process that can be killed if not."""
    peer = start_peer("stampede", method=method)
    head = peer.hear("ended")["head"]

    assert head == j.head() == 960 * (1 if method == "append" else 2)
    peer.finish()


def test_concurrent_resends_commit_once(j: Journal) -> None:
    """Eight threads with one op_id: one commit, seven repetitions of it."""
    answers = [call.result() for call in at_once(8, lambda: j.append("s", {"a": 1}, op_id="1"))]

    assert [a.position for a in answers] == [1] * 8
    assert sorted(a.repeated for a in answers) == [False] + [True] * 7  # type: ignore[union-attr]  # the test knows that it is not None


def test_refused_append_leaves_the_others_alone(j: Journal) -> None:
    """Among appends that arrive together a refused one fails alone."""
    accept(j, "warm")

    def work(index: int) -> Callable[[], Any]:
        def append() -> Any:
            expected = 1_000 if index % 2 else None
            try:
                return j.append("s", index, op_id=str(index), expected=expected).sequence
            except Exception as error:
                return type(error).__name__

        return append

    calls = [Call(work(index)) for index in range(16)]
    results = [call.result() for call in calls]

    assert results[1::2] == ["SequenceConflictError"] * 8
    assert sorted(results[::2]) == list(range(1, 9))


def test_concurrent_expectations_let_one_through(j: Journal) -> None:
    """Eight threads that all expect an empty stream: one is first."""

    def work() -> bool:
        try:
            j.append("s", 1, op_id=str(threading.get_ident()), expected=0)
        except Exception as error:
            assert type(error).__name__ == "SequenceConflictError"
            return False
        return True

    assert sorted(call.result() for call in at_once(8, work)) == [False] * 7 + [True]
    assert j.head() == 1


def test_uncertain_is_shared(j: Journal) -> None:
    """Who waits for a reconcile that finds nothing gets `Uncertain()` too."""
    leave_open(j, "k")
    gate = Gate(lambda: None)
    owner = Call(lambda: j.effect("k", run=unused(), reconcile=gate))
    gate.wait_until_entered()
    other = Call(lambda: j.effect("k", run=unused(), reconcile=lambda _: None))
    other.wait_until_it_waits()
    gate.open()

    assert owner.result() == other.result() == Uncertain()
    assert phases(j, "k") == ["intent", "released", "uncertain"]
