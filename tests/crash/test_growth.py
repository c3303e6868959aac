"""The map grows by itself, whoever needs it: many threads in each of several processes, all with a map that begins small."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import journal
from journal.options import MAP_BYTES_MIN
from tests.crash.support.processes import Processes, hear_parent, say_parent
from tests.crash.support.service import World

PROCESSES, THREADS, ROUNDS = 3, 6, 5
LARGE = "x" * 100_000


def work(world: World, name: str) -> list[int]:
    """Appends, acts and reads in many threads at once; gives the positions that were acknowledged."""
    ran: list[tuple[str, int, int]] = []
    lock = threading.Lock()
    with journal.open(world.path, map_size=MAP_BYTES_MIN) as j, ThreadPoolExecutor(THREADS) as pool:
        say_parent("open")
        hear_parent()

        def in_thread(thread: int) -> list[int]:
            positions = []
            for index in range(ROUNDS):
                positions.append(j.append(f"{name}-{thread}", LARGE, op_id=str(index)).position)
                key = (name, thread, index)

                def run(key: tuple[str, int, int] = key) -> str:
                    with lock:
                        ran.append(key)
                    return LARGE

                assert j.run_effect(key, run) == LARGE
                assert j.run_effect(key, run) == LARGE
                assert [c.sequence for c in j.read(f"{name}-{thread}")] == list(range(1, index + 2))
            return positions

        found = [position for positions in pool.map(in_thread, range(THREADS)) for position in positions]
    assert len(ran) == len(set(ran)) == THREADS * ROUNDS
    return found


@pytest.mark.slow
def test_map_grows_under_threads_of_several_processes(processes: Processes, world: World) -> None:
    """Everything that was acknowledged is there, each effect ran once, and nobody met an error."""
    workers = [processes.start(work, world, f"process-{index}") for index in range(PROCESSES)]
    for worker in workers:
        assert worker.hear() == "open"
    for worker in workers:
        worker.say("go")

    positions = [position for worker in workers for position in worker.value()]

    with journal.open(world.path, map_size=MAP_BYTES_MIN) as j:
        assert sorted(positions) == [c.position for c in j.read()]
        assert len(list(j.effects(phase="accepted"))) == PROCESSES * THREADS * ROUNDS
        assert j.stats().map_bytes > 16 * MAP_BYTES_MIN
        assert list(j.verify()) == []
