"""The crash matrix, lived through: `matrix.py` says what must be there, these processes die and look."""

from collections import Counter
from typing import Literal

import pytest

from tests.crash.matrix import CASES, WINDOWS, Case, Place
from tests.crash.page import name_of
from tests.crash.support.deaths import DyingLogger
from tests.crash.support.processes import KILLED, Processes, die
from tests.crash.support.recipient import KINDS, Kind
from tests.crash.support.service import Service, Trouble, World
from tests.crash.support.state import check_all, count, recover

Way = Literal["call", "walk"]
"""How the dying service settles the effect: by calling for it, or by walking over its operations."""


def serve_until(world: World, kind: Kind, place: Place, way: Way, trouble: Trouble | None) -> None:
    """The life of one service: append, settle, and die at the place."""

    def reach(here: str) -> None:
        if here == place:
            die()

    service = Service(world, reach=reach, trouble=trouble)
    with world.open(logger=DyingLogger(reach)) as j:
        committed = service.append(j, kind, "only")
        reach("after append")
        if way == "call":
            service.settle(j, committed)
        else:
            j.recover(intents=service.intents)


@pytest.mark.parametrize("way", ["call", "walk"])
@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_case_ends_as_the_matrix_says(processes: Processes, world: World, case: Case, way: Way) -> None:
    """Attempts, deliveries, records and counts of each cell are those of the table, and the second recovery adds nothing."""
    window = WINDOWS[case.window]
    troubles = [window.trouble, *(None for _ in window.deaths)]
    for place, trouble in zip(window.deaths, troubles, strict=False):
        died = processes.start(serve_until, world, case.recipient, place, way, trouble)
        assert died.wait() == KILLED, died.value()

    first_walk, first = processes.run(recover, world)
    second_walk, second = processes.run(recover, world)

    ((key, record),) = first.records.items()
    recipient = world.recipient(case.recipient)
    assert (record.attempts, recipient.requests(key), recipient.deliveries(key)) == (
        case.attempts,
        case.requests,
        case.deliveries,
    )
    assert (record.phase, record.via) == (case.phase, case.via)
    assert ", ".join(event.phase for event in first.histories[key]) == case.history
    assert count(first_walk) == Counter(case.first)
    assert count(second_walk) == Counter(case.second)
    assert second == first
    for walk in first_walk, second_walk:
        check_all(world, walk, first)


def test_matrix_has_every_window_for_every_recipient() -> None:
    """A cell is missing only where its window cannot be entered."""
    cells = {(case.window, case.recipient) for case in CASES}
    missing = {(window, kind) for window in WINDOWS for kind in KINDS} - cells

    assert missing == {
        # Has no reconcile: asked by running again, and its exceptions are `failed`.
        ("asked, there", "deduplicating"),
        ("asked, not there", "deduplicating"),
        ("uncertain", "deduplicating"),
        ("absence", "deduplicating"),
        ("broken", "deduplicating"),
        # Has one.
        ("again", "askable"),
        ("again", "proving"),
        # Never proves absence.
        ("absence", "askable"),
        # Always does.
        ("uncertain", "proving"),
    }
    assert [case.number for case in CASES] == list(range(1, len(CASES) + 1))
