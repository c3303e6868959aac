"""`reconcile`: the signal it takes, its deadline, and what becomes of a late answer."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from journal import Accepted, EffectUnresolvedError, Found, Journal, NotPerformed, Uncertain

from .support import (
    PATIENCE,
    START,
    Boom,
    Call,
    Clock,
    Gate,
    Stub,
    leave_failed,
    leave_open,
    phases,
    unused,
    wait_for,
)


def test_reconcile_takes_one_signal(j: Journal, clock: Clock) -> None:
    """The signal says which attempt of which key is asked about, and since when."""
    leave_failed(j, ("k", 1))
    clock.advance()
    leave_open(j, ("k", 1))
    reconcile = Stub("m-1")

    j.effect(("k", 1), run=unused(), reconcile=reconcile)

    ((signal,),) = reconcile.calls
    assert (signal.key, signal.attempt, signal.first_at) == (("k", 1), 2, START)
    assert type(signal.key) is tuple


def test_signal_tells_the_deadline(j: Journal) -> None:
    """`deadline` is in `time.monotonic()` seconds, `reconcile_timeout` after the call."""
    leave_open(j, "k")
    before = time.monotonic()
    reconcile = Stub(lambda signal: signal.deadline)

    outcome = j.effect("k", run=unused(), reconcile=reconcile, reconcile_timeout=100.5)

    assert isinstance(outcome, Accepted)
    assert before + 100.5 <= outcome.proof <= time.monotonic() + 100.5


def test_signal_is_not_cancelled_before_the_deadline(j: Journal) -> None:
    """`cancelled` is False, and `wait` says so after its seconds."""
    leave_open(j, "k")

    outcome = j.effect("k", run=unused(), reconcile=lambda s: [s.cancelled, s.wait(0), s.wait(0.01), s.cancelled])

    assert outcome == Accepted([False, False, False, False], "reconcile")


def test_default_deadline_is_thirty_seconds(j: Journal) -> None:
    """`reconcile_timeout` is 30 s unless given."""
    leave_open(j, "k")
    before = time.monotonic()

    outcome = j.effect("k", run=unused(), reconcile=lambda signal: signal.deadline)

    assert isinstance(outcome, Accepted)
    assert before + 30 <= outcome.proof <= time.monotonic() + 30


def overrun(j: Journal, answer: Callable[[], Any], run: Any = None) -> tuple[BaseException, Gate, Call[Any], list[Any]]:
    """Overruns the deadline: gives the error, a gate for the late answer, the call, and what the signal said."""
    leave_open(j, "k")
    said: list[Any] = []
    gate = Gate(answer)

    def reconcile(signal: Any) -> Any:
        said.append(signal.wait(PATIENCE))
        said.append(signal.cancelled)
        return gate()

    call = Call(lambda: j.effect("k", run=run or unused(), reconcile=reconcile, reconcile_timeout=0.05))
    return call.error(), gate, call, said


def test_overrun_deadline_is_told_while_reconcile_is_still_busy(j: Journal) -> None:
    """`reconcile-timeout`: the caller is told at the deadline, and the signal is cancelled; nothing is recorded."""
    error, gate, _, said = overrun(j, lambda: "late")
    gate.wait_until_entered()

    assert isinstance(error, EffectUnresolvedError)
    assert (error.key, error.reason) == ("k", "reconcile-timeout")
    assert said == [True, True]
    assert phases(j, "k") == ["intent", "released"]
    gate.open()


LATE: dict[str, Callable[[], Any]] = {
    "proof": lambda: "late",
    "found": lambda: Found("late"),
    "none": lambda: None,
    "absent": Stub(NotPerformed("late")),
    "error": Stub(Boom("late")),
    "unkept": lambda: float("nan"),
}


@pytest.mark.parametrize("name", LATE)
def test_late_answer_is_ignored(open_journal: Callable[..., Journal], name: str) -> None:
    """Whatever comes after the deadline records nothing and runs nothing; the next call asks again."""
    j = open_journal()
    run = unused()
    _, gate, _, _ = overrun(j, LATE[name], run)
    gate.wait_until_entered()
    gate.open()
    j.close()  # waits for what is still under way
    again = open_journal()

    assert run.count == 0
    assert phases(again, "k") == ["intent", "released"]
    assert again.effect("k", run=unused(), reconcile=Stub("in time")) == Accepted("in time", "reconcile")


def test_late_answer_does_not_reach_the_next_question(j: Journal) -> None:
    """While the next call asks, the answer to the last question comes, and is not taken for this one's."""
    _, late, _, _ = overrun(j, lambda: "late")
    late.wait_until_entered()
    gate = Gate(lambda: None)
    call = Call(lambda: j.effect("k", run=unused(), reconcile=gate))
    gate.wait_until_entered()
    late.open()
    gate.open()

    assert call.result() == Uncertain()


def test_answer_in_time_counts_although_it_waited(j: Journal) -> None:
    """A reconcile that uses part of its time is answered normally."""
    leave_open(j, "k")

    outcome = j.effect("k", run=unused(), reconcile=lambda s: s.wait(0.01) or "m-1", reconcile_timeout=PATIENCE)

    assert outcome == Accepted("m-1", "reconcile")


def test_deadline_does_not_bind_the_run(j: Journal) -> None:
    """`reconcile_timeout` is for `reconcile`; a run takes as long as it takes."""
    gate = Gate("m-1")
    call = Call(lambda: j.effect("k", run=gate, reconcile=unused(), reconcile_timeout=0.01))
    gate.wait_until_entered()
    call.wait_until_it_waits()
    gate.open()

    assert call.result() == Accepted("m-1", "run")


def test_deadline_does_not_bind_the_run_after_a_proved_absence(j: Journal) -> None:
    """Also the run that follows a reconcile is free of its deadline."""
    leave_open(j, "k")
    gate = Gate("m-1")
    absent = Stub(NotPerformed("absent"))
    call = Call(lambda: j.effect("k", run=gate, reconcile=absent, reconcile_timeout=1))
    gate.wait_until_entered()
    call.wait_until_it_waits()
    gate.open()

    assert call.result() == Accepted("m-1", "run")


# A verdict counts for what was asked about


@pytest.mark.parametrize("answer", ["m-1", None, NotPerformed("absent")], ids=repr)
def test_verdict_on_an_older_state_is_dropped(j: Journal, answer: Any) -> None:
    """What a person decided during the reconcile stands; the verdict comes too late, and nothing runs."""
    leave_open(j, "k")
    gate, run = Gate(Stub(answer)), unused()
    call = Call(lambda: j.effect("k", run=run, reconcile=gate))
    gate.wait_until_entered()
    record = j.record("k")
    assert record is not None
    j.resolve("k", Accepted("by hand", "resolve"), expected_position=record.position, reason="r")
    gate.open()

    assert call.result() == Accepted("by hand", "resolve")
    assert run.count == 0
    assert phases(j, "k") == ["intent", "released", "accepted"]


@pytest.mark.parametrize("answer", ["m-1", None, NotPerformed("absent")], ids=repr)
def test_who_comes_too_late_starts_over(j: Journal, answer: Any) -> None:
    """A person said that the effect did not happen while it was asked about: the next intent runs, once."""
    leave_open(j, "k")
    gate, run = Gate(Stub(answer)), Stub("m-2")
    call = Call(lambda: j.effect("k", run=run, reconcile=gate))
    gate.wait_until_entered()
    record = j.record("k")
    assert record is not None
    j.resolve("k", NotPerformed("asked them"), expected_position=record.position, reason="r")
    gate.open()

    assert call.result() == Accepted("m-2", "run")
    assert run.count == 1
    assert phases(j, "k") == ["intent", "released", "failed", "intent", "accepted"]


def test_reconcile_is_called_with_nothing_held(j: Journal) -> None:
    """Other keys, appends and readers go on while a recipient is asked."""
    leave_open(j, "k")
    gate = Gate("m-1")
    call = Call(lambda: j.effect("k", run=unused(), reconcile=gate))
    gate.wait_until_entered()

    assert j.append("s", 1, op_id="1").sequence == 1
    assert j.effect("other", run=lambda: 1, reconcile=unused()) == Accepted(1, "run")
    assert [r.key for r in j.unfinished()] == ["k"]

    gate.open()
    assert call.result() == Accepted("m-1", "reconcile")


def test_signal_can_be_kept(j: Journal) -> None:
    """A signal that outlives its call still answers."""
    leave_open(j, "k")
    reconcile = Stub("m-1")

    j.effect("k", run=unused(), reconcile=reconcile)

    ((signal,),) = reconcile.calls
    assert signal.key == "k"
    assert signal.cancelled in (True, False)


def test_close_waits_for_a_reconcile_in_flight(open_journal: Callable[..., Journal]) -> None:
    """What was asked before `close` is recorded."""
    j = open_journal()
    leave_open(j, "k")
    gate = Gate("m-1")
    call = Call(lambda: j.effect("k", run=unused(), reconcile=gate))
    gate.wait_until_entered()
    closing = Call(j.close)
    closing.wait_until_it_waits()
    waited = not closing.is_done
    gate.open()
    outcome = call.result()
    closing.result()

    assert waited
    assert outcome == Accepted("m-1", "reconcile")
    wait_for(gate.entered)
    assert open_journal().effect("k", run=unused(), reconcile=unused()) == outcome
