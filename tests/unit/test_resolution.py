"""`journal/_core/resolution.py`: what a person decides, request by request."""

from __future__ import annotations

import inspect
from typing import Any, Final

import pytest

from journal._core.keys import key_form
from journal._core.requests import Commit, Enter, IsAlive, Read
from journal._core.resolution import check_reason, clear_effect, resolve
from journal.errors import (
    CorruptRecordError,
    EffectConflictError,
    EffectInFlightError,
    JournalFullError,
    NotPerformed,
)
from journal.options import PROOF_BYTES_MAX, REASON_BYTES_MAX
from journal.records import Guarantee, Phase, Via
from journal.values import Accepted, Uncertain
from tests.unit.support import OTHER, OTHER_PID, OWN, Memory, Play

OWN_PID: Final = 99
INTENT, ACCEPTED, UNCERTAIN, FAILED, RELEASED, CLEARED = (
    Phase.INTENT,
    Phase.ACCEPTED,
    Phase.UNCERTAIN,
    Phase.FAILED,
    Phase.RELEASED,
    Phase.CLEARED,
)
OUTCOMES: Final = (Accepted("m"), Uncertain(), NotPerformed("not there"))


def with_(*phases: Phase, **facts: Any) -> Memory:
    """A journal in which the key `k` has had these events."""
    memory = Memory()
    for phase in phases:
        memory.put_effect("k", phase, **facts)
    return memory


def resolving(memory: Memory, outcome: Any, position: Any = None, reason: Any = "seen in the console") -> Play[None]:
    """A decision about what is on record now."""
    return Play(resolve("k", outcome, memory.head() if position is None else position, reason), memory)


def clearing(memory: Memory, reason: Any = "again") -> Play[None]:
    """A clearing by the handle `OWN`."""
    memory.alive[OWN] = OWN_PID
    return Play(clear_effect("k", reason, OWN), memory)


# Resolve


@pytest.mark.parametrize("phases", [(INTENT,), (INTENT, RELEASED), (INTENT, FAILED), (INTENT, UNCERTAIN), (FAILED,)])
@pytest.mark.parametrize("outcome, phase", list(zip(OUTCOMES, (ACCEPTED, UNCERTAIN, FAILED), strict=True)))
def test_person_settles_what_is_not_accepted(phases: tuple[Phase, ...], outcome: Any, phase: Phase) -> None:
    """An intent, in flight or not, a failed or an uncertain effect: one commit, via resolve, with the reason."""
    memory = with_(*phases)

    play = resolving(memory, outcome)
    assert play.expect(Commit).settles is True
    play.does(Commit)

    entry = memory.last("k")
    assert (entry.phase, entry.via, entry.reason) == (phase, Via.RESOLVE, "seen in the console")
    assert entry.proof == (b'"m"' if phase is ACCEPTED else None)
    assert entry.error == ("NotPerformed: not there" if phase is FAILED else None)
    assert entry.attempts == memory.effect_entry(1).attempts
    assert (play.is_done, play.asked) == (True, ["Commit"])


@pytest.mark.parametrize("guarantee", Guarantee)
def test_decision_keeps_the_guarantee(guarantee: Guarantee) -> None:
    """It was fixed by the key's first intent."""
    memory = with_(INTENT, guarantee=guarantee)

    resolving(memory, Accepted(None)).finish()

    assert (memory.last("k").guarantee, memory.last("k").proof) == (guarantee, b"null")


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_accepted_effect_is_not_resolved(outcome: Any) -> None:
    """Nobody changes what is known to have happened."""
    memory = with_(INTENT, ACCEPTED)

    with pytest.raises(EffectConflictError, match="it is accepted, which nobody can change; clear it") as caught:
        resolving(memory, outcome).finish()

    assert caught.value.record.phase == "accepted"
    assert memory.head() == 2


@pytest.mark.parametrize("position", [0, 1, 3, -1])
def test_record_at_another_position_is_not_resolved(position: int) -> None:
    """The person decided on a record that has moved on."""
    memory = with_(INTENT, RELEASED)

    with pytest.raises(EffectConflictError, match=f"its record is at position 2, expected {position}") as caught:
        resolving(memory, Uncertain(), position).finish()

    assert caught.value.record.position == 2
    assert memory.head() == 2


@pytest.mark.parametrize("phases", [(), (INTENT, CLEARED)])
def test_nothing_on_record_is_not_resolved(phases: tuple[Phase, ...]) -> None:
    """There is no record that the person could have seen."""
    memory = with_(*phases)

    with pytest.raises(EffectConflictError, match="nothing is on record to be resolved") as caught:
        resolving(memory, Uncertain()).finish()

    assert caught.value.record is None


def test_damaged_record_is_not_resolved() -> None:
    """It refuses, as every call for the key."""
    memory = with_(INTENT)
    memory.damaged.add(1)

    with pytest.raises(CorruptRecordError):
        resolving(memory, Uncertain()).finish()


@pytest.mark.parametrize("proof", [float("nan"), (1,), object(), "a" * PROOF_BYTES_MAX])
def test_proof_that_cannot_be_kept_is_refused(proof: Any) -> None:
    """Before anything is asked."""
    with pytest.raises(TypeError, match="the proof cannot be kept: "):
        resolving(Memory(), Accepted(proof))


@pytest.mark.parametrize("outcome", [None, "accepted", Accepted, ValueError("no")])
def test_outcome_of_another_type_is_refused(outcome: Any) -> None:
    """The message lists what there is."""
    with pytest.raises(TypeError, match=r"outcome must be Accepted\(proof\), Uncertain\(\) or NotPerformed\(why\)"):
        resolving(Memory(), outcome)


@pytest.mark.parametrize("position", ["1", 1.0, True])
def test_position_of_another_type_is_refused(position: Any) -> None:
    """A position is an integer."""
    with pytest.raises(TypeError, match="expected_position must be the record's position, an int, not "):
        resolving(Memory(), Uncertain(), position)


# Reasons


@pytest.mark.parametrize("reason", ["x", "é" * (REASON_BYTES_MAX // 2), " seen "])
def test_reason_says_something(reason: str) -> None:
    """Anything up to the limit."""
    check_reason(reason)


@pytest.mark.parametrize(
    "reason, error",
    [
        (None, TypeError),
        (1, TypeError),
        ("", ValueError),
        (" \n", ValueError),
        ("é" * (REASON_BYTES_MAX // 2) + "a", ValueError),
        ("\ud800", ValueError),
    ],
)
@pytest.mark.parametrize("protocol", [resolving, clearing])
def test_reason_of_no_use_is_refused(reason: Any, error: type[Exception], protocol: Any) -> None:
    """Both decisions want one, before anything is asked."""
    with pytest.raises(error, match="reason"):
        protocol(Memory(), **({"outcome": Uncertain()} if protocol is resolving else {}), reason=reason)


@pytest.mark.parametrize("key, error", [(1, TypeError), ("", ValueError)])
def test_what_is_no_key_is_refused(key: Any, error: type[Exception]) -> None:
    """By both, before anything is asked."""
    with pytest.raises(error):
        next(resolve(key, Uncertain(), 1, "why"))
    with pytest.raises(error):
        next(clear_effect(key, "why", OWN))


# Clear


@pytest.mark.parametrize(
    "phases", [(INTENT,), (INTENT, RELEASED), (INTENT, FAILED), (INTENT, UNCERTAIN), (INTENT, ACCEPTED)]
)
def test_clearing_is_an_event_of_its_own(phases: tuple[Phase, ...]) -> None:
    """In whatever phase, once nobody has it in flight; the record is gone, the history stays."""
    memory = with_(*phases)

    play = clearing(memory).run(Read)
    assert play.expect(Enter) == Enter("effect", "k", key_form("k"), None, None, wait=False)
    play.does(Enter)
    assert play.expect(Commit).settles is False
    play.does(Commit)

    assert play.is_done
    assert memory.phases("k") == [*(phase.word for phase in phases), "cleared"]
    assert memory.last("k").reason == "again"
    assert memory.holds[0].ends == [None]


@pytest.mark.parametrize("phases", [(), (INTENT, CLEARED)])
def test_clearing_of_an_unknown_key_is_nothing(phases: tuple[Phase, ...]) -> None:
    """One read, and no second event."""
    memory = with_(*phases)

    play = clearing(memory).run(Read)

    assert (play.is_done, memory.head(), memory.holds) == (True, len(phases), [])


def test_effect_in_flight_in_this_process_is_not_cleared() -> None:
    """It is told with the own pid; nothing waits."""
    memory = with_(INTENT)

    with pytest.raises(EffectInFlightError) as caught:
        clearing(memory).run(Read).does(Enter, None).run(IsAlive)

    assert (caught.value.key, caught.value.pid, caught.value.record.phase) == ("k", OWN_PID, "intent")
    assert memory.head() == 1


def test_intent_of_a_living_owner_is_not_cleared() -> None:
    """Another process may be running it."""
    memory = with_(INTENT, owner=OTHER)
    memory.alive[OTHER] = OTHER_PID

    with pytest.raises(EffectInFlightError) as caught:
        clearing(memory).run(Read, Enter, IsAlive)

    assert (caught.value.pid, caught.value.record.phase) == (OTHER_PID, "intent")
    assert memory.head() == 1
    assert memory.holds[0].ends == [None]


def test_intent_of_an_owner_that_is_gone_is_cleared() -> None:
    """Nobody runs it any more."""
    memory = with_(INTENT, owner=OTHER)

    clearing(memory).run(Read, Enter, IsAlive, Commit)

    assert memory.phases("k") == ["intent", "cleared"]


def test_released_intent_of_a_living_owner_is_cleared() -> None:
    """Its process gave it up."""
    memory = with_(INTENT, RELEASED, owner=OTHER)
    memory.alive[OTHER] = OTHER_PID

    clearing(memory).run(Read, Enter, Commit)

    assert memory.phases("k") == ["intent", "released", "cleared"]


@pytest.mark.parametrize("meanwhile", [ACCEPTED, FAILED])
def test_record_that_moved_on_is_looked_at_again(meanwhile: Phase) -> None:
    """What was decided on one record is not done to another."""
    memory = with_(INTENT)
    play = clearing(memory).run(Read, Enter)
    memory.put_effect("k", meanwhile)

    play.run(Commit)
    assert memory.phases("k") == ["intent", meanwhile.word]
    play.run(Read, Enter, Commit)

    assert memory.phases("k")[-1] == "cleared"
    assert [hold.ends for hold in memory.holds] == [[None], [None]]


def test_record_that_another_process_began_meanwhile_is_not_cleared() -> None:
    """The second look finds it in flight."""
    memory = with_(INTENT, FAILED)
    memory.alive[OTHER] = OTHER_PID
    play = clearing(memory).run(Read, Enter)
    memory.put_effect("k", INTENT, owner=OTHER)

    with pytest.raises(EffectInFlightError):
        play.run(Commit, Read, Enter, IsAlive)


@pytest.mark.parametrize("error", [JournalFullError("/journal", "no room"), KeyboardInterrupt()])
@pytest.mark.parametrize("place", range(4))
def test_clearing_that_is_cut_off_lets_go(error: BaseException, place: int) -> None:
    """Whatever comes at whatever request, the flight ends and those who joined read again."""
    memory = with_(INTENT, owner=OTHER)
    play = clearing(memory)
    for _ in range(place):
        play.does(type(play.request))

    with pytest.raises(type(error)):
        play.raises(type(play.request), error)

    assert [hold.ends for hold in memory.holds] == ([[None]] if place > 1 else [])
    assert memory.phases("k") == ["intent"]


@pytest.mark.parametrize("place", range(4))
def test_closed_clearing_asks_nothing_more(place: int) -> None:
    """Its flight ends."""
    memory = with_(INTENT, owner=OTHER)
    protocol = clear_effect("k", "again", OWN)
    play = Play(protocol, memory)
    for _ in range(place):
        play.does(type(play.request))

    play.close()

    assert inspect.getgeneratorstate(protocol) == inspect.GEN_CLOSED
    assert memory.in_flight == {}
