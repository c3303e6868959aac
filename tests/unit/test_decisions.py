"""`recovery/decisions.py`: both tables, over every combination of what they decide on."""

import itertools

import pytest

from recovery import CASES, WALK_CASES, Answer, Case, Holder, Verdict, WalkCase, WalkVerdict, decide, decide_walk
from recovery.decisions import (
    AT_MOST_ONCE,
    GUARANTEES,
    IDEMPOTENT,
    OPEN_PHASES,
    PHASES,
    UNCERTAIN_ANSWERS,
    UNRESOLVED_ANSWERS,
    asked_policy,
)

COMBINATIONS = list(itertools.product(GUARANTEES, PHASES, Holder, (False, True)))

# Written from the contract, not from the table: what `effect` and `run_effect` do, phase by phase.
# The holder of anything but an intent does not matter.
OF_AN_INTENT = {
    (AT_MOST_ONCE, Holder.HERE): Verdict.JOIN,
    (AT_MOST_ONCE, Holder.ELSEWHERE): Verdict.WAIT,
    (AT_MOST_ONCE, Holder.NOBODY): Verdict.ASK,
    (IDEMPOTENT, Holder.HERE): Verdict.JOIN,
    (IDEMPOTENT, Holder.ELSEWHERE): Verdict.WAIT,
    (IDEMPOTENT, Holder.NOBODY): Verdict.START,
}
OF_THE_REST = {
    (AT_MOST_ONCE, "none"): Verdict.START,
    (AT_MOST_ONCE, "failed"): Verdict.START,
    (AT_MOST_ONCE, "accepted"): Verdict.ANSWER,
    (AT_MOST_ONCE, "uncertain"): Verdict.ANSWER,
    (IDEMPOTENT, "none"): Verdict.START,
    (IDEMPOTENT, "failed"): Verdict.START,
    (IDEMPOTENT, "accepted"): Verdict.ANSWER,
    (IDEMPOTENT, "uncertain"): Verdict.REFUSE,
}

# What a copy that nobody has confirmed says of an effect from before it was made; of all else it says what it knows.
DOUBTFUL = {
    (AT_MOST_ONCE, "none"): Verdict.PROBE,
    (AT_MOST_ONCE, "failed"): Verdict.PROBE,
    (IDEMPOTENT, "none"): Verdict.FORBID,
}

WALK_PHASES = ("none", "intent", "failed", "accepted", "uncertain", "broken")
OF_A_WALK = {
    ("accepted", None): WalkVerdict.REUSE,
    ("uncertain", Answer.ACCEPT): WalkVerdict.ACCEPT,
    ("uncertain", Answer.STOP): WalkVerdict.STOP_UNCERTAIN,
    ("none", Answer.RETRY): WalkVerdict.SETTLE,
    ("none", Answer.SKIP): WalkVerdict.STOP_SKIPPED,
    ("none", Answer.PASS): WalkVerdict.PASS,
    ("intent", Answer.RETRY): WalkVerdict.SETTLE,
    ("intent", Answer.SKIP): WalkVerdict.STOP_SKIPPED,
    ("intent", Answer.PASS): WalkVerdict.PASS,
    ("failed", Answer.RETRY): WalkVerdict.SETTLE,
    ("failed", Answer.SKIP): WalkVerdict.STOP_SKIPPED,
    ("failed", Answer.PASS): WalkVerdict.PASS,
    ("broken", Answer.RETRY): WalkVerdict.SETTLE,
    ("broken", Answer.SKIP): WalkVerdict.STOP_SKIPPED,
    ("broken", Answer.PASS): WalkVerdict.PASS,
}


def matching(guarantee: str, phase: str, holder: Holder, is_doubtful: bool) -> list[Case]:
    """The rows of the first table that fit."""
    return [
        case
        for case in CASES
        if case.phase in (None, phase)
        and case.guarantee in (None, guarantee)
        and case.holder in (None, holder)
        and case.is_doubtful in (None, is_doubtful)
    ]


def matching_walk(phase: str, answer: Answer | None) -> list[WalkCase]:
    """The rows of the walk's table that fit."""
    return [case for case in WALK_CASES if (case.phase, case.answer) == (phase, answer)]


@pytest.mark.parametrize("combination", COMBINATIONS)
def test_every_combination_matches_one_row(combination: tuple[str, str, Holder, bool]) -> None:
    """Nothing that may be on record falls through the table, and no two rows dispute about it."""
    rows = matching(*combination)

    assert len(rows) == 1
    assert decide(*combination) is rows[0].verdict


@pytest.mark.parametrize("guarantee, phase, holder, is_doubtful", COMBINATIONS)
def test_a_call_does_what_the_contract_says(guarantee: str, phase: str, holder: Holder, *, is_doubtful: bool) -> None:
    """The verdict is that of the contract's own table of what a call does with what is on record."""
    expected = OF_AN_INTENT[guarantee, holder] if phase == "intent" else OF_THE_REST[guarantee, phase]
    if is_doubtful:
        expected = DOUBTFUL.get((guarantee, phase), expected)

    assert decide(guarantee, phase, holder, is_doubtful) is expected


def test_every_row_is_reached() -> None:
    """A row that nothing matches would be a rule that nobody follows."""
    reached = {row for combination in COMBINATIONS for row in matching(*combination)}

    assert reached == set(CASES)


def test_every_verdict_is_given() -> None:
    """Each verdict is the answer to something."""
    assert {decide(*combination) for combination in COMBINATIONS} == set(Verdict)


def test_no_at_most_once_intent_is_started() -> None:
    """Whoever holds an open intent of an effect that runs at most once, it is never run on a guess."""
    verdicts = {
        decide(AT_MOST_ONCE, "intent", holder, is_doubtful) for holder in Holder for is_doubtful in (False, True)
    }

    assert Verdict.START not in verdicts


def test_nothing_doubtful_is_started_where_a_second_time_would_be_one_too_many() -> None:
    """What may have been done after the copy was made is asked about, or refused."""
    verdicts = {decide(AT_MOST_ONCE, phase, holder, True) for phase in PHASES for holder in Holder}

    assert Verdict.START not in verdicts


def test_what_is_settled_is_never_run_or_asked_about() -> None:
    """Accepted and uncertain are final for every call."""
    verdicts = {decide(*combination) for combination in COMBINATIONS if combination[1] in ("accepted", "uncertain")}

    assert verdicts == {Verdict.ANSWER, Verdict.REFUSE}


@pytest.mark.parametrize("phase", ["settled", "released", "", "INTENT"])
def test_unknown_phase_has_no_verdict(phase: str) -> None:
    """A phase that the table does not know is a bug, and is not decided by a default."""
    with pytest.raises(StopIteration):
        decide(AT_MOST_ONCE, phase, Holder.NOBODY)


@pytest.mark.parametrize("phase, answer", list(itertools.product(WALK_PHASES, [None, *Answer])))
def test_a_walk_decides_what_its_policies_may_say(phase: str, answer: Answer | None) -> None:
    """Each phase with each answer that its policy may give matches one row, and nothing else matches any."""
    rows = matching_walk(phase, answer)
    may_be_said = answer in (asked_policy(phase) or (None,))

    assert len(rows) == (1 if may_be_said else 0)
    if may_be_said:
        assert decide_walk(phase, answer) is rows[0].verdict is OF_A_WALK[phase, answer]
    else:
        with pytest.raises(StopIteration):
            decide_walk(phase, answer)


def test_every_row_of_the_walk_is_reached() -> None:
    """The rows are exactly those of the contract."""
    assert {(case.phase, case.answer): case.verdict for case in WALK_CASES} == OF_A_WALK
    assert len(WALK_CASES) == len(OF_A_WALK)
    assert {case.verdict for case in WALK_CASES} == set(WalkVerdict)


def test_accepted_effect_asks_no_policy() -> None:
    """`on_uncertain` is asked about uncertain effects, `on_unresolved` about all that are not settled."""
    asked = {phase: asked_policy(phase) for phase in WALK_PHASES}

    assert asked.pop("accepted") == ()
    assert asked.pop("uncertain") == UNCERTAIN_ANSWERS == (Answer.ACCEPT, Answer.STOP)
    assert set(asked.values()) == {UNRESOLVED_ANSWERS} == {(Answer.RETRY, Answer.SKIP, Answer.PASS)}
    assert set(asked) == set(OPEN_PHASES)


def test_words_are_those_of_the_contract() -> None:
    """Callers write these as plain strings."""
    assert [str(answer) for answer in Answer] == ["retry", "skip", "pass", "accept", "stop"]
    assert (AT_MOST_ONCE, IDEMPOTENT) == ("at_most_once", "idempotent")
