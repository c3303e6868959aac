"""What processes share besides the log: LMDB's table of readers, the size of the map, and a walk over the same operations."""

import math
from typing import Any

import lmdb
import pytest

from journal import JournalBusyError
from journal.options import MAP_BYTES_MIN, READERS_MAX
from tests.crash.support.processes import KILLED, Process, Processes, hear_parent, say_parent
from tests.crash.support.recipient import KINDS
from tests.crash.support.service import STREAM, Delivery, Service, World
from tests.crash.support.state import check_all, count, recover

PAGE_BYTES = 4_096


def prepare(world: World, number: int = 1) -> None:
    """Some operations, whose effects nobody has begun."""
    with world.open() as j:
        for index in range(number):
            Service(world).append(j, KINDS[index % len(KINDS)], f"operation {index}")


def open_and_use(world: World, name: str) -> int:
    """Opens, reads and appends; gives how many operations there are then."""
    with world.open(wait_timeout=0.3) as j:
        Service(world).append(j, "askable", name)
        return len(list(j.read()))


def lmdb_of(j: Any) -> lmdb.Environment:
    """LMDB's own environment behind a handle."""
    env: lmdb.Environment = j._store._environment._env
    return env


# Slots of the dead

SLOTS_OF_ONE = 300
READERS = READERS_MAX // SLOTS_OF_ONE + 2
"""Processes that together want more slots than there are."""


def take_slots(world: World) -> None:
    """Reads, in so many transactions at once as there may be, until it is killed."""
    with world.open() as j:
        transactions: list[lmdb.Transaction] = []
        try:
            while len(transactions) < SLOTS_OF_ONE:
                transactions.append(lmdb_of(j).begin())
        except lmdb.ReadersFullError:
            pass
        say_parent(len(transactions))
        hear_parent()


def hold_open(world: World) -> int:
    """Has the journal open, does nothing until it is told to, and then uses it."""
    with world.open() as j:
        list(j.read())
        say_parent("open")
        hear_parent()
        Service(world).append(j, "askable", "by the one who waited")
        return len(list(j.read()))


def open_in_vain(world: World) -> str:
    """Tries to open; gives what it is told."""
    with pytest.raises(JournalBusyError) as caught:
        world.open(wait_timeout=0.3)
    return str(caught.value)


def test_readers_killed_with_all_slots_taken_are_in_nobodys_way(processes: Processes, world: World) -> None:
    """With readers in every slot opening is refused; when they are dead and somebody has committed, it is not."""
    processes.run(prepare, world)
    bystander = processes.start(hold_open, world)
    bystander.hear()
    readers: list[Process[None]] = []
    taken = 0
    while taken < READERS_MAX - 2 and len(readers) < READERS:
        readers.append(processes.start(take_slots, world))
        taken += int(str(readers[-1].hear()))
    told = processes.run(open_in_vain, world)

    for reader in readers:
        assert reader.kill() == KILLED
    bystander.say("go on")
    number = bystander.value()

    assert "reader slots" in told
    assert (number, processes.run(open_and_use, world, "by a newcomer")) == (2, 3)


def read_until_killed(world: World) -> None:
    """Stays inside a read transaction."""
    with world.open() as j, lmdb_of(j).begin():
        say_parent("reads")
        hear_parent()


def commit_beside_a_dead_reader(world: World) -> tuple[int, int]:
    """Commits, which frees pages, beside a reader that dies; gives by how much the file grew then, and afterwards."""
    with world.open() as j:
        position = j.head()

        def commit(number: int) -> int:
            for index in range(number):
                j.save_cursor(f"cursor {index % 50}", position)
            return j.stats().file_bytes

        before = commit(100)
        environment = j._store._environment
        environment._sweep_at = math.inf
        say_parent("settled")
        reader = str(hear_parent())
        held = commit(100)
        assert reader in lmdb_of(j).readers().split()
        environment._sweep_at = 0.0
        commit(10)
        assert reader not in lmdb_of(j).readers().split()
        return held - before, commit(300) - held


def test_writer_that_lives_long_frees_the_pages_that_a_dead_reader_kept(processes: Processes, world: World) -> None:
    """Nobody opens the journal meanwhile: the file grows until the writer looks for dead readers, and no more then."""
    processes.run(prepare, world)
    writer = processes.start(commit_beside_a_dead_reader, world)
    assert writer.hear() == "settled"
    reader = processes.start(read_until_killed, world)
    reader.hear()
    reader.kill()
    writer.say(reader.pid)

    grown, grown_later = writer.value()

    assert grown > 50 * PAGE_BYTES, "the dead reader kept nothing, so this shows nothing"
    assert grown_later == 0


# The map

LARGE_BYTES = 300_000


def append_large(world: World, name: str, number: int) -> None:
    """Appends what the map has no room for, with a map that begins small, beside others who do the same."""
    with world.open(map_size=MAP_BYTES_MIN) as j:
        say_parent("open")
        hear_parent()
        for index in range(number):
            Service(world).append(j, "deduplicating", f"{name} {index}")
            committed = j.append(STREAM, Delivery("deduplicating", "x" * LARGE_BYTES), op_id=f"{name} {index} large")
            world.acknowledge("append", committed.op_id, [committed.position, committed.sequence])
            j.run_effect(f"{name} {index}", lambda: "y" * LARGE_BYTES)


def follow_until(world: World, number: int) -> list[int]:
    """Reads on while the map grows under it, with one that begins small."""
    found: list[int] = []
    with world.open(map_size=MAP_BYTES_MIN) as j:
        say_parent("open")
        while len(found) < number:
            found += [committed.position for committed in j.read(after=found[-1] if found else 0)]
        return found


def test_map_grows_for_all_whoever_needs_it(processes: Processes, world: World) -> None:
    """Three make it larger, operations and outcomes alike; they and two who only read see everything."""
    processes.run(prepare, world)
    readers = [processes.start(follow_until, world, 61) for _ in range(2)]
    writers = [processes.start(append_large, world, f"writer {n}", 10) for n in range(3)]
    for reader in readers:
        reader.hear()
    for writer in writers:
        writer.hear()
        writer.say("go")
    for writer in writers:
        writer.value()

    walk, state = processes.run(recover, world, is_watched=False)
    assert [reader.value() for reader in readers] == [[one.position for one in state.operations]] * 2
    assert state.findings == []
    assert walk.stopped is None
    assert sum(record.phase == "accepted" for record in state.records.values()) == 61 + 30


# Two walks


def walk_at_the_gate(world: World) -> tuple[int, int, str | None]:
    """Walks everything when it is let go; gives where it came to, what it ran, and why it stopped."""
    with world.open() as j:
        say_parent("at the gate")
        hear_parent()
        settled = j.recover(intents=Service(world, is_watched=False).intents)
        return int(settled), settled.ran, settled.stopped.reason if settled.stopped else None


OPERATIONS = 150


def test_two_walks_at_once_share_the_work(processes: Processes, world: World) -> None:
    """Each effect is run by one of them and reused by the other, and both come to the end."""
    processes.run(prepare, world, OPERATIONS)
    walkers = [processes.start(walk_at_the_gate, world) for _ in range(2)]
    for walker in walkers:
        walker.hear()
    for walker in walkers:
        walker.say("go")
    answers = [walker.value() for walker in walkers]

    walk, state = processes.run(recover, world, is_watched=False)
    check_all(world, walk, state)
    assert [(cursor, stopped) for cursor, _, stopped in answers] == [(OPERATIONS, None)] * 2
    assert sum(ran for _, ran, _ in answers) == OPERATIONS
    assert count(walk) == {"reused": OPERATIONS}
