"""The crash matrix: for each place where a service may die and each kind of recipient, what is there afterwards.

One table; `test_matrix.py` lives through it and `page.py` prints it. A case is one operation whose service dies at
each place of `deaths`, one process after the other, each recovering what the one before it left; then a fresh process
recovers, and another one recovers again.
"""

from typing import Literal, NamedTuple

from tests.crash.support.recipient import Kind
from tests.crash.support.service import Trouble

Place = Literal[
    "after append",
    "before the recipient",
    "after the recipient",
    "after the answer",
    "effect_accepted",
    "effect_uncertain",
    "effect_failed",
    "effect_unresolved",
]
"""Where a process dies: a line of the service's own code, or the log event that follows a commit at once."""


class Window(NamedTuple):
    """What the dying processes had done and had not."""

    title: str
    deaths: tuple[Place, ...]
    holds: str
    trouble: Trouble | None = None


class Case(NamedTuple):
    """One cell. `requests` and `deliveries` are the recipient's own counts; `first` and `second` are the recoveries'."""

    number: int
    window: str
    recipient: Kind
    attempts: int
    requests: int
    deliveries: int
    phase: Literal["accepted", "uncertain"]
    via: Literal["run", "reconcile"]
    history: str
    first: dict[str, int]
    second: dict[str, int]


WINDOWS = {
    "append": Window(
        "after `append`",
        ("after append",),
        "The operation is durable when `append` returns. Nothing is on record of its effect, so nothing was sent: it runs.",
    ),
    "intent": Window(
        "after the intent, before the recipient",
        ("before the recipient",),
        "The intent tells that the recipient may have been reached. Who deduplicates is asked again; who proves absence "
        "is sent it; who can only be asked and knows nothing leaves it uncertain: never sent, and never in silence.",
    ),
    "recipient": Window(
        "after the recipient, before the outcome",
        ("after the recipient",),
        "The window that no local database closes. The recipient's own record settles it, by the same key or by asking; "
        "nobody is delivered to twice.",
    ),
    "outcome": Window(
        "after the outcome, before the answer",
        ("effect_accepted",),
        "The outcome is on record: it is reused, and nobody is asked.",
    ),
    "asked, there": Window(
        "inside reconcile, after the recipient answered (it has it)",
        ("after the recipient", "after the answer"),
        "An answer that was not recorded counts as never given: the recipient is asked again and says the same.",
    ),
    "asked, not there": Window(
        "inside reconcile, after the recipient answered (it has nothing)",
        ("before the recipient", "after the answer"),
        "Asking changes nothing. `uncertain` is written only with the answer, and by whoever got it.",
    ),
    "again": Window(
        "inside the run again, after the recipient answered",
        ("after the recipient", "after the recipient"),
        "A recipient that deduplicates is asked by running again; every attempt has its own intent and the same key.",
    ),
    "uncertain": Window(
        "after `uncertain` was recorded, before the answer",
        ("before the recipient", "effect_uncertain"),
        "`uncertain` is final: the recipient is not asked again, and it is never run.",
    ),
    "absence": Window(
        "after the absence was proved and the next intent recorded, before the recipient",
        ("before the recipient", "before the recipient"),
        "`failed` and the next intent are one commit. The second intent is as open as the first and is settled like it.",
    ),
    "refused": Window(
        "after the recipient refused and `failed` was recorded, before the answer",
        ("effect_failed",),
        "`failed` of `effect` is known not performed, of `run_effect` an attempt that raised: both run again.",
        trouble="refuses",
    ),
    "broken": Window(
        "after `run` raised with the work done, before the answer",
        ("effect_unresolved",),
        "An exception proves nothing. The intent stands, released by its owner, and the recipient's record settles it.",
        trouble="breaks",
    ),
}

RAN, REUSED, RECONCILED, UNCERTAIN = {"ran": 1}, {"reused": 1}, {"reconciled": 1}, {"uncertain": 1}
TWICE = "intent, intent, accepted"
PROVED = "intent, failed, intent, accepted"

CASES = [
    Case(1, "append", "deduplicating", 1, 1, 1, "accepted", "run", "intent, accepted", RAN, REUSED),
    Case(2, "append", "askable", 1, 1, 1, "accepted", "run", "intent, accepted", RAN, REUSED),
    Case(3, "append", "proving", 1, 1, 1, "accepted", "run", "intent, accepted", RAN, REUSED),
    Case(4, "intent", "deduplicating", 2, 1, 1, "accepted", "run", TWICE, RAN, REUSED),
    Case(5, "intent", "askable", 1, 0, 0, "uncertain", "reconcile", "intent, uncertain", UNCERTAIN, UNCERTAIN),
    Case(6, "intent", "proving", 2, 1, 1, "accepted", "run", PROVED, RAN, REUSED),
    Case(7, "recipient", "deduplicating", 2, 2, 1, "accepted", "run", TWICE, RAN, REUSED),
    Case(8, "recipient", "askable", 1, 1, 1, "accepted", "reconcile", "intent, accepted", RECONCILED, REUSED),
    Case(9, "recipient", "proving", 1, 1, 1, "accepted", "reconcile", "intent, accepted", RECONCILED, REUSED),
    Case(10, "outcome", "deduplicating", 1, 1, 1, "accepted", "run", "intent, accepted", REUSED, REUSED),
    Case(11, "outcome", "askable", 1, 1, 1, "accepted", "run", "intent, accepted", REUSED, REUSED),
    Case(12, "outcome", "proving", 1, 1, 1, "accepted", "run", "intent, accepted", REUSED, REUSED),
    Case(13, "asked, there", "askable", 1, 1, 1, "accepted", "reconcile", "intent, accepted", RECONCILED, REUSED),
    Case(14, "asked, there", "proving", 1, 1, 1, "accepted", "reconcile", "intent, accepted", RECONCILED, REUSED),
    Case(15, "again", "deduplicating", 3, 3, 1, "accepted", "run", "intent, intent, intent, accepted", RAN, REUSED),
    Case(
        16, "asked, not there", "askable", 1, 0, 0, "uncertain", "reconcile", "intent, uncertain", UNCERTAIN, UNCERTAIN
    ),
    Case(17, "asked, not there", "proving", 2, 1, 1, "accepted", "run", PROVED, RAN, REUSED),
    Case(18, "uncertain", "askable", 1, 0, 0, "uncertain", "reconcile", "intent, uncertain", UNCERTAIN, UNCERTAIN),
    Case(
        19,
        "absence",
        "proving",
        3,
        1,
        1,
        "accepted",
        "run",
        "intent, failed, intent, failed, intent, accepted",
        RAN,
        REUSED,
    ),
    Case(20, "refused", "deduplicating", 2, 1, 1, "accepted", "run", PROVED, RAN, REUSED),
    Case(21, "refused", "askable", 2, 1, 1, "accepted", "run", PROVED, RAN, REUSED),
    Case(22, "refused", "proving", 2, 1, 1, "accepted", "run", PROVED, RAN, REUSED),
    Case(23, "broken", "askable", 1, 1, 1, "accepted", "reconcile", "intent, released, accepted", RECONCILED, REUSED),
    Case(24, "broken", "proving", 1, 1, 1, "accepted", "reconcile", "intent, released, accepted", RECONCILED, REUSED),
]
