"""Another data file in the place of the open one, and copies, killed at each thing that they do to a file."""

import itertools
import os
import pathlib
import resource
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

import journal
from journal._storage import files
from tests.crash.protocols import AFTER, BEFORE, Life, first_key
from tests.crash.support.deaths import NEVER, Fuse, seam_of_files
from tests.crash.support.processes import KILLED, Processes, say_parent
from tests.crash.support.recipient import KINDS
from tests.crash.support.service import STREAM, Delivery, Service, World
from tests.crash.support.state import State, check_all, recover, take_state

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

AT_A_TIME = 4
BACKUP, RESTORED = "backup", "restored"
JOURNAL_FILES = {files.DATA_FILE, files.LMDB_LOCK_FILE, files.OWNERS_FILE, files.TURN_FILE}
LIVES = [Life("deduplicating", BEFORE), Life("askable", AFTER), Life("proving"), Life("askable")]


def place_of(world: World, name: str) -> pathlib.Path:
    return pathlib.Path(world.directory) / name


def replace(world: World, fuse: Fuse, name: str) -> None:
    with world.open() as j, fuse.burning():
        getattr(j, name)()


def vacuum(world: World, fuse: Fuse) -> None:
    replace(world, fuse, "vacuum")


def rebuild(world: World, fuse: Fuse) -> None:
    replace(world, fuse, "rebuild")


def back_up(world: World, fuse: Fuse) -> None:
    with world.open(readonly=True) as j, fuse.burning():
        j.backup(place_of(world, BACKUP))


def restore(world: World, fuse: Fuse) -> None:
    with fuse.burning():
        journal.restore(world.path, place_of(world, RESTORED))


Act = Callable[[World, Fuse], None]


def live(world: World, act: Act, length: int) -> int:
    """One call, killed at the `length`-th place; gives how many places it has."""
    fuse = Fuse(length)
    seam_of_files(fuse)
    act(world, fuse)
    return fuse.count


def prepare(processes: Processes, world: World) -> None:
    """Open intents, settled effects, operations without any, and free pages."""
    for life in LIVES:
        processes.start(life, world).wait()
    processes.run(settle_one, world)


def settle_one(world: World) -> None:
    """One effect is accepted, and the others are left as they are."""
    with world.open() as j:
        j.resolve(key := first_key(j), journal.Accepted("found"), expected_position=position_of(j, key), reason="seen")
        j.clear_effect(key, reason="to be done anew")


def position_of(j: journal.Journal, key: journal.Key) -> int:
    record = j.record(key)
    assert record is not None
    return record.position


def look(world: World) -> State:
    """What is there, seen by a process that opens it for writing."""
    with world.open(create=False) as j:
        return take_state(j, world)


def look_at_copy(path: str) -> tuple[int, list[str], list[str], bool]:
    """Its head, its operations, what is wrong with it, and whether it knows that it is a copy."""
    with journal.open(path, operation=Delivery, create=False) as j:
        said = j.restored()
        operations = [committed.op_id for committed in j.read()]
        return int(j.head()), operations, [repr(one) for one in j.verify()], said is not None and said.head == j.head()


def kill_each(
    processes: Processes, prepared: World, directory: pathlib.Path, act: Act, check: Callable[[World], None]
) -> tuple[int, list[bool]]:
    """Kills the call at each of its places, each in a copy of the world; gives how many there are, and who was killed."""

    def copy(name: object) -> World:
        shutil.copytree(prepared.directory, directory / str(name))
        return World(str(directory / str(name)))

    def kill_at(length: int) -> bool:
        world = copy(length)
        died = processes.start(live, world, act, length)
        was_killed = died.wait() == KILLED
        place = died.hear() if was_killed else f"nowhere, it has {died.value()}"
        try:
            check(world)
        except AssertionError as error:
            error.add_note(f"{act.__name__} was killed at place {length}: {place}")
            raise
        shutil.rmtree(world.directory)  # kept where it failed
        return was_killed

    number = processes.run(live, copy("whole"), act, NEVER)
    with ThreadPoolExecutor(AT_A_TIME) as threads:
        return number, list(threads.map(kill_at, range(1, number + 2)))


@pytest.mark.parametrize("act", [vacuum, rebuild], ids=lambda act: act.__name__)
def test_killed_while_the_file_is_replaced_the_old_one_or_the_new_one_is_there(
    processes: Processes, world: World, tmp_path_factory: pytest.TempPathFactory, act: Act
) -> None:
    """Both say the same, nothing else is left after the next open, effects are settled as ever, and it can be done again."""
    prepare(processes, world)
    before = processes.run(look, world)

    def check(killed: World) -> None:
        assert (killed.path / files.DATA_FILE).stat().st_size > 0
        assert processes.run(look, killed) == before
        assert {path.name for path in killed.path.iterdir()} == JOURNAL_FILES
        assert processes.run(live, killed, act, NEVER) > 0
        assert processes.run(look, killed) == before
        walk, state = processes.run(recover, killed, is_watched=False)
        check_all(killed, walk, state)

    number, was_killed = kill_each(processes, world, tmp_path_factory.mktemp("killed"), act, check)

    assert number > 20, "the seam counts nothing"
    assert was_killed == [True] * number + [False]


@pytest.mark.parametrize("act, name", [(back_up, BACKUP), (restore, RESTORED)], ids=["backup", "restore"])
def test_killed_while_a_copy_is_made_there_is_a_whole_one_or_none(
    processes: Processes, world: World, tmp_path_factory: pytest.TempPathFactory, act: Act, name: str
) -> None:
    """The journal is as it was, and the next call makes the copy where there is none."""
    prepare(processes, world)
    before = processes.run(look, world)
    operations = [committed.op_id for committed in before.operations]

    def check(killed: World) -> None:
        place = place_of(killed, name)
        if not place.exists():
            assert processes.run(live, killed, act, NEVER) > 0
        assert {path.name for path in place.iterdir()} == {files.DATA_FILE}
        assert processes.run(look_at_copy, str(place)) == (before.head, operations, [], True)
        assert [path.name for path in place.parent.iterdir() if path.name.startswith(".")] == []
        assert processes.run(look, killed) == before

    number, was_killed = kill_each(processes, world, tmp_path_factory.mktemp("killed"), act, check)

    assert number > 20, "the seam counts nothing"
    assert was_killed == [True] * number + [False]


def settle_all(world: World, path: str) -> tuple[int, str | None]:
    """A recovery in a restored journal of the same service."""
    service = Service(world, is_watched=False)
    with journal.open(path, operation=Delivery) as j:
        settled = j.recover(intents=service.intents)
        return int(settled), settled.stopped.reason if settled.stopped else None


def test_what_was_done_after_a_backup_is_not_done_again_by_what_is_restored(processes: Processes, world: World) -> None:
    """Recipients that can be asked are asked before anything is sent; where none can be, the walk stops."""
    for kind in ("askable", "proving"):
        processes.run(Life(kind), world)
    processes.run(live, world, back_up, NEVER)
    walk, state = processes.run(recover, world, is_watched=False)
    check_all(world, walk, state)
    sent = {key: one.deliveries for key, one in state.sent.items()}
    journal.restore(place_of(world, BACKUP), place_of(world, RESTORED))

    settled = processes.run(settle_all, world, str(place_of(world, RESTORED)))

    assert settled == (walk.cursor, None)
    after = processes.run(look, world)
    assert {key: one.deliveries for key, one in after.sent.items()} == sent
    assert set(sent.values()) == {1}


def fill_disk(world: World) -> list[str]:
    """Tries to replace and to copy where files may not grow, and then where they may; gives what was raised."""
    raised = []
    with world.open() as j:
        for number in range(100):
            j.append(STREAM, Delivery("proving", "x" * 2_000), op_id=f"{number}")
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
        for call in (j.vacuum, j.rebuild, lambda: j.backup(place_of(world, BACKUP))):
            try:
                call()
            except journal.JournalError as error:
                raised.append(type(error).__name__)
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert {path.name for path in world.path.iterdir()} == JOURNAL_FILES
        assert not [path for path in world.path.parent.iterdir() if BACKUP in path.name]
        j.vacuum()
        j.rebuild()
        assert j.backup(place_of(world, BACKUP)) == j.head() == 100
        assert list(j.verify()) == []
    return raised


def test_file_that_may_not_grow_changes_nothing(processes: Processes, world: World) -> None:
    """The journal goes on, and all can be done when there is room."""
    assert processes.run(fill_disk, world) == ["JournalFullError"] * 3


def work_and_replace(world: World) -> None:
    """Three threads append and settle without end, and one replaces the data file again and again."""

    def work(number: int) -> None:
        service = Service(world, is_watched=False)
        for count in itertools.count():
            service.settle(j, service.append(j, KINDS[count % len(KINDS)], f"{os.getpid()} {number} {count}"))

    with world.open() as j:
        for number in range(3):
            threading.Thread(target=work, args=(number,), daemon=True).start()
        for count in itertools.count():
            (j.vacuum if count % 2 else j.rebuild)()
            say_parent("replaced")


def test_killed_at_random_while_the_file_is_replaced_under_load(processes: Processes, world: World) -> None:
    """Whatever was acknowledged is there, and nothing is done twice, kill after kill. The moments are the kernel's."""
    for number in range(12):
        working = processes.start(work_and_replace, world)
        for _ in range(1 + number % 3):
            assert working.hear() == "replaced"
        for _ in range(number * 200):
            os.sched_yield()

        assert working.kill() == KILLED

        walk, state = processes.run(recover, world, is_watched=False)
        check_all(world, walk, state)
        assert {path.name for path in world.path.iterdir()} == JOURNAL_FILES
