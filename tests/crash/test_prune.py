"""Processes that prune and that run effects at the same time, killed at random moments: no key runs twice."""

import random
import time

import pytest

import journal
from journal import EffectPrunedError
from tests.crash.support.processes import KILLED, Process, Processes, say_parent
from tests.crash.support.service import World, text_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

KILLS = 20
KEYS = 60
MOMENT_SECONDS_MAX = 0.2


def settle(j: journal.Journal, world: World, number: int) -> bool:
    """Calls for a key at a recipient that does whatever it is asked; gives whether it was pruned."""
    recipient = world.recipient("askable")
    key = text_of(("k", number))
    try:
        j.effect(
            ("k", number),
            run=lambda: recipient.deliver(key),
            reconcile=lambda signal: recipient.find(key),
        )
    except EffectPrunedError:
        return True
    return False


def run_effects(world: World, seed: int) -> None:
    """Calls for keys without end, and appends an operation for each."""
    draw = random.Random(seed)
    with journal.open(world.path) as j:
        say_parent("at work")
        while True:
            number = draw.randrange(KEYS)
            committed = j.append("s", number, op_id=f"{seed}-{j.head()}")
            world.acknowledge("append", committed.op_id, committed.position)
            settle(j, world, number)


def prune(world: World) -> None:
    """Prunes without end; one key, for which nobody else calls, before it says that it is at work."""
    with journal.open(world.path) as j:
        settle(j, world, KEYS)
        j.prune_effects(settled_before=time.time_ns())
        say_parent("at work")
        while True:
            j.prune_effects(settled_before=time.time_ns(), keep=lambda record: record.position % 3 == 0)


def check(world: World) -> list[bool]:
    """In a process of its own: calls for every key once more; gives which were pruned."""
    with journal.open(world.path) as j:
        assert list(j.verify()) == []
        operations = {committed.op_id: committed.position for committed in j.read()}
        for acknowledged in world.acknowledged("append"):
            assert operations[acknowledged.name] == acknowledged.value
        head, stats = j.head(), j.stats()
        pruned = [settle(j, world, number) for number in range(KEYS + 1)]
        assert sum(pruned) == stats.pruned
        recipient = world.recipient("askable")
        for number, is_pruned in enumerate(pruned):
            deliveries = recipient.deliveries(text_of(("k", number)))
            if is_pruned:
                assert deliveries == 1, number
            else:
                record = j.record(("k", number))
                assert record is not None
                assert deliveries == (record.phase == "accepted"), number
        assert j.head() >= head
        assert list(j.verify()) == []
        return pruned


@pytest.mark.parametrize("seed", [1, 2])
def test_pruning_and_running_killed_at_random_moments(processes: Processes, world: World, seed: int) -> None:
    """By the recipient's own count each key is done at most once, and what was pruned was done."""
    print(f"{seed=}")
    draw = random.Random(seed)
    alive: dict[int, Process[None]] = {}
    for _ in range(KILLS):
        for place in {0, 1, 2} - alive.keys():
            if place == 0:
                alive[place] = processes.start(prune, world)
            else:
                alive[place] = processes.start(run_effects, world, draw.randrange(1 << 30))
            alive[place].hear()
        victim = alive.pop(draw.randrange(3))
        assert not victim.is_over_within(draw.uniform(0, MOMENT_SECONDS_MAX)), victim.value()
        assert victim.kill() == KILLED
    for survivor in alive.values():
        assert survivor.kill() == KILLED

    pruned = processes.run(check, world)

    assert pruned[KEYS]
    assert processes.run(check, world) == pruned
