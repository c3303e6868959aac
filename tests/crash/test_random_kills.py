"""Services killed at random moments, again and again; then everything must add up."""

import random
from collections import Counter

import pytest

from tests.crash.support.processes import KILLED, Process, Processes
from tests.crash.support.service import World
from tests.crash.support.state import check_all, recover
from tests.crash.worker import work

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

KILLS = 20
AT_WORK_SHARE = 0.7
"""How many of the services are left alone until they are at work; the others may die while they start or catch up."""

MOMENT_SECONDS_MAX = 0.2
"""The moment of a death is drawn up to here."""


@pytest.mark.parametrize("services", [1, 2])
@pytest.mark.parametrize("seed", [1, 2])
def test_killed_at_random_moments_nothing_is_lost_or_doubled(
    processes: Processes, world: World, seed: int, services: int
) -> None:
    """By the recipients' own counts, with one service or two over one journal, whichever of them dies when."""
    print(f"{seed=} {services=}")
    draw = random.Random(seed)
    alive: list[Process[None]] = []
    for kill in range(KILLS):
        while len(alive) < services:
            name = f"{kill}-{len(alive)}"
            service = processes.start(work, world, name, seed=draw.randrange(1 << 30))
            if draw.random() < AT_WORK_SHARE:
                service.hear()
            alive.append(service)
        victim = alive.pop(draw.randrange(services))
        assert not victim.is_over_within(draw.uniform(0, MOMENT_SECONDS_MAX)), victim.value()
        assert victim.kill() == KILLED
    for survivor in alive:
        assert survivor.kill() == KILLED

    # What lies before the saved cursor is said to be settled: the first recovery does not look there.
    first_walk, first = processes.run(recover, world, goes_on=True)
    second_walk, second = processes.run(recover, world)

    check_all(world, first_walk, first)
    check_all(world, second_walk, second)
    assert second == first
    phases = Counter(event.phase for events in first.histories.values() for event in events)
    print(f"{len(first.operations)} operations, {first.steps} steps, events: {dict(phases)}")
    assert set(phases) >= {"intent", "accepted"}, "the services did nothing"
