"""The report as people read it."""

from collections.abc import Mapping

import msgspec
from rich.console import Console
from rich.table import Table

from journal.cli.demo.kinds import Kind
from journal.cli.demo.report import Report, Tally
from journal.cli.demo.stage import JOURNAL

TITLES = {
    JOURNAL: "with the journal",
    "noted-after": "without, noted as done after the effect",
    "noted-before": "without, noted as done before the effect",
}


_COLUMNS = {
    "sent": "sent",
    "received": "received",
    "doubled": "doubled",
    "lost": "lost",
    "turned_away": "turned\naway",
    "uncertain": "uncertain",
    "reconciled": "via\nreconcile",
    "run_again": "run\nagain",
}
_ALARMING = {"doubled", "lost"}


def print_report(report: Report, console: Console) -> None:
    """Print a table for each trial, the uncertain effects one by one, and what was broken."""
    kinds = {JOURNAL: report.journal.kinds} | {name: trial.kinds for name, trial in report.without.items()}
    for name, tallies in kinds.items():
        console.print(_make_table(TITLES[name], tallies))
        console.print()
    console.print(_summary(report), highlight=False)
    if report.journal.uncertain:
        console.print("\nUncertain, to be looked into by a person:")
    for effect in report.journal.uncertain:
        key = msgspec.json.encode(effect.key).decode()
        state = "the recipient has it after all" if effect.received else "the recipient does not have it"
        # One line an effect, however wide: a key is there to be copied.
        console.print(f"  {key}  {state}", markup=False, highlight=False, soft_wrap=True)
    for sentence in report.broken:
        console.print(f"BROKEN: {sentence}", style="bold red", markup=False, highlight=False)


def _make_table(title: str, tallies: Mapping[Kind, Tally]) -> Table:
    fields = [field for field in _COLUMNS if all(hasattr(tally, field) for tally in tallies.values())]
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, header_style="dim")
    table.add_column("recipient", no_wrap=True)
    for field in fields:
        table.add_column(_COLUMNS[field], justify="right", no_wrap=True)
    for kind, tally in tallies.items():
        table.add_row(kind, *(_cell(field, getattr(tally, field)) for field in fields))
    return table


def _cell(field: str, count: int) -> str:
    return f"[bold red]{count}[/]" if count and field in _ALARMING else str(count)


def _summary(report: Report) -> str:
    survived = report.journal.survived
    return (
        f"{report.lines} deliveries: {report.operations} operations, {survived.redeliveries_answered} redeliveries "
        f"answered and not appended.\n"
        f"Each service was killed {report.kills} times (seed {report.seed}). The one with the journal found effects "
        f"without an outcome at {survived.interruptions} of its starts."
    )
