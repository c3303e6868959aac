"""A compaction or a reset is killed at each of its places: it has happened or it has not, and the next one ends it."""

import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

import journal
from journal import AlreadyCommitted, Committed, CompactedCursorError
from journal._core import compaction
from journal._storage.store import Store
from tests.crash.support.deaths import NEVER, SEAMS, Fuse
from tests.crash.support.processes import KILLED, Process, Processes, hear_parent, say_parent
from tests.crash.support.service import Delivery, World
from tests.crash.test_steps import AT_A_TIME, LINES_TRIED

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SHORT, OTHER = "short", "other"
"""The stream that is made shorter, with operations at 1 to 6, and another one, with operations at 7 and 8."""
SIZE = 6
THROUGH = 5
DROPPED_AT_ONCE = 2

Act = Callable[[journal.Journal], object]


class Seen(msgspec.Struct, frozen=True):
    """What a fresh process finds of the stream, and of how far its bytes have gone."""

    epoch: int
    floor: int
    operations: list[str]
    resent: list[str]
    """The kind of answer that each of the first operations gets when it is sent again."""
    others: list[str]
    findings: list[str]
    gone: list[int]
    left: list[str]
    """The streams of which something is yet to be dropped."""


def fill(world: World) -> None:
    """A journal with two streams, one of which a reader has read."""
    with world.open() as j:
        for number in range(1, SIZE + 1):
            j.append(SHORT, Delivery("proving", str(number)), op_id=str(number))
        for number in range(1, 3):
            j.append(OTHER, Delivery("proving", str(number)), op_id=str(number))
        j.save_cursor("reader", SIZE, stream=SHORT)


def compact(j: journal.Journal) -> None:
    j.compact(SHORT, THROUGH)


def reset(j: journal.Journal) -> None:
    if j.epoch(SHORT) == 1:
        j.reset(SHORT)


def compact_after_a_reset(j: journal.Journal) -> None:
    reset(j)
    j.compact(SHORT, THROUGH)


class Case(NamedTuple):
    """A call, what is there before and after it, and what goes before."""

    act: Act
    before: Act
    states: list[tuple[int, int, list[str]]]
    """Epoch, floor and operations, from before the call to after it."""
    gone: list[int]
    """Positions of the payloads that are gone when it has come to its end."""


def nothing(_: journal.Journal) -> None:
    """What goes before, where nothing does."""


WHOLE = [str(number) for number in range(1, SIZE + 1)]
DROPPED = list(range(1, THROUGH + 1))
CASES = {
    "compact": Case(compact, nothing, [(1, 0, WHOLE), (1, THROUGH, ["6"])], DROPPED),
    "compact-further": Case(compact, lambda j: j.compact(SHORT, 2), [(1, 2, WHOLE[2:]), (1, THROUGH, ["6"])], DROPPED),
    "reset": Case(reset, nothing, [(1, 0, WHOLE), (2, 0, [])], []),
    "reset-compacted": Case(reset, compact, [(1, THROUGH, ["6"]), (2, 0, [])], DROPPED),
    "compact-reset": Case(compact_after_a_reset, nothing, [(1, 0, WHOLE), (2, 0, []), (2, THROUGH, [])], DROPPED),
}


def prepare(world: World, name: str) -> None:
    """All that goes before a call."""
    fill(world)
    with world.open() as j:
        CASES[name].before(j)


def live(world: World, name: str, seam: str, length: int) -> int:
    """The call, killed at the `length`-th place; gives how many places it has."""
    vars(compaction)["DROP_RECORDS"] = DROPPED_AT_ONCE  # in this child alone
    fuse = Fuse(length)
    SEAMS[seam](fuse)
    with world.open() as j, fuse.burning():
        CASES[name].act(j)
    return fuse.count


def live_again(world: World, name: str, other: bool) -> None:
    """The same call with nobody who kills, or a compaction of the other stream, which is not touched by it."""
    with world.open() as j:
        if other:
            j.compact(OTHER, SIZE + 1)
        else:
            CASES[name].act(j)


def see(world: World) -> Seen:
    """What is there; nothing is written."""
    with world.open() as j:
        floor = j.floor(SHORT)
        if floor and j.epoch(SHORT) == 1:
            for stream in (SHORT, None):
                with pytest.raises(CompactedCursorError):
                    j.read(stream, after=floor - 1)
        operations = list(j.read(SHORT, after=floor))
        assert [c.sequence for c in operations] == (list(range(SIZE - len(operations) + 1, SIZE + 1)))
        everything = j.read(after=max(floor, j.floor(OTHER)))
        others = [c.op_id for c in everything if c.stream == OTHER]
        store: Store = j._store
        return Seen(
            epoch=j.epoch(SHORT),
            floor=int(floor),
            operations=[c.op_id for c in operations],
            resent=[] if j.epoch(SHORT) > 1 else [kind_of(j, number) for number in range(1, SIZE + 1)],
            others=others,
            findings=[repr(finding) for finding in j.verify()],
            gone=store.read(lambda view: [at for at in range(1, SIZE + 3) if not view.frame(at).payload]),
            left=store.read(lambda view: view.droppings()),
        )


def kind_of(j: journal.Journal, number: int) -> str:
    """Sends an operation again: the kind of the answer."""
    answer = j.append(SHORT, Delivery("proving", str(number)), op_id=str(number))
    assert (answer.sequence, answer.position) == (number, number)
    assert isinstance(answer, AlreadyCommitted) or answer.repeated
    return type(answer).__name__


def check(case: Case, seen: Seen) -> None:
    """It is as before or after, never between."""
    assert seen.findings == []
    assert (seen.epoch, seen.floor, seen.operations) in case.states
    if seen.epoch == 1:
        compacted = [AlreadyCommitted.__name__] * seen.floor
        assert seen.resent == compacted + [Committed.__name__] * (SIZE - seen.floor)
    assert set(seen.gone) <= {*case.gone, SIZE + 1}


def kill_at(processes: Processes, world: World, name: str, seam: str, length: int) -> bool:
    """Killed at one place, looked at, and ended: by the same call, or at every other place by another stream's."""
    case = CASES[name]
    died = processes.start(live, world, name, seam, length)
    was_killed = died.wait() == KILLED
    place = died.hear() if was_killed else "nowhere"
    try:
        first = processes.run(see, world)
        check(case, first)
        assert processes.run(see, world) == first
        if length % 2:
            processes.run(live_again, world, name, True)
            ended = processes.run(see, world)
            check(case, ended)
            assert (ended.epoch, ended.floor, ended.left) == (first.epoch, first.floor, [])
        processes.run(live_again, world, name, False)
        last = processes.run(see, world)
        check(case, last)
        assert (last.epoch, last.floor, last.operations) == case.states[-1]
        expected = case.gone + ([SIZE + 1] if length % 2 else [])
        assert (last.gone, last.left) == (expected, [])
    except AssertionError as error:
        error.add_note(f"{name} was killed at place {length} of its {seam}: {place}")
        raise
    return was_killed


@pytest.mark.parametrize("seam", SEAMS)
@pytest.mark.parametrize("name", CASES)
def test_killed_anywhere_it_is_before_or_after(
    processes: Processes, tmp_path: Path, world: World, name: str, seam: str
) -> None:
    """At each step, around each write, at lines of its code; whatever compacts next ends it."""
    processes.run(prepare, world, name)

    def copy(of: object) -> World:
        shutil.copytree(world.path, tmp_path / str(of) / "journal")
        return World(str(tmp_path / str(of)))

    def kill(length: int) -> bool:
        copied = copy(length)
        was_killed = kill_at(processes, copied, name, seam, length)
        shutil.rmtree(copied.directory)  # kept where it failed
        return was_killed

    number = processes.run(live, copy("whole"), name, seam, NEVER)
    step = max(1, number // LINES_TRIED) if seam == "lines" else 1
    with ThreadPoolExecutor(AT_A_TIME) as threads:
        was_killed = list(threads.map(kill, range(1, number + 2, step)))

    assert number >= 2, "the seam counts nothing"
    assert all(was_killed[:-1])
    assert seam == "lines" or was_killed[-1] is False


def compact_when_told(world: World, streams: list[str]) -> list[int]:
    """Compacts streams bit by bit, all at once with others; gives each floor that it was answered."""
    vars(compaction)["DROP_RECORDS"] = 7  # in this child alone
    with world.open() as j:
        say_parent("open")
        hear_parent()
        floors = []
        for through in range(20, MANY + 1, 20):
            for stream in streams:
                floors.append(int(j.compact(stream, through)))
                assert floors[-1] >= through
        return floors


MANY = 200


def fill_many(world: World) -> None:
    """Two streams, side by side."""
    with world.open() as j:
        for number in range(MANY // 2):
            for stream in (SHORT, OTHER):
                j.append(stream, Delivery("proving", str(number)), op_id=str(number))


def started(processes: Processes, world: World, orders: list[list[str]]) -> Iterator[Process[list[int]]]:
    """Processes that are ready to compact."""
    for streams in orders:
        process = processes.start(compact_when_told, world, streams)
        assert process.hear() == "open"
        yield process


def look_at_many(world: World) -> tuple[list[int], list[str], int, list[str]]:
    """Floors, findings, how many payloads there are, and what is left to be dropped."""
    with world.open() as j:
        store: Store = j._store
        return (
            [int(j.floor(stream)) for stream in (SHORT, OTHER)],
            [repr(finding) for finding in j.verify()],
            store.read(lambda view: sum(bool(view.frame(at).payload) for at in range(1, MANY + 1))),
            store.read(lambda view: view.droppings()),
        )


@pytest.mark.parametrize("kills", [False, True])
def test_processes_that_compact_at_once_come_to_one_end(processes: Processes, world: World, kills: bool) -> None:
    """The same streams, in different orders; where some die in the middle, who is left ends it."""
    processes.run(fill_many, world)
    running = list(started(processes, world, [[SHORT, OTHER], [OTHER, SHORT], [SHORT, OTHER]]))

    for process in running:
        process.say("go")
    if kills:
        for process in running[1:]:
            process.kill()
    answers = [process.value() for process in running[: 1 if kills else None]]

    assert all(floors == sorted(floors) for floors in (answer[::2] for answer in answers))
    assert processes.run(look_at_many, world) == ([MANY, MANY], [], 0, [])
