"""What to do with what a crash left open: facts in, verdicts out.

`Intent` says what an operation implies, `decide` and `decide_walk` are the tables that say what happens to it, `walk`
goes through the operations, and `Settled` is what comes back. Nothing here knows a journal, a file or a clock.
"""

from recovery.decisions import (
    CASES,
    WALK_CASES,
    Answer,
    Case,
    Holder,
    Verdict,
    WalkCase,
    WalkVerdict,
    decide,
    decide_walk,
)
from recovery.intents import Intent, Settled, Stop
from recovery.walker import (
    Ending,
    Fact,
    Fetch,
    Look,
    Operation,
    Pass,
    Question,
    Report,
    Settle,
    walk,
)

__all__ = [
    "CASES",
    "WALK_CASES",
    "Answer",
    "Case",
    "Ending",
    "Fact",
    "Fetch",
    "Holder",
    "Intent",
    "Look",
    "Operation",
    "Pass",
    "Question",
    "Report",
    "Settle",
    "Settled",
    "Stop",
    "Verdict",
    "WalkCase",
    "WalkVerdict",
    "decide",
    "decide_walk",
    "walk",
]
