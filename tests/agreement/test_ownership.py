"""Who owns an intent, until when, and what other processes do meanwhile."""

import contextlib
import itertools
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from journal import (
    Accepted,
    EffectFailedError,
    EffectInFlightError,
    EffectUnresolvedError,
    Journal,
    JournalBusyError,
    NotPerformed,
    Uncertain,
)

from .support import (
    PATIENCE,
    Call,
    FileRecipient,
    Gate,
    Peer,
    Stub,
    leave_open,
    phases,
    unused,
    wait_until,
)

Start = Callable[..., Peer]


def start_owner(start_peer: Start, **arguments: Any) -> Peer:
    """Starts a process whose run of the effect "k" is under way and listens."""
    peer = start_peer("call", **{"key": "k", "run": ["deliver", "running", "listen"], **arguments})
    peer.hear("opened")
    peer.hear("running")
    return peer


# Owner alive


@pytest.mark.parametrize("method", ["effect", "run_effect"])
def test_call_waits_for_the_owners_outcome(j: Journal, start_peer: Start, method: str) -> None:
    """Another process is at it: the call waits, and returns what the owner recorded; nothing is called here."""
    owner = start_owner(start_peer, method=method)
    called = unused()
    call: Call[Any] = Call(
        lambda: j.effect("k", run=called, reconcile=called) if method == "effect" else j.run_effect("k", called)
    )
    call.wait_until_it_waits()
    waited = not call.is_done
    owner.tell("return")
    owner.hear("accepted")

    assert waited
    assert call.result() == (Accepted(owner.pid, "run") if method == "effect" else owner.pid)
    assert called.count == 0
    owner.finish()


@pytest.mark.parametrize("method", ["effect", "run_effect"])
def test_call_waits_at_most_the_wait_timeout(
    open_journal: Callable[..., Journal], start_peer: Start, method: str
) -> None:
    """Then `EffectInFlightError` names the key and the owner's process, and nothing was called or written."""
    j = open_journal(wait_timeout=0.3)
    owner = start_owner(start_peer, method=method)
    called = unused()
    begun = time.monotonic()

    with pytest.raises(EffectInFlightError) as caught:
        if method == "effect":
            j.effect("k", run=called, reconcile=called)
        else:
            j.run_effect("k", called)

    assert time.monotonic() - begun >= 0.3
    assert (caught.value.key, caught.value.pid) == ("k", owner.pid)
    assert (called.count, j.head()) == (0, 1)
    owner.tell("return")
    owner.hear("accepted")
    assert phases(j, "k") == ["intent", "accepted"]


def test_stopped_owner_is_alive(open_journal: Callable[..., Journal], start_peer: Start) -> None:
    """No lease expires: a process that stands still owns its intent as long as it exists."""
    j = open_journal(wait_timeout=0.3)
    owner = start_owner(start_peer)
    owner.send(signal.SIGSTOP)
    called = unused()

    with pytest.raises(EffectInFlightError) as caught:
        j.effect("k", run=called, reconcile=called)

    assert (caught.value.pid, called.count) == (owner.pid, 0)
    owner.send(signal.SIGCONT)
    owner.tell("return")
    owner.hear("accepted")
    assert j.effect("k", run=unused(), reconcile=unused()) == Accepted(owner.pid, "run")


def test_settled_effect_of_a_living_owner_is_returned_at_once(
    open_journal: Callable[..., Journal], start_peer: Start
) -> None:
    """Only an intent without outcome is waited for."""
    j = open_journal(wait_timeout=0.01)
    owner = start_owner(start_peer)
    owner.tell("return")
    owner.hear("accepted")

    assert j.effect("k", run=unused(), reconcile=unused()) == Accepted(owner.pid, "run")


def test_other_keys_of_a_living_owner_are_free(j: Journal, start_peer: Start) -> None:
    """A process owns its intents, not the journal."""
    start_owner(start_peer)

    assert j.effect("other", run=lambda: 1, reconcile=unused()) == Accepted(1, "run")
    assert j.append("s", 1, op_id="1").sequence == 1


def test_owner_whose_run_was_not_performed_frees_the_effect(j: Journal, start_peer: Start) -> None:
    """The waiting call finds the failed record, commits the next intent, and runs."""
    owner = start_owner(start_peer, run=["running", "listen"])
    call = Call(lambda: j.effect("k", run=lambda: "mine", reconcile=unused()))
    call.wait_until_it_waits()
    owner.tell("absent")
    owner.hear("raised")

    assert call.result() == Accepted("mine", "run")
    assert phases(j, "k") == ["intent", "failed", "intent", "accepted"]


# Owner gone


def test_killed_owner_is_gone(j: Journal, start_peer: Start, recipient: FileRecipient) -> None:
    """Its intent is reconciled at once, never run."""
    owner = start_owner(start_peer)
    owner.kill()
    run = unused()

    outcome = j.effect("k", run=run, reconcile=lambda _: recipient.find("k"))

    assert outcome == Accepted(owner.pid, "reconcile")
    assert run.count == 0
    assert recipient.deliveries("k") == [owner.pid]
    assert phases(j, "k") == ["intent", "accepted"]


def test_owner_killed_while_it_is_waited_for(j: Journal, start_peer: Start, recipient: FileRecipient) -> None:
    """The waiting call sees the death, and reconciles."""
    owner = start_owner(start_peer)
    run = unused()
    call = Call(lambda: j.effect("k", run=run, reconcile=lambda _: recipient.find("k")))
    call.wait_until_it_waits()
    owner.kill()

    assert call.result() == Accepted(owner.pid, "reconcile")
    assert run.count == 0


def test_idempotent_effect_of_a_killed_owner_is_run_again(j: Journal, start_peer: Start) -> None:
    """`run_effect`: no longer in flight anywhere, so attempt 2 runs."""
    owner = start_owner(start_peer, method="run_effect")
    call = Call(lambda: j.run_effect("k", lambda: "mine"))
    call.wait_until_it_waits()
    owner.kill()

    assert call.result() == "mine"
    assert [(e.phase, e.attempt) for e in j.history("k")] == [("intent", 1), ("intent", 2), ("accepted", 2)]


def test_killed_owner_without_delivery_is_uncertain(j: Journal, start_peer: Start, recipient: FileRecipient) -> None:
    """The recipient has no record, which proves nothing: uncertain, and never run."""
    owner = start_owner(start_peer, run=["running", "listen"])
    owner.kill()
    run = unused()

    assert j.effect("k", run=run, reconcile=lambda _: recipient.find("k")) == Uncertain()
    assert (run.count, recipient.deliveries("k")) == (0, [])


def test_gone_owner_is_gone_for_a_handle_opened_later(
    open_journal: Callable[..., Journal], start_peer: Start, recipient: FileRecipient
) -> None:
    """A fresh process after a crash reconciles what the crash left."""
    open_journal().close()
    owner = start_owner(start_peer)
    owner.kill()
    j = open_journal()

    assert [(r.key, r.phase) for r in j.unfinished()] == [("k", "intent")]
    assert j.effect("k", run=unused(), reconcile=lambda _: recipient.find("k")) == Accepted(owner.pid, "reconcile")


@pytest.mark.parametrize("word", ["raise", "interrupt"])
def test_owner_that_gave_the_effect_up_lets_others_reconcile(
    j: Journal, start_peer: Start, recipient: FileRecipient, word: str
) -> None:
    """Its `run` raised: the process lives, the effect is no longer in flight, and is reconciled here."""
    owner = start_owner(start_peer)
    owner.tell(word)
    assert owner.hear("raised")["error"] in ("EffectUnresolvedError", "KeyboardInterrupt")

    assert j.effect("k", run=unused(), reconcile=lambda _: recipient.find("k")) == Accepted(owner.pid, "reconcile")
    assert phases(j, "k") == ["intent", "released", "accepted"]
    owner.finish()


def test_effect_given_up_while_it_is_waited_for(j: Journal, start_peer: Start, recipient: FileRecipient) -> None:
    """The waiting call learns that the owner gave up, and reconciles although the owner lives."""
    owner = start_owner(start_peer)
    call = Call(lambda: j.effect("k", run=unused(), reconcile=lambda _: recipient.find("k")))
    call.wait_until_it_waits()
    owner.tell("raise")

    assert call.result() == Accepted(owner.pid, "reconcile")
    owner.hear("raised")
    owner.finish()


def test_closed_handle_is_gone(j: Journal, start_peer: Start, recipient: FileRecipient) -> None:
    """A process that closed its handle and lives on owns nothing."""
    owner = start_owner(start_peer, after="close")
    owner.tell("interrupt")
    owner.hear("raised")
    owner.hear("closed")

    assert j.effect("k", run=unused(), reconcile=lambda _: recipient.find("k")) == Accepted(owner.pid, "reconcile")
    owner.finish()


def test_process_that_dies_in_reconcile_leaves_the_intent(
    j: Journal, start_peer: Start, recipient: FileRecipient
) -> None:
    """Asking owns nothing and writes nothing: the next process asks again."""
    owner = start_owner(start_peer)
    owner.kill()
    asker = start_peer("call", key="k", run=[], reconcile=["asking", "listen"])
    asker.hear("opened")
    asker.hear("asking")
    asker.kill()

    assert phases(j, "k") == ["intent"]
    assert j.effect("k", run=unused(), reconcile=lambda _: recipient.find("k")) == Accepted(owner.pid, "reconcile")


def test_verdict_of_a_slower_process_does_not_overwrite(
    j: Journal, start_peer: Start, recipient: FileRecipient
) -> None:
    """Two processes ask; the one that answers later returns what the other recorded."""
    leave_open(j, "k")
    asker = start_peer("call", key="k", run=[], reconcile=["asking", "listen"])
    asker.hear("opened")
    asker.hear("asking")
    mine = j.effect("k", run=unused(), reconcile=Stub("m-1"))
    asker.tell("return")
    said = asker.hear("accepted")

    assert mine == Accepted("m-1", "reconcile")
    assert (said["proof"], said["via"]) == ("m-1", "reconcile")
    assert phases(j, "k") == ["intent", "released", "accepted"]
    asker.finish()


@pytest.mark.parametrize("delivers", [True, False], ids=["found", "nothing"])
def test_verdict_on_an_older_attempt_starts_over(
    j: Journal, start_peer: Start, recipient: FileRecipient, delivers: bool
) -> None:
    """While one process asks, another proves absence and runs: the first one's verdict is too late, and it waits."""
    leave_open(j, "k")
    asker = start_peer("call", key="k", run=[], reconcile=["asking", "listen"])
    asker.hear("opened")
    asker.hear("asking")
    gate = Gate("mine")

    def run() -> Any:
        if delivers:
            recipient.deliver("k")
        return gate()

    call = Call(lambda: j.effect("k", run=run, reconcile=Stub(NotPerformed("absent"))))
    gate.wait_until_entered()
    asker.tell("return")
    wait_until(lambda: bool(recipient.questions("k")))
    gate.open()
    said = asker.hear("accepted", "raised", "uncertain")

    assert call.result() == Accepted("mine", "run")
    assert (said["word"], said.get("proof"), said.get("via")) == ("accepted", "mine", "run")
    assert phases(j, "k") == ["intent", "released", "failed", "intent", "accepted"]
    asker.finish()


@pytest.mark.parametrize("late", ["late", ValueError("late"), NotPerformed("late")], ids=repr)
def test_late_end_of_an_older_attempt_touches_no_later_one(j: Journal, start_peer: Start, late: Any) -> None:
    """A person said that attempt 1 did not happen, another process runs attempt 2; then attempt 1 ends after all."""
    gate = Gate(late)
    old = Call(lambda: j.effect("k", run=gate, reconcile=unused()))
    gate.wait_until_entered()
    record = j.record("k")
    assert record is not None
    j.resolve("k", NotPerformed("no trace"), expected_position=record.position, reason="r")
    newer = start_owner(start_peer)
    gate.open()
    old.wait_until_it_waits()
    in_between = phases(j, "k")
    newer.tell("return")
    newer.hear("accepted")

    assert in_between == ["intent", "failed", "intent"]
    assert phases(j, "k") == ["intent", "failed", "intent", "accepted"]
    assert j.effect("k", run=unused(), reconcile=unused()) == Accepted(newer.pid, "run")
    # What the owner of the older attempt is told, the contract leaves open.
    with contextlib.suppress(EffectUnresolvedError, EffectFailedError):
        assert old.result() == Accepted(newer.pid, "run")


def test_verdict_about_what_was_cleared_is_dropped(j: Journal, start_peer: Start) -> None:
    """Another process cleared the effect and made it anew while it was asked about: what is on record is returned."""
    leave_open(j, "k")
    gate = Gate("old")
    call = Call(lambda: j.effect("k", run=unused(), reconcile=gate))
    gate.wait_until_entered()
    peer = start_peer("begin_anew", key="k")
    said = peer.hear("accepted")
    gate.open()

    assert call.result() == Accepted(said["proof"], "run")
    assert phases(j, "k") == ["intent", "released", "cleared", "intent", "accepted"]


def test_failed_reconcile_elsewhere_writes_nothing(j: Journal, start_peer: Start) -> None:
    """A process that could not ask leaves everything as it was."""
    leave_open(j, "k")
    before, head = j.record("k"), j.head()
    asker = start_peer("call", key="k", run=[], reconcile=["raise"])
    asker.hear("opened")
    said = asker.hear("raised")

    assert (said["error"], said["reason"]) == ("EffectUnresolvedError", "reconcile-failed")
    assert (j.record("k"), j.head()) == (before, head)
    asker.finish()


def test_own_intent_of_an_earlier_handle_is_not_in_flight(open_journal: Callable[..., Journal]) -> None:
    """A handle of this process that was closed is gone, though the process is the same."""
    j = open_journal()
    leave_open(j, "k", KeyboardInterrupt())
    j.close()
    again = open_journal()

    assert again.effect("k", run=unused(), reconcile=Stub("m-1")) == Accepted("m-1", "reconcile")


# What must not end or prolong a life


def test_copying_the_directory_inside_the_owner_keeps_it_alive(
    open_journal: Callable[..., Journal], start_peer: Start
) -> None:
    """A tree copy opens and closes every file; the owner is alive all the same."""
    j = open_journal(wait_timeout=0.3)
    owner = start_owner(start_peer)
    owner.tell("copy")
    owner.hear("copied")
    called = unused()

    with pytest.raises(EffectInFlightError) as caught:
        j.effect("k", run=called, reconcile=called)

    assert (caught.value.pid, called.count) == (owner.pid, 0)
    owner.tell("return")
    assert owner.hear("accepted")["via"] == "run"


def test_copying_the_directory_here_lets_no_two_writers_meet(
    j: Journal, path: Path, start_peer: Start, tmp_path: Path
) -> None:
    """After a copy made inside this process, two processes append at once, and nothing acknowledged is lost."""
    j.append("s", "first", op_id="first")
    shutil.copytree(path, tmp_path / "copy")
    peer = start_peer("append", stream="s", op_ids=[f"p{n}" for n in range(100)], wait=True)
    peer.hear("opened")
    peer.tell("go")
    mine = {j.append("s", n, op_id=f"m{n}").position: f"m{n}" for n in range(100)}
    theirs = {(said := peer.hear("appended"))["position"]: said["op_id"] for _ in range(100)}

    assert {c.position: c.op_id for c in j.read(after=1)} == mine | theirs
    assert [c.position for c in j.read()] == list(range(1, 202))
    assert [c.sequence for c in j.read("s")] == list(range(1, 202))
    peer.finish()


def test_forked_child_does_not_prolong_its_parents_ownership(
    j: Journal, start_peer: Start, recipient: FileRecipient
) -> None:
    """The parent is killed and its child lives on: the owner is gone."""
    owner = start_peer("call", key="k", run=["deliver", "fork", "running", "listen"])
    owner.hear("opened")
    child = owner.hear("forked")["child"]
    owner.hear("running")
    owner.kill()
    try:
        outcome = j.effect("k", run=unused(), reconcile=lambda _: recipient.find("k"))
        os.kill(child, 0)  # the child is still there
    finally:
        os.kill(child, signal.SIGKILL)

    assert outcome == Accepted(owner.pid, "reconcile")


# The writer's turn


def stop_inside_its_commit(j: Journal, writer: Peer) -> tuple[int, JournalBusyError]:
    """Stops a process that appends for ever when it has the turn; gives how many appends were tried, and the last."""
    deadline = time.monotonic() + PATIENCE
    for count in itertools.count(1):
        assert time.monotonic() < deadline, "never met the writer inside its commit"
        writer.send(signal.SIGSTOP)
        os.waitid(os.P_PID, writer.pid, os.WSTOPPED | os.WNOWAIT)
        try:
            j.append("mine", count, op_id=str(count))
        except JournalBusyError as error:
            return count, error
        writer.send(signal.SIGCONT)
    raise AssertionError("not reached")


def test_writer_that_stands_still_is_named(
    open_journal: Callable[..., Journal], start_peer: Start, tmp_path: Path
) -> None:
    """A process stopped inside its commit holds the turn: `JournalBusyError(pid)`; readers and opening never wait."""
    j = open_journal(wait_timeout=0.2)
    writer = start_peer("flood")
    writer.hear("opened")

    count, error = stop_inside_its_commit(j, writer)

    assert error.pid == writer.pid
    assert str(writer.pid) in str(error)
    assert len(list(j.read("mine"))) == count - 1
    reader = start_peer("look")
    assert reader.hear("looked")["head"] == j.head()
    writer.kill()
    j.append("mine", "after", op_id="after")
    assert len(list(j.read("mine"))) == count


def test_outcome_that_waits_too_long_for_the_turn_is_unrecorded(
    open_journal: Callable[..., Journal], start_peer: Start
) -> None:
    """The effect ran, and a writer that stands still kept its outcome out: the next call reconciles, and never runs."""
    j = open_journal(wait_timeout=0.2)
    writer = start_peer("flood")
    writer.hear("opened")

    def run() -> str:
        stop_inside_its_commit(j, writer)
        return "m-1"

    with pytest.raises(EffectUnresolvedError) as caught:
        j.effect("k", run=run, reconcile=unused())
    writer.kill()
    called = unused()
    outcome = j.effect("k", run=called, reconcile=Stub("m-1"))

    assert (caught.value.key, caught.value.reason) == ("k", "outcome-unrecorded")
    assert isinstance(caught.value.__cause__, JournalBusyError)
    assert outcome == Accepted("m-1", "reconcile")
    assert called.count == 0


def test_intent_that_waits_too_long_for_the_turn_runs_nothing(
    open_journal: Callable[..., Journal], start_peer: Start
) -> None:
    """No intent, no run: `JournalBusyError`, and nothing is on record."""
    j = open_journal(wait_timeout=0.2)
    writer = start_peer("flood")
    writer.hear("opened")
    stop_inside_its_commit(j, writer)
    run = unused()

    with pytest.raises(JournalBusyError) as caught:
        j.effect("k", run=run, reconcile=unused())

    assert caught.value.pid == writer.pid
    assert run.count == 0
    assert j.record("k") is None
    writer.kill()
    assert j.effect("k", run=lambda: 1, reconcile=unused()) == Accepted(1, "run")


def test_writer_killed_in_its_turn_leaves_no_lock(j: Journal, start_peer: Start) -> None:
    """The next writer goes on at once, and what was acknowledged is there."""
    for _ in range(3):
        writer = start_peer("flood")
        writer.hear("opened")
        head = j.head()
        wait_until(lambda head=head: j.head() > head + 5)  # type: ignore[misc]  # mypy cannot infer a lambda with a default
        writer.kill()
        j.append("mine", 1, op_id=str(j.head()))

    assert [c.sequence for c in j.read("flood")] == list(range(1, len(list(j.read("flood"))) + 1))
    assert [c.sequence for c in j.read("mine")] == [1, 2, 3]
    assert [c.position for c in j.read()] == list(range(1, j.head() + 1))


def test_unresolved_here_does_not_stop_the_others(j: Journal, start_peer: Start) -> None:
    """An effect given up here is asked about elsewhere, while this handle stays open."""
    leave_open(j, "k")
    asker = start_peer("call", key="k", run=["deliver"], reconcile=["find"])
    asker.hear("opened")
    asker.hear("uncertain")

    assert j.effect("k", run=unused(), reconcile=unused()) == Uncertain()
    with pytest.raises(EffectUnresolvedError):
        j.effect("other", run=Stub(ValueError("no")), reconcile=unused())
    asker.finish()
