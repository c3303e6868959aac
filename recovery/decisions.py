"""The decision tables: what a call does with what is on record, and what a walk does with an effect.

The first is the table under `Journal.effect` and `Journal.run_effect`, the second adds the policies of a recovery. Each
is data; a test goes through all combinations and finds exactly one case for each.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

AT_MOST_ONCE: Final = "at_most_once"
IDEMPOTENT: Final = "idempotent"


class Holder(StrEnum):
    """Who has an open intent in hands."""

    HERE = "here"
    """A call of this process, which is running."""
    ELSEWHERE = "elsewhere"
    """A living owner in another process, which has not given it up."""
    NOBODY = "nobody"
    """Its owner is gone or gave it up, or this process no longer runs it."""


class Verdict(StrEnum):
    """What a call for an effect does next."""

    START = "start"
    """Commit the next intent, then run."""
    PROBE = "probe"
    """Commit the next intent, then ask the recipient (reconcile) before anything is run."""
    JOIN = "join"
    """Share the run that is going on in this process."""
    WAIT = "wait"
    """Wait for the owner's outcome, or for its end."""
    ASK = "ask"
    """Ask the recipient (reconcile); never run on a guess."""
    ANSWER = "answer"
    """Give what is on record; call nobody."""
    REFUSE = "refuse"
    """There is no result, and a person said that there will be none."""
    FORBID = "forbid"
    """It may have been done, and there is nobody to ask: a person has to say that it was not."""


class Case(NamedTuple):
    """One row of the table; `None` stands for any value.

    `is_doubtful` says of what stands on record that it is from before this journal was copied from another one, whose
    later records are unknown here; nothing on record is, too, until a person has confirmed the copy.
    """

    guarantee: str | None
    phase: str | None
    holder: Holder | None
    verdict: Verdict
    why: str
    is_doubtful: bool | None = None


PHASES: Final = ("none", "intent", "failed", "accepted", "uncertain")
GUARANTEES: Final = (AT_MOST_ONCE, IDEMPOTENT)

CASES: Final = (
    Case(None, "none", None, Verdict.START, "nothing was ever started", False),
    Case(
        AT_MOST_ONCE, "none", None, Verdict.PROBE, "it may have happened after the copy: only the recipient knows", True
    ),
    Case(
        IDEMPOTENT, "none", None, Verdict.FORBID, "it may have happened after the copy, and nobody can be asked", True
    ),
    Case(None, "intent", Holder.HERE, Verdict.JOIN, "one run for all callers of a process"),
    Case(None, "intent", Holder.ELSEWHERE, Verdict.WAIT, "its owner lives and may be running it"),
    Case(AT_MOST_ONCE, "intent", Holder.NOBODY, Verdict.ASK, "it may have happened: only the recipient knows"),
    Case(IDEMPOTENT, "intent", Holder.NOBODY, Verdict.START, "the recipient deduplicates by the key"),
    Case(AT_MOST_ONCE, "failed", None, Verdict.START, "known not performed", False),
    Case(AT_MOST_ONCE, "failed", None, Verdict.PROBE, "not performed then; after the copy it may have been", True),
    Case(IDEMPOTENT, "failed", None, Verdict.START, "the recipient deduplicates by the key"),
    Case(None, "accepted", None, Verdict.ANSWER, "it happened"),
    Case(AT_MOST_ONCE, "uncertain", None, Verdict.ANSWER, "settled: never run again"),
    Case(IDEMPOTENT, "uncertain", None, Verdict.REFUSE, "settled by a person, without a result"),
)


def decide(guarantee: str, phase: str, holder: Holder, is_doubtful: bool = False) -> Verdict:
    """What a call for an effect of this guarantee does with a record in this phase (`none`: no record)."""
    return next(
        case.verdict
        for case in CASES
        if case.guarantee in (None, guarantee)
        and case.phase == phase
        and case.holder in (None, holder)
        and case.is_doubtful in (None, is_doubtful)
    )


class Answer(StrEnum):
    """What a policy may say: the first three of an unresolved effect, the last two of an uncertain one."""

    RETRY = "retry"
    SKIP = "skip"
    PASS = "pass"  # noqa: S105 - a word of the contract, no password
    ACCEPT = "accept"
    STOP = "stop"


UNRESOLVED_ANSWERS: Final = (Answer.RETRY, Answer.SKIP, Answer.PASS)
UNCERTAIN_ANSWERS: Final = (Answer.ACCEPT, Answer.STOP)


class WalkVerdict(StrEnum):
    """What a walk does with one effect of an operation."""

    REUSE = "reuse"
    """It is accepted: go on, ask nobody."""
    ACCEPT = "accept"
    """It is uncertain, and the policy lives with that: go on."""
    STOP_UNCERTAIN = "stop_uncertain"
    """It is uncertain, and the policy does not: stop before this operation."""
    SETTLE = "settle"
    """Run or reconcile it, as the direct call would."""
    STOP_SKIPPED = "stop_skipped"
    """The policy wants it left alone: stop before this operation."""
    PASS = "pass"  # noqa: S105 - a word of the contract, no password
    """The policy leaves it unfinished: go on."""


class WalkCase(NamedTuple):
    """One row of the walk's table."""

    phase: str
    answer: Answer | None
    verdict: WalkVerdict


OPEN_PHASES: Final = ("none", "intent", "failed", "broken")
"""What `on_unresolved` is asked about; broken is a record that cannot be read, or is bound to another call."""

WALK_CASES: Final = (
    WalkCase("accepted", None, WalkVerdict.REUSE),
    WalkCase("uncertain", Answer.ACCEPT, WalkVerdict.ACCEPT),
    WalkCase("uncertain", Answer.STOP, WalkVerdict.STOP_UNCERTAIN),
    *(WalkCase(phase, Answer.RETRY, WalkVerdict.SETTLE) for phase in OPEN_PHASES),
    *(WalkCase(phase, Answer.SKIP, WalkVerdict.STOP_SKIPPED) for phase in OPEN_PHASES),
    *(WalkCase(phase, Answer.PASS, WalkVerdict.PASS) for phase in OPEN_PHASES),
)


def asked_policy(phase: str) -> tuple[Answer, ...]:
    """The answers from which a policy chooses for a record in this phase; empty where none is asked."""
    if phase == "accepted":
        return ()
    return UNCERTAIN_ANSWERS if phase == "uncertain" else UNRESOLVED_ANSWERS


def decide_walk(phase: str, answer: Answer | None) -> WalkVerdict:
    """What a walk does with a record in this phase, after what the policy said."""
    return next(case.verdict for case in WALK_CASES if case.phase == phase and case.answer == answer)
