"""Prints the diagrams of states and the decision tables into docs/internals/states.md, from the tables that the code decides by.

`python docs/diagrams.py` writes the page anew; `tests/docs/test_diagrams.py` holds it against the tables.
"""

import pathlib

from journal._core.ledger import AT_MOST_ONCE_NEVER, PERSON_ONLY, TRANSITIONS
from journal.records import Guarantee, Phase
from recovery import CASES, WALK_CASES

PAGE = pathlib.Path(__file__).parent / "internals" / "states.md"
BEGIN = "<!-- begin of what docs/diagrams.py prints -->\n"
END = "<!-- end of what docs/diagrams.py prints -->\n"

TITLES = {
    Guarantee.AT_MOST_ONCE: "At most once: `effect`",
    Guarantee.IDEMPOTENT: "Idempotent: `run_effect`",
}


def render() -> str:
    """The generated part of the page: one diagram for each guarantee, then the tables."""
    diagrams = [line for guarantee in Guarantee for line in diagram(guarantee)]
    return "\n".join([*diagrams, *calls(), *walks()])


def diagram(guarantee: Guarantee) -> list[str]:
    """One diagram: an arrow for each event that may follow another one."""
    lines = [f"## {TITLES[guarantee]}", "", "```mermaid", "stateDiagram-v2"]
    for before, allowed in TRANSITIONS.items():
        if before is Phase.CLEARED:
            continue  # as if nothing were on record
        for after in sorted(allowed):
            if guarantee is Guarantee.AT_MOST_ONCE and (before, after) in AT_MOST_ONCE_NEVER:
                continue
            lines.append(f"    {state(before)} --> {state(after)}{label(before, after)}")
    return [*lines, "```", ""]


def state(phase: Phase | None) -> str:
    """A phase's name in a diagram; what is not on record, or no more, is a dot."""
    return "[*]" if phase in {None, Phase.CLEARED} else Phase(phase).word


def label(before: Phase | None, after: Phase) -> str:
    """Who makes a transition, where it is not a call."""
    if after is Phase.CLEARED:
        return ": clear_effect"
    if before is not None and (before, after) in PERSON_ONLY:
        return ": resolve"
    return ""


def calls() -> list[str]:
    """What a call does with what is on record."""
    doubts = {None: None, False: "no", True: "yes"}
    rows = [
        [case.guarantee, case.phase, doubts[case.is_doubtful], case.holder, case.verdict, case.why] for case in CASES
    ]
    head = ["guarantee", "on record", "doubtful", "in the hands of", "the call will", "because"]
    return ["## What a call does", "", *table(head, rows), ""]


def walks() -> list[str]:
    """What a recovery does with an effect of an operation."""
    rows = [[case.phase, case.answer, case.verdict.replace("_", " ")] for case in WALK_CASES]
    return ["## What a walk does", "", *table(["on record", "the policy says", "the walk will"], rows), ""]


def table(head: list[str], rows: list[list[str | None]]) -> list[str]:
    """A table; a cell that stands for anything has an ellipsis."""
    lines = [head, ["---"] * len(head), *[[cell or "…" for cell in row] for row in rows]]
    return [f"| {' | '.join(cells)} |" for cells in lines]


def split(text: str) -> tuple[str, str, str]:
    """A page as what stands before, between and after the marks."""
    before, rest = text.split(BEGIN)
    between, after = rest.split(END)
    return before, between, after


def main() -> None:
    """Write the page anew."""
    before, _, after = split(PAGE.read_text(encoding="utf-8"))
    PAGE.write_text(f"{before}{BEGIN}\n{render()}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
