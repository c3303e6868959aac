"""Effects in a copy that nobody has confirmed, request by request: `journal/_core/effects.py` and `recovery.py`.

And `journal/_core/copies.py`: what a copy says of itself, and the word that it may go on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest

from journal._core.copies import confirm_restored, restored
from journal._core.effects import EffectCall, effect, run_effect
from journal._core.ledger import PASSED
from journal._core.recovery import recover
from journal._core.requests import Ask, Call, Commit, DeadlineError, Enter, Read
from journal._core.schemas import Schema
from journal.errors import EffectConflictError, EffectUnresolvedError, NotPerformed
from journal.records import Guarantee, Phase, RestoredRow
from journal.values import Accepted, Found, Restored, Uncertain
from recovery import Intent
from tests.unit.crew import Crew, first_free
from tests.unit.support import OTHER, OWN, START, Boom, Hold, Memory, Play, at_most_once, idempotent, raising, unused

ONCE, OFTEN = Guarantee.AT_MOST_ONCE, Guarantee.IDEMPOTENT
INTENT, ACCEPTED, FAILED, CLEARED = Phase.INTENT, Phase.ACCEPTED, Phase.FAILED, Phase.CLEARED
ID: Final = "c" * 32
ABSENT: Final = NotPerformed("their books show nothing")
PROBE: Final = (Read, Enter, Read, Commit)
"""Nothing on record: the copy's own row is looked at before the intent is written."""
PROBE_FAILED: Final = (Read, Enter, Read, Read, Commit)


def copy(*phases: Phase, head: int | None = None, guarantee: Guarantee = ONCE, **facts: Any) -> Memory:
    """A copy in which the key `k` had these events before it was made, or before and after the position `head`."""
    memory = Memory()
    for number, phase in enumerate(phases, 1):
        memory.put_effect("k", phase, guarantee=guarantee, **(facts if number == len(phases) else {}))
    memory.restored_row = RestoredRow(ID, memory.head() if head is None else head, START)
    return memory


def calling(call: EffectCall, memory: Memory) -> Play[Any]:
    """The protocol that a call goes through in a copy."""
    protocol = effect if call.guarantee is ONCE else run_effect
    return Play(protocol(call, OWN, is_copy=True), memory)


def the_hold(memory: Memory) -> Hold:
    """The one flight that was entered."""
    (hold,) = memory.holds
    return hold


# An effect that runs at most once


@pytest.mark.parametrize("before", [(), (INTENT, ACCEPTED, CLEARED)], ids=["nothing", "cleared"])
def test_intent_is_durable_before_the_recipient_is_asked(before: tuple[Phase, ...]) -> None:
    """A crash in between leaves an open intent, which is asked about like any other; `run` is not called."""
    memory = copy(*before)
    play = calling(at_most_once(run=unused, reconcile=lambda _: "theirs"), memory)

    play.run(Read, Enter, *([Read] if before else []), Read, Commit)
    ask = play.expect(Ask)
    phases = memory.phases("k")

    assert phases[len(before) :] == ["intent"]
    assert (ask.key, ask.attempt) == ("k", 1)
    assert play.finish() == Accepted("theirs", "reconcile")
    assert memory.phases("k")[len(before) :] == ["intent", "accepted"]
    assert the_hold(memory).ends == [None]


@pytest.mark.parametrize(
    "answer, outcome",
    [(None, Uncertain()), (Found(None), Accepted(None, "reconcile")), ("theirs", Accepted("theirs", "reconcile"))],
)
def test_recipient_decides_what_became_of_it(answer: Any, outcome: Any) -> None:
    """What it knows is the outcome, and what it does not know nobody ever will."""
    memory = copy()

    assert calling(at_most_once(run=unused, reconcile=lambda _: answer), memory).finish() == outcome


def test_proved_absence_lets_it_run() -> None:
    """`failed` and the next intent are one commit, then it is run."""
    memory = copy()
    play = calling(at_most_once(reconcile=raising(ABSENT)), memory).run(*PROBE, Ask, Commit)

    play.expect(Call)
    phases = memory.phases("k")

    assert phases == ["intent", "failed", "intent"]
    assert play.finish() == Accepted("proof", "run")
    assert memory.commits == 3


def test_effect_that_had_failed_before_the_copy_is_asked_about() -> None:
    """Not performed then, it may have been afterwards."""
    memory = copy(INTENT, FAILED)
    play = calling(at_most_once(run=unused, reconcile=lambda _: None), memory).run(*PROBE_FAILED)

    assert play.expect(Ask).attempt == 2
    assert play.finish() == Uncertain()


def test_effect_that_failed_in_the_copy_is_run() -> None:
    """That is known."""
    memory = copy(INTENT, FAILED, head=1)

    assert calling(at_most_once(), memory).finish() == Accepted("proof", "run")
    assert memory.phases("k") == ["intent", "failed", "intent", "accepted"]


@pytest.mark.parametrize("head", [0, 1])
@pytest.mark.parametrize("make", [at_most_once, idempotent])
def test_effect_that_a_walk_passed_is_as_doubtful_as_without_a_record(
    make: Callable[..., EffectCall], head: int
) -> None:
    """The walk asked nobody, whether it went over the copy or came before."""
    guarantee = make().guarantee
    memory = copy(FAILED, head=head, guarantee=guarantee, reason=PASSED, via=None)
    play = calling(make(run=unused), memory)

    if guarantee is ONCE:
        play.run(*PROBE_FAILED).expect(Ask)
    else:
        with pytest.raises(EffectConflictError):
            play.finish()


@pytest.mark.parametrize(
    "error, reason", [(Boom("boom"), "reconcile-failed"), (DeadlineError("late"), "reconcile-timeout")]
)
def test_recipient_that_could_not_be_asked_leaves_an_intent_that_was_given_up(error: Exception, reason: str) -> None:
    """Its owner lives, and other processes must not wait for it."""
    memory = copy()
    play = calling(at_most_once(run=unused), memory).run(*PROBE)

    with pytest.raises(EffectUnresolvedError) as caught:
        play.raises(Ask, error).finish()

    assert (caught.value.reason, caught.value.__cause__) == (reason, error)
    assert memory.phases("k") == ["intent", "released"]
    assert memory.last("k").reason == reason
    assert the_hold(memory).ends == [caught.value]


def test_proof_that_cannot_be_kept_gives_the_intent_up() -> None:
    """As where it could not be asked."""
    memory = copy()

    with pytest.raises(EffectUnresolvedError, match="proof-rejected"):
        calling(at_most_once(run=unused, reconcile=lambda _: float("nan")), memory).finish()
    assert memory.phases("k") == ["intent", "released"]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_ask_that_is_cut_off_gives_the_intent_up(kind: type[BaseException]) -> None:
    """Everybody may ask."""
    memory = copy()
    play = calling(at_most_once(run=unused), memory).run(*PROBE)

    with pytest.raises(kind):
        play.raises(Ask, kind()).finish()

    assert memory.phases("k") == ["intent", "released"]


def test_record_that_appears_meanwhile_is_not_overwritten() -> None:
    """The intent's commit looks again, and the call starts over."""
    memory = copy()
    play = calling(at_most_once(run=unused), memory).run(Read, Enter, Read)
    memory.put_effect("k", INTENT, owner=OTHER)
    memory.put_effect("k", ACCEPTED)

    assert play.finish() == Accepted("proof", "run")
    assert memory.phases("k") == ["intent", "accepted"]


def test_copy_that_another_process_confirms_meanwhile_runs_it_at_once() -> None:
    """Looked up again in the transaction that writes the intent."""
    memory = copy()
    play = calling(at_most_once(), memory).run(Read, Enter, Read)
    memory.restored_row = RestoredRow(ID, 0, START, START + 1)

    assert play.run(Commit, Call).finish() == Accepted("proof", "run")
    assert memory.phases("k") == ["intent", "accepted"]


@pytest.mark.parametrize("make", [at_most_once, idempotent])
def test_confirmed_copy_is_a_journal_like_any_other(make: Callable[..., EffectCall]) -> None:
    """Also for a handle that was opened before."""
    memory = copy()
    Play(confirm_restored(), memory).finish()

    calling(make(), memory).finish()

    assert memory.phases("k") == ["intent", "accepted"]


def test_journal_that_is_no_copy_does_not_look() -> None:
    """It pays nothing."""
    memory = Memory()

    play = Play(effect(at_most_once(), OWN), memory)
    play.finish()

    assert play.asked == ["Read", "Enter", "Commit", "Call", "Commit"]


# An effect whose recipient deduplicates


@pytest.mark.parametrize("before", [(), (INTENT, CLEARED)], ids=["nothing", "cleared"])
def test_run_effect_without_a_record_is_refused_before_anything_is_written(before: tuple[Phase, ...]) -> None:
    """There is nobody to ask; the error says of which copy, and what to do."""
    memory = copy(*before, guarantee=OFTEN)
    commits = memory.commits

    with pytest.raises(EffectConflictError) as caught:
        calling(idempotent(run=unused), memory).finish()

    assert memory.commits == commits
    assert f"incarnation {ID}, made at position {len(before)}" in caught.value.reason
    assert "confirm_restored()" in str(caught.value)
    assert the_hold(memory).ends == [None]


@pytest.mark.parametrize("last", [INTENT, FAILED])
def test_run_effect_with_a_record_goes_on(last: Phase) -> None:
    """Its recipient knows the key."""
    memory = copy(*dict.fromkeys((INTENT, last)), guarantee=OFTEN)

    assert calling(idempotent(), memory).finish() == "result"


# A walk


def walking(memory: Memory, *implied: Intent, **options: Any) -> Any:
    """A walk over one operation that implies these intents."""
    memory.put_operation("op", None)
    given: dict[str, Any] = {
        "intents": lambda _: list(implied),
        "stream": None,
        "on_unresolved": "retry",
        "on_uncertain": "accept",
        "concurrency": 1,
        "limit": None,
        "progress": None,
        "schema": Schema(),
        "owner": OWN,
        "check": lambda _: None,
        "is_copy": True,
    }
    return recover(0, **(given | options))


def run_walk(memory: Memory, *implied: Intent, concurrency: int, **options: Any) -> Any:
    """What a walk comes to, alone or in lanes."""
    protocol = walking(memory, *implied, concurrency=concurrency, **options)
    return Crew(protocol, memory, first_free).finish()


@pytest.mark.parametrize("concurrency", [1, 2])
def test_walk_asks_about_each_effect_before_it_runs_any(concurrency: int) -> None:
    """The intent of the next effect does not come into the commit of an outcome, and no effect is run unasked."""
    memory = copy()
    asked: list[str] = []

    def absent(ask: Ask) -> None:
        asked.append(str(ask.key))
        raise ABSENT

    def found(ask: Ask) -> str:
        asked.append(str(ask.key))
        return "theirs"

    settled = run_walk(
        memory,
        Intent("a", lambda: "a!", absent),
        Intent("b", unused, found),
        Intent("c", lambda: "c!", absent),
        concurrency=concurrency,
    )

    assert asked == ["a", "b", "c"]
    assert (settled.stopped, settled.ran, settled.reconciled) == (None, 2, 1)
    assert memory.phases("b") == ["intent", "accepted"]
    assert memory.phases("c") == ["intent", "failed", "intent", "accepted"]


@pytest.mark.parametrize("concurrency", [1, 2])
def test_walk_stops_before_an_effect_that_nobody_can_be_asked_about(concurrency: int) -> None:
    """With the reason of a conflict, and the error of the direct call."""
    memory = copy()

    settled = run_walk(memory, Intent("a", unused, lambda _: "theirs"), Intent("k", unused), concurrency=concurrency)

    assert settled.stopped.reason == "conflict"
    assert isinstance(settled.stopped.error, EffectConflictError)
    assert memory.phases("k") == []


def test_walk_that_passes_an_effect_makes_it_no_less_doubtful() -> None:
    """Passed once, and then settled: asked about, or refused."""
    memory = copy()
    passed = run_walk(memory, Intent("a", unused, unused), Intent("k", unused), concurrency=1, on_unresolved="pass")
    asked: list[Any] = []

    settled = Play(
        recover(
            0,
            intents=lambda _: [Intent("a", unused, asked.append), Intent("k", unused)],
            stream=None,
            on_unresolved="retry",
            on_uncertain="accept",
            concurrency=1,
            limit=None,
            progress=None,
            schema=Schema(),
            owner=OWN,
            check=lambda _: None,
            is_copy=True,
        ),
        memory,
    ).finish()

    assert passed.passed == 2
    assert len(asked) == 1
    assert settled.stopped is not None
    assert settled.stopped.reason == "conflict"


def test_walk_begins_ahead_what_is_known() -> None:
    """An effect that failed in the copy itself shares its commit as ever."""
    memory = copy(INTENT, FAILED, head=0)
    play = Play(walking(memory, Intent("a", lambda: "a!", raising(ABSENT)), Intent("k", lambda: "k!", unused)), memory)

    settled = play.finish()

    assert settled.ran == 2
    assert memory.commits == 4


# What a copy says of itself


def test_journal_that_is_no_copy_says_nothing() -> None:
    """And has nothing to confirm."""
    memory = Memory()

    assert Play(restored(), memory).finish() is None
    assert Play(confirm_restored(), memory).finish() is None
    assert memory.commits == 0


def test_copy_is_confirmed_once() -> None:
    """In one commit; and a second time nothing."""
    memory = copy()
    before = Play(restored(), memory).finish()

    Play(confirm_restored(), memory).finish()
    at = memory.at
    Play(confirm_restored(), memory).finish()

    assert before == Restored(ID, 0, START, None)
    assert Play(restored(), memory).finish() == Restored(ID, 0, START, at)
    assert memory.commits == 1
    assert [(note.level, note.event, note.facts) for note in memory.notes] == [
        ("info", "journal_confirmed", {"incarnation": ID, "head": 0})
    ]


@pytest.mark.parametrize("now", [None, RestoredRow(ID, 0, START, 5)])
def test_copy_that_another_process_confirmed_meanwhile_stays_as_it_is(now: RestoredRow | None) -> None:
    """The transaction looks again."""
    memory = copy()
    play = Play(confirm_restored(), memory).run(Read)
    memory.restored_row = now

    play.finish()

    assert memory.restored_row == now
    assert memory.notes == []


def test_clock_at_the_epoch_confirms_nevertheless() -> None:
    """0 stands for a copy that nobody has confirmed."""
    memory = copy()
    memory.at = -1

    Play(confirm_restored(), memory).finish()

    assert memory.restored_row is not None
    assert memory.restored_row.confirmed_at == 1
