"""`journal/_core/ledger.py`: which event of an effect may follow which, and what the record says after it."""

import itertools
from typing import Any, Final

import msgspec
import pytest

from journal._core.keys import key_form
from journal._core.ledger import (
    AT_MOST_ONCE_NEVER,
    OPEN,
    PASSED,
    PERSON_ONLY,
    SETTLED,
    TRANSITIONS,
    UNFINISHED,
    BrokenTransitionError,
    EffectChange,
    EffectState,
    advance,
    event_of,
    is_allowed,
    next_entry,
    owner_text,
    record_of,
    release,
    standing,
    withdraw,
)
from journal.records import EffectEntry, Guarantee, Phase, RestoredRow, Via
from journal.values import EffectEvent, EffectRecord
from tests.unit.support import OTHER, OWN, START, Memory

FORM: Final = key_form("k")
ONCE, OFTEN = Guarantee.AT_MOST_ONCE, Guarantee.IDEMPOTENT
CALL, PERSON = False, True
NOTHING = None
INTENT, ACCEPTED, UNCERTAIN, FAILED, RELEASED, CLEARED = (
    Phase.INTENT,
    Phase.ACCEPTED,
    Phase.UNCERTAIN,
    Phase.FAILED,
    Phase.RELEASED,
    Phase.CLEARED,
)

# Written from section 3 of the contract, sentence by sentence, and not from the table. Whoever is not named may not.
BY_ANYBODY: Final[dict[Phase | None, dict[Phase, tuple[Guarantee, ...]]]] = {
    # "nothing: commits intent"; a walk that passes a never-started effect records it as failed.
    NOTHING: {INTENT: (ONCE, OFTEN), FAILED: (ONCE, OFTEN)},
    # "intent": its outcome; given up by its own process; cleared by a person when nobody has it in flight. "An intent
    # without outcome ... run again" is for the idempotent alone: "calls reconcile, never run".
    INTENT: {
        ACCEPTED: (ONCE, OFTEN),
        UNCERTAIN: (ONCE, OFTEN),
        FAILED: (ONCE, OFTEN),
        RELEASED: (ONCE, OFTEN),
        CLEARED: (ONCE, OFTEN),
        INTENT: (OFTEN,),
    },
    # "that is an event of its own, written once ...; the record's phase stays intent".
    RELEASED: {
        ACCEPTED: (ONCE, OFTEN),
        UNCERTAIN: (ONCE, OFTEN),
        FAILED: (ONCE, OFTEN),
        CLEARED: (ONCE, OFTEN),
        INTENT: (OFTEN,),
    },
    # "failed: commits the next intent, then run".
    FAILED: {INTENT: (ONCE, OFTEN), CLEARED: (ONCE, OFTEN)},
    # "only a person may move an uncertain one"; "accepted, uncertain: returns it; nothing is called".
    UNCERTAIN: {CLEARED: (ONCE, OFTEN)},
    ACCEPTED: {CLEARED: (ONCE, OFTEN)},
    # "afterwards record is None, attempts start at 1".
    CLEARED: {INTENT: (ONCE, OFTEN), FAILED: (ONCE, OFTEN)},
}
# "resolve settles an intent, a failed or an uncertain effect"; of an accepted one it is refused.
BY_A_PERSON_TOO: Final[dict[Phase | None, tuple[Phase, ...]]] = {
    FAILED: (ACCEPTED, UNCERTAIN, FAILED),
    UNCERTAIN: (ACCEPTED, UNCERTAIN, FAILED),
}

COMBINATIONS: Final = list(itertools.product([NOTHING, *Phase], Phase, Guarantee, [CALL, PERSON]))


def expected(before: Phase | None, after: Phase, guarantee: Guarantee, *, by_person: bool) -> bool:
    """What the contract says about a transition."""
    if by_person and after in BY_A_PERSON_TOO.get(before, ()):
        return True
    return guarantee in BY_ANYBODY[before].get(after, ())


def entry(phase: Phase, **facts: Any) -> EffectEntry:
    """An event of the key `k`, as it might stand in the log."""
    told: dict[str, Any] = {
        "phase": phase,
        "key": FORM,
        "at": START,
        "previous": 3,
        "first_at": START - 9,
        "attempts": 2,
        "guarantee": ONCE,
        "owner": OWN,
    }
    return EffectEntry(**(told | facts))


@pytest.mark.parametrize("before, after, guarantee, by_person", COMBINATIONS)
def test_transition_is_allowed_where_the_contract_says_so(
    before: Phase | None, after: Phase, guarantee: Guarantee, *, by_person: bool
) -> None:
    """Each combination of what was, what comes, the guarantee and who does it is as the contract has it."""
    allowed = is_allowed(before, after, guarantee, by_person=by_person)

    assert allowed is expected(before, after, guarantee, by_person=by_person)


@pytest.mark.parametrize("before, after, guarantee, by_person", COMBINATIONS)
def test_event_that_may_not_follow_is_a_bug(
    before: Phase | None, after: Phase, guarantee: Guarantee, *, by_person: bool
) -> None:
    """`next_entry` makes exactly the events that the table allows, and raises at once for any other."""
    state = None if before is None else EffectState(4, entry(before, guarantee=guarantee))
    change = EffectChange(phase=after, guarantee=guarantee, via=Via.RESOLVE if by_person else None)
    # A cleared key stands as if nothing were on record.
    stands = None if before is CLEARED else before

    if expected(stands, after, guarantee, by_person=by_person):
        made = next_entry(state, FORM, change, START)

        assert made.phase is after
    else:
        with pytest.raises(BrokenTransitionError):
            next_entry(state, FORM, change, START)


def test_every_transition_of_the_table_is_reached() -> None:
    """The table holds nothing that no combination reaches, and the exceptions name only what the table has."""
    rows = {(before, after) for before, allowed in TRANSITIONS.items() for after in allowed}
    reached = {
        (before, after)
        for before, after, guarantee, by_person in COMBINATIONS
        if expected(before, after, guarantee, by_person=by_person)
    }

    assert rows == reached
    assert set(TRANSITIONS) == {NOTHING, *Phase}
    assert rows >= PERSON_ONLY
    assert rows >= AT_MOST_ONCE_NEVER


def test_phases_are_open_unfinished_or_settled() -> None:
    """What has no outcome is unfinished, and no phase is both unfinished and settled."""
    assert set(OPEN) < set(UNFINISHED)
    assert set(UNFINISHED) & set(SETTLED) == set()
    assert set(UNFINISHED) | set(SETTLED) | {CLEARED} == set(Phase)


# The event itself


def test_first_intent_begins_the_count() -> None:
    """It is attempt 1, first and last at the same time, with nothing before it."""
    change = EffectChange(phase=INTENT, guarantee=OFTEN, request=b"r" * 16, owner=OWN)

    made = next_entry(None, FORM, change, START)

    assert made == EffectEntry(INTENT, FORM, START, 0, START, 1, OFTEN, OWN, b"r" * 16)


@pytest.mark.parametrize("before, guarantee", [(FAILED, ONCE), (FAILED, OFTEN), (INTENT, OFTEN), (RELEASED, OFTEN)])
def test_next_intent_counts_on(before: Phase, guarantee: Guarantee) -> None:
    """Another attempt has the next number and owner; the first time and, unless told, the request stay."""
    state = EffectState(8, entry(before, guarantee=guarantee, request=b"r" * 16, reason="run-failed", error="Boom"))

    made = next_entry(state, FORM, EffectChange(phase=INTENT, guarantee=guarantee, owner=OTHER), START + 5)

    assert made == EffectEntry(INTENT, FORM, START + 5, 8, START - 9, 3, guarantee, OTHER, b"r" * 16)


def test_request_binds_with_a_later_intent() -> None:
    """A call that says what it asks for binds a key that was begun without."""
    state = EffectState(8, entry(FAILED))

    made = next_entry(state, FORM, EffectChange(phase=INTENT, guarantee=ONCE, request=b"q" * 16), START)

    assert made.request == b"q" * 16


@pytest.mark.parametrize("phase", [ACCEPTED, UNCERTAIN, FAILED, RELEASED, CLEARED])
def test_event_that_is_no_intent_keeps_count_and_owner(phase: Phase) -> None:
    """An outcome belongs to the attempt that it ends; what an event does not say is not carried over."""
    state = EffectState(8, entry(INTENT, request=b"r" * 16))
    change = EffectChange(phase=phase, guarantee=ONCE, via=Via.RUN, proof=b"1", reason="why", error="Boom")

    made = next_entry(state, FORM, change, START)

    assert made == EffectEntry(phase, FORM, START, 8, START - 9, 2, ONCE, OWN, b"r" * 16, Via.RUN, b"1", "why", "Boom")


def test_outcome_does_not_inherit_what_the_event_before_said() -> None:
    """Reason, error, proof and via are of one event alone."""
    state = EffectState(8, entry(RELEASED, reason="run-failed", error="Boom"))

    made = next_entry(state, FORM, EffectChange(phase=UNCERTAIN, guarantee=ONCE, via=Via.RECONCILE), START)

    assert (made.reason, made.error, made.proof, made.via) == (None, None, None, Via.RECONCILE)


@pytest.mark.parametrize("phase, attempts", [(INTENT, 1), (FAILED, 0)])
def test_cleared_key_begins_anew(phase: Phase, attempts: int) -> None:
    """Count, first time, owner and request start over; only the link to the event before stays, for the history."""
    state = EffectState(8, entry(CLEARED, request=b"r" * 16))

    made = next_entry(state, FORM, EffectChange(phase=phase, guarantee=OFTEN, reason="passed"), START)

    assert made == EffectEntry(phase, FORM, START, 8, START, attempts, OFTEN, 0, reason="passed")


# What records and histories say


@pytest.mark.parametrize("state", [None, EffectState(4, entry(CLEARED))])
def test_nothing_or_cleared_has_no_record(state: EffectState | None) -> None:
    """A cleared key is as one that was never used."""
    assert record_of(state) is None


def test_record_says_what_the_last_event_says() -> None:
    """Every field of the event comes out under the contract's word for it."""
    state = EffectState(
        9,
        entry(ACCEPTED, key=key_form(("mail", 7)), guarantee=OFTEN, owner=0xABC, via=Via.RECONCILE, proof=b'{"id":1}'),
    )

    assert record_of(state) == EffectRecord(
        key=("mail", 7),
        guarantee="idempotent",
        phase="accepted",
        attempts=2,
        first_at=START - 9,
        last_at=START,
        proof={"id": 1},
        via="reconcile",
        reason=None,
        error=None,
        owner="0000000000000abc",
        position=9,
    )


@pytest.mark.parametrize("phase", Phase)
def test_event_is_told_as_it_is(phase: Phase) -> None:
    """A history tells every phase by its own name, released and cleared too."""
    state = EffectState(9, entry(phase, reason="why", error="Boom: no"))

    assert event_of(state) == EffectEvent(
        position=9,
        at=START,
        key="k",
        phase=phase.name.lower(),
        attempt=2,
        guarantee="at_most_once",
        via=None,
        proof=None,
        reason="why",
        error="Boom: no",
        owner="0000000000000005",
    )


def test_released_intent_stays_in_phase_intent() -> None:
    """Its record shows why it was given up, and that it may still have happened."""
    record = record_of(EffectState(9, entry(RELEASED, reason="run-failed", error="Boom: no")))

    assert record is not None
    assert (record.phase, record.reason, record.error) == ("intent", "run-failed", "Boom: no")


def test_event_names_how_it_is_known() -> None:
    """The word of `via` is the contract's."""
    vias = [event_of(EffectState(9, entry(ACCEPTED, via=via, proof=b"null"))).via for via in Via]

    assert vias == ["run", "reconcile", "resolve"]


def test_owner_is_shown_in_sixteen_digits() -> None:
    """So that owners can be compared by eye; where no intent was ever written, there is none."""
    assert owner_text(0) == ""
    assert owner_text(255) == "00000000000000ff"
    assert owner_text(2**62) == "4000000000000000"


# Decisions for the write transaction


@pytest.mark.parametrize("position, moves", [(0, False), (1, True), (2, False)])
def test_advance_moves_a_record_that_still_stands(position: int, *, moves: bool) -> None:
    """A verdict about a record that moved on meanwhile is not committed: nothing is written."""
    memory = Memory()
    memory.put_effect("k", INTENT)

    moved = memory.commit(advance(FORM, position, EffectChange(phase=UNCERTAIN, guarantee=ONCE, via=Via.RECONCILE)))

    assert (moved is not None) is moves
    assert memory.phases("k") == (["intent", "uncertain"] if moves else ["intent"])
    if moved is not None:
        assert moved == EffectState(2, memory.last("k"))


@pytest.mark.parametrize("position, begins", [(0, True), (1, False)])
def test_advance_from_nothing_begins_a_key(position: int, *, begins: bool) -> None:
    """Position 0 stands for a key of which nothing is on record."""
    memory = Memory()

    begun = memory.commit(advance(FORM, position, EffectChange(phase=INTENT, guarantee=ONCE, owner=OWN)))

    assert (begun is not None) is begins
    assert memory.phases("k") == (["intent"] if begins else [])


def test_advance_takes_the_time_of_its_transaction() -> None:
    """The event's time is that of the commit that holds it."""
    memory = Memory()

    memory.commit(advance(FORM, 0, EffectChange(phase=INTENT, guarantee=ONCE)))

    assert memory.last("k").at == memory.at > START


def test_release_gives_up_an_open_intent_of_its_owner() -> None:
    """The event keeps the guarantee and says why."""
    memory = Memory()
    memory.put_effect("k", INTENT, guarantee=OFTEN)

    state = memory.commit(release(FORM, OWN, "run-failed", "Boom: no"))

    assert state == EffectState(2, memory.last("k"))
    last = memory.last("k")
    assert (last.phase, last.guarantee, last.reason, last.error) == (RELEASED, OFTEN, "run-failed", "Boom: no")


@pytest.mark.parametrize("phase", [None, ACCEPTED, UNCERTAIN, FAILED, RELEASED, CLEARED])
def test_release_of_anything_else_writes_nothing(phase: Phase | None) -> None:
    """What is settled, failed, released or gone is not given up again."""
    memory = Memory()
    if phase is not None:
        memory.put_effect("k", INTENT)
        memory.put_effect("k", phase)
    before = memory.phases("k")

    assert memory.commit(release(FORM, OWN, "run-failed", "Boom")) is None
    assert memory.phases("k") == before


def test_release_of_another_owners_intent_writes_nothing() -> None:
    """Only the intent's own owner gives it up."""
    memory = Memory()
    memory.put_effect("k", INTENT, owner=OTHER)

    assert memory.commit(release(FORM, OWN, "run-failed", "Boom")) is None
    assert memory.phases("k") == ["intent"]


def test_withdrawal_says_that_nothing_was_started() -> None:
    """An intent that was committed ahead and never run is known not to have been performed."""
    memory = Memory()
    begun = EffectState(memory.put_effect("k", INTENT, guarantee=OFTEN), memory.last("k"))

    memory.commit(withdraw(FORM, begun))

    last = memory.last("k")
    assert (last.phase, last.guarantee, last.reason) == (FAILED, OFTEN, "not-started")


def test_withdrawal_of_what_another_process_put_there_writes_nothing() -> None:
    """The commit that held the intent was cut off, and another one has its position: that one may just run."""
    memory = Memory()
    other = EffectState(memory.put_effect("k", INTENT, owner=OTHER), memory.last("k"))
    cut_off = msgspec.structs.replace(other, entry=msgspec.structs.replace(other.entry, owner=OWN))

    assert memory.commit(withdraw(FORM, cut_off)) is None
    assert memory.phases("k") == ["intent"]


@pytest.mark.parametrize("value", [EffectState(1, entry(INTENT)), EffectChange(phase=INTENT, guarantee=ONCE)])
def test_states_and_changes_are_frozen(value: msgspec.Struct) -> None:
    """A decision cannot be altered between the transaction and its caller."""
    with pytest.raises(AttributeError):
        value.position = 2  # type: ignore[attr-defined]  # that it is refused is the property


# What a copy knows


HEAD: Final = 10
COPY: Final = RestoredRow("c" * 32, HEAD, START)
CONFIRMED: Final = RestoredRow("c" * 32, HEAD, START, START + 1)
WORDS: Final = {INTENT: "intent", RELEASED: "intent", FAILED: "failed", ACCEPTED: "accepted", UNCERTAIN: "uncertain"}


def state_in(phase: Phase, position: int, **facts: Any) -> EffectState:
    """A key whose last event is this one."""
    entry = EffectEntry(phase, FORM, START, 0, START, 1, ONCE, OWN, **facts)
    return EffectState(position, entry)


@pytest.mark.parametrize("restored", [None, CONFIRMED], ids=["no copy", "confirmed"])
@pytest.mark.parametrize("phase", Phase)
def test_nothing_is_doubtful_in_what_is_no_copy_or_was_confirmed(phase: Phase, restored: RestoredRow | None) -> None:
    """The record is what is known."""
    assert standing(None, restored) == ("none", False)
    assert standing(state_in(phase, 1, reason=PASSED), restored) == (WORDS.get(phase, "none"), False)


@pytest.mark.parametrize("position", [HEAD - 1, HEAD, HEAD + 1])
@pytest.mark.parametrize("phase", sorted(WORDS))
def test_record_from_before_the_copy_is_doubtful(phase: Phase, position: int) -> None:
    """What this copy has recorded itself is known."""
    state = state_in(phase, position, via=Via.RUN, reason="passed")

    assert standing(state, COPY) == (WORDS[phase], position <= HEAD)


@pytest.mark.parametrize("state", [None, state_in(CLEARED, 1), state_in(CLEARED, HEAD + 1)])
def test_no_record_in_a_copy_is_doubtful(state: EffectState | None) -> None:
    """Wherever it was cleared: what the other journal did with the key since is unknown."""
    assert standing(state, COPY) == ("none", True)


@pytest.mark.parametrize("position", [HEAD, HEAD + 1])
def test_effect_that_a_walk_passed_in_a_copy_stands_as_if_there_were_no_record(position: int) -> None:
    """A walk over the copy that passes it has asked nobody."""
    assert standing(state_in(FAILED, position, reason=PASSED), COPY) == ("none", True)
