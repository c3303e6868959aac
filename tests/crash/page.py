"""Prints the tables of the crash tests into docs/internals/crashes.md, between the marks that it keeps there.

`python -m tests.crash.page` writes the page anew; `test_page.py` holds it against the tables.
"""

import pathlib

from tests.crash.matrix import CASES, WINDOWS, Case
from tests.crash.protocols import PROTOCOLS, Protocol
from tests.crash.support.recipient import KINDS

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "internals" / "crashes.md"
BEGIN = "<!-- begin of what tests/crash/page.py prints -->\n"
END = "<!-- end of what tests/crash/page.py prints -->\n"

STEPS = """\
Each protocol is killed before and after each step of its generator (a read, a commit, a call of somebody's code), run in
a thread and as a task of an event loop, then around each write of the storage's transaction (before it begins, after each put, before and after LMDB's commit, before
those who wait are told), then at lines of its code spread evenly over it; `JOURNAL_CRASH_LINES=100000` tries every line.
Each place is tried in a copy of the same world: killed there, recovered twice, and the same call made again."""


def render() -> str:
    """The generated part of the page."""
    return "\n".join(
        ["## The matrix", "", *render_overview(), *render_windows(), "## The steps", "", STEPS, "", *render_steps()]
    )


def render_overview() -> list[str]:
    """One row for each window, with the numbers of its cases."""
    rows = [
        [window.title, *(", ".join(str(case.number) for case in cases_of(name, kind)) or "none" for kind in KINDS)]
        for name, window in WINDOWS.items()
    ]
    return [*table(["died", *KINDS], rows), ""]


def render_windows() -> list[str]:
    """What holds in each window, its cases, and the command that shows them."""
    lines = []
    for name, window in WINDOWS.items():
        cases = cases_of(name)
        lines += [f"### {window.title[0].upper()}{window.title[1:]}", "", window.holds, ""]
        lines += table(
            ["case", "recipient", "attempts", "requests", "deliveries", "record", "history", "recovered", "once more"],
            [cells_of(case) for case in cases],
        )
        choice = " or ".join(name_of(case) for case in cases)
        lines += ["", "```bash", f'pytest tests/crash/test_matrix.py -k "{choice}"', "```", ""]
    return lines


def render_steps() -> list[str]:
    """One row for each protocol of the generator-step test."""
    rows = [
        [f"S{protocol.number}", protocol.title, protocol.holds, f"`-k step-{protocol.number:02}`"]
        for protocol in PROTOCOLS
    ]
    command = ["```bash", "pytest tests/crash/test_steps.py -k step-01", "```", ""]
    return [*table(["case", "killed at each step of", "holds afterwards", "shown by"], rows), "", *command]


def name_of(row: Case | Protocol) -> str:
    """The name under which pytest knows a case or a protocol."""
    return f"case-{row.number:02}" if isinstance(row, Case) else f"step-{row.number:02}-{row.name}"


def cases_of(window: str, kind: str | None = None) -> list[Case]:
    return [case for case in CASES if case.window == window and kind in {None, case.recipient}]


def cells_of(case: Case) -> list[str]:
    return [
        str(case.number),
        case.recipient,
        str(case.attempts),
        str(case.requests),
        str(case.deliveries),
        f"{case.phase}, via {case.via}",
        case.history,
        count(case.first),
        count(case.second),
    ]


def count(settled: dict[str, int]) -> str:
    return ", ".join(f"{number} {name}" for name, number in settled.items())


def table(head: list[str], rows: list[list[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in [head, ["---"] * len(head), *rows]]


def split(text: str) -> tuple[str, str, str]:
    """A page as what stands before, between and after the marks."""
    before, rest = text.split(BEGIN)
    between, after = rest.split(END)
    return before, between, after


def main() -> None:
    before, _, after = split(PAGE.read_text(encoding="utf-8"))
    PAGE.write_text(f"{before}{BEGIN}\n{render()}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
