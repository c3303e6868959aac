"""From the recipients' stores and the journal to counts and a verdict.

What happened is what the recipient has: the journal is believed only where it says that it does not know.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set as AbstractSet

import msgspec

from journal import EffectRecord, Key
from journal.cli.demo.deliveries import Delivery, find_redeliveries
from journal.cli.demo.kinds import MAY_BE_UNCERTAIN, Kind, kind_of
from journal.cli.demo.store import Answer, Arrival
from journal.cli.demo.supervisor import Survived


class Tally(msgspec.Struct, frozen=True, kw_only=True):
    """The operations of one kind of recipient in one trial.

    Of those `sent`, so many were `received` at least once; `doubled` counts each performance beyond an operation's
    first, `lost` the operations that were never performed and that nobody lists as uncertain. `turned_away` are
    requests that the recipient knew as repeated or cancelled, and did not perform.
    """

    sent: int
    received: int
    doubled: int
    lost: int
    turned_away: int


class JournalTally(Tally, frozen=True, kw_only=True):
    """What the journal adds: effects that it lists as uncertain, that a reconcile found, that ran again."""

    uncertain: int
    reconciled: int
    run_again: int


class UncertainEffect(msgspec.Struct, frozen=True):
    """An effect that the journal lists as uncertain, and whether the recipient has it after all."""

    key: Key
    received: bool


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """One service without a journal, at the end."""

    survived: Survived
    kinds: dict[Kind, Tally]


class JournalTrial(msgspec.Struct, frozen=True, kw_only=True):
    """The service with a journal, at the end.

    `operations` are what its journal holds, `unfinished` its effects without an outcome, `findings` what its `verify`
    found wrong.
    """

    survived: Survived
    kinds: dict[Kind, JournalTally]
    uncertain: list[UncertainEffect]
    operations: int
    unfinished: int
    findings: int


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of the demo; `broken` says in sentences what goes against the promise, and is empty when all held.

    `lines` are the deliveries of the input, `operations` their identities, `kills` how many were to be delivered to
    each service.
    """

    seed: int
    kills: int
    lines: int
    operations: int
    journal: JournalTrial
    without: dict[str, Trial]
    broken: list[str]


def count_trial(op_ids: Iterable[str], arrivals: Sequence[Arrival], survived: Survived) -> Trial:
    """The outcome of a service without a journal, by the recipient's own count."""
    sent = _by_kind(op_ids)
    return Trial(
        survived=survived,
        kinds={kind: Tally(**_count(sent[kind], arrivals, frozenset())) for kind in Kind},
    )


def count_journal_trial(
    op_ids: Iterable[str],
    arrivals: Sequence[Arrival],
    survived: Survived,
    *,
    records: Mapping[str, EffectRecord],
    operations: int,
    findings: int,
) -> JournalTrial:
    """The outcome of the service with a journal: `records` are its effects by op_id."""
    sent = _by_kind(op_ids)
    performed = _performed(arrivals)
    return JournalTrial(
        survived=survived,
        kinds={kind: _count_journal(sent[kind], arrivals, records) for kind in Kind},
        uncertain=[
            UncertainEffect(record.key, received=op_id in performed)
            for op_id, record in sorted(records.items())
            if record.phase == "uncertain"
        ],
        operations=operations,
        unfinished=sum(record.phase in {"intent", "failed"} for record in records.values()),
        findings=findings,
    )


def make_report(
    deliveries: Sequence[Delivery],
    *,
    seed: int,
    kills: int,
    journal: JournalTrial,
    without: dict[str, Trial],
) -> Report:
    """The report with its verdict."""
    redeliveries = len(find_redeliveries(deliveries))
    operations = len(deliveries) - redeliveries
    broken = [
        *_broken_promises(journal),
        *_differences("operations in the journal", journal.operations, operations),
        *_differences("redeliveries answered", journal.survived.redeliveries_answered, redeliveries),
        *_differences("effects without an outcome", journal.unfinished, 0),
        *_differences("findings in the journal", journal.findings, 0),
    ]
    survivors = {"with the journal": journal.survived} | {name: trial.survived for name, trial in without.items()}
    for name, survived in survivors.items():
        broken += _differences(f"kills of the service {name}", survived.kills, kills)
    return Report(
        seed=seed,
        kills=kills,
        lines=len(deliveries),
        operations=operations,
        journal=journal,
        without=without,
        broken=broken,
    )


def _by_kind(op_ids: Iterable[str]) -> dict[Kind, set[str]]:
    sent: dict[Kind, set[str]] = {kind: set() for kind in Kind}
    for op_id in op_ids:
        sent[kind_of(op_id)].add(op_id)
    return sent


def _performed(arrivals: Iterable[Arrival]) -> set[str]:
    return {arrival.operation for arrival in arrivals if arrival.answer is Answer.PERFORMED}


def _count(sent: set[str], arrivals: Iterable[Arrival], uncertain: AbstractSet[str]) -> dict[str, int]:
    """The fields of a `Tally`."""
    own = [arrival for arrival in arrivals if arrival.operation in sent]
    received = _performed(own)
    performances = sum(arrival.answer is Answer.PERFORMED for arrival in own)
    return {
        "sent": len(sent),
        "received": len(received),
        "doubled": performances - len(received),
        "lost": len(sent - received - uncertain),
        "turned_away": len(own) - performances,
    }


def _count_journal(sent: set[str], arrivals: Iterable[Arrival], records: Mapping[str, EffectRecord]) -> JournalTally:
    own = [record for op_id, record in records.items() if op_id in sent]
    uncertain = {op_id for op_id in sent if op_id in records and records[op_id].phase == "uncertain"}
    return JournalTally(
        **_count(sent, arrivals, uncertain),
        uncertain=len(uncertain),
        reconciled=sum(record.via == "reconcile" and record.phase == "accepted" for record in own),
        run_again=sum(record.attempts > 1 for record in own),
    )


def _broken_promises(trial: JournalTrial) -> Iterator[str]:
    for kind, tally in trial.kinds.items():
        yield from _differences(f"doubled at the recipient that is {kind}", tally.doubled, 0)
        yield from _differences(f"lost at the recipient that is {kind}", tally.lost, 0)
        if kind not in MAY_BE_UNCERTAIN:
            yield from _differences(f"uncertain at the recipient that is {kind}", tally.uncertain, 0)


def _differences(what: str, found: int, promised: int) -> Iterator[str]:
    if found != promised:
        yield f"{what}: {found}, not {promised}"
