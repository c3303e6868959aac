"""One round of the demo: the service with a journal and those without, side by side, until all are done."""

import concurrent.futures
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

import journal
from journal.cli.demo.children import Child, Children
from journal.cli.demo.deliveries import Delivery
from journal.cli.demo.report import Report, count_journal_trial, count_trial, make_report
from journal.cli.demo.service import operation_of
from journal.cli.demo.store import Arrival, Store
from journal.cli.demo.supervisor import Moment, Supervisor, Survived, draw_moments


class Cast(msgspec.Struct, frozen=True):
    """A service that takes part: its module, and the first of its arguments."""

    module: str
    arguments: tuple[str, ...] = ()


JOURNAL = "journal"
CASTS = {
    JOURNAL: Cast("journal.cli.demo.service"),
    "noted-after": Cast("journal.cli.demo.naive", ("after",)),
    "noted-before": Cast("journal.cli.demo.naive", ("before",)),
}

Progress = Callable[[str, int, int], None]
"""Told of each step: whose it is (a name in `CASTS`), deliveries acknowledged, kills delivered."""


def perform(directory: Path, deliveries: Sequence[Delivery], *, seed: int, kills: int, progress: Progress) -> Report:
    """Run all trials, each in a folder of `directory` named as in `CASTS`, and report.

    No process is left running when this returns or raises.

    Raises:
        ChildError: a process ended by itself, or fell silent.
    """
    survived: dict[str, Survived] = {}
    with Children() as children:
        stage = _Stage(directory, deliveries, seed=seed, kills=kills, progress=progress, children=children)
        with concurrent.futures.ThreadPoolExecutor(len(CASTS)) as pool:
            trials = {pool.submit(stage.run, name): name for name in CASTS}
            try:
                for trial in concurrent.futures.as_completed(trials):
                    survived[trials[trial]] = trial.result()
            except BaseException:
                # The pool waits for its threads, and these for their processes.
                children.kill()
                raise
    return collect(directory, deliveries, survived, seed=seed, kills=kills)


def collect(
    directory: Path, deliveries: Sequence[Delivery], survived: Mapping[str, Survived], *, seed: int, kills: int
) -> Report:
    """The report, from what the trials left in `directory`."""
    op_ids = [delivery.delivery for delivery in deliveries]
    with journal.open(_journal_path(directory), operation=Delivery, readonly=True, create=False) as j:
        records = {operation_of(record.key): record for record in j.effects()}
        operations = sum(1 for _ in j.read())
        findings = sum(1 for _ in j.verify())
    return make_report(
        deliveries,
        seed=seed,
        kills=kills,
        journal=count_journal_trial(
            op_ids,
            _arrivals(directory, JOURNAL),
            survived[JOURNAL],
            records=records,
            operations=operations,
            findings=findings,
        ),
        without={
            name: count_trial(op_ids, _arrivals(directory, name), survived[name]) for name in CASTS if name != JOURNAL
        },
    )


class _Stage:
    """What the trials of one round have in common."""

    def __init__(
        self,
        directory: Path,
        deliveries: Sequence[Delivery],
        *,
        seed: int,
        kills: int,
        progress: Progress,
        children: Children,
    ) -> None:
        self._directory = directory
        self._deliveries = deliveries
        self._seed = str(seed)
        self._moments: list[Moment] = draw_moments(seed, kills=kills, deliveries=len(deliveries))
        self._progress = progress
        self._children = children

    def run(self, name: str) -> Survived:
        """Run one trial from the first delivery until its recipient has decided about the last request."""
        home = self._directory / name
        home.mkdir()
        recipient = self._children.start(
            "journal.cli.demo.recipient", store_path(self._directory, name), self._seed, log=home / "recipient.log"
        )
        port = recipient.receive()
        if port is None:
            raise recipient.error("did not start")
        cast = CASTS[name]

        def start() -> Child:
            return self._children.start(
                cast.module, *cast.arguments, home, port.decode(), self._seed, log=home / "service.log"
            )

        survived = Supervisor(
            self._deliveries,
            self._moments,
            start=start,
            progress=lambda acknowledged, kills: self._progress(name, acknowledged, kills),
        ).run()
        if recipient.finish() != 0:
            raise recipient.error("did not end well")
        return survived


def store_path(directory: Path, name: str) -> Path:
    """Where a trial's recipient keeps its store."""
    return directory / name / "recipient.sqlite"


def _journal_path(directory: Path) -> Path:
    """Where the service keeps its journal."""
    return directory / JOURNAL / "journal"


def _arrivals(directory: Path, name: str) -> list[Arrival]:
    with Store(store_path(directory, name)) as store:
        return store.arrivals()
