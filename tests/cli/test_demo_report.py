"""The demo's verdict: counted from the recipient's store, and able to fail."""

from io import StringIO

import msgspec
import pytest
from rich.console import Console

from journal import EffectRecord
from journal.cli.demo.deliveries import Delivery
from journal.cli.demo.kinds import Kind, kind_of
from journal.cli.demo.report import Report, count_journal_trial, count_trial, make_report
from journal.cli.demo.store import Answer, Arrival
from journal.cli.demo.supervisor import Survived
from journal.cli.demo.table import print_report

# One operation of each kind, then one redelivery.
NAMES = {kind: next(name for name in map(str, range(100)) if kind_of(name) is kind) for kind in Kind}
DELIVERIES = [Delivery(name, "event", {}) for name in [*NAMES.values(), NAMES[Kind.ASKABLE]]]
SURVIVED = Survived(kills=2, interruptions=1, resends=0, redeliveries_answered=1, seconds=1.0)


def arrival(kind: Kind, answer: Answer = Answer.PERFORMED) -> Arrival:
    return Arrival(1, kind, "key", NAMES[kind], 1, answer)


def record(kind: Kind, phase: str = "accepted", *, via: str | None = "run", attempts: int = 1) -> EffectRecord:
    return EffectRecord(
        key=("webhooks", 1, NAMES[kind], "notify"),
        guarantee="at_most_once",
        phase=phase,
        attempts=attempts,
        first_at=1,
        last_at=2,
        proof=None,
        via=via,
        reason=None,
        error=None,
        owner="owner",
        position=1,
    )


def report(
    arrivals: list[Arrival],
    records: list[EffectRecord] | None = None,
    *,
    survived: Survived = SURVIVED,
    operations: int = 3,
    findings: int = 0,
) -> Report:
    records = [record(kind) for kind in Kind] if records is None else records
    op_ids = [delivery.delivery for delivery in DELIVERIES]
    return make_report(
        DELIVERIES,
        seed=1,
        kills=2,
        journal=count_journal_trial(
            op_ids,
            arrivals,
            survived,
            records={str(record.key[2]): record for record in records},
            operations=operations,
            findings=findings,
        ),
        without={"noted-after": count_trial(op_ids, arrivals, SURVIVED)},
    )


ALL = [arrival(kind) for kind in Kind]


def test_each_performed_once_breaks_nothing() -> None:
    """The plain case, counted by kind."""
    made = report(ALL)

    assert made.broken == []
    assert (made.lines, made.operations) == (4, 3)
    assert [(tally.sent, tally.received) for tally in made.journal.kinds.values()] == [(1, 1)] * 3


@pytest.mark.parametrize("kind", Kind)
def test_doubled_effect_breaks_the_promise(kind: Kind) -> None:
    """A second performance is counted beyond the first, at every kind."""
    made = report([*ALL, arrival(kind)])

    assert made.broken == [f"doubled at the recipient that is {kind}: 1, not 0"]
    assert made.journal.kinds[kind].doubled == made.without["noted-after"].kinds[kind].doubled == 1


@pytest.mark.parametrize("kind", Kind)
def test_lost_effect_breaks_the_promise(kind: Kind) -> None:
    """What the journal calls accepted and the recipient does not have is lost, at every kind."""
    made = report([one for one in ALL if one.kind is not kind])

    assert made.broken == [f"lost at the recipient that is {kind}: 1, not 0"]
    assert made.journal.kinds[kind].lost == made.without["noted-after"].kinds[kind].lost == 1


@pytest.mark.parametrize("has", [True, False])
def test_uncertain_effect_is_listed_and_not_lost(has: bool) -> None:
    """At a recipient that can only be asked, a missing effect may be uncertain; one received after all is told."""
    records = [record(kind) for kind in Kind if kind is not Kind.ASKABLE]
    uncertain = record(Kind.ASKABLE, "uncertain", via="reconcile")

    made = report([one for one in ALL if has or one.kind is not Kind.ASKABLE], [*records, uncertain])

    assert made.broken == []
    assert made.journal.kinds[Kind.ASKABLE].uncertain == 1
    assert made.journal.kinds[Kind.ASKABLE].reconciled == 0
    assert [(one.key, one.received) for one in made.journal.uncertain] == [(uncertain.key, has)]


@pytest.mark.parametrize("kind", [Kind.DEDUPLICATES, Kind.PROVABLE])
def test_uncertain_effect_elsewhere_breaks_the_promise(kind: Kind) -> None:
    """Only a recipient that cannot do better leaves an effect uncertain."""
    made = report(ALL, [record(other, "uncertain" if other is kind else "accepted") for other in Kind])

    assert made.broken == [f"uncertain at the recipient that is {kind}: 1, not 0"]


def test_requests_turned_away_are_no_performances() -> None:
    """Repeated and cancelled requests arrived, and did nothing."""
    made = report([*ALL, arrival(Kind.DEDUPLICATES, Answer.REPEATED), arrival(Kind.PROVABLE, Answer.CANCELLED)])

    assert made.broken == []
    assert [tally.turned_away for tally in made.journal.kinds.values()] == [1, 0, 1]


def test_recovered_effects_are_counted() -> None:
    """Found by a reconcile, and run again, by the journal's records."""
    records = [
        record(Kind.DEDUPLICATES, attempts=2),
        record(Kind.ASKABLE, via="reconcile"),
        record(Kind.PROVABLE, attempts=3),
    ]

    made = report(ALL, records)

    assert [tally.run_again for tally in made.journal.kinds.values()] == [1, 0, 1]
    assert [tally.reconciled for tally in made.journal.kinds.values()] == [0, 1, 0]


def test_journal_that_is_not_what_was_sent_breaks_the_promise() -> None:
    """Operations appended twice, redeliveries not answered and so on: each is told."""
    survived = msgspec.structs.replace(SURVIVED, kills=1, redeliveries_answered=0)

    made = report(ALL, [record(kind, "intent") for kind in Kind], survived=survived, operations=4, findings=5)

    assert made.broken == [
        "operations in the journal: 4, not 3",
        "redeliveries answered: 0, not 1",
        "effects without an outcome: 3, not 0",
        "findings in the journal: 5, not 0",
        "kills of the service with the journal: 1, not 2",
    ]


def test_printed_report_has_every_count_and_every_key() -> None:
    """The table fits a terminal of 80 columns; uncertain keys and broken promises follow, each on its line."""
    records = [record(Kind.DEDUPLICATES), record(Kind.ASKABLE, "uncertain"), record(Kind.PROVABLE)]
    made = report([*ALL, arrival(Kind.PROVABLE)], records)
    out = StringIO()

    print_report(made, Console(file=out, width=80))

    lines = out.getvalue().splitlines()
    assert f'  ["webhooks",1,"{NAMES[Kind.ASKABLE]}","notify"]  the recipient has it after all' in lines
    assert "BROKEN: doubled at the recipient that is provable: 1, not 0" in lines
    assert [line.split() for line in lines if line.startswith("provable")] == [
        ["provable", "1", "1", "1", "0", "0", "0", "0", "0"],
        ["provable", "1", "1", "1", "0", "0"],
    ]
